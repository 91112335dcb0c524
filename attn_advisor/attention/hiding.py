"""Whether an added term can hide a whole row of the scores."""

from __future__ import annotations

from attn_advisor.attention.callers import values_passed
from attn_advisor.attention.masks import FLIP, LAYOUT, STRONG, constant_matrix, fill_of
from attn_advisor.attention.triangles import triangle
from attn_advisor.dataflow.attributes import definition, starts_empty, stored_values
from attn_advisor.dataflow.shapes import Shapes
from attn_advisor.dataflow.values import Value


def hides(value: Value, shapes: Shapes, depth: int = 0, ask_callers: bool = True) -> str:
    """Whether an added term can push every key of a row out of reach: "no", "possible", or "rows kept" (a causal triangle).

    ask_callers: follow a parameter to what the project passes for it, which takes time.
    """
    if depth > 25:
        return "possible"
    found = triangle(value, shapes)

    def again(inner: Value) -> str:
        return hides(inner, shapes, depth + 1, ask_callers)

    if found is not None:
        if min(found.inside, found.outside) > STRONG:
            return "no"
        kept = found.holding(float(found.inside > STRONG), float(found.outside > STRONG)).keep()
        return "rows kept" if kept is not None and kept.nonempty else "possible"
    op = value.op
    if op in (
        "einsum",
        "matmul",
        "baddbmm",
        "embedding",
        "tanh",
        "sigmoid",
        "softmax",
        "sin",
        "cos",
        "arange",
        "normalize",
        "linear",
        "conv2d",
        "interpolate",
        "grid_sample",
    ):
        return "no"
    if op == "attribute":
        made = definition(value)
        stored = [made] if made is not None else stored_values(value)
        return (
            _worst([_defined(m, shapes, depth + 1) for m in stored if not (m.op == "const" and m.const is None)])
            if stored
            else "possible"
        )
    if op in ("call", "apply"):
        target = value.args[0] if value.args else None
        made = value.attrs.get("_made") or (
            definition(target) if target is not None and target.op == "attribute" else None
        )
        if made is not None and made.op == "construct" and made.attrs["qualified"].startswith("einops.layers."):
            return again(value.args[1])
        return (
            "no"
            if made is not None and made.op == "construct" and made.attrs["qualified"].startswith("torch.nn.")
            else "possible"
        )
    if op == "getitem" and _is_cache(value.args[0]):
        stored = (
            [
                v.args[2]
                for v in value.frame.graph.by_op.get("setitem", [])
                if v.args[0].key == value.args[0].key or v.args[0] is value.args[0]
            ]
            if value.frame
            else []
        )
        return _worst([again(v) for v in stored]) if stored else "possible"
    if op == "pad" and len(value.args) > 1 and value.args[1].op in ("tuple", "list"):
        before = [a.const for a in value.args[1].args[:2]]
        number = value.get("value")
        filled = number is None or isinstance(number.const, (int, float)) and number.const > STRONG
        if filled and any(isinstance(n, int) and n > 0 for n in before):
            return "rows kept"  # the keys that are added are not hidden
    if op in ("einops_reduce", "gather", "stack", "conv1d", "interpolate"):
        return again(value.args[0])
    if op in ("tuple", "list"):
        return _worst([again(a) for a in value.args])
    if op == "const":
        return "no" if isinstance(value.const, (int, float)) and value.const > STRONG else "possible"
    if op == "masked_fill" and _covers(value):
        return "no"
    if op in ("masked_fill", "where", "setitem"):
        fills = (
            [v for v in value.args if v.op == "const" or v.op == "neg" or v.op == "attribute"]
            if op != "masked_fill"
            else [value.args[2]]
        )
        bounded = all(fill_of(v).strength == "weak" for v in fills) and bool(fills)
        return again(value.args[1] if op == "where" else value.args[0]) if bounded else "possible"
    if op in ("zeros", "ones", "eye", "zeros_like", "ones_like", "new_zeros", "randn", "rand"):
        return "no"
    if op == "full":
        content = constant_matrix(value)
        return "no" if content is not None and content > STRONG else "possible"
    if op in LAYOUT or op in (
        "part",
        "chunk",
        "split",
        "unbind",
        "clamp",
        "exp",
        "roll",
        "index_select",
        "gather",
        "pad",
        "dropout",
        "cat",
        "tril",
        "triu",
        "neg",
        "log",
        "diagonal",
    ):
        if op == "cat" and value.args[0].op in ("tuple", "list"):
            return _worst([again(a) for a in value.args[0].args])
        if op == "log":
            low = value.args[0].get("min") if value.args[0].op == "clamp" else None
            bounded = low is not None and isinstance(low.const, (int, float)) and low.const > 0
            return "no" if bounded else "possible"
        return again(value.args[0]) if value.args else "possible"
    if op in ("mul", "div") and len(value.args) == 2:
        factor = value.args[1].const if isinstance(value.args[1].const, (int, float)) else value.args[0].const
        if isinstance(factor, (int, float)) and factor <= STRONG:
            return "possible"
        return _worst([again(a) for a in value.args if not _plain(a)])
    if op in ("add", "sub"):
        return _worst([again(a) for a in value.args if not _plain(a)])
    if op == "param":
        given = values_passed(value) if ask_callers else []
        return (
            "possible" if not given else _worst([again(v) for v in given if not (v.op == "const" and v.const is None)])
        )
    if op == "phi":
        return _worst([again(a) for a in value.args[1:] if a.const is not None or a.op != "const"])
    return "possible"


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
        return _worst(
            [_defined(a, shapes, depth + 1) for a in made.args[1:] if not (a.op == "const" and a.const is None)]
        )
    if made.op == "buffer":
        inner = made.args[0]
        return "no" if inner.op == "const" and inner.const is None else hides(inner, shapes, depth + 1)
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
