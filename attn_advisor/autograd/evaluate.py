"""Evaluates calls over abstract values: functions of torch, methods, layers, and everything unknown."""

from __future__ import annotations

import ast
import re
from typing import Any

from attn_advisor.autograd import calls
from attn_advisor.autograd.attributes import layer
from attn_advisor.autograd.expressions import Expressions
from attn_advisor.autograd.operations import (
    CREATORS,
    NUMBERS,
    PARAMETRISED,
    SHARED_WITH_ARRAYS,
    SYNONYMS,
    table,
    torch_function,
    writes,
)
from attn_advisor.autograd.values import NUMBER, NUMPY, OBJECT, Memory, Value, joined, new, replace

# Members of a module that give one tensor, whatever class they are of.
_GIVES_TENSOR = re.compile(
    r"(emb|embed|embeddings?|norm\d?|proj|linear\d?|conv\d?|dropout|drop|dense|mlp|ffn|fc\d?|lm_head|to_[qkv]{1,3}|to_out)$"
)


class Evaluator(Expressions):
    """Expressions with calls. Statements, and `write`, which is called for each in-place change, are in `interpret.Interpreter`."""

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
        operation = torch_function(qualified)
        if operation is None:
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
        return self.call(operation, node, args, kwargs, node.args[0] if node.args else None)

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
        if name in CREATORS and constants.get("requires_grad") is True:
            return self.leaf(name, node)
        result = calls.apply(self.state, SYNONYMS.get(name, name), args, kwargs, node, self.gradients, constants)
        if out is not None and out.tensorlike:
            place = next(word.value for word in node.keywords if word.arg == "out")
            return self.write(node, place, out, "copy", [result], {})
        return result

    def leaf(self, name: str, node: ast.AST) -> Value:
        """A tensor made with requires_grad=True."""
        value = Value("tensor", frozenset([Memory("parameter", name, node)]), leaf=True, contiguous=True, node=node)
        if self.gradients:
            self.state.give_gradient(value.memory, trained=True)
        return value

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
        result = self.opaque(node, [*args, *kwargs.values()], name)
        if path == f"self.{name}" and _GIVES_TENSOR.search(name):
            return replace(result, kind="tensor", op="member")  # unpacked, it turns out to be a tuple
        return result

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
