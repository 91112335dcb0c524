"""Writing values as source: an expression that, at a given statement, evaluates to a given value of the graph."""

from __future__ import annotations

import ast
import builtins
import re
from dataclasses import dataclass

from attn_advisor.attention.synthetic import constant
from attn_advisor.dataflow.attributes import class_of
from attn_advisor.dataflow.operations import SIGNATURES
from attn_advisor.dataflow.storage import store_key
from attn_advisor.dataflow.values import Condition, Frame, Value

# Python's precedence, loosest first.
COND, OR, NOT, COMPARE, BITOR, BITAND, SUM, PRODUCT, UNARY, POWER, ATOM = range(11)
_OPERATORS = {
    "add": ("+", SUM),
    "sub": ("-", SUM),
    "mul": ("*", PRODUCT),
    "div": ("/", PRODUCT),
    "floordiv": ("//", PRODUCT),
    "matmul": ("@", PRODUCT),
    "bitand": ("&", BITAND),
    "bitor": ("|", BITOR),
}
_COMPARISONS = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "is": "is",
    "is_not": "is not",
    "in": "in",
    "not_in": "not in",
}
# Casts that tensors have a method for.
_SHORT = {
    "float32": "float",
    "float16": "half",
    "float64": "double",
    "bfloat16": "bfloat16",
    "int64": "long",
    "int32": "int",
    "bool": "bool",
}
_METHODS = frozenset(
    "masked_fill unsqueeze squeeze exp sqrt clamp tril triu sum any all flatten unflatten expand repeat type_as "
    "repeat_interleave reshape log tanh sigmoid".split()
)
# Values that must not be computed twice or at another place than the one they stood at.
_ONCE = frozenset({"rand", "randn", "dropout", "loop", "mutated", "undefined", "setitem"})


class Inexpressible(Exception):
    """No source text here evaluates to the value; args[0] says why."""


@dataclass(frozen=True)
class Text:
    """Source with the precedence of its outermost operator."""

    text: str
    level: int = ATOM

    def at(self, level: int) -> str:
        """Parenthesised if it binds looser than `level`."""
        return self.text if self.level >= level else f"({self.text})"


class Writer:
    """Writes values for one insertion point: the start of `stmt` in `frame`."""

    def __init__(self, frame: Frame, stmt: ast.stmt, extra: dict[int, str] | None = None) -> None:
        self.frame = frame
        self.stmt = stmt
        self.env = frame.env_at[stmt]
        self.source = frame.module.source
        self.used: list[Value] = []  # values reached through a name: they must stay computed
        self.names: set[str] = set()
        self.given = extra or {}  # id of value -> name that the rewrite itself binds
        self.nodes: dict[
            int, str
        ] = {}  # id of a syntax node -> what to write instead (a size of the scores, read off the query)
        self._by_value: dict[int, list[str]] = {}
        for name, value in self.env.items():
            if "." not in name:
                self._by_value.setdefault(id(value), []).append(name)
        self._depth = 0
        self._kept: set[int] | None = None
        self.stand_in: Value | None = None  # a tensor with the dtype and device of the scores
        self.forbidden: set[int] = set()  # ids of values that the rewrite does away with
        self.assumed: tuple[Condition, ...] = ()  # what holds where the text is used

    def name_of(self, value: Value) -> str | None:
        """A variable that holds exactly this value here (under what is assumed)."""
        names = self._by_value.get(id(value))
        if names:
            return names[0]
        if self.assumed:
            for name, held in self.env.items():
                while held.op == "phi" and "." not in name:
                    way = next(
                        (way for test, way in self.assumed if test is held.args[0] or test.key == held.args[0].key),
                        None,
                    )
                    if way is None:
                        break
                    held = held.args[1 if way else 2]
                    if held is value:
                        return name
        return None

    def write(self, value: Value) -> Text:
        if id(value) in self.given:
            return Text(self.given[id(value)])
        if id(value) in self.forbidden:
            raise Inexpressible(f"it is made from the scores (line {value.line})")
        name = self.name_of(value)
        if name is not None:
            self._use(self.env[name], name)
            return Text(name)
        self._depth += 1
        try:
            if self._depth > 60:
                raise Inexpressible("too deep")
            return self._build(value)
        finally:
            self._depth -= 1

    def _bound(self, value: Value) -> bool:
        """Whether a statement of this function keeps the value under a name, so that its call stays where it is."""
        if self._kept is None:
            self._kept = {id(v) for _, _, v in self.frame.bindings}
        return id(value) in self._kept

    def _use(self, value: Value, name: str) -> None:
        self.used.append(value)
        self.names.add(name)

    def _build(self, value: Value) -> Text:
        if value.op == "const":
            return self._constant(value)
        if value.op == "attribute":
            return self._attribute(value)
        if value.op == "self":
            raise Inexpressible("another object's attribute")
        if value.op in ("call", "method", "apply") and self._bound(value):
            raise Inexpressible(f"the call of line {value.line} cannot be made twice")
        call = self.frame.calls.get(id(value))
        if call is not None:
            try:
                return self._from_source(value, call, self.frame)
            except Inexpressible:
                pass
        if value.op in _ONCE:
            raise Inexpressible(f"`{value.op}` of line {value.line} cannot be moved")
        if isinstance(value.node, ast.expr) and value.frame is not None and value.frame.module is self.frame.module:
            try:
                return self._from_source(value, value.node, value.frame)
            except Inexpressible:
                pass
        try:
            return self._from_operation(value)
        except Inexpressible:
            called = self.frame.graph.invocations.get(id(value))
            if called is None:
                raise
            return self._invocation(*called)

    def _invocation(self, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Text:
        """A call of a method of this or another module, made again from here."""
        owner = self.write(function.args[0]).at(ATOM)
        operands = [self.write(a).text for a in args] + [f"{k}={self.write(v).text}" for k, v in kwargs.items()]
        return Text(f"{owner}.{function.attrs['name']}({', '.join(operands)})")

    def _constant(self, value: Value) -> Text:
        const = value.const
        if isinstance(const, float) and const in (float("inf"), float("-inf")):
            return Text(f'float("{const}")')
        if isinstance(value.node, ast.Constant) and value.frame is not None and value.frame.module is self.frame.module:
            return Text(self.source.segment(value.node))
        text = repr(const)
        return Text(text, UNARY if text.startswith("-") else ATOM)

    def _attribute(self, value: Value) -> Text:
        base = value.args[0]
        key = store_key(base, value.attrs["name"])
        if key in self.env and self.env[key] is not value:
            raise Inexpressible(f"`{key}` is set in between")
        if base.op == "self" or class_of(base) is not None and base.op == "attribute":
            inner = self.write(base)
        else:
            inner = self.write(base)
        return Text(f"{inner.at(ATOM)}.{value.attrs['name']}")

    # -- from the source it came from --------------------------------------------------------------------------------------------------------
    def _from_source(self, value: Value, node: ast.expr, frame: Frame) -> Text:
        """The original expression, with names that mean something else here replaced."""
        if isinstance(node, (ast.Tuple, ast.List)) and value.op not in ("tuple", "list"):
            raise Inexpressible("a sequence")
        if node is value.node and value.op in ("part", "phi", "size") and not _stands_for(node, value):
            raise Inexpressible("made by unpacking")
        if id(node) in self.nodes:
            return Text(self.nodes[id(node)])
        replacements: list[tuple[ast.expr, str]] = []
        done: set[int] = set()
        for inner in ast.walk(node):
            if id(inner) in done:
                continue
            if id(inner) in self.nodes and isinstance(inner, ast.expr):
                replacements.append((inner, self.nodes[id(inner)]))
                done.update(id(n) for n in ast.walk(inner))
                continue
            if isinstance(
                inner,
                (
                    ast.Lambda,
                    ast.ListComp,
                    ast.GeneratorExp,
                    ast.NamedExpr,
                    ast.Await,
                    ast.Yield,
                    ast.DictComp,
                    ast.SetComp,
                ),
            ):
                raise Inexpressible("an expression with its own names")
            if (
                isinstance(inner, ast.Call)
                and isinstance(inner.func, ast.Attribute)
                and inner.func.attr.endswith("_")
                and not inner.func.attr.endswith("__")
            ):
                raise Inexpressible("a change in place")
            if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Load):
                self._check_attribute(inner, frame)
            if isinstance(inner, ast.Name):
                text = self._replacement(inner, frame)
                if text is not None:
                    replacements.append((inner, text))
        return Text(_substitute(self.source, node, replacements), _level(node))

    def _check_attribute(self, node: ast.Attribute, frame: Frame) -> None:
        """An attribute that this function sets may hold something else by now."""
        if isinstance(node.value, ast.Name):
            key = f"{node.value.id}.{node.attr}"
            if key in self.env and self.env[key] is not frame.env.get(key):
                raise Inexpressible(f"`{key}` is set in between")

    def _replacement(self, node: ast.Name, frame: Frame) -> str | None:
        """Text for a name inside a moved expression; None to leave it as it is."""
        value = frame.name_values.get(node)
        if value is None:
            raise Inexpressible(f"`{node.id}` was not evaluated")
        here = self.env.get(node.id)
        if here is value and id(value) not in self.given and id(value) not in self.forbidden:
            self._use(value, node.id)
            return None
        if (
            here is None
            and value.op in ("import", "function", "class", "name", "partial", "const")
            and self._is_global(node.id, frame)
        ):
            return None
        text = self.write(value)
        return text.text if text.level == ATOM else f"({text.text})"

    def _is_global(self, name: str, frame: Frame) -> bool:
        if frame.module is not self.frame.module:
            return False
        scope: Frame | None = frame
        while scope is not None:
            if name in scope.env:
                return False
            scope = scope.parent
        module = frame.module
        return (
            name in module.imports
            or name in module.functions
            or name in module.classes
            or name in module.constants
            or hasattr(builtins, name)
        )

    # -- from its operation ---------------------------------------------------------------------------------------------------------------------
    def _from_operation(self, value: Value) -> Text:
        op, args = value.op, value.args
        text = self._signed(value)
        if text is not None:
            return text
        if op == "size":
            return Text(f"{self.write(args[0]).at(ATOM)}.size({value.attrs['axis']})")
        if op == "cast" and len(args) == 1 and value.attrs["kind"] in _SHORT:
            return self._method(_SHORT[value.attrs["kind"]], args[0])
        if op == "cast" and len(args) == 2:
            return self._method("to", *args)
        if op in ("transpose", "permute") and value.attrs.get("dims"):
            return self._method(op, args[0], *(constant(d) for d in value.attrs["dims"]))
        if op == "softmax":
            raise Inexpressible("probabilities")
        if op in _METHODS and args and value.attrs.get("sizes") is not False:
            return self._known_method(value)
        if op == "getitem":
            return Text(f"{self.write(args[0]).at(ATOM)}[{self._index(args[1])}]")
        if op == "part" and args[0].op not in ("chunk", "split"):
            return Text(f"{self.write(args[0]).at(ATOM)}[{value.attrs['index']}]")
        if op == "identity" and value.attrs.get("spelled") in ("contiguous", "clone"):
            return self._method(value.attrs["spelled"], args[0])
        if op in ("new_ones", "new_zeros", "new_full"):
            base = self.stand_in if id(args[0]) in self.forbidden and self.stand_in is not None else args[0]
            return self._method(op, base, *args[1:])
        if op == "number":
            return Text(f"{value.attrs['kind']}({self.write(args[0]).text})")
        if op in ("tuple", "list"):
            inner = ", ".join(self.write(a).text for a in args)
            return Text(f"({inner}{',' if len(args) == 1 else ''})" if op == "tuple" else f"[{inner}]")
        if op in ("shape", "dtype", "device"):
            return Text(f"{self.write(args[0]).at(ATOM)}.{op}")
        raise Inexpressible(f"the value of line {value.line} (`{op}`) has no name here")

    def _signed(self, value: Value) -> Text | None:
        """What Python writes with an operator."""
        op, args = value.op, value.args
        if op == "pow" and len(args) == 2:
            return Text(f"{self.write(args[0]).at(ATOM)} ** {self.write(args[1]).at(UNARY)}", POWER)
        if op in _OPERATORS and len(args) == 2:
            sign, level = _OPERATORS[op]
            return Text(f"{self.write(args[0]).at(level)} {sign} {self.write(args[1]).at(level + 1)}", level)
        if op == "invert":
            return Text(f"~{self.write(args[0]).at(UNARY)}", UNARY)
        if op == "neg":
            return Text(f"-{self.write(args[0]).at(UNARY)}", UNARY)
        if op == "not":
            return Text(f"not {self.write(args[0]).at(NOT)}", NOT)
        if op in ("and", "or"):
            return Text(f" {op} ".join(self.write(a).at(COMPARE) for a in args), OR)
        if op == "compare":
            sign = _COMPARISONS[value.attrs["how"]]
            return Text(f"{self.write(args[0]).at(BITOR)} {sign} {self.write(args[1]).at(BITOR)}", COMPARE)
        if op == "phi":
            test, body, orelse = args
            return Text(
                f"{self.write(body).at(OR)} if {self.write(test).at(OR)} else {self.write(orelse).at(COND)}", COND
            )
        return None

    def _method(self, name: str, first: Value, *rest: Value) -> Text:
        return Text(f"{self.write(first).at(ATOM)}.{name}({', '.join(self.write(r).text for r in rest)})")

    def _known_method(self, value: Value) -> Text:
        """A tensor method, operands by position where the signature has them in that order, else by name."""
        signature = SIGNATURES.get(value.op, ())
        operands = []
        for at, (name, arg) in enumerate(zip(value.names, value.args, strict=False)):
            if at:
                text = self.write(arg).text
                operands.append(
                    text
                    if name.startswith("_") or (at < len(signature) and signature[at] == name)
                    else f"{name}={text}"
                )
        if not value.names:
            return self._method(value.op, *value.args)
        return Text(f"{self.write(value.args[0]).at(ATOM)}.{value.op}({', '.join(operands)})")

    def _index(self, index: Value) -> str:
        if index.op == "tuple":
            return ", ".join(self._index(i) for i in index.args)
        if index.op == "slice":
            parts = ["" if a.const is None else self.write(a).text for a in index.args]
            return f"{parts[0]}:{parts[1]}" + (f":{parts[2]}" if parts[2] else "")
        if index.op == "const" and index.const is Ellipsis:
            return "..."
        return self.write(index).text


def _stands_for(node: ast.expr, value: Value) -> bool:
    """Whether evaluating the node gives this very value (a part of an unpacked sequence has the sequence's node)."""
    if value.op == "size":
        return isinstance(node, (ast.Call, ast.Subscript))
    if value.op == "phi":
        return isinstance(node, (ast.IfExp, ast.Call))
    return isinstance(node, ast.Subscript)


def _level(node: ast.expr) -> int:
    if isinstance(node, ast.BinOp):
        return {
            ast.Add: SUM,
            ast.Sub: SUM,
            ast.Pow: POWER,
            ast.BitAnd: BITAND,
            ast.BitOr: BITOR,
            ast.BitXor: BITOR,
            ast.LShift: BITAND,
            ast.RShift: BITAND,
        }.get(type(node.op), PRODUCT)
    if isinstance(node, ast.UnaryOp):
        return NOT if isinstance(node.op, ast.Not) else UNARY
    if isinstance(node, ast.Compare):
        return COMPARE
    if isinstance(node, ast.BoolOp):
        return OR
    if isinstance(node, (ast.IfExp, ast.Lambda, ast.Await, ast.NamedExpr)):
        return COND
    return ATOM


def _substitute(source, node: ast.expr, replacements: list[tuple[ast.expr, str]]) -> str:  # type: ignore[no-untyped-def]
    start, end = source.span(node)
    text = source.text[start:end]
    for name, new in sorted(replacements, key=lambda r: -source.offset(r[0].lineno, r[0].col_offset)):
        at, stop = source.span(name)
        text = text[: at - start] + new + text[stop - start :]
    if "\n" in text or "\r" in text:
        if "#" in text:
            return ast.unparse(ast.parse(text.strip() if _balanced(text) else f"({text})", mode="eval"))
        if not re.search(r"['\"]", text):
            text = re.sub(r"\s*\\?\r?\n\s*", " ", text)
            text = re.sub(r"([(\[{]) ", r"\1", re.sub(r",? ([)\]}])", r"\1", text))
        else:
            text = ast.unparse(ast.parse(f"({text})", mode="eval"))
    return text


def _balanced(text: str) -> bool:
    try:
        ast.parse(text.strip(), mode="eval")
        return True
    except SyntaxError:
        return False
