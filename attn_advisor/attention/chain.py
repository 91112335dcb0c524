"""The chain of operations from a product of query and key, through the softmax, to the product with the value."""

from __future__ import annotations

from dataclasses import dataclass, field

from attn_advisor.dataflow.attributes import definition
from attn_advisor.dataflow.values import Condition, Value

# Operations whose first operand carries the scores on.
_FIRST = frozenset(
    "cast identity softmax dropout masked_fill clamp tanh sigmoid neg transpose permute reshape unsqueeze squeeze flatten unflatten rearrange expand setitem "
    "nan_to_num exp log log_softmax relu abs repeat getitem part cat topk sort movedim mutated repeat_interleave einops_repeat roll tril triu reshape_as "
    "masked_scatter scatter index_put floor pad loop".split()
)
_EITHER = frozenset("add sub mul div maximum".split())
_CALLS = frozenset("call apply method".split())
_MAX_CALLS = 2


@dataclass
class Link:
    """One operation of the chain. `rest`: its other operands; `conditions`: when it takes part."""

    value: Value
    kind: str  # the operation, or "unknown"
    operand: Value  # what the chain hands it
    rest: tuple[Value, ...] = ()
    conditions: tuple[Condition, ...] = ()
    reversed: bool = False  # the chain is the right operand (`mask - scores`)
    labels: tuple[str, ...] = ()  # axes of the operand, filled in by axes.py


@dataclass
class Chain:
    """Links from the top (first found) down to `end`; notes say what could not be followed."""

    end: Value
    links: list[Link] = field(default_factory=list)
    spine: list[tuple[Value, int]] = field(
        default_factory=list
    )  # values on the way that every path takes, with the number of links above
    notes: list[tuple[str, Value]] = field(default_factory=list)


def is_product(value: Value) -> bool:
    """A contraction of two tensors."""
    if value.op == "matmul":
        return len(value.args) >= 2
    if value.op == "einsum":
        return len(value.args) == 2
    return value.op == "baddbmm" and len(value.args) >= 3


def as_softmax(value: Value) -> tuple[Value, int | None] | None:
    """(argument, axis) if the value is a softmax, also one written by hand: exp(x - max(x)) / sum, exp(x - logsumexp(x)), exp(x) / (1 + sum)."""
    if value.op == "softmax":
        return value.args[0], value.attrs["dim"]
    if value.op == "gumbel_softmax" and value.args:
        return value.args[0], _axis(value) if value.get("dim") is not None else -1
    if value.op == "div" and len(value.args) == 2 and value.args[0].op == "exp":
        top, below = value.args
        added = below.op == "add" and len(below.args) == 2
        if added:
            below = next((a for a in below.args if a.op == "sum"), below)
        if below.op == "sum" and below.args[0].same(top) and _keeps(below):
            inner = top.args[0]
            if not added and inner.op == "sub" and _maximum_of(inner.args[1], inner.args[0], _axis(below)):
                inner = inner.args[0]
            return inner, _axis(below)
    if value.op == "exp" and value.args[0].op == "sub":
        inner, total = value.args[0].args
        if total.op == "logsumexp" and total.args[0].same(inner) and _keeps(total):
            return inner, _axis(total)
    if value.op == "exp" and value.args[0].op == "log_softmax":
        return value.args[0].args[0], _axis(value.args[0])
    return None


def _axis(value: Value) -> int | None:
    dim = value.get("dim")
    return dim.const if dim is not None and isinstance(dim.const, int) else None


def _keeps(value: Value) -> bool:
    keep = value.get("keepdim")
    return keep is not None and keep.const is True


def _maximum_of(value: Value, of: Value, axis: int | None) -> bool:
    if value.op == "identity":
        value = value.args[0]
    if value.op in ("part", "getitem") or value.op == "attribute" and value.attrs.get("name") == "values":
        value = value.args[0]
    return (
        value.op in ("max", "amax")
        and value.args[0].same(of)
        and (len(value.args) == 1 or (_axis(value) == axis and _keeps(value)))
    )


class Walker:
    """Finds chains in one graph; remembers which values lead to a softmax or to a product."""

    def __init__(self) -> None:
        self._reach: dict[tuple[int, str], int | None] = {}

    def ends(self, value: Value, stage: str) -> bool:
        if stage == "probabilities":
            return as_softmax(value) is not None
        return is_product(value) and self.mixed(value, stage) is None

    def mixed(self, value: Value, stage: str) -> Value | None:
        """The scores or probabilities whose heads a product with a parameter mixes (talking heads), else None."""
        if value.op != "einsum" or len(value.args) != 2:
            return None
        left, right = value.attrs["inputs"]
        for scores, term, other in ((value.args[0], left, right), (value.args[1], right, left)):
            summed = [x for x in term if x in other and x not in value.attrs["output"]]
            if (
                len(other) == 2
                and len(term) >= 3
                and len(value.attrs["output"]) == len(term)
                and summed
                and summed[0] not in term[-2:]
                and self.reach(scores, stage) is not None
            ):
                return scores
        return None

    def reach(self, value: Value, stage: str, calls: int = 0) -> int | None:
        """Number of steps from the value down to the stage's end (a softmax, a product), or None."""
        at = (id(value), stage)
        if at in self._reach:
            return self._reach[at]
        self._reach[at] = None  # a cycle leads nowhere
        best: int | None = None
        if self.ends(value, stage):
            best = 0
        elif stage == "scores" and as_softmax(value) is not None:
            best = self._step(as_softmax(value)[0], stage, 5)  # type: ignore[index]  # a second softmax
        elif is_product(value):
            inner = self.mixed(value, stage)
            best = None if inner is None else self._step(inner, stage, 40)
        else:
            for operand, cost in self._onward(value):
                steps = self._step(operand, stage, cost)
                if steps is not None and (best is None or steps < best):
                    best = steps
        self._reach[at] = best
        return best

    def _step(self, operand: Value, stage: str, cost: int) -> int | None:
        steps = self.reach(operand, stage)
        return steps + cost if steps is not None and steps + cost < 200 else None

    def _onward(self, value: Value) -> list[tuple[Value, int]]:
        if value.op in _FIRST and value.args:
            if value.op in ("cat", "stack"):
                items = value.args[0]
                return [(a, 20) for a in items.args[:8]] if items.op in ("tuple", "list") else [(items, 20)]
            return [(value.args[0], 1)]
        if value.op in _EITHER and len(value.args) >= 2:
            return [(value.args[0], 1), (value.args[1], 2)]
        if value.op == "max" and len(value.args) == 2 and value.args[1].op != "const":
            return [(value.args[0], 1)]
        if value.op == "where" and len(value.args) == 3:
            return [(value.args[1], 1), (value.args[2], 2)]
        if value.op == "phi":
            return [(value.args[1], 1), (value.args[2], 1)]
        if value.op in _CALLS:
            start = 1 if value.op != "method" else 0
            return [(a, 40) for a in value.args[start : start + 3]]
        return []

    def walk(self, value: Value, stage: str, conditions: tuple[Condition, ...] = ()) -> Chain | None:
        """The chain from `value` down to the stage's end."""
        chain = Chain(value)
        at = value
        for _ in range(200):
            chain.spine.append((at, len(chain.links)))
            if self.ends(at, stage):
                chain.end = at
                return chain
            if at.op == "phi":
                joined = self._join(at, stage, conditions)
                if joined is None:
                    return None
                chain.links += joined.links
                chain.notes += joined.notes
                at = joined.end
                continue
            link = self._link(at, stage, conditions)
            if link is None:
                return None
            chain.links.append(link)
            at = link.operand
        return None

    def _link(self, at: Value, stage: str, conditions: tuple[Condition, ...]) -> Link | None:
        soft = as_softmax(at)
        if soft is not None:
            return Link(at, "softmax", soft[0], (), conditions)
        if at.op == "where" and len(at.args) == 3:
            for index in (1, 2):
                if self.reach(at.args[index], stage) is not None:
                    return Link(
                        at, "where", at.args[index], (at.args[0], at.args[3 - index]), conditions, reversed=index == 2
                    )
            return None
        if is_product(at):
            mixed = self.mixed(at, stage)
            return (
                None
                if mixed is None
                else Link(at, "unknown", mixed, tuple(a for a in at.args if a is not mixed), conditions)
            )
        options = [
            (steps + cost, operand)
            for operand, cost in self._onward(at)
            if (steps := self.reach(operand, stage)) is not None
        ]
        if not options:
            return None
        operand = (
            options[0][1]
            if at.op in _EITHER and not self._tabled(options[0][1], stage)
            else min(options, key=lambda o: o[0])[1]
        )
        rest = tuple(a for a in at.args if a is not operand)
        if at.op in _EITHER and at.args[0] is at.args[1]:
            rest = (operand,)
        kind = "unknown" if at.op in _CALLS else at.op
        return Link(at, kind, operand, rest, conditions, reversed=at.op in _EITHER and at.args[0] is not operand)

    def _tabled(self, value: Value, stage: str) -> bool:
        """Whether the product a summand leads to multiplies by a learned table (a relative position bias)."""
        if stage != "scores":
            return False
        for _ in range(30):
            if self.ends(value, stage):
                return any(_learned(a) for a in value.args[:3])
            onward = [o for o, _ in self._onward(value) if self.reach(o, stage) is not None]
            if not onward:
                return False
            value = onward[0]
        return False

    def _join(self, phi: Value, stage: str, conditions: tuple[Condition, ...]) -> Chain | None:
        """Both branches of a join, as links that take part on a condition; the chain goes on below where they meet."""
        test, body, orelse = phi.args
        left = self.walk(body, stage, (*conditions, (test, True))) if self.reach(body, stage) is not None else None
        right = (
            self.walk(orelse, stage, (*conditions, (test, False))) if self.reach(orelse, stage) is not None else None
        )
        if left is None or right is None:
            one = left or right
            if one is None:
                return None
            other = orelse if left is not None else body
            links = [
                Link(
                    k.value, k.kind, k.operand, k.rest, (*conditions, *k.conditions[len(conditions) + 1 :]), k.reversed
                )
                for k in one.links
            ]
            chain = Chain(one.end, links, notes=list(one.notes))
            if other.op not in ("undefined", "const"):
                chain.notes.append(("partial", phi))
            return chain
        heights = {id(v): n for v, n in right.spine}
        meet = next(((v, n) for v, n in left.spine if id(v) in heights), None)
        if meet is not None:
            return _merge(left, right, meet[1], heights[id(meet[0])], meet[0], conditions)
        # two different ends: the same operations on top may still be one
        chain = _merge(left, right, len(left.links), len(right.links), left.end, conditions)
        if stage == "probabilities" and as_softmax(left.end) and as_softmax(right.end):
            x, dim = as_softmax(left.end)  # type: ignore[misc]
            y, dim2 = as_softmax(right.end)  # type: ignore[misc]
            if dim == dim2 and not any(k.conditions != conditions and k.kind != "cast" for k in chain.links):
                joined = (
                    x
                    if x is y
                    else Value("phi", (test, x, y), ("test", "body", "orelse"), None, phi.node, None, register=False)
                )
                soft = Value(
                    "softmax",
                    (joined,),
                    ("input",),
                    {"dim": dim, "dim_given": True, "_merged": (left.end, right.end)},
                    left.end.node,
                    None,
                    register=False,
                )
                soft.frame, soft.stmt, soft.order = left.end.frame, left.end.stmt, left.end.order
                if x is not y:
                    joined.frame, joined.stmt = phi.frame, phi.stmt
                chain.end = soft
                return chain
        if stage == "scores" and not left.links and not right.links and left.end.key == right.end.key:
            return chain
        chain.notes.append(("two", phi))
        return chain


def _merge(left: Chain, right: Chain, na: int, nb: int, end: Value, conditions: tuple[Condition, ...]) -> Chain:
    """Links above the meeting point: equal ones on top once, the rest each under its branch's condition."""
    a, b = left.links[:na], right.links[:nb]
    top: list[Link] = []
    while a and b and _alike(a[0], b[0]):
        top.append(Link(a[0].value, a[0].kind, a[0].operand, a[0].rest, conditions, a[0].reversed))
        a, b = a[1:], b[1:]
    bottom: list[Link] = []
    while a and b and _alike(a[-1], b[-1]):
        bottom.insert(0, Link(a[-1].value, a[-1].kind, a[-1].operand, a[-1].rest, conditions, a[-1].reversed))
        a, b = a[:-1], b[:-1]
    notes = [*left.notes, *(n for n in right.notes if n not in left.notes)]
    return Chain(end, [*top, *a, *b, *bottom], notes=notes)


def _alike(a: Link, b: Link) -> bool:
    """The same operation with equal other operands."""
    attrs = {k: v for k, v in a.value.attrs.items() if not k.startswith("_")}
    others = {k: v for k, v in b.value.attrs.items() if not k.startswith("_")}
    return (
        a.kind == b.kind
        and a.kind != "unknown"
        and a.reversed == b.reversed
        and attrs == others
        and len(a.rest) == len(b.rest)
        and all(x.same(y) for x, y in zip(a.rest, b.rest, strict=True))
        and a.value.attrs.get("_module") is b.value.attrs.get("_module")
        or (
            a.kind == b.kind == "dropout"
            and "_module" in a.value.attrs
            and "_module" in b.value.attrs
            and a.value.attrs["_module"].key == b.value.attrs["_module"].key
        )
    )


def _learned(value: Value) -> bool:
    """A parameter or an embedding, behind views and casts."""
    for _ in range(12):
        if value.op == "attribute":
            made = definition(value)
            return made is not None and made.op == "construct" and made.attrs["qualified"].endswith("Parameter")
        if value.op == "call" and value.args and value.args[0].op == "attribute":
            made = definition(value.args[0])
            return made is not None and made.op == "construct" and made.attrs["qualified"].endswith("Embedding")
        if (
            value.op not in ("transpose", "permute", "reshape", "cast", "identity", "getitem", "unsqueeze", "rearrange")
            or not value.args
        ):
            return False
        value = value.args[0]
    return False


__all__ = ["Chain", "Link", "Walker", "as_softmax", "is_product"]
