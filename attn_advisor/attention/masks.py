"""What a mask is: which cells it keeps, how strongly it fills the others, whether it is causal, whether it can hide a whole row."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from attn_advisor.attention.callers import values_passed
from attn_advisor.attention.synthetic import compare, constant, synthetic
from attn_advisor.dataflow.attributes import definition, starts_empty, stored_values
from attn_advisor.dataflow.shapes import Dim, Shapes
from attn_advisor.dataflow.values import UNKNOWN, Value

_FLIP = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
# Facts: fills of -1e4 and below act as -inf beside ordinary scores.
STRONG = -1e4
_LOWEST = -3.4028234663852886e38  # torch.finfo(torch.float32).min
_LAYOUT = frozenset(
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
    if value.op in _LAYOUT or value.op in ("invert", "tril", "triu", "part", "masked_fill", "zeros_like", "ones_like"):
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
    if mask.op == "compare" and mask.attrs["how"] in _FLIP:
        right = mask.args[1]
        if right.op == "const" and isinstance(right.const, bool):
            right = constant(int(right.const))
            if is_bool(mask.args[0]):
                same = (mask.attrs["how"] == "eq") == bool(right.const)  # m == True is m
                return negated(mask.args[0], True) if same else mask.args[0]
        return compare(mask.args[0], _FLIP[mask.attrs["how"]], right)
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


# -- triangles ---------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Triangle:
    """A matrix over (rows, columns) that is `inside` where column <= row + diagonal (lower) or column >= row + diagonal (upper), else `outside`.

    row_start: "0" for the first rows, "end:N" for the last ones up to row N.
    """

    lower: bool
    diagonal: int
    rows: Dim | None
    columns: Dim | None
    inside: float
    outside: float
    row_start: str = "0"

    def keep(self) -> Triangle | None:
        """As cells kept (nonzero): the lower triangle, or None if the kept cells are no lower triangle."""
        if self.inside and not self.outside:
            return self if self.lower else None
        if self.outside and not self.inside and not self.lower:
            return Triangle(True, self.diagonal - 1, self.rows, self.columns, 1, 0, self.row_start)
        return None

    def holding(self, inside: float, outside: float) -> Triangle:
        """The same cells with other numbers in them."""
        return replace(self, inside=inside, outside=outside)

    @property
    def nonempty(self) -> bool:
        """Whether each row has a nonzero cell (of a lower triangle of kept cells)."""
        return self.lower and self.diagonal >= 0 and (self.row_start == "0" or self.row_start.startswith("end"))


def triangle(value: Value, shapes: Shapes, depth: int = 0) -> Triangle | None:
    """The triangle a mask is, or None. Only leading axes of size one may be added to the two of the matrix."""
    if depth > 25 or value.inplace and value.op not in ("masked_fill", "tril", "triu"):
        return None
    op = value.op
    if op in ("tril", "triu"):
        ground = _constant_matrix(value.args[0])
        diagonal = value.get("diagonal")
        if ground is None or ground == 0:
            return None
        shape = shapes.shape(value.args[0])
        rows, columns = (
            (shape[-2], shape[-1]) if shape is not None and len(shape) >= 2 and _leading_ones(shape) else (None, None)
        )
        if rows is None or columns is None:
            return None
        number, end = _offset(diagonal, rows, columns, shapes) if diagonal is not None else (0, False)
        if number is None:
            return None
        return Triangle(op == "tril", number, rows, columns, ground, 0, "end:" + repr(columns) if end else "0")
    if (
        op == "call"
        and value.args
        and value.args[0].op == "import"
        and value.args[0].attrs["qualified"].endswith("Transformer.generate_square_subsequent_mask")
        and len(value.args) > 1
    ):
        size = shapes.dim(value.args[1])
        return Triangle(False, 1, size, size, -math.inf, 0)
    if op == "compare" and len(value.args) == 2:
        return _compared(value, shapes, depth)
    if op in ("buffer", "identity", "contiguous") or (op == "cast" and value.args):
        inner = triangle(value.args[0], shapes, depth + 1)
        if inner is None or op != "cast":
            return inner
        if value.attrs["kind"] == "bool":
            return inner.holding(float(bool(inner.inside)), float(bool(inner.outside)))
        return (
            inner
            if {inner.inside, inner.outside} <= {0, 1}
            or value.attrs["kind"] not in ("uint8", "int8", "int16", "int32", "int64")
            else None
        )
    if op == "attribute":
        made = definition(value)
        return (
            triangle(made, shapes, depth + 1)
            if made is not None and made.op == "buffer" and made.attrs.get("persistent") is not None
            else None
        )
    if op in ("invert", "logical_not"):
        inner = triangle(value.args[0], shapes, depth + 1)
        if inner is None or (op == "invert" and not is_bool(value.args[0])):
            return None
        return inner.holding(float(not inner.inside), float(not inner.outside))
    if op == "sub" and value.args[0].const == 1:
        inner = triangle(value.args[1], shapes, depth + 1)
        return None if inner is None else inner.holding(1 - inner.inside, 1 - inner.outside)
    if op == "mul" and len(value.args) == 2:
        for factor, other in (value.args, value.args[::-1]):
            times = number_of(factor) if factor.op != "param" else None
            inner = triangle(other, shapes, depth + 1) if times is not None and times != -math.inf else None
            if inner is not None and times is not None:
                return inner.holding(times * inner.inside, times * inner.outside)
        return None
    if op == "masked_fill":
        return _filled(value, shapes, depth)
    if op == "where" and len(value.args) == 3:
        inner, kept, dropped = (
            triangle(value.args[0], shapes, depth + 1),
            number_of(value.args[1]),
            number_of(value.args[2]),
        )
        if inner is None or kept is None or dropped is None:
            return None
        return inner.holding(kept if inner.inside else dropped, kept if inner.outside else dropped)
    if op == "transpose" and value.attrs.get("dims") in ((-2, -1), (-1, -2), (0, 1), (1, 0)):
        inner = triangle(value.args[0], shapes, depth + 1)
        if (
            inner is None
            or inner.row_start != "0"
            or (value.attrs["dims"] in ((0, 1), (1, 0)) and shapes.rank(value.args[0]) != 2)
        ):
            return None
        return Triangle(not inner.lower, -inner.diagonal, inner.columns, inner.rows, inner.inside, inner.outside)
    if op in ("unsqueeze", "reshape", "expand", "getitem"):
        inner = triangle(value.args[0], shapes, depth + 1)
        return None if inner is None else _reshaped(value, inner, shapes)
    return None


def _offset(value: Value, rows: Dim, columns: Dim, shapes: Shapes) -> tuple[int | None, bool]:
    """A diagonal as (number, whether it counts from the lower right corner): 1, `S - L + 1`."""
    if isinstance(value.const, int):
        return value.const, False
    if value.op in ("add", "sub") and len(value.args) == 2:
        left, right = value.args
        if isinstance(right.const, int):
            number, end = _offset(left, rows, columns, shapes)
            return (
                None if number is None else number + right.const if value.op == "add" else number - right.const
            ), end
        if value.op == "add" and isinstance(left.const, int):
            number, end = _offset(right, rows, columns, shapes)
            return (None if number is None else number + left.const), end
        if value.op == "sub" and shapes.dim(left) == columns and shapes.dim(right) == rows:
            return 0, rows != columns
        if (
            value.op == "sub" and value.args[0].op == "add" and isinstance(value.args[0].args[0].const, int)
        ):  # 1 + S - L
            number, end = _offset(_difference(value), rows, columns, shapes)
            return (None if number is None else number + value.args[0].args[0].const), end
    return None, False


def _difference(value: Value) -> Value:
    """(n + a) - b without n."""
    return synthetic("sub", value.args[0].args[1], value.args[1])


def _leading_ones(shape: tuple[Dim, ...]) -> bool:
    return all(d == Dim(1) for d in shape[:-2])


def _constant_matrix(value: Value) -> float | None:
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
        return _constant_matrix(value.args[0])
    if value.op in ("expand", "reshape") and value.args:
        return _constant_matrix(value.args[0])
    if value.op == "invert" and is_bool(value.args[0]):
        inner = _constant_matrix(value.args[0])
        return None if inner is None else float(not inner)
    return None


def _compared(value: Value, shapes: Shapes, depth: int) -> Triangle | None:
    how, (left, right) = value.attrs["how"], value.args
    if isinstance(right.const, (int, float)):
        inner = triangle(left, shapes, depth + 1)
        if inner is None:
            return None
        tests = {
            "eq": lambda x: x == right.const,
            "ne": lambda x: x != right.const,
            "lt": lambda x: x < right.const,
            "gt": lambda x: x > right.const,
            "le": lambda x: x <= right.const,
            "ge": lambda x: x >= right.const,
        }
        if how not in tests:
            return None
        return inner.holding(float(tests[how](inner.inside)), float(tests[how](inner.outside)))
    a, b = _positions(left, shapes), _positions(right, shapes)
    if a is None or b is None or a[0] == b[0]:
        return None
    if a[0] == "row":  # row HOW column is column MIRROR row
        how, a, b = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}.get(how, ""), b, a
    if how in ("le", "lt"):
        return Triangle(True, 0 if how == "le" else -1, b[1], a[1], 1, 0)
    if how in ("ge", "gt"):
        return Triangle(False, 0 if how == "ge" else 1, b[1], a[1], 1, 0)
    return None


def _positions(value: Value, shapes: Shapes) -> tuple[str, Dim] | None:
    """("row" or "column", length) of an arange laid along one of the last two axes."""
    if value.op == "arange":
        operands = [a for n, a in zip(value.names, value.args, strict=False) if n.startswith("_") or n == "end"]
        return ("column", shapes.dim(operands[0])) if len(operands) == 1 else None
    if value.op == "unsqueeze":
        inner, dim = _positions(value.args[0], shapes), value.get("dim")
        if inner is None or dim is None or value.args[0].op != "arange":
            return None
        return ("row", inner[1]) if dim.const in (1, -1) else inner if dim.const == 0 else None
    if value.op == "reshape" and value.attrs.get("sizes") and len(value.args) == 3 and value.args[0].op == "arange":
        inner = _positions(value.args[0], shapes)
        if inner is None:
            return None
        first, second = value.args[1].const, value.args[2].const
        return (
            ("row", inner[1])
            if (first, second) == (-1, 1)
            else ("column", inner[1])
            if (first, second) == (1, -1)
            else None
        )
    if (
        value.op == "getitem"
        and value.args[0].op == "arange"
        and value.args[1].op == "tuple"
        and len(value.args[1].args) == 2
    ):
        inner = _positions(value.args[0], shapes)
        if inner is None:
            return None
        first, second = value.args[1].args
        full = lambda v: v.op == "slice" and all(a.const is None for a in v.args)  # noqa: E731
        if full(first) and second.op == "const" and second.const is None:
            return "row", inner[1]
        if first.op == "const" and first.const is None and full(second):
            return inner
    return None


def _filled(value: Value, shapes: Shapes, depth: int) -> Triangle | None:
    """zeros.masked_fill(triangle, number)."""
    ground = _constant_matrix(value.args[0])
    number = number_of(value.args[2]) if len(value.args) > 2 else None
    if number is None and len(value.args) > 2 and isinstance(value.args[2].const, (int, float)):
        number = float(value.args[2].const)
    if number is None:
        return None
    if ground is not None:
        inner = triangle(value.args[1], shapes, depth + 1)
        if inner is None:
            return None
        return inner.holding(number if inner.inside else ground, number if inner.outside else ground)
    below = triangle(value.args[0], shapes, depth + 1)
    over = triangle(value.args[1], shapes, depth + 1)
    if (
        below is None
        or over is None
        or (below.lower, below.diagonal, below.row_start) != (over.lower, over.diagonal, over.row_start)
    ):
        return None
    return below.holding(number if over.inside else below.inside, number if over.outside else below.outside)


def _reshaped(value: Value, inner: Triangle, shapes: Shapes) -> Triangle | None:
    """A triangle behind an operation that may add leading axes of size one or slice the last two."""
    if value.op == "unsqueeze":
        dim = value.get("dim")
        rank = shapes.rank(value.args[0])
        leading = (
            dim is not None
            and isinstance(dim.const, int)
            and rank is not None
            and (dim.const if dim.const >= 0 else rank + 1 + dim.const) <= rank - 2
        )
        return inner if leading else None
    if value.op in ("reshape", "expand"):
        shape = shapes.shape(value)
        if shape is None or len(shape) < 2 or (shape[-2], shape[-1]) != (inner.rows, inner.columns):
            return None
        return inner if value.op == "expand" or _leading_ones(shape) else None
    index = value.args[1]
    items = list(index.args) if index.op == "tuple" else [index]
    rank = shapes.rank(value.args[0])
    if rank is None:
        return None
    out, axis = inner, 0
    for item in items:
        if item.op == "const" and item.const is None:
            if axis > rank - 2:
                return None
            continue
        if item.op == "const" and item.const is Ellipsis:
            axis = rank - sum(1 for i in items[items.index(item) + 1 :] if not (i.op == "const" and i.const is None))
            continue
        if item.op == "const" and isinstance(item.const, int) and axis < rank - 2:
            axis += 1
            continue
        if item.op != "slice":
            return None
        sliced = _sliced(item, out, axis - rank, shapes)
        if sliced is None:
            return None
        out = sliced
        axis += 1
    return out


def _sliced(item: Value, inner: Triangle, axis: int, shapes: Shapes) -> Triangle | None:
    lower, upper, step = item.args
    if step.const is not None:
        return None
    if lower.const in (None, 0) and upper.const is None:
        return inner
    if axis < -2:
        return inner if lower.const in (None, 0) else None
    if isinstance(upper.const, int) and upper.const < 0:
        return None
    size = None if upper.op == "const" and upper.const is None else shapes.dim(upper)
    if axis == -1:
        if lower.const not in (None, 0) or size is None:
            return None
        return Triangle(inner.lower, inner.diagonal, inner.rows, size, inner.inside, inner.outside, inner.row_start)
    if lower.const in (None, 0):
        return (
            Triangle(inner.lower, inner.diagonal, size, inner.columns, inner.inside, inner.outside, inner.row_start)
            if size is not None
            else None
        )
    # rows [end - count : end]
    if (
        inner.row_start == "0"
        and lower.op == "sub"
        and upper.op != "const"
        and shapes.dim(lower.args[0]) == shapes.dim(upper)
    ):
        return Triangle(
            inner.lower,
            inner.diagonal,
            shapes.dim(lower.args[1]),
            inner.columns,
            inner.inside,
            inner.outside,
            "end:" + repr(shapes.dim(upper)),
        )
    return None


# -- additive masks ----------------------------------------------------------------------------------------------------------------------------


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
        content = _constant_matrix(value)
        return "no" if content is not None and content > STRONG else "possible"
    if op in _LAYOUT or op in (
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
    return _FLIP.get(a.attrs["how"]) == b.attrs["how"] and all(
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
