"""What the in-place analysis knows of a value: whose memory it is, and which backward formulas keep that memory."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

Origin = Literal["new", "argument", "parameter", "buffer", "attribute", "unknown"]


class Memory:
    """One allocation (a storage): views and aliases share it, and with it its version counter."""

    __slots__ = ("element", "name", "node", "origin")

    def __init__(self, origin: Origin, name: str = "", node: ast.AST | None = None, element: bool = False) -> None:
        self.origin = origin
        self.element = element  # a member of the list or tuple that the argument is
        self.name = name
        self.node = node

    def __repr__(self) -> str:
        return f"<{self.origin} {self.name} {getattr(self.node, 'lineno', '')}>"


Made = TypeVar("Made")


def replace(value: Made, **changes: Any) -> Made:
    """A copy with some fields changed: `dataclasses.replace` for values and what is saved, several times faster."""
    made = object.__new__(type(value))
    vars(made).update(vars(value), **changes)
    return made


@dataclass(frozen=True)
class Saved:
    """Some memory is kept for the backward of `op` (as its result or as the operand called `role`)."""

    op: str
    role: str
    node: ast.AST
    through: str = ""  # kept only if this operation ("contiguous", "to") gave back the same memory
    sure: bool = False  # a parameter's gradient passes here, whatever the caller hands in


@dataclass(frozen=True)
class Value:
    """An abstract value.

    kind: "tensor" (certainly one), "unknown" (perhaps one), "number" (a Python number, string, size, dtype: never changed in
    place), "sequence", "module", "object".
    memory: allocations it may be; more than one after a join of branches. maybe: allocations it shares only sometimes, with
    the operation that decides (dropout in eval mode, `.to` of the same dtype).
    outputs: the call of chunk, split, unbind ... it is one result of (or a view of one). leaf: a parameter or a view of one.
    part: which of the results; different ones do not overlap. detached: no gradient flows through it. contiguous: True, False or None for unknown.
    """

    kind: str
    memory: frozenset[Memory] = frozenset()
    maybe: frozenset[tuple[Memory, str]] = frozenset()
    outputs: ast.AST | None = None
    leaf: bool = False
    detached: bool = False
    data: bool = False
    contiguous: bool | None = None
    transposed: bool = False
    items: tuple[Value, ...] = ()
    element: Value | None = None
    module: Any = None
    op: str = ""
    node: ast.AST | None = None
    boolean: bool = False
    part: int | None = None

    @property
    def tensorlike(self) -> bool:
        return self.kind in ("tensor", "unknown")

    def view(self, node: ast.AST, op: str, **changes: Any) -> Value:
        """A tensor that shares this one's memory."""
        return replace(self, kind="tensor", op=op, node=node, items=(), element=None, contiguous=None, **changes)


NUMBER = Value("number")
OBJECT = Value("object")
NUMPY = Value("object", op="numpy")


def new(
    op: str, node: ast.AST | None, *, kind: str = "tensor", origin: Origin = "new", name: str = "", **known: Any
) -> Value:
    return Value(kind, frozenset([Memory(origin, name or op, node)]), op=op, node=node, **known)


def joined(first: Value, second: Value) -> Value:
    """What is known where two paths meet."""
    if first is second or first == second:
        return first
    if {first.kind, second.kind} <= {"tensor", "unknown"}:
        kind = first.kind if first.kind == second.kind else "unknown"
    elif first.kind == second.kind:
        kind = first.kind
    elif "number" in (first.kind, second.kind) and "tensor" in (first.kind, second.kind):
        kind = "unknown"
    else:
        kind = "unknown" if first.tensorlike or second.tensorlike else "object"
    items: tuple[Value, ...] = ()
    if first.items and len(first.items) == len(second.items):
        items = tuple(map(joined, first.items, second.items))
    element = first.element or second.element
    if first.element and second.element and first.element != second.element:
        element = joined(first.element, second.element)
    return Value(
        kind,
        first.memory | second.memory,
        first.maybe | second.maybe,
        first.outputs or second.outputs,
        first.leaf or second.leaf,
        first.detached and second.detached,
        first.data and second.data,
        first.contiguous if first.contiguous == second.contiguous else None,
        first.transposed or second.transposed,
        items,
        element,
        first.module if first.module == second.module else None,
        first.op if first.op == second.op else "join",
        first.node,
        first.boolean and second.boolean,
    )


@dataclass
class State:
    """Names, and what backward holds, at one point of a function."""

    names: dict[str, Value] = field(default_factory=dict)
    saved: dict[Memory, tuple[Saved, ...]] = field(default_factory=dict)
    graph: frozenset[Memory] = frozenset()  # memory of tensors that a gradient may reach
    trained: frozenset[Memory] = frozenset()  # ... and does, since a parameter takes part
    ended: bool = False

    def copy(self) -> State:
        return State(dict(self.names), dict(self.saved), self.graph, self.trained, self.ended)

    def needs_gradient(self, value: Value) -> bool:
        """Whether a gradient may reach the tensor."""
        if value.detached or not value.tensorlike:
            return False
        return any(m in self.graph for m in value.memory) or any(m in self.graph for m, _ in value.maybe)

    def keep(self, value: Value, saved: Saved) -> None:
        self._keep(value.memory, saved)
        for memory, through in value.maybe:
            self._keep([memory], replace(saved, through=through))

    def _keep(self, memory: Iterable[Memory], saved: Saved) -> None:
        for one in memory:
            known = self.saved.get(one, ())
            if saved not in known:
                self.saved[one] = (*known[-6:], saved)

    def is_trained(self, values: Iterable[Value]) -> bool:
        return any(not value.detached and not self.trained.isdisjoint(value.memory) for value in values)

    def give_gradient(self, memory: Iterable[Memory], trained: bool = False) -> None:
        memory = frozenset(memory)
        self.graph |= memory
        if trained:
            self.trained |= memory


def merged(states: list[State]) -> State:
    """The state after branches; those that ended (return, raise) do not arrive."""
    alive = [state for state in states if not state.ended]
    if not alive:
        return states[0]
    result = alive[0].copy()
    for other in alive[1:]:
        for name, value in other.names.items():
            known = result.names.get(name)
            if known is not value:
                result.names[name] = value if known is None else joined(known, value)
        for memory, kept in other.saved.items():
            for saved in kept if result.saved.get(memory) is not kept else ():
                result._keep([memory], saved)
        result.graph |= other.graph
        result.trained |= other.trained
    return result
