"""Masks that are a triangle of a matrix: the causal ones, however they are written."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from attn_advisor.attention.masks import constant_matrix, is_bool, number_of
from attn_advisor.attention.synthetic import synthetic
from attn_advisor.dataflow.attributes import definition
from attn_advisor.dataflow.dims import Dim
from attn_advisor.dataflow.shapes import Shapes
from attn_advisor.dataflow.values import Value


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
    reader = _READERS.get(value.op)
    return reader(value, shapes, depth + 1) if reader is not None else None


def _cut(value: Value, shapes: Shapes, depth: int) -> Triangle | None:
    """tril and triu of a matrix of one number."""
    ground = constant_matrix(value.args[0])
    diagonal = value.get("diagonal")
    if ground is None or ground == 0:
        return None
    shape = shapes.shape(value.args[0])
    if shape is None or len(shape) < 2 or not _leading_ones(shape):
        return None
    rows, columns = shape[-2], shape[-1]
    number, end = _offset(diagonal, rows, columns, shapes) if diagonal is not None else (0, False)
    if number is None:
        return None
    return Triangle(value.op == "tril", number, rows, columns, ground, 0, "end:" + repr(columns) if end else "0")


def _generated(value: Value, shapes: Shapes, depth: int) -> Triangle | None:
    """nn.Transformer.generate_square_subsequent_mask(size)."""
    if (
        len(value.args) < 2
        or value.args[0].op != "import"
        or not value.args[0].attrs["qualified"].endswith("Transformer.generate_square_subsequent_mask")
    ):
        return None
    size = shapes.dim(value.args[1])
    return Triangle(False, 1, size, size, -math.inf, 0)


def _handed_on(value: Value, shapes: Shapes, depth: int) -> Triangle | None:
    return triangle(value.args[0], shapes, depth)


def _cast(value: Value, shapes: Shapes, depth: int) -> Triangle | None:
    inner = triangle(value.args[0], shapes, depth) if value.args else None
    if inner is None:
        return None
    kind = value.attrs["kind"]
    if kind == "bool":
        return inner.holding(float(bool(inner.inside)), float(bool(inner.outside)))
    whole = kind in ("uint8", "int8", "int16", "int32", "int64")
    return inner if not whole or {inner.inside, inner.outside} <= {0, 1} else None


def _attribute(value: Value, shapes: Shapes, depth: int) -> Triangle | None:
    made = definition(value)
    if made is None or made.op != "buffer" or made.attrs.get("persistent") is None:
        return None
    return triangle(made, shapes, depth)


def _inverted(value: Value, shapes: Shapes, depth: int) -> Triangle | None:
    inner = triangle(value.args[0], shapes, depth)
    if inner is None or value.op == "invert" and not is_bool(value.args[0]):
        return None
    return inner.holding(float(not inner.inside), float(not inner.outside))


def _one_minus(value: Value, shapes: Shapes, depth: int) -> Triangle | None:
    inner = triangle(value.args[1], shapes, depth) if value.args[0].const == 1 else None
    return None if inner is None else inner.holding(1 - inner.inside, 1 - inner.outside)


def _multiplied(value: Value, shapes: Shapes, depth: int) -> Triangle | None:
    if len(value.args) != 2:
        return None
    for factor, other in (value.args, value.args[::-1]):
        times = number_of(factor) if factor.op != "param" else None
        inner = triangle(other, shapes, depth) if times is not None and times != -math.inf else None
        if inner is not None and times is not None:
            return inner.holding(times * inner.inside, times * inner.outside)
    return None


def _chosen(value: Value, shapes: Shapes, depth: int) -> Triangle | None:
    """where(triangle, number, number)."""
    if len(value.args) != 3:
        return None
    inner = triangle(value.args[0], shapes, depth)
    kept, dropped = number_of(value.args[1]), number_of(value.args[2])
    if inner is None or kept is None or dropped is None:
        return None
    return inner.holding(kept if inner.inside else dropped, kept if inner.outside else dropped)


def _transposed(value: Value, shapes: Shapes, depth: int) -> Triangle | None:
    dims = value.attrs.get("dims")
    if dims not in ((-2, -1), (-1, -2), (0, 1), (1, 0)):
        return None
    inner = triangle(value.args[0], shapes, depth)
    if inner is None or inner.row_start != "0" or dims in ((0, 1), (1, 0)) and shapes.rank(value.args[0]) != 2:
        return None
    return Triangle(not inner.lower, -inner.diagonal, inner.columns, inner.rows, inner.inside, inner.outside)


def _viewed(value: Value, shapes: Shapes, depth: int) -> Triangle | None:
    inner = triangle(value.args[0], shapes, depth)
    return None if inner is None else _reshaped(value, inner, shapes)


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


def _compared(value: Value, shapes: Shapes, depth: int) -> Triangle | None:
    if len(value.args) != 2:
        return None
    how, (left, right) = value.attrs["how"], value.args
    if isinstance(right.const, (int, float)):
        inner = triangle(left, shapes, depth)
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
    ground = constant_matrix(value.args[0])
    number = number_of(value.args[2]) if len(value.args) > 2 else None
    if number is None and len(value.args) > 2 and isinstance(value.args[2].const, (int, float)):
        number = float(value.args[2].const)
    if number is None:
        return None
    if ground is not None:
        inner = triangle(value.args[1], shapes, depth)
        if inner is None:
            return None
        return inner.holding(number if inner.inside else ground, number if inner.outside else ground)
    below = triangle(value.args[0], shapes, depth)
    over = triangle(value.args[1], shapes, depth)
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


_READERS: dict[str, Callable[[Value, Shapes, int], Triangle | None]] = {
    "tril": _cut,
    "triu": _cut,
    "call": _generated,
    "compare": _compared,
    "buffer": _handed_on,
    "identity": _handed_on,
    "contiguous": _handed_on,
    "cast": _cast,
    "attribute": _attribute,
    "invert": _inverted,
    "logical_not": _inverted,
    "sub": _one_minus,
    "mul": _multiplied,
    "masked_fill": _filled,
    "where": _chosen,
    "transpose": _transposed,
    "unsqueeze": _viewed,
    "reshape": _viewed,
    "expand": _viewed,
    "getitem": _viewed,
}
