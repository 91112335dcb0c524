"""Evaluation of expressions and calls into values."""

from __future__ import annotations

import ast
import operator
from collections.abc import Sequence

from attn_advisor.dataflow import build
from attn_advisor.dataflow.attributes import class_of, definition, instance_class
from attn_advisor.dataflow.operations import VIEWS, canonical, method
from attn_advisor.dataflow.values import UNKNOWN, Effect, Frame, Graph, Value
from attn_advisor.source.module import Class, Module

_BINARY = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.BitAnd: "bitand",
    ast.BitOr: "bitor",
    ast.BitXor: "bitxor",
}
_FOLD = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "pow": operator.pow,
    "floordiv": operator.floordiv,
}
_COMPARE = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.Is: "is",
    ast.IsNot: "is_not",
    ast.In: "in",
    ast.NotIn: "not_in",
}
MAX_DEPTH = 6
# Modules that hand back their input, or a function of each element that the graph names.
_MODULE_OPERATIONS = {"Softmax": "softmax", "Dropout": "dropout", "Identity": "identity"}


class _Names(dict[type, str]):
    """Names of the methods for each type of node."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def __missing__(self, kind: type) -> str:
        return self.setdefault(kind, self.prefix + kind.__name__)


_VISIT = _Names("eval_")


class Evaluator:
    """Turns expressions into values of one graph. Statements are in statements.py, which subclasses this."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.rank_hints: dict[object, int] = {}

    # -- values ---------------------------------------------------------------------------------------------------------------------------
    def value(
        self,
        op: str,
        args: Sequence[Value],
        node: ast.AST | None,
        frame: Frame,
        names: Sequence[str] = (),
        **attrs: object,
    ) -> Value:
        return self.graph.add(Value(op, tuple(args), tuple(names), attrs, node, frame))

    def opaque(self, node: ast.AST, frame: Frame, *args: Value) -> Value:
        return self.value("opaque", args, node, frame)

    # -- expressions ----------------------------------------------------------------------------------------------------------------------
    def eval(self, node: ast.expr, frame: Frame) -> Value:
        self.graph.budget -= 1
        if self.graph.budget < 0:
            return self.opaque(node, frame)
        visit = getattr(self, _VISIT[type(node)], None)
        if visit is None:
            children = [self.eval(c, frame) for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr)]
            return self.opaque(node, frame, *children)
        return visit(node, frame)

    def eval_Constant(self, node: ast.Constant, frame: Frame) -> Value:
        return self.graph.add(build.constant(node.value, node, frame))

    def eval_Name(self, node: ast.Name, frame: Frame) -> Value:
        value = self.lookup(node.id, frame)
        if value is None:
            value = self.global_name(node.id, frame.module, node, frame)
        frame.name_values[node] = value
        return value

    def lookup(self, name: str, frame: Frame) -> Value | None:
        scope: Frame | None = frame
        while scope is not None:
            if name in scope.env:
                return scope.env[name]
            scope = scope.parent
        return None

    def global_name(self, name: str, module: Module, node: ast.AST, frame: Frame) -> Value:
        if name in module.functions:
            return self.value(
                "function",
                (),
                node,
                frame,
                qualified=name,
                _node=module.functions[name],
                _module=module,
                _cls=None,
                _closure=None,
            )
        if name in module.classes:
            return self.value("class", (), node, frame, qualified=name, _cls=module.classes[name])
        if name in module.constants:
            return self.module_constant(name, module.constants[name], module, node, frame)
        found = module.imported(name)
        if isinstance(found, Class):
            return self.value("class", (), node, frame, qualified=found.qualname, _cls=found)
        if isinstance(found, tuple):
            home, definition_node = found
            if isinstance(definition_node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return self.value(
                    "function",
                    (),
                    node,
                    frame,
                    qualified=f"{home.path}:{definition_node.name}",
                    _node=definition_node,
                    _module=home,
                    _cls=None,
                    _closure=None,
                )
        if name in module.imports:
            return self.value("import", (), node, frame, qualified=module.imports[name].qualified)
        return self.value("name", (), node, frame, name=name)

    def module_constant(self, name: str, expr: ast.expr, module: Module, node: ast.AST, frame: Frame) -> Value:
        """A module-level name: what it stands for if that is a function or a number, else just the name."""
        if isinstance(expr, ast.Constant):
            return self.value("const", (), node, frame, value=expr.value)
        qualified = module.qualified(expr)
        if qualified:
            return self.value("import", (), node, frame, qualified=qualified)
        if isinstance(expr, ast.Name) and expr.id in module.functions:
            return self.global_name(expr.id, module, node, frame)
        if isinstance(expr, ast.Lambda):
            return self.value(
                "function", (), node, frame, qualified=name, _node=expr, _module=module, _cls=None, _closure=None
            )
        if isinstance(expr, (ast.UnaryOp, ast.BinOp, ast.Call)):
            home = Frame(self.graph, module, module.tree)
            home.stmt, home.conditions = frame.stmt, frame.conditions
            inner = self.eval(expr, home) if frame.depth < MAX_DEPTH else None
            if inner is not None and inner.op in ("const", "import", "partial"):
                return inner
        return self.value("name", (), node, frame, name=name)

    def eval_NamedExpr(self, node: ast.NamedExpr, frame: Frame) -> Value:
        value = self.eval(node.value, frame)
        self.bind_name(node.target.id, value, frame)
        return value

    def bind_name(self, name: str, value: Value, frame: Frame) -> None:
        frame.env[name] = value
        if frame.stmt is not None:
            frame.bindings.append((frame.stmt, name, value))

    def eval_Attribute(self, node: ast.Attribute, frame: Frame) -> Value:
        return self.attribute(self.eval(node.value, frame), node.attr, node, frame)

    def attribute(self, base: Value, name: str, node: ast.AST, frame: Frame) -> Value:
        if base.op == "import":
            return self.value("import", (), node, frame, qualified=f"{base.attrs['qualified']}.{name}")
        cls = class_of(base)
        if cls is not None:
            stored = self.lookup(store_key(base, name), frame)
            if stored is not None:
                return stored
            found = cls.lookup(name)
            if found is not None:
                function, owner = found
                decorators = {ast.unparse(d) for d in function.decorator_list}
                if decorators & {"property", "cached_property", "functools.cached_property"}:
                    inlined = self.inline(function, owner.module, [base], {}, node, frame, owner_instance=(base, cls))
                    return inlined if inlined is not None else self.value("attribute", (base,), node, frame, name=name)
                static = "staticmethod" in decorators
                return self.value(
                    "bound",
                    (base,),
                    node,
                    frame,
                    name=name,
                    _node=function,
                    _module=owner.module,
                    _cls=cls,
                    _static=static,
                )
            return self.value("attribute", (base,), node, frame, name=name, _cls=cls)
        stored = self.lookup(store_key(base, name), frame) if base.op == "opaque" else None
        if stored is not None:
            return stored
        if name in ("shape",):
            return self.value("shape", (base,), node, frame, names=("input",))
        if name in ("T", "mT", "H", "mH"):
            dims = (-2, -1)
            attrs: dict[str, object] = (
                {"dims": dims} if name in ("mT",) else {"dims": dims, "rank": 2} if name == "T" else {"dims": None}
            )
            return self.value("transpose", (base,), node, frame, names=("input",), **attrs)
        if name == "data":
            return self.value("identity", (base,), node, frame, names=("input",), spelled="data")
        if name in ("dtype", "device", "ndim"):
            return self.value(name, (base,), node, frame, names=("input",))
        return self.value("attribute", (base,), node, frame, name=name)

    def eval_BinOp(self, node: ast.BinOp, frame: Frame) -> Value:
        left, right = self.eval(node.left, frame), self.eval(node.right, frame)
        return self.binary(_BINARY.get(type(node.op)), left, right, node, frame)

    def binary(self, op: str | None, left: Value, right: Value, node: ast.AST, frame: Frame) -> Value:
        if op is None:
            return self.opaque(node, frame, left, right)
        a, b = left.const, right.const
        if op in _FOLD and isinstance(a, (int, float)) and isinstance(b, (int, float)):
            try:
                return self.graph.add(build.constant(_FOLD[op](a, b), node, frame))
            except (ZeroDivisionError, OverflowError, TypeError):
                pass
        if op == "add" and left.op in ("tuple", "list") and right.op in ("tuple", "list"):
            return self.value("tuple", (*left.args, *right.args), node, frame)
        return self.value(op, (left, right), node, frame, names=("input", "other"))

    def eval_UnaryOp(self, node: ast.UnaryOp, frame: Frame) -> Value:
        operand = self.eval(node.operand, frame)
        if isinstance(node.op, ast.USub):
            if isinstance(operand.const, (int, float)):
                return self.graph.add(build.constant(-operand.const, node, frame))
            return self.value("neg", (operand,), node, frame, names=("input",))
        if isinstance(node.op, ast.UAdd):
            return operand
        return self.value(
            "not" if isinstance(node.op, ast.Not) else "invert", (operand,), node, frame, names=("input",)
        )

    def eval_BoolOp(self, node: ast.BoolOp, frame: Frame) -> Value:
        values = [self.eval(v, frame) for v in node.values]
        return self.value("and" if isinstance(node.op, ast.And) else "or", values, node, frame)

    def eval_Compare(self, node: ast.Compare, frame: Frame) -> Value:
        operands = [self.eval(v, frame) for v in [node.left, *node.comparators]]
        if len(operands) > 2:
            return self.opaque(node, frame, *operands)
        return self.value("compare", operands, node, frame, names=("input", "other"), how=_COMPARE[type(node.ops[0])])

    def eval_IfExp(self, node: ast.IfExp, frame: Frame) -> Value:
        test = self.eval(node.test, frame)
        before = frame.conditions
        frame.conditions = (*before, (test, True))
        body = self.eval(node.body, frame)
        frame.conditions = (*before, (test, False))
        orelse = self.eval(node.orelse, frame)
        frame.conditions = before
        return self.phi(test, body, orelse, node, frame)

    def phi(self, test: Value, body: Value, orelse: Value, node: ast.AST | None, frame: Frame) -> Value:
        """body where test holds, else orelse; tuples of one length are joined item by item."""
        if body is orelse:
            return body
        if body.op == "const" and orelse.op == "const" and body.same(orelse):
            return body
        if body.op == orelse.op == "tuple" and len(body.args) == len(orelse.args):
            return self.value(
                "tuple",
                [self.phi(test, a, b, node, frame) for a, b in zip(body.args, orelse.args, strict=True)],
                node,
                frame,
            )
        return self.value("phi", (test, body, orelse), node, frame, names=("test", "body", "orelse"))

    def eval_Tuple(self, node: ast.Tuple, frame: Frame) -> Value:
        return self.sequence("tuple", node, frame)

    def eval_List(self, node: ast.List, frame: Frame) -> Value:
        return self.sequence("list", node, frame)

    def sequence(self, op: str, node: ast.Tuple | ast.List, frame: Frame) -> Value:
        items: list[Value] = []
        for element in node.elts:
            if isinstance(element, ast.Starred):
                inner = self.eval(element.value, frame)
                known = self.items(inner, frame)
                items.extend(known if known is not None else [self.value("starred", (inner,), element, frame)])
            else:
                items.append(self.eval(element, frame))
        return self.value(op, items, node, frame)

    def eval_Dict(self, node: ast.Dict, frame: Frame) -> Value:
        keys = [self.eval(k, frame) for k in node.keys if k is not None]
        return self.value("dict", [*keys, *(self.eval(v, frame) for v in node.values)], node, frame)

    def eval_Starred(self, node: ast.Starred, frame: Frame) -> Value:
        return self.value("starred", (self.eval(node.value, frame),), node, frame)

    def eval_Lambda(self, node: ast.Lambda, frame: Frame) -> Value:
        return self.value(
            "function",
            (),
            node,
            frame,
            qualified="<lambda>",
            _node=node,
            _module=frame.module,
            _cls=frame.cls,
            _closure=frame,
        )

    def eval_Subscript(self, node: ast.Subscript, frame: Frame) -> Value:
        base = self.eval(node.value, frame)
        index = self.eval(node.slice, frame)
        return self.getitem(base, index, node, frame)

    def getitem(self, base: Value, index: Value, node: ast.AST, frame: Frame) -> Value:
        at = index.const
        if isinstance(at, int) and not isinstance(at, bool):
            if base.op == "shape":
                return self.value("size", base.args, node, frame, names=("input",), axis=at)
            known = self.items(base, frame)
            if known is not None and -len(known) <= at < len(known):
                return known[at]
            if base.op in ("chunk", "split", "unbind") and at >= 0:
                return self.value("part", (base,), node, frame, names=("input",), index=at)
        if base.op == "shape" and index.op == "slice":
            lower, upper, step = (a.const for a in index.args)
            axes = (
                range(lower, upper or 0)
                if isinstance(lower, int) and lower < 0 and (upper is None or isinstance(upper, int) and upper < 0)
                else range(lower or 0, upper)
                if isinstance(upper, int) and upper > 0 and lower in (None, 0, 1, 2)
                else None
            )
            if axes is not None and step is None:
                return self.value(
                    "tuple",
                    [self.value("size", base.args, None, frame, names=("input",), axis=i) for i in axes],
                    node,
                    frame,
                )
        if base.op in ("tuple", "list") and index.op == "slice" and all(a.op == "const" for a in index.args):
            bounds = [a.const for a in index.args]
            if not any(a.op == "starred" for a in base.args):
                return self.value("tuple", base.args[slice(*bounds)], node, frame)
        return self.value("getitem", (base, index), node, frame, names=("input", "index"))

    def eval_Slice(self, node: ast.Slice, frame: Frame) -> Value:
        none = build.constant(None, None, None)
        parts = [self.eval(p, frame) if p is not None else none for p in (node.lower, node.upper, node.step)]
        return self.value("slice", parts, node, frame, names=("lower", "upper", "step"))

    def eval_ListComp(self, node: ast.ListComp, frame: Frame) -> Value:
        return self.comprehension(node, frame)

    def eval_GeneratorExp(self, node: ast.GeneratorExp, frame: Frame) -> Value:
        return self.comprehension(node, frame)

    def comprehension(self, node: ast.ListComp | ast.GeneratorExp, frame: Frame) -> Value:
        first = node.generators[0]
        iterable = self.eval(first.iter, frame)
        simple = len(node.generators) == 1 and not first.ifs
        made = self.value("comprehension", (iterable,), node, frame, names=("iterable",), _simple=simple)
        known = self.items(iterable, frame) if simple else None
        if known is not None and len(known) <= 8:
            return self.value("tuple", [self.one(made, item, frame) for item in known], node, frame)
        return made

    def one(self, sequence: Value, item: Value, frame: Frame) -> Value:
        """The element that a map or comprehension makes of one item."""
        if sequence.op == "map":
            return self.call(sequence.args[0], [item], {}, sequence.node, frame)
        node = sequence.node
        assert isinstance(node, (ast.ListComp, ast.GeneratorExp)) and sequence.frame is not None
        inner = Frame(self.graph, sequence.frame.module, node, parent=sequence.frame, caller=frame, call=node)
        inner.cls, inner.self_value = sequence.frame.cls, sequence.frame.self_value
        inner.stmt = frame.stmt
        self.assign(node.generators[0].target, item, inner)
        return self.eval(node.elt, inner)

    def items(self, value: Value, frame: Frame) -> list[Value] | None:
        """The elements of a sequence of known length."""
        if value.op in ("tuple", "list"):
            return None if any(a.op == "starred" for a in value.args) else list(value.args)
        if value.op == "chunk" and value.attrs.get("count"):
            return self.unpack(value, value.attrs["count"], frame)
        return None

    def unpack(self, value: Value, count: int, frame: Frame) -> list[Value]:
        """The `count` elements of a sequence."""
        if (
            value.op in ("tuple", "list")
            and len(value.args) == count
            and not any(a.op == "starred" for a in value.args)
        ):
            return list(value.args)
        if value.op == "shape":
            self.rank_hints[value.args[0].key] = count
            return [self.value("size", value.args, value.node, frame, names=("input",), axis=i) for i in range(count)]
        if value.op in ("map", "comprehension") and (value.op == "map" or value.attrs["_simple"]):
            return [self.one(value, item, frame) for item in self.unpack(value.args[-1], count, frame)]
        if value.op == "phi":
            left, right = self.unpack(value.args[1], count, frame), self.unpack(value.args[2], count, frame)
            return [self.phi(value.args[0], a, b, value.node, frame) for a, b in zip(left, right, strict=True)]
        parts = value.attrs.get("_parts")
        if parts is None or len(parts) != count:
            parts = [
                self.value("part", (value,), value.node, frame, names=("input",), index=i, of=count)
                for i in range(count)
            ]
            value.attrs["_parts"] = parts
        return list(parts)

    def assign(
        self, target: ast.expr, value: Value, frame: Frame
    ) -> None:  # pragma: no cover - implemented in statements.py
        raise NotImplementedError

    # -- calls ----------------------------------------------------------------------------------------------------------------------------
    def eval_Call(self, node: ast.Call, frame: Frame) -> Value:
        value = self.called(node, frame)
        if value.node is not node:
            frame.calls.setdefault(id(value), node)
        return value

    def called(self, node: ast.Call, frame: Frame) -> Value:
        function = node.func
        args, kwargs = self.arguments(node, frame)
        if isinstance(function, ast.Attribute) and not (
            isinstance(function.value, ast.Call)
            and isinstance(function.value.func, ast.Name)
            and function.value.func.id == "super"
        ):
            base = self.eval(function.value, frame)
            if base.op == "class" and function.attr == "apply":
                applied = self.autograd_function(base, args, kwargs, node, frame)
                if applied is not None:
                    return applied
            known = base.op == "import" or class_of(base) is not None
            if not known:
                return self.method_call(base, function.attr, args, kwargs, node, frame)
            return self.call(self.attribute(base, function.attr, function, frame), args, kwargs, node, frame)
        if isinstance(function, ast.Attribute):  # super().name(...)
            return self.super_call(function.attr, args, kwargs, node, frame)
        return self.call(self.eval(function, frame), args, kwargs, node, frame)

    def autograd_function(
        self, cls_value: Value, args: list[Value], kwargs: dict[str, Value], node: ast.Call, frame: Frame
    ) -> Value | None:
        """`Function.apply(x)` of a torch.autograd.Function: its forward, whose gradient is its own."""
        cls = cls_value.attrs["_cls"]
        found = cls.lookup("forward")
        if found is None or not any(
            isinstance(b, str) and b.startswith("torch.autograd") for c in cls.mro for b in c.bases
        ):
            return None
        context = self.value("opaque", (), node, frame)
        inner = self.inline(found[0], found[1].module, [context, *args], kwargs, node, frame)
        return (
            None if inner is None else self.value("identity", (inner,), node, frame, names=("input",), spelled="apply")
        )

    def arguments(self, node: ast.Call, frame: Frame) -> tuple[list[Value], dict[str, Value]]:
        args: list[Value] = []
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                inner = self.eval(argument.value, frame)
                known = self.items(inner, frame)
                args.extend(known if known is not None else [self.value("starred", (inner,), argument, frame)])
            else:
                args.append(self.eval(argument, frame))
        kwargs = {k.arg or "**": self.eval(k.value, frame) for k in node.keywords}
        return args, kwargs

    def method_call(
        self, base: Value, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST, frame: Frame
    ) -> Value:
        op = method(name)
        inplace = False
        if op is None and name.endswith("_") and not name.startswith("_"):
            op, inplace = method(name[:-1]), True
        if op is None or base.op in ("name", "class"):
            made = self.value(
                "method",
                (base, *args, *kwargs.values()),
                node,
                frame,
                names=("input", *(f"_{i}" for i in range(len(args))), *kwargs),
                name=name,
            )
            if name.endswith("_") and not name.startswith("_"):
                self.changed(base, made, frame)
            return made
        if op == "where" and base.op not in ("const",):  # x.where(condition, other)
            operands = [*args, *kwargs.values()]
            if len(operands) == 2:
                return build.operation("where", [operands[0], base, operands[1]], {}, node, frame)
        made = build.operation(op, [base, *args], kwargs, node, frame, spelled=name)
        if inplace:
            self.changed(base, made, frame)
        return made

    def changed(self, old: Value, new: Value, frame: Frame) -> None:
        """`old` was changed in place and now holds `new`: every name of it sees that, every view of it holds something unknown."""
        new.inplace = True
        root = storage(old)
        scopes: list[Frame] = []
        for start in (frame, *frame.ancestors()):
            scope: Frame | None = start
            while scope is not None and scope not in scopes:
                scopes.append(scope)
                scope = scope.parent
        mutated: dict[Value, Value] = {}
        for scope in scopes:
            for name, held in list(scope.env.items()):
                if held is old:
                    scope.env[name] = new
                elif (
                    held is not new
                    and held.op not in ("const", "self", "shape", "size", "function")
                    and storage(held) is root
                ):
                    if held not in mutated:
                        mutated[held] = self.value("mutated", (held, new), None, frame)
                    scope.env[name] = mutated[held]

    def super_call(self, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST, frame: Frame) -> Value:
        owner, base = frame.cls, frame.self_value
        if owner is not None and base is not None and name != "__init__":
            for cls in owner.mro[1:]:
                if name in cls.methods:
                    inlined = self.inline(
                        cls.methods[name], cls.module, [base, *args], kwargs, node, frame, owner_instance=(base, cls)
                    )
                    if inlined is not None:
                        return inlined
                    break
        return self.value("call", (*args, *kwargs.values()), node, frame, name=f"super.{name}")

    def call(
        self, function: Value, args: list[Value], kwargs: dict[str, Value], node: ast.AST | None, frame: Frame
    ) -> Value:
        result = self.known_call(function, args, kwargs, node, frame)
        if result is not None:
            if function.op == "bound" and result.frame is not frame:
                self.graph.invocations.setdefault(id(result), (function, args, kwargs))
            return result
        names = ("function", *(f"_{i}" for i in range(len(args))), *kwargs)
        last = function.attrs["qualified"].rsplit(".", 1)[-1] if function.op == "import" else ""
        if last.endswith("_") and not last.startswith("_") and args:  # nn.init.ones_(x) and its like
            made = self.value("method", (*args, *kwargs.values()), node, frame, names=("input", *names[2:]), name=last)
            self.changed(args[0], made, frame)
            return made
        if function.op == "import" and function.attrs["qualified"].rsplit(".", 1)[-1][:1].isupper():
            return self.value(
                "construct",
                (*args, *kwargs.values()),
                node,
                frame,
                names=names[1:],
                qualified=function.attrs["qualified"],
            )
        return self.value("call", (function, *args, *kwargs.values()), node, frame, names=names)

    def known_call(
        self, function: Value, args: list[Value], kwargs: dict[str, Value], node: ast.AST | None, frame: Frame
    ) -> Value | None:
        if function.op == "import":
            return self.library_call(function.attrs["qualified"], args, kwargs, node, frame)
        if function.op == "name":
            return self.builtin_call(function.attrs["name"], args, kwargs, node, frame)
        if function.op == "function":
            return self.inline(
                function.attrs["_node"],
                function.attrs["_module"],
                args,
                kwargs,
                node,
                frame,
                closure=function.attrs["_closure"],
            )
        if function.op == "partial":
            return self.call(
                function.args[0],
                [*function.args[1 : 1 + function.attrs["positional"]], *args],
                {
                    **dict(
                        zip(function.attrs["keywords"], function.args[1 + function.attrs["positional"] :], strict=True)
                    ),
                    **kwargs,
                },
                node,
                frame,
            )
        if function.op == "bound":
            given = args if function.attrs["_static"] else [function.args[0], *args]
            instance = None if function.attrs["_static"] else (function.args[0], function.attrs["_cls"])
            return self.inline(
                function.attrs["_node"], function.attrs["_module"], given, kwargs, node, frame, owner_instance=instance
            )
        if function.op == "attribute":
            return self.module_call(function, definition(function), args, kwargs, node, frame)
        if function.op == "construct":  # nn.Softmax(dim=-1)(x)
            return self.module_call(function, function, args, kwargs, node, frame)
        if function.op == "call" and function.args and function.args[0].op == "class":
            return self.module_call(function, function, args, kwargs, node, frame)
        if function.op == "phi":
            return self.phi(
                function.args[0],
                self.call(function.args[1], args, kwargs, node, frame),
                self.call(function.args[2], args, kwargs, node, frame),
                node,
                frame,
            )
        return None

    def library_call(
        self, qualified: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST | None, frame: Frame
    ) -> Value | None:
        if qualified == "functools.partial" and args:
            return self.value(
                "partial", (*args, *kwargs.values()), node, frame, positional=len(args) - 1, keywords=tuple(kwargs)
            )
        op = canonical(qualified)
        if op is None or any(a.op == "starred" for a in args) or "**" in kwargs:
            return None
        spelled = "F" if ".functional." in qualified else qualified.rsplit(".", 1)[-1]
        out = kwargs.pop("out", None)
        inplace = qualified.endswith("_") or (kwargs.get("inplace") is not None and kwargs["inplace"].const is True)
        made = build.operation(op, args, kwargs, node, frame, spelled=spelled)
        if out is not None:
            self.changed(out, made, frame)
        elif inplace and args:
            self.changed(args[0], made, frame)
        return made

    def builtin_call(
        self, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST | None, frame: Frame
    ) -> Value | None:
        if name == "map" and len(args) == 2:
            made = self.value("map", args, node, frame, names=("function", "iterable"))
            known = self.items(args[1], frame)
            return (
                self.value("tuple", [self.one(made, item, frame) for item in known], node, frame)
                if known is not None and len(known) <= 8
                else made
            )
        if name in ("tuple", "list") and len(args) == 1:
            known = self.items(args[0], frame)
            return args[0] if known is not None or args[0].op in ("map", "comprehension", "shape") else None
        if name == "zip" and args:
            columns = [self.items(a, frame) for a in args]
            if all(c is not None for c in columns):
                rows = zip(*columns, strict=False)  # type: ignore[arg-type]
                return self.value("tuple", [self.value("tuple", list(r), node, frame) for r in rows], node, frame)
        if name in ("float", "int") and len(args) == 1:
            if isinstance(args[0].const, (int, float)):
                return self.graph.add(
                    build.constant(float(args[0].const) if name == "float" else int(args[0].const), node, frame)
                )
            if name == "float" and isinstance(args[0].const, str):
                try:
                    return self.graph.add(build.constant(float(args[0].const), node, frame))
                except ValueError:
                    return None
            return self.value("number", args, node, frame, names=("input",), kind=name)
        if name in (
            "min",
            "max",
            "abs",
            "len",
            "isinstance",
            "hasattr",
            "getattr",
            "round",
            "sum",
            "any",
            "all",
            "bool",
            "str",
            "type",
            "range",
            "enumerate",
        ):
            if (
                name == "getattr"
                and len(args) >= 2
                and isinstance(args[1].const, str)
                and class_of(args[0]) is not None
            ):
                return None
            return self.value("py_" + name, (*args, *kwargs.values()), node, frame)
        return None

    def dropped(
        self, function: Value, made: Value, source: Value, node: ast.AST | None, frame: Frame, maybe_identity: bool
    ) -> Value:
        """A dropout module applied; `made` is what its constructor set it to."""
        attrs = {"module": True, "_module": function, "_ctor": made, "maybe_identity": maybe_identity}
        return self.value("dropout", (source,), node, frame, names=("input",), **attrs)

    def module_call(
        self,
        function: Value,
        made: Value | None,
        args: list[Value],
        kwargs: dict[str, Value],
        node: ast.AST | None,
        frame: Frame,
    ) -> Value | None:
        """Calling a module: an attribute set in __init__, or one just made."""
        if made is None:
            return None
        if made.op == "construct":
            kind = made.attrs["qualified"].removeprefix("torch.nn.").removeprefix("modules.")
            own = made.attrs["qualified"].startswith("torch.nn.")
            given = dict(zip(made.names, made.args, strict=True))
            if own and kind == "Softmax" and args:
                dim = given.get("dim") or given.get("_0")
                attrs = {
                    "dim": dim.const if dim is not None and isinstance(dim.const, int) else None,
                    "dim_given": dim is not None and dim.const is not None,
                    "_module": function,
                }
                return self.graph.add(Value("softmax", (args[0],), ("input",), attrs, node, frame))
            if own and kind in ("Dropout", "modules.dropout.Dropout") and args:
                return self.dropped(function, made, args[0], node, frame, maybe_identity=False)
            if own and kind == "Identity" and args:
                return self.value(
                    "identity", (args[0],), node, frame, names=("input",), spelled="Identity", _module=function
                )
            if own and kind == "Sequential" and args and function.op == "attribute":
                value: Value = args[0]
                for index, item in enumerate(made.args):
                    slot = self.value(
                        "getitem", (function, build.constant(index, None, None)), None, frame, names=("input", "index")
                    )
                    value = self.module_call(slot, item, [value], {}, node, frame) or self.value(
                        "apply", (slot, value), node, frame, names=("function", "_0"), _made=item
                    )
                return value
            return None
        if made.op == "phi":
            # a module chosen in __init__: `Dropout(p) if p > 0 else Identity()`
            kinds = {b.attrs["qualified"] for b in made.args[1:] if b.op == "construct"}
            if kinds == {"torch.nn.Dropout", "torch.nn.Identity"} and args:
                return self.dropped(function, made, args[0], node, frame, maybe_identity=True)
            return None
        if made.op in ("function", "partial", "bound", "import"):
            return self.known_call(made, args, kwargs, node, frame)
        cls = instance_class(made)
        if cls is not None:
            found = cls.lookup("forward")
            if found is not None and cls.lookup("__call__") is None:
                return self.inline(
                    found[0], found[1].module, [function, *args], kwargs, node, frame, owner_instance=(function, cls)
                )
        return None

    def inline(
        self,
        function: ast.AST,
        module: Module,
        args: list[Value],
        kwargs: dict[str, Value],
        node: ast.AST | None,
        frame: Frame,
        closure: Frame | None = None,
        owner_instance: tuple[Value, Class] | None = None,
    ) -> Value | None:  # pragma: no cover - implemented in statements.py
        raise NotImplementedError

    def effect(self, kind: str, value: Value, frame: Frame, stmt: ast.stmt, name: str = "") -> None:
        self.graph.effects.append(Effect(kind, value, stmt, frame, frame.conditions, name))


def store_key(base: Value, name: str) -> str:
    """The environment's name for an attribute stored in this execution."""
    path, at = name, base
    while at.op == "attribute":
        path, at = f"{at.attrs['name']}.{path}", at.args[0]
    return f"self.{path}" if at.op == "self" else f"{id(at)}.{path}"


def storage(value: Value) -> Value:
    """The value whose memory this one may share."""
    seen = 0
    while value.args and seen < 50:
        if value.inplace or value.op == "buffer" or value.op in VIEWS and value.attrs.get("spelled") != "clone":
            value = value.args[0]
        elif value.op == "mutated":
            value = value.args[0]
        else:
            break
        seen += 1
    return value


__all__ = ["MAX_DEPTH", "UNKNOWN", "Evaluator", "storage", "store_key"]
