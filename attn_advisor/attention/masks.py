"""What a mask is: which cells it keeps, how strongly it fills the others, whether it holds bools."""

from __future__ import annotations

import math
from dataclasses import dataclass

from attn_advisor.attention.synthetic import compare, constant, synthetic
from attn_advisor.dataflow.attributes import definition
from attn_advisor.dataflow.values import UNKNOWN, Value

FLIP = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}


# Facts: fills of -1e4 and below act as -inf beside ordinary scores.
STRONG = -1e4


_LOWEST = -3.4028234663852886e38  # torch.finfo(torch.float32).min


LAYOUT = frozenset(
    "unsqueeze squeeze reshape expand getitem transpose permute contiguous identity rearrange cast flatten unflatten repeat repeat_interleave einops_repeat expand_as buffer".split()
)


@dataclass(frozen=True)
class Fill:
    """What masked cells get. number: its value where it is one number; strength: "inf", "finite" (at most -1e4), "weak" or "unknown"."""

    strength: str
    number: float | None = None


def fill_of(value: Value) -> Fill:
    """
    Reads `float("-inf")`, `-1e9`, `torch.finfo(x.dtype).min`, `-math.inf`, `torch.tensor(-1e4)`, a constant buffer."""
    number = value.const
    if isinstance(number, (int, float)) and not isinstance(number, bool):
        if number == -math.inf:
            return Fill("inf", -math.inf)
        return Fill("finite" if number <= STRONG else "weak", float(number))
    if value.op == "neg":
        inner = value.args[0]
        if inner.op == "import" and inner.attrs["qualified"] in ("math.inf", "torch.inf", "numpy.inf"):
            return Fill("inf", -math.inf)
        if inner.op == "attribute" and inner.attrs["name"] == "max" and inner.args[0].op == "finfo":
            return Fill("finite")
        if inner.op == "const":
            return fill_of(constant(-inner.const)) if isinstance(inner.const, (int, float)) else Fill("unknown")
    if value.op == "attribute" and value.attrs["name"] == "min" and value.args[0].op == "finfo":
        return Fill("finite")
    if value.op in ("full", "full_like") and len(value.args) > 1:
        return fill_of(value.get("fill_value") or value.args[1])
    if value.op in ("tensor", "as_tensor", "cast", "buffer", "identity", "number") and value.args:
        return fill_of(value.args[0])
    if value.op in ("attribute",):
        made = definition(value)
        if made is not None:
            return fill_of(made)
    if value.op == "phi":
        a, b = fill_of(value.args[1]), fill_of(value.args[2])
        return (
            a
            if a == b
            else Fill(a.strength)
            if a.strength == b.strength and a.strength in ("finite", "inf")
            else Fill("unknown")
        )
    return Fill("unknown")


def number_of(value: Value) -> float | None:
    """The number a fill is; `finfo(dtype).min` counts as float32's, whatever the dtype."""
    fill = fill_of(value)
    return _LOWEST if fill.number is None and fill.strength == "finite" else fill.number


def is_bool(value: Value, depth: int = 0) -> bool:
    """Whether the value is a bool tensor for certain."""
    if depth > 30:
        return False
    if value.op in (
        "compare",
        "isnan",
        "isinf",
        "isfinite",
        "logical_xor",
        "logical_not",
        "logical_and",
        "logical_or",
        "any",
        "all",
        "isin",
    ):
        return value.attrs.get("how") not in ("is", "is_not", "in", "not_in")
    if value.op == "cast":
        return value.attrs["kind"] == "bool"
    if value.op in ("bitand", "bitor", "bitxor"):
        return all(is_bool(a, depth + 1) for a in value.args[:2])
    if value.op in LAYOUT or value.op in ("invert", "tril", "triu", "part", "masked_fill", "zeros_like", "ones_like"):
        dtype = value.get("dtype")
        if dtype is not None:
            return _bool_dtype(dtype)
        return bool(value.args) and is_bool(value.args[0], depth + 1)
    if value.op in ("ones", "zeros", "full", "empty", "eye", "tensor", "new_ones", "new_zeros"):
        dtype = value.get("dtype")
        if dtype is not None:
            return _bool_dtype(dtype)
        return value.op == "full" and len(value.args) > 1 and isinstance(value.args[1].const, bool)
    if value.op == "attribute":
        made = definition(value)
        return made is not None and made.op == "buffer" and is_bool(made, depth + 1)
    return False


def whole(value: Value, depth: int = 0) -> bool:
    """Whether a term holds whole numbers for certain, as distances of positions do."""
    if depth > 20:
        return False
    if value.op == "arange":
        return value.get("dtype") is None and all(not isinstance(a.const, float) for a in value.args)
    if value.op in ("add", "sub", "mul", "floordiv"):
        tensors = [a for a in value.args if not (isinstance(a.const, int) or a.op == "size")]
        return bool(tensors) and all(whole(a, depth + 1) for a in tensors)
    if value.op in (
        "abs",
        "neg",
        "clamp",
        "flip",
        "tril",
        "triu",
        "unsqueeze",
        "getitem",
        "reshape",
        "transpose",
        "expand",
        "identity",
    ):
        return (
            bool(value.args)
            and whole(value.args[0], depth + 1)
            and not any(isinstance(a.const, float) for a in value.args)
        )
    return False


def _bool_dtype(dtype: Value) -> bool:
    return (
        dtype.op == "import"
        and dtype.attrs["qualified"] == "torch.bool"
        or dtype.op == "name"
        and dtype.attrs["name"] == "bool"
    )


def negated(mask: Value, certainly_bool: bool) -> Value:
    """The mask of the other sense. `certainly_bool`: the original code demands bool here (masked_fill does)."""
    if mask.op == "compare" and mask.attrs["how"] in FLIP:
        right = mask.args[1]
        if right.op == "const" and isinstance(right.const, bool):
            right = constant(int(right.const))
            if is_bool(mask.args[0]):
                same = (mask.attrs["how"] == "eq") == bool(right.const)  # m == True is m
                return negated(mask.args[0], True) if same else mask.args[0]
        return compare(mask.args[0], FLIP[mask.attrs["how"]], right)
    if mask.op == "logical_not":
        return as_bool(mask.args[0])
    if mask.op == "invert" and (certainly_bool or is_bool(mask.args[0])):
        return mask.args[0]
    if certainly_bool or is_bool(mask):
        return synthetic("invert", mask)
    return compare(mask, "eq", constant(0))


def as_bool(mask: Value) -> Value:
    """The mask itself if it is bool for certain, else `mask != 0`."""
    return mask if is_bool(mask) else compare(mask, "ne", constant(0))


def constant_matrix(value: Value) -> float | None:
    """The number every cell of a freshly made matrix holds."""
    if value.op in ("ones", "new_ones", "ones_like"):
        return 1.0
    if value.op in ("zeros", "new_zeros", "zeros_like"):
        return 0.0
    if value.op in ("full", "full_like", "new_full"):
        fill = value.get("fill_value") or (
            value.args[1]
            if len(value.args) > 1 and value.op != "new_full"
            else value.args[2]
            if len(value.args) > 2
            else None
        )
        if fill is None:
            return None
        number = fill.const if isinstance(fill.const, (int, float)) else number_of(fill)
        return float(number) if number is not None and number is not UNKNOWN else None
    if value.op in ("cast", "identity", "unsqueeze") and value.args:
        return constant_matrix(value.args[0])
    if value.op in ("expand", "reshape") and value.args:
        return constant_matrix(value.args[0])
    if value.op == "invert" and is_bool(value.args[0]):
        inner = constant_matrix(value.args[0])
        return None if inner is None else float(not inner)
    return None
