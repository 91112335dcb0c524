"""Values and frames: the nodes of the value graph.

A value is one evaluation of one operation. Two values with equal `key` hold equal results (no operation in the graph has hidden state except where
its key says so); two names bound to the *same object* hold the same tensor.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attn_advisor.source.module import Class, Module

Condition = tuple["Value", bool]


class Value:
    """One operation applied to earlier values.

    op: canonical name ("matmul", "softmax", "phi", "param", ...; see operations.py); args and names: operands, in the order of the
    operation's signature, and what the signature calls them; attrs: what is not a value (axis numbers, equation, attribute name).
    node, frame, stmt: where it was evaluated; conditions: the branches taken to get there, outermost first.
    """

    __slots__ = (
        "_key",
        "_weight",
        "args",
        "attrs",
        "conditions",
        "frame",
        "inplace",
        "names",
        "node",
        "op",
        "order",
        "stmt",
        "users",
    )

    def __init__(
        self,
        op: str,
        args: tuple[Value, ...] = (),
        names: tuple[str, ...] = (),
        attrs: dict[str, Any] | None = None,
        node: ast.AST | None = None,
        frame: Frame | None = None,
        register: bool = True,
    ) -> None:
        self.op = op
        self.args = args
        self.names = names
        self.attrs = attrs or {}
        self.node = node
        self.frame = frame
        self.stmt = frame.stmt if frame else None
        self.conditions: tuple[Condition, ...] = frame.conditions if frame else ()
        self.inplace = False
        self.users: list[Value] = []
        self._key: Any = None
        self._weight = 1  # values in the key
        self.order = frame.graph.tick() if frame else 0
        if register:
            for arg in args:
                arg.users.append(self)

    def get(self, name: str) -> Value | None:
        """The operand the signature calls `name`, or None."""
        for own, arg in zip(self.names, self.args, strict=False):
            if own == name:
                return arg
        return None

    @property
    def key(self) -> Any:
        """Equal for values that hold equal results."""
        if self._key is None:
            if self.op in OPAQUE or self.inplace:
                self._key = ("id", id(self))
            else:
                attrs = tuple(sorted((k, _hashable(v)) for k, v in self.attrs.items() if not k.startswith("_")))
                self._key = (self.op, attrs, self.names, tuple(a.key for a in self.args))
                self._weight = 1 + sum(a._weight for a in self.args)
                if self._weight > _HEAVIEST:
                    self._key, self._weight = ("id", id(self)), 1
        return self._key

    def same(self, other: Value | None) -> bool:
        return other is not None and (self is other or self.key == other.key)

    @property
    def const(self) -> Any:
        """The Python constant it is, else the marker UNKNOWN."""
        return self.attrs["value"] if self.op == "const" else UNKNOWN

    @property
    def line(self) -> int:
        node: Any = self.node if self.node is not None and hasattr(self.node, "lineno") else self.stmt
        return getattr(node, "lineno", 0)

    def __repr__(self) -> str:
        inner = ", ".join(a.op for a in self.args)
        extra = {k: v for k, v in self.attrs.items() if not k.startswith("_")}
        return f"<{self.op}({inner}) {extra} l.{self.line}>"


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"

    def __bool__(self) -> bool:
        return False


UNKNOWN: Any = _Unknown()
_HEAVIEST = 60  # values with larger expressions are only equal to themselves
# Values that differ from every other one although they look alike: random, stateful or unknown.
OPAQUE = frozenset(
    {
        "param",
        "call",
        "dropout",
        "loop",
        "mutated",
        "undefined",
        "opaque",
        "rand",
        "randn",
        "empty",
        "setitem",
        "apply",
        "self",
        "instance",
        "method",
    }
)


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    if isinstance(value, (str, int, float, bool, tuple, bytes, complex)) or value is None:
        return (type(value).__name__, value)
    return id(value)


@dataclass
class Effect:
    """A use of a value outside the graph: what a function returns, stores, tests, raises or throws away."""

    kind: str  # return, store, condition, expression, raise, assert, yield, loop, context, delete, unknown
    value: Value
    stmt: ast.stmt
    frame: Frame
    conditions: tuple[Condition, ...]
    name: str = ""


class Frame:
    """One execution of one function body (a helper called twice has two)."""

    def __init__(
        self,
        graph: Graph,
        module: Module,
        function: ast.AST,
        parent: Frame | None = None,
        caller: Frame | None = None,
        call: ast.AST | None = None,
        self_value: Value | None = None,
    ) -> None:
        self.graph = graph
        self.module = module
        self.function = function
        self.parent = parent  # lexically enclosing execution, for closures
        self.caller = caller
        self.call = call
        self.call_stmt: ast.stmt | None = caller.stmt if caller else None
        self.self_value = self_value
        self.env: dict[str, Value] = {}
        self.stmt: ast.stmt | None = None
        self.conditions: tuple[Condition, ...] = caller.conditions if caller else ()
        self.contexts: tuple[ast.With | ast.AsyncWith, ...] = caller.contexts if caller else ()
        self.loops: tuple[ast.AST, ...] = caller.loops if caller else ()
        self.returns: list[tuple[Value, tuple[Condition, ...]]] = []
        self.name_values: dict[ast.AST, Value] = {}
        self.bindings: list[tuple[ast.stmt, str, Value]] = []
        self.env_at: dict[ast.stmt, dict[str, Value]] = {}  # names before the statement ran
        self.contexts_at: dict[ast.stmt, tuple[tuple[Any, ...], tuple[ast.AST, ...]]] = {}
        self.given: dict[str, Value] = {}  # arguments, by parameter name
        self.calls: dict[
            int, ast.expr
        ] = {}  # id of a value -> the call in this body that an inlined function gave it for
        self.terminated = False
        self.overridden = False  # a subclass runs another method in its place
        self.cls: Class | None = None
        graph.frames.append(self)

    @property
    def depth(self) -> int:
        return 0 if self.caller is None else self.caller.depth + 1

    def ancestors(self) -> Iterator[Frame]:
        frame: Frame | None = self
        while frame is not None:
            yield frame
            frame = frame.caller


class Graph:
    """All values and effects of one root function and what was inlined into it."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.effects: list[Effect] = []
        self.by_op: dict[str, list[Value]] = {}
        self.frames: list[Frame] = []
        self.invocations: dict[
            int, tuple[Value, list[Value], dict[str, Value]]
        ] = {}  # id of a value -> the method call that gave it
        self.budget = 60_000
        self._clock = 0

    def release(self) -> None:
        """Undo the links that run in circles. The graph is of no use afterwards, but it is freed at once, and the syntax trees with it."""
        for value in self.values:
            for arg in value.args:
                if arg.frame is None:
                    arg.users.clear()
                elif getattr(arg.frame, "graph", None) is not self:
                    arg.users = [user for user in arg.users if user is not value]  # it lives on, with its class
        for value in self.values:
            value.users.clear()
            value.attrs.clear()
        for frame in self.frames:
            vars(frame).clear()
        vars(self).clear()

    def tick(self) -> int:
        self._clock += 1
        return self._clock

    def add(self, value: Value) -> Value:
        self.values.append(value)
        self.by_op.setdefault(value.op, []).append(value)
        return value


def release(module: Module) -> None:
    """Let go of a file that is done with: its definitions point back at it, so that only the garbage collector could free its tree."""
    graphs = vars(module).pop("_graphs", [])
    for cls in vars(module).get("classes", {}).values():
        frames = [
            vars(cls).pop("_init_frame", None),
            *(v.frame for v in vars(cls).pop("_definitions", {}).values() if v is not None),
        ]
        graphs += [f.graph for f in frames if f is not None and getattr(f, "module", None) is module]
        vars(cls).clear()
    for graph in graphs:
        if hasattr(graph, "values"):
            graph.release()
    vars(module).clear()
