"""Evaluates expressions over abstract values: names, items, attributes, arithmetic, assignment."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache

from attn_advisor.autograd import calls
from attn_advisor.autograd.attributes import BUFFER, PARAMETER, TENSOR, Attribute, Layer
from attn_advisor.autograd.attributes import NUMBER as NUMBER_ATTRIBUTE
from attn_advisor.autograd.operations import AUGMENTED
from attn_advisor.autograd.values import NUMBER, NUMPY, OBJECT, Memory, State, Value, joined, new, replace
from attn_advisor.source.module import Class, Module

_PROPERTIES = {"T", "mT", "H", "mH", "real", "imag"}
_NUMBER_PROPERTIES = set("shape dtype device ndim is_cuda requires_grad training itemsize layout p".split())
_COMPARE = {"Eq": "eq", "NotEq": "ne", "Lt": "lt", "LtE": "le", "Gt": "gt", "GtE": "ge"}
Attributes = Callable[[Class], dict[str, Attribute]]


@cache
def handler_name(kind: type) -> str:
    return f"_{kind.__name__.lower()}"


class Expressions:
    """Everything but calls, which are in `evaluate.Evaluator`."""

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
        handler = getattr(self, handler_name(type(node)), None)  # type: ignore[arg-type]  # classes hash by identity
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
            held = self.state.names.get(path) if path else None
            return held or Value("unknown", frozenset([Memory("unknown", "item", node)]))
        how = self.indexing(index)
        if how == "copy":
            return self.operate("index", [base, Value("sequence", items=(new("index", node),))], node)
        result = base.view(node, "select", transposed=base.transposed)
        if base.kind == "unknown":
            result = replace(result, kind="unknown")
        if how == "either":
            fresh = calls.copied("index", base, node, self.gradients, self.state)
            return replace(fresh, maybe=frozenset((m, "index") for m in base.memory) | base.maybe, kind=result.kind)
        whole = isinstance(index, (ast.Constant, ast.Name, ast.UnaryOp))
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
                return replace(
                    base.view(node, "data", detached=True, data=True, leaf=False), contiguous=base.contiguous
                )
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
            if value.op == "member":
                value = replace(value, kind="unknown")
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
