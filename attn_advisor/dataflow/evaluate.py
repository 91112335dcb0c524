"""Evaluation of expressions into values."""

from __future__ import annotations

import ast
import operator
from collections.abc import Sequence

from attn_advisor.dataflow import build
from attn_advisor.dataflow.attributes import class_of
from attn_advisor.dataflow.storage import store_key
from attn_advisor.dataflow.values import Effect, Frame, Graph, Value
from attn_advisor.source.module import Class, Module

BINARY = {
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


class _Names(dict[type, str]):
    """Names of the methods for each type of node."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def __missing__(self, kind: type) -> str:
        return self.setdefault(kind, self.prefix + kind.__name__)


_VISIT = _Names("eval_")


class Evaluator:
    """Turns expressions into values of one graph. Calls are in calls.py, inlining in inlining.py, statements in statements.py, each a subclass of the one before."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.rank_hints: dict[object, int] = {}

    # -- values -----------------------------------------------------------------------------------------------------------------------------
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

    # -- expressions ------------------------------------------------------------------------------------------------------------------------
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

    # -- names and attributes ---------------------------------------------------------------------------------------------------------------
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

    # -- operators --------------------------------------------------------------------------------------------------------------------------
    def eval_BinOp(self, node: ast.BinOp, frame: Frame) -> Value:
        left, right = self.eval(node.left, frame), self.eval(node.right, frame)
        return self.binary(BINARY.get(type(node.op)), left, right, node, frame)

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

    # -- sequences --------------------------------------------------------------------------------------------------------------------------
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

    def effect(self, kind: str, value: Value, frame: Frame, stmt: ast.stmt, name: str = "") -> None:
        self.graph.effects.append(Effect(kind, value, stmt, frame, frame.conditions, name))

    # -- what the subclasses do -------------------------------------------------------------------------------------------------------------
    def call(
        self, function: Value, args: list[Value], kwargs: dict[str, Value], node: ast.AST | None, frame: Frame
    ) -> Value:  # pragma: no cover - implemented in calls.py
        raise NotImplementedError

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
    ) -> Value | None:  # pragma: no cover - implemented in inlining.py
        raise NotImplementedError
