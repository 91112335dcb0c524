"""Evaluates expressions over abstract values, one function at a time, in execution order."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from attn_advisor.autograd import calls
from attn_advisor.autograd.attributes import BUFFER, PARAMETER, TENSOR, Attribute, Layer, layer
from attn_advisor.autograd.attributes import NUMBER as NUMBER_ATTRIBUTE
from attn_advisor.autograd.operations import (
    AUGMENTED,
    CREATORS,
    NUMBERS,
    PARAMETRISED,
    SHARED_WITH_ARRAYS,
    SYNONYMS,
    table,
    writes,
)
from attn_advisor.autograd.values import NUMBER, NUMPY, OBJECT, Memory, State, Value, joined, new
from attn_advisor.source.module import Class, Module

_PROPERTIES = {"T", "mT", "H", "mH", "real", "imag"}
_NUMBER_PROPERTIES = {
    "shape",
    "dtype",
    "device",
    "ndim",
    "is_cuda",
    "requires_grad",
    "training",
    "itemsize",
    "layout",
    "p",
}
_TENSOR_MODULES = (
    "torch.nn.functional.",
    "torch.linalg.",
    "torch.special.",
    "torch.fft.",
    "torch.Tensor.",
    "torch._C._nn.",
)
_OPERATORS = {**AUGMENTED}
_COMPARE = {"Eq": "eq", "NotEq": "ne", "Lt": "lt", "LtE": "le", "Gt": "gt", "GtE": "ge"}
Attributes = Callable[[Class], dict[str, Attribute]]


class Evaluator:
    """Expressions. `write` is called for each in-place change; statements are in `interpret.Interpreter`."""

    def __init__(self, module: Module, cls: Class | None, attributes: Attributes, gradients: bool) -> None:
        self.module = module
        self.cls = cls
        self.attributes = attributes
        self.state = State()
        self.gradients = gradients
        self.guards: list[ast.expr] = []  # conditions of the branches being evaluated
        self.tensor_names: set[str] = set()  # names that the function uses as tensors
        self.watched: set[ast.Call] = set()  # calls whose arguments are to be noted in `seen`
        self.seen: dict[ast.Call, tuple[list[Value], dict[str, Value], bool]] = {}

    def write(
        self, node: ast.AST, target: ast.expr, value: Value, op: str, args: list[Value], kwargs: dict[str, Value]
    ) -> Value:
        raise NotImplementedError

    def evaluate(self, node: ast.expr | None) -> Value:
        if node is None:
            return OBJECT
        handler = getattr(self, f"_{type(node).__name__.lower()}", None)
        if handler is None:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self.evaluate(child)
            return OBJECT
        return handler(node)

    def _constant(self, node: ast.Constant) -> Value:
        return OBJECT if node.value is None else NUMBER

    def _joinedstr(self, node: ast.JoinedStr) -> Value:
        return NUMBER

    def _name(self, node: ast.Name) -> Value:
        found = self.state.names.get(node.id)
        if found is None:
            if node.id in self.module.imports or node.id in self.module.functions or node.id in self.module.classes:
                return OBJECT
            found = self.state.names[node.id] = Value("unknown", frozenset([Memory("unknown", node.id, node)]))
        return found

    def _tuple(self, node: ast.Tuple | ast.List) -> Value:
        if any(isinstance(item, ast.Starred) for item in node.elts):
            members = [self.evaluate(item) for item in node.elts]
            element = None
            for member in members:
                element = member if element is None else joined(element, member)
            return Value("sequence", element=element)
        return Value("sequence", items=tuple(self.evaluate(item) for item in node.elts), node=node)

    _list = _set = _tuple

    def _dict(self, node: ast.Dict) -> Value:
        for value in node.values:
            self.evaluate(value)
        return OBJECT

    def _starred(self, node: ast.Starred) -> Value:
        value = self.evaluate(node.value)
        return self.member(value, node)

    def _ifexp(self, node: ast.IfExp) -> Value:
        self.evaluate(node.test)
        self.guards.append(node.test)
        value = joined(self.evaluate(node.body), self.evaluate(node.orelse))
        self.guards.pop()
        return value

    def _boolop(self, node: ast.BoolOp) -> Value:
        values = [self.evaluate(value) for value in node.values]
        tensors = [value for value in values if value.tensorlike]
        result = values[0]
        for value in tensors:
            result = joined(result, value)
        return result if tensors else OBJECT

    def _namedexpr(self, node: ast.NamedExpr) -> Value:
        value = self.evaluate(node.value)
        self.state.names[node.target.id] = value
        return value

    def _await(self, node: ast.Await) -> Value:
        return self.evaluate(node.value)

    def _unaryop(self, node: ast.UnaryOp) -> Value:
        value = self.evaluate(node.operand)
        if isinstance(node.op, ast.Not) or not value.tensorlike:
            return NUMBER if value.kind == "number" or isinstance(node.op, ast.Not) else OBJECT
        if isinstance(node.op, ast.UAdd):
            return value
        op = "neg" if isinstance(node.op, ast.USub) else "bitwise_not"
        return self.operate(op, [value], node, kind=value.kind)

    def _binop(self, node: ast.BinOp) -> Value:
        left, right = self.evaluate(node.left), self.evaluate(node.right)
        return self.arithmetic(type(node.op).__name__, left, right, node)

    def arithmetic(self, operator: str, left: Value, right: Value, node: ast.AST) -> Value:
        if not left.tensorlike and not right.tensorlike:
            if "sequence" in (left.kind, right.kind):
                known = left.element or right.element or next(iter([*left.items, *right.items]), None)
                return Value("sequence", element=known)
            return NUMBER if left.kind == right.kind == "number" else OBJECT
        kind = "tensor" if "tensor" in (left.kind, right.kind) else "unknown"
        return self.operate(AUGMENTED[operator], [left, right], node, kind=kind)

    def _compare(self, node: ast.Compare) -> Value:
        values = [self.evaluate(node.left), *(self.evaluate(c) for c in node.comparators)]
        name = _COMPARE.get(type(node.ops[0]).__name__)
        if name is None or len(values) > 2 or not any(v.kind == "tensor" for v in values):
            return NUMBER
        return self.operate(name, values, node)

    def operate(self, op: str, args: list[Value], node: ast.AST, kind: str = "tensor", **kwargs: Value) -> Value:
        result = calls.apply(self.state, op, args, kwargs, node, self.gradients, {})
        return replace(result, kind="unknown") if kind == "unknown" and result.kind == "tensor" else result

    def _subscript(self, node: ast.Subscript) -> Value:
        base = self.evaluate(node.value)
        return self.item(base, node)

    def item(self, base: Value, node: ast.Subscript) -> Value:
        index = node.slice
        if base.kind == "sequence":
            self.evaluate(index)
            if isinstance(index, ast.Slice):
                return base
            if (
                isinstance(index, ast.Constant)
                and isinstance(index.value, int)
                and -len(base.items) <= index.value < len(base.items)
            ):
                return base.items[index.value]
            member = self.member(base, node)
            known = (
                index.value
                if isinstance(index, ast.Constant) and isinstance(index.value, int) and index.value >= 0
                else None
            )
            return replace(member, part=known) if member.outputs is not None and member.part is None else member
        if base == NUMPY:
            return NUMPY
        if not base.tensorlike:
            self.evaluate(index)
            path = self.path(node)
            known = self.state.names.get(path) if path else None
            return known or Value("unknown", frozenset([Memory("unknown", "item", node)]))
        how = self.indexing(index)
        if how == "copy":
            return self.operate("index", [base, Value("sequence", items=(new("index", node),))], node)
        result = base.view(node, "select", transposed=base.transposed)
        if base.kind == "unknown":
            result = replace(result, kind="unknown")
        if how == "either":
            fresh = calls.copied("index", base, node, self.gradients, self.state)
            return replace(fresh, maybe=frozenset((m, "index") for m in base.memory) | base.maybe, kind=result.kind)
        whole = isinstance(index, (ast.Constant, ast.Name)) or (isinstance(index, ast.UnaryOp))
        return replace(result, contiguous=base.contiguous if whole else None)

    def indexing(self, index: ast.expr) -> str:
        """ "view" for basic indexing, "copy" for indices that are tensors or lists, "either" where that is not known."""
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        answer = "view"
        for part in parts:
            if isinstance(part, ast.Slice):
                for bound in (part.lower, part.upper, part.step):
                    if bound is not None:
                        self.evaluate(bound)
                continue
            value = self.evaluate(part)
            if isinstance(part, (ast.Constant, ast.UnaryOp)) and value.kind != "tensor":
                continue
            if value.kind in ("tensor", "sequence"):
                return "copy"
            if value.kind == "unknown":
                answer = "either"
        return answer

    def path(self, node: ast.expr) -> str | None:
        """A dotted or indexed place that can be assigned: self.x, cache.k, d["k"]."""
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.Attribute):
            base = self.path(node.value)
            return f"{base}.{node.attr}" if base else None
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            base = self.path(node.value)
            return f"{base}[{node.slice.value!r}]" if base else None
        return None

    def _attribute(self, node: ast.Attribute) -> Value:
        path = self.path(node)
        if path and path in self.state.names:
            return self.state.names[path]
        if self.module.qualified(node):
            return OBJECT
        base = self.evaluate(node.value)
        if base.tensorlike:
            if node.attr in _PROPERTIES:
                return self.operate(node.attr, [base], node)
            if node.attr == "data":
                return replace(base.view(node, "data", detached=True, data=True), contiguous=base.contiguous)
        if node.attr in _NUMBER_PROPERTIES:
            return NUMBER
        value = self.attribute_of_self(node.attr, node) if path == f"self.{node.attr}" else None
        if value is None:
            value = Value("unknown", frozenset([Memory("attribute", path or node.attr, node)]))
        if path:
            self.state.names[path] = value
        return value

    def attribute_of_self(self, name: str, node: ast.AST) -> Value | None:
        kind = self.attributes(self.cls).get(name) if self.cls is not None else None
        if isinstance(kind, Layer):
            return Value("module", module=kind)
        if kind == NUMBER_ATTRIBUTE:
            return NUMBER
        if kind == PARAMETER:
            value = Value("tensor", frozenset([Memory("parameter", f"self.{name}", node)]), leaf=True, contiguous=True)
            if self.gradients:
                self.state.give_gradient(value.memory, trained=True)
            return value
        if kind in (BUFFER, TENSOR):
            return Value("tensor", frozenset([Memory("buffer", f"self.{name}", node)]), contiguous=True)
        return None

    def member(self, value: Value, node: ast.AST) -> Value:
        """One element of what a loop or a star goes through."""
        if value.kind == "sequence":
            element = value.element
            for item in value.items:
                element = item if element is None else joined(element, item)
            return element or OBJECT
        if value.kind == "tensor":  # iterating a tensor is unbind
            return self.member(self.operate("unbind", [value], node), node)
        if value.kind == "unknown":
            return replace(value, node=node, outputs=value.outputs)
        return NUMBER if value.kind == "number" else Value("unknown", frozenset([Memory("unknown", "item", node)]))

    def _lambda(self, node: ast.Lambda) -> Value:
        return replace(OBJECT, module=node)

    def _listcomp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> Value:
        for generator in node.generators:
            self.bind(generator.target, self.loop_item(generator.iter))
            for condition in generator.ifs:
                self.evaluate(condition)
        return Value("sequence", element=self.evaluate(node.elt))

    _generatorexp = _setcomp = _listcomp

    def _dictcomp(self, node: ast.DictComp) -> Value:
        for generator in node.generators:
            self.bind(generator.target, self.loop_item(generator.iter))
        self.evaluate(node.value)
        return OBJECT

    def loop_item(self, node: ast.expr) -> Value:
        """What a loop over the expression binds."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "range":
                for arg in node.args:
                    self.evaluate(arg)
                return NUMBER
            if node.func.id == "enumerate" and node.args:
                return Value("sequence", items=(NUMBER, self.loop_item(node.args[0])))
            if node.func.id == "zip":
                return Value("sequence", items=tuple(self.loop_item(arg) for arg in node.args))
            if node.func.id == "reversed" and node.args:
                return self.loop_item(node.args[0])
        return self.member(self.evaluate(node), node)

    def bind(self, target: ast.expr, value: Value) -> None:
        """Assignment to a name, place or pattern of names."""
        if isinstance(target, (ast.Tuple, ast.List)):
            plain = not any(isinstance(item, ast.Starred) for item in target.elts)
            if value.kind == "tensor":  # unpacking a tensor is unbind
                value = self.operate("unbind", [value], target)
            for at, item in enumerate(target.elts):
                if value.kind == "sequence" and plain and len(value.items) == len(target.elts):
                    part = value.items[at]
                elif value.kind == "unknown":
                    part = Value("unknown", value.memory, value.maybe, node=target)
                else:
                    part = self.member(value, target)
                if part.outputs is not None and part.part is None and not isinstance(item, ast.Starred):
                    part = replace(part, part=at)
                if isinstance(item, ast.Starred):
                    item, part = item.value, Value("sequence", element=part)
                self.bind(item, part)
        elif isinstance(target, (ast.Name, ast.Attribute)):
            path = self.path(target)
            if path:
                self.forget(path)
                if value.kind == "unknown" and path in self.tensor_names:
                    value = replace(value, kind="tensor")
                self.state.names[path] = value

    def forget(self, path: str) -> None:
        """The place holds something else from here: what was known of its parts is void."""
        prefixes = (path + ".", path + "[")
        for name in [n for n in self.state.names if n.startswith(prefixes)]:
            del self.state.names[name]

    # Calls

    def _call(self, node: ast.Call) -> Value:
        func = node.func
        if isinstance(func, ast.Name) and func.id == "map" and len(node.args) == 2 and "map" not in self.state.names:
            return self._map(node)
        qualified = self.module.qualified(func)
        args = [self.evaluate(arg) for arg in node.args]
        kwargs = {word.arg or "**": self.evaluate(word.value) for word in node.keywords}
        if node in self.watched:
            self.seen[node] = (args, kwargs, self.gradients)
        if qualified is not None:
            return self.function(qualified, node, args, kwargs)
        if isinstance(func, ast.Attribute):
            return self.method(node, func, args, kwargs)
        if isinstance(func, ast.Call):
            made = layer(self.module, func)
            if made is not None and args:
                self.evaluate_arguments(func)
                return self.layer(made, args[0], node, node.args[0])
        if isinstance(func, ast.Name):
            if func.id in (
                "int",
                "float",
                "len",
                "bool",
                "str",
                "abs",
                "round",
                "isinstance",
                "hasattr",
                "type",
                "range",
                "id",
            ):
                return NUMBER
            if func.id in ("tuple", "list", "sorted", "reversed") and args:
                return (
                    args[0]
                    if args[0].kind in ("sequence", "unknown")
                    else Value("sequence", element=self.member(args[0], node))
                )
            if func.id in ("max", "min", "sum") and not any(a.tensorlike for a in args):
                return self.member(args[0], node) if args and args[0].kind == "sequence" else NUMBER
            if func.id == "dict":
                return OBJECT
        self.evaluate(func)
        return self.opaque(node, [*args, *kwargs.values()])

    def evaluate_arguments(self, call: ast.Call) -> None:
        for arg in call.args:
            self.evaluate(arg)

    def opaque(self, node: ast.AST, args: list[Value], name: str = "call") -> Value:
        """The result of something unknown: taken to be new memory that a gradient may reach."""
        result = new(name, node, kind="unknown", origin="new", detached=not self.gradients)
        if self.gradients and any(self.state.needs_gradient(t) for arg in args for t in calls.tensors(arg)):
            self.state.give_gradient(result.memory, any(self.state.is_trained(calls.tensors(arg)) for arg in args))
        return result

    def _map(self, node: ast.Call) -> Value:
        element = self.member(self.evaluate(node.args[1]), node)
        func = node.args[0]
        if isinstance(func, ast.Lambda) and len(func.args.args) == 1:
            kept = self.state.names.get(func.args.args[0].arg)
            self.state.names[func.args.args[0].arg] = element
            result = self.evaluate(func.body)
            if kept is None:
                del self.state.names[func.args.args[0].arg]
            else:
                self.state.names[func.args.args[0].arg] = kept
            return Value("sequence", element=result)
        return Value("sequence", element=self.opaque(node, [element]))

    def constants(self, node: ast.Call) -> dict[str, object]:
        return {
            word.arg: word.value.value for word in node.keywords if word.arg and isinstance(word.value, ast.Constant)
        }

    def function(self, qualified: str, node: ast.Call, args: list[Value], kwargs: dict[str, Value]) -> Value:
        name = qualified.rsplit(".", 1)[-1]
        if qualified in ("einops.rearrange", "einops.einops.rearrange"):
            return self.rearrange(node, args)
        if qualified in ("einops.repeat", "einops.reduce", "einops.einsum"):
            if name == "einsum":
                return self.operate("einsum", [NUMBER, *args[:-1]], node)
            return self.opaque(node, args, name)
        if qualified.startswith(("math.", "numpy.", "random.", "os.", "logging.")):
            return NUMBER if qualified.startswith("math.") else NUMPY if qualified.startswith("numpy.") else OBJECT
        if qualified.startswith("torch.nn.init.") and name.endswith("_"):
            return args[0] if args else OBJECT
        if qualified == "copy.deepcopy" or not qualified.startswith("torch."):
            return self.opaque(node, [*args, *kwargs.values()], name)
        made = layer(self.module, node)
        if made is not None:
            return Value("module", module=made)
        if not (qualified.count(".") == 1 or qualified.startswith(_TENSOR_MODULES)):
            return self.opaque(node, [*args, *kwargs.values()], name)
        if name[:1].isupper() or name in (
            "no_grad",
            "device",
            "Generator",
            "set_grad_enabled",
            "is_tensor",
            "finfo",
            "iinfo",
        ):
            return OBJECT
        if name in ("is_floating_point", "numel", "is_grad_enabled", "is_autocast_enabled"):
            return NUMBER
        if qualified.startswith("torch.linalg."):
            name = f"linalg.{name}"
        return self.call(name, node, args, kwargs, node.args[0] if node.args else None)

    def call(
        self, name: str, node: ast.Call, args: list[Value], kwargs: dict[str, Value], target: ast.expr | None
    ) -> Value:
        """A tensor operation, as function or method: in place, with out=, or plain."""
        constants = self.constants(node)
        base = writes(name)
        if base is not None and args and args[0].tensorlike and target is not None:
            return self.write(node, target, args[0], base, args[1:], kwargs)
        if constants.get("inplace") is True and args and target is not None and args[0].tensorlike:
            del kwargs["inplace"]
            return self.write(node, target, args[0], name, args[1:], kwargs)
        kwargs.pop("inplace", None)
        out = kwargs.pop("out", None)
        if name in ("softmax", "log_softmax") and len(args) > 2 and isinstance(node.func, ast.Attribute):
            args = args[:2]
        if name == "dropout" and "training" not in kwargs and len(args) <= 2 and self.module.qualified(node.func):
            constants["p_only"] = True  # F.dropout drops unless told not to
        if name == "where" and not self.module.qualified(node.func) and len(args) == 3:
            args = [args[1], args[0], args[2]]
        result = calls.apply(self.state, SYNONYMS.get(name, name), args, kwargs, node, self.gradients, constants)
        if out is not None and out.tensorlike:
            place = next(word.value for word in node.keywords if word.arg == "out")
            return self.write(node, place, out, "copy", [result], {})
        return result

    def rearrange(self, node: ast.Call, args: list[Value]) -> Value:
        pattern = node.args[1] if len(node.args) > 1 else None
        if not args or not args[0].tensorlike:
            return self.opaque(node, args, "rearrange")
        text = pattern.value if isinstance(pattern, ast.Constant) and isinstance(pattern.value, str) else ""
        how = calls.rearranges_in_place(text)
        if how:
            return args[0].view(node, "rearrange", transposed=True)
        if how is None:
            return calls.perhaps("rearrange", args[0], node, self.gradients, self.state)
        return calls.copied("rearrange", args[0], node, self.gradients, self.state)

    def method(self, node: ast.Call, func: ast.Attribute, args: list[Value], kwargs: dict[str, Value]) -> Value:
        path = self.path(func)
        base = self.evaluate(func.value)
        name = func.attr
        if base == NUMPY:
            return NUMPY
        if base.tensorlike and (name in table() or writes(name) or name in NUMBERS or name in CREATORS):
            if name in NUMBERS and not (name == "type" and args):
                return NUMBER
            if (
                base.kind == "unknown"
                and writes(name) is None
                and name in ("index", "copy", "sort", "split", "pad", "all", "any")
            ):
                return self.opaque(node, [base, *args], name)
            if name == "split" and args and args[0].kind == "number" and isinstance(node.args[0], ast.Constant):
                if isinstance(node.args[0].value, str):
                    return Value("sequence", element=NUMBER)
            result = self.call(name, node, [replace(base, kind="tensor"), *args], kwargs, func.value)
            if base.kind == "unknown" and name in SHARED_WITH_ARRAYS and result.kind == "tensor":
                return replace(result, kind="unknown")
            return result
        if base.kind == "sequence" and name in ("append", "extend", "insert") and args and path:
            owner = self.path(func.value)
            grown = joined(base.element, args[-1]) if base.element else args[-1]
            if owner:
                self.state.names[owner] = Value(
                    "sequence", items=(), element=self.member(replace(base, element=grown), node)
                )
            return OBJECT
        if base.tensorlike and name == "clone":
            return self.operate("clone", [base], node)
        value = self.state.names.get(path) if path else None
        if value is None and path == f"self.{name}":
            value = self.attribute_of_self(name, func)
        if value is not None and value.kind == "module" and args:
            return self.layer(value.module, args[0], node, node.args[0])
        return self.opaque(node, [*args, *kwargs.values()], name)

    def layer(self, made: Any, arg: Value, node: ast.Call, target: ast.expr) -> Value:
        """The result of calling a torch.nn module."""
        if made.chain:
            for part in made.chain:
                arg = self.layer(part, arg, node, target)
            return arg
        if made.op == "identity":
            return calls.perhaps("Identity", arg, node, self.gradients, self.state) if arg.tensorlike else arg
        if not made.op or not arg.tensorlike:
            return self.opaque(node, [arg], "module")
        arg = replace(arg, kind="tensor")
        if made.inplace:
            return self.write(node, target, arg, made.op, [], {})
        if made.op in PARAMETRISED:
            return self.weighted(made.op, arg, node)
        return calls.apply(self.state, made.op, [arg], {}, node, self.gradients, {})

    def weighted(self, op: str, arg: Value, node: ast.Call) -> Value:
        """A layer with weights: its result always needs a gradient while gradients are recorded."""
        weight = Value("tensor", frozenset([Memory("parameter", "weight", node)]), leaf=True)
        if self.gradients:
            self.state.give_gradient(weight.memory, trained=True)
        if op == "embedding":
            return calls.apply(self.state, op, [weight, arg], {}, node, self.gradients, {})
        forms = table()[op]
        first = forms[0].args[0]
        return calls.apply(self.state, op, [], {first: arg, "weight": weight}, node, self.gradients, {})
