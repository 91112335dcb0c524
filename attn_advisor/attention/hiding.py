"""Whether an added term can hide a whole row of the scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from attn_advisor.attention.callers import values_passed
from attn_advisor.attention.masks import FLIP, LAYOUT, STRONG, constant_matrix, fill_of
from attn_advisor.attention.triangles import triangle
from attn_advisor.dataflow.attributes import definition, starts_empty, stored_values
from attn_advisor.dataflow.shapes import Shapes
from attn_advisor.dataflow.values import Value

# What such operations give is never that large.
_BOUNDED = frozenset(
    "einsum matmul baddbmm embedding tanh sigmoid softmax sin cos arange normalize linear conv2d interpolate grid_sample "
    "zeros ones eye zeros_like ones_like new_zeros randn rand".split()
)
# What such operations give is as large as their first operand.
_FOLLOWED = LAYOUT | frozenset(
    "part chunk split unbind clamp exp roll index_select gather dropout tril triu neg diagonal einops_reduce stack conv1d".split()
)


def hides(value: Value, shapes: Shapes, depth: int = 0, ask_callers: bool = True) -> str:
    """Whether an added term can push every key of a row out of reach: "no", "possible", or "rows kept" (a causal triangle).

    ask_callers: follow a parameter to what the project passes for it, which takes time.
    """
    if depth > 25:
        return "possible"
    found = triangle(value, shapes)
    if found is not None:
        if min(found.inside, found.outside) > STRONG:
            return "no"
        kept = found.holding(float(found.inside > STRONG), float(found.outside > STRONG)).keep()
        return "rows kept" if kept is not None and kept.nonempty else "possible"
    if value.op in _BOUNDED:
        return "no"
    look = _Look(shapes, depth, ask_callers)
    reader = _READERS.get(value.op)
    if reader is not None:
        return reader(look, value)
    return look.again(value.args[0]) if value.op in _FOLLOWED and value.args else "possible"


class _Look:
    """A look through one operation at what it is made of."""

    def __init__(self, shapes: Shapes, depth: int, ask_callers: bool) -> None:
        self.shapes, self.depth, self.ask_callers = shapes, depth, ask_callers

    def again(self, inner: Value) -> str:
        return hides(inner, self.shapes, self.depth + 1, self.ask_callers)

    def every(self, values: Iterable[Value]) -> str:
        return _worst([self.again(v) for v in values])

    def attribute(self, value: Value) -> str:
        made = definition(value)
        stored = [made] if made is not None else stored_values(value)
        if not stored:
            return "possible"
        return _worst([_defined(m, self.shapes, self.depth + 1) for m in stored if not _none(m)])

    def call(self, value: Value) -> str:
        target = value.args[0] if value.args else None
        made = value.attrs.get("_made") or (
            definition(target) if target is not None and target.op == "attribute" else None
        )
        if made is None or made.op != "construct":
            return "possible"
        if made.attrs["qualified"].startswith("einops.layers."):
            return self.again(value.args[1])
        return "no" if made.attrs["qualified"].startswith("torch.nn.") else "possible"

    def getitem(self, value: Value) -> str:
        if not _is_cache(value.args[0]):
            return self.again(value.args[0])
        setitems = value.frame.graph.by_op.get("setitem", []) if value.frame else []
        stored = [v.args[2] for v in setitems if v.args[0].key == value.args[0].key or v.args[0] is value.args[0]]
        return self.every(stored) if stored else "possible"

    def pad(self, value: Value) -> str:
        if len(value.args) > 1 and value.args[1].op in ("tuple", "list"):
            before = [a.const for a in value.args[1].args[:2]]
            number = value.get("value")
            filled = number is None or isinstance(number.const, (int, float)) and number.const > STRONG
            if filled and any(isinstance(n, int) and n > 0 for n in before):
                return "rows kept"  # the keys that are added are not hidden
        return self.again(value.args[0]) if value.args else "possible"

    def sequence(self, value: Value) -> str:
        return self.every(value.args)

    def cat(self, value: Value) -> str:
        if value.args and value.args[0].op in ("tuple", "list"):
            return self.every(value.args[0].args)
        return self.again(value.args[0]) if value.args else "possible"

    def const(self, value: Value) -> str:
        return "no" if isinstance(value.const, (int, float)) and value.const > STRONG else "possible"

    def full(self, value: Value) -> str:
        content = constant_matrix(value)
        return "no" if content is not None and content > STRONG else "possible"

    def filled(self, value: Value) -> str:
        """masked_fill, where and setitem."""
        if value.op == "masked_fill":
            if _covers(value):
                return "no"
            fills = [value.args[2]]
        else:
            fills = [v for v in value.args if v.op in ("const", "neg", "attribute")]
        bounded = all(fill_of(v).strength == "weak" for v in fills) and bool(fills)
        return self.again(value.args[1] if value.op == "where" else value.args[0]) if bounded else "possible"

    def log(self, value: Value) -> str:
        low = value.args[0].get("min") if value.args[0].op == "clamp" else None
        bounded = low is not None and isinstance(low.const, (int, float)) and low.const > 0
        return "no" if bounded else "possible"

    def product(self, value: Value) -> str:
        if len(value.args) != 2:
            return "possible"
        factor = value.args[1].const if isinstance(value.args[1].const, (int, float)) else value.args[0].const
        if isinstance(factor, (int, float)) and factor <= STRONG:
            return "possible"
        return self.sum(value)

    def sum(self, value: Value) -> str:
        return self.every(a for a in value.args if not _plain(a))

    def param(self, value: Value) -> str:
        given = values_passed(value) if self.ask_callers else []
        return self.every(v for v in given if not _none(v)) if given else "possible"

    def phi(self, value: Value) -> str:
        return self.every(a for a in value.args[1:] if not _none(a))


def _none(value: Value) -> bool:
    return value.op == "const" and value.const is None


def _covers(value: Value) -> bool:
    """x.masked_fill(m != 0, a).masked_fill(m == 0, b) with two harmless numbers: nothing of x is left."""
    inner = value.args[0]
    if inner.op != "masked_fill" or len(value.args) < 3 or len(inner.args) < 3:
        return False
    a, b = value.args[1], inner.args[1]
    if a.op != "compare" or b.op != "compare" or not all(x.same(y) for x, y in zip(a.args, b.args, strict=True)):
        return False
    return FLIP.get(a.attrs["how"]) == b.attrs["how"] and all(
        fill_of(v.args[2]).strength == "weak" for v in (value, inner)
    )


def _defined(made: Value, shapes: Shapes, depth: int) -> str:
    """The same for what `__init__` sets an attribute to: parameters are learned and never that large."""
    if made.op == "construct":
        return "no" if made.attrs["qualified"] in ("torch.nn.Parameter", "torch.nn.parameter.Parameter") else "possible"
    if made.op == "phi":
        return _worst([_defined(a, shapes, depth + 1) for a in made.args[1:] if not _none(a)])
    if made.op == "buffer":
        inner = made.args[0]
        return "no" if _none(inner) else hides(inner, shapes, depth + 1)
    return "possible"


def _is_cache(value: Value) -> bool:
    """An attribute that only ever holds a dict filled here."""
    while value.inplace or value.op == "mutated":
        value = value.args[0]
    return value.op == "attribute" and starts_empty(value)


def _plain(value: Value) -> bool:
    """A scalar factor such as self.scale or a size."""
    if value.op in ("size", "number", "pow", "sqrt"):
        return True
    if value.op == "const":
        return isinstance(value.const, (int, float)) and value.const > STRONG
    if value.op == "attribute":
        made = definition(value)
        return made is not None and made.op in ("const", "pow", "div", "mul", "param", "number", "sqrt")
    return False


def _worst(answers: list[str]) -> str:
    if "possible" in answers:
        return "possible"
    return "rows kept" if answers.count("rows kept") == 1 else "possible" if "rows kept" in answers else "no"


_READERS: dict[str, Callable[[_Look, Value], str]] = {
    "attribute": _Look.attribute,
    "call": _Look.call,
    "apply": _Look.call,
    "getitem": _Look.getitem,
    "pad": _Look.pad,
    "tuple": _Look.sequence,
    "list": _Look.sequence,
    "cat": _Look.cat,
    "const": _Look.const,
    "full": _Look.full,
    "masked_fill": _Look.filled,
    "where": _Look.filled,
    "setitem": _Look.filled,
    "log": _Look.log,
    "mul": _Look.product,
    "div": _Look.product,
    "add": _Look.sum,
    "sub": _Look.sum,
    "param": _Look.param,
    "phi": _Look.phi,
}
