"""Axis labels of the scores, from the product of query and key to the product with the value.

Labels are strings; "..." stands for leading axes whose number is unknown. The query axis is "i", the key axis "j" and the contracted one "c" until the
softmax says which is which; batch axes are "b0", "b1", ... or the einsum's own letters. An axis split by a view becomes "n.0", "n.1".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from attn_advisor.attention.chain import Link
from attn_advisor.dataflow.dims import Dim, atom
from attn_advisor.dataflow.shapes import Shapes
from attn_advisor.dataflow.values import Value

Labels = tuple[str, ...]


class Unclear(Exception):
    """An axis cannot be told; args[0] says why, args[1] is the value."""


def expand_tail(labels: Labels, count: int) -> Labels:
    """The last `count` of the unknown leading axes named."""
    if "..." not in labels:
        return labels
    at = labels.index("...")
    return (*labels[: at + 1], *(f"b{n}" for n in range(count)), *labels[at + 1 :])


@dataclass
class Splits:
    """Axes that a view divides: label -> the sizes of its parts, outermost first."""

    parts: dict[str, tuple[Value, ...]] = field(default_factory=dict)


@dataclass
class ProductAxes:
    left: Labels
    right: Labels
    out: Labels
    contracted: str


def product_axes(value: Value, shapes: Shapes) -> ProductAxes:
    """Labels of a product of query and key. Raises Unclear where it is not a plain contraction."""
    if value.op == "einsum":
        (a, b), out = value.attrs["inputs"], value.attrs["output"]
        summed = [label for label in a if label in b and label not in out]
        only_a = [label for label in a if label not in b and label != "..."]
        only_b = [label for label in b if label not in a and label != "..."]
        if len(summed) != 1 or len(set(a)) != len(a) or len(set(b)) != len(b):
            raise Unclear("the product does not sum over exactly one axis", value)
        kept_a, kept_b = [x for x in only_a if x in out], [x for x in only_b if x in out]
        if len(kept_a) != len(only_a) or len(kept_b) != len(only_b):
            raise Unclear("the product sums over an axis of one operand", value)
        return ProductAxes(a, b, out, summed[0])
    rank = None
    left, right = (value.args[1], value.args[2]) if value.op == "baddbmm" else (value.args[0], value.args[1])
    if value.op == "baddbmm" or value.attrs.get("spelled") == "bmm":
        rank = 3
    elif value.attrs.get("spelled") == "mm":
        rank = 2
    else:
        known = [r for r in (shapes.rank(left), shapes.rank(right)) if r is not None]
        if len(known) == 2:
            rank = max(known)
            if min(known) < 2:
                raise Unclear("one operand of the product is a vector", value)
        elif len(known) == 1 and known[0] >= 4:
            rank = known[0]
    batch: Labels = ("...",) if rank is None else tuple(f"b{n}" for n in range(rank - 2))

    def own(side: Value) -> Labels:
        r = shapes.rank(side)
        return batch if r is None or rank is None or r == rank else batch[rank - r :]

    return ProductAxes((*own(left), "i", "c"), (*own(right), "c", "j"), (*batch, "i", "j"), "c")


def position(labels: Labels, axis: int, value: Value, shapes: Shapes) -> str:
    """The label at an axis number."""
    if "..." in labels:
        if axis < 0 and -axis < len(labels) - labels.index("..."):
            return labels[axis]
        if axis >= 0 and labels[0] == "...":
            # a positive axis under an unknown rank: the last one if the operation is to make sense on this many axes
            raise Unclear("rank", value)
        raise Unclear(f"axis {axis} of a tensor of unknown rank", value)
    if -len(labels) <= axis < len(labels):
        return labels[axis]
    raise Unclear(f"axis {axis} is not there", value)


def expand(labels: Labels, rank: int) -> Labels:
    """The unknown leading axes named, for a tensor of `rank` axes."""
    if "..." not in labels:
        return labels
    at = labels.index("...")
    extra = rank - (len(labels) - 1)
    if extra < 0:
        return labels
    return (*labels[:at], *(f"b{n}" for n in range(extra)), *labels[at + 1 :])


def after(link: Link, labels: Labels, sizes: dict[str, Dim], shapes: Shapes, splits: Splits) -> Labels:
    """Labels after one link. Raises Unclear."""
    value = link.value
    op = link.kind
    if op == "transpose":
        dims = value.attrs.get("dims")
        if dims is None:
            raise Unclear("axes swapped by unknown numbers", value)
        a, b = (position(labels, d, value, shapes) for d in dims)
        return tuple(b if x == a else a if x == b else x for x in labels)
    if op == "permute":
        dims = value.attrs.get("dims")
        if dims is None or len(expand(labels, len(dims))) != len(dims):
            raise Unclear("axes permuted by unknown numbers", value)
        labels = expand(labels, len(dims))
        return tuple(labels[d] for d in dims)
    if op in ("reshape", "unflatten", "flatten"):
        return _reshape(value, labels, sizes, shapes, splits)
    if op == "rearrange":
        return _rearrange(value, labels, splits)
    if op == "unsqueeze":
        dim = value.get("dim")
        if dim is None or not isinstance(dim.const, int) or ("..." in labels and dim.const >= 0):
            raise Unclear("an axis is inserted at an unknown place", value)
        at = dim.const if dim.const >= 0 else len(labels) + 1 + dim.const
        return (*labels[:at], f"1@{value.order}", *labels[at:])
    if op == "squeeze":
        dim = value.get("dim")
        if dim is None or not isinstance(dim.const, int):
            raise Unclear("axes are squeezed", value)
        label = position(labels, dim.const, value, shapes)
        if not label.startswith("1@"):
            raise Unclear("an axis is squeezed", value)
        return tuple(x for x in labels if x != label)
    return labels


def _reshape(value: Value, labels: Labels, sizes: dict[str, Dim], shapes: Shapes, splits: Splits) -> Labels:
    if "..." in labels:
        raise Unclear("a tensor of unknown rank is reshaped", value)
    out = shapes.shape(value)
    if out is None:
        raise Unclear("reshaped to an unknown shape", value)
    wanted: list[Value | None]
    if value.op == "reshape":
        wanted = [a if a.const != -1 else None for a in value.args[1:]]
    elif value.op == "unflatten":
        whole = labels[value.get("dim").const]  # type: ignore[union-attr]
        at = labels.index(whole)
        parts = value.get("sizes").args  # type: ignore[union-attr]
        wanted = [None] * at + [p if p.const != -1 else None for p in parts] + [None] * (len(labels) - at - 1)
    else:
        wanted = [None] * len(out)
    # The number of elements stays the same, so one size that is not known to be kept follows from all others that are.
    if len(out) == len(labels):
        if _doubts(out, labels, wanted, sizes) <= 1:
            return labels
    elif len(out) == len(labels) + 1:  # one axis is split
        for at, label in enumerate(labels):
            first, second = wanted[at], wanted[at + 1]
            proved = first is not None and second is not None and out[at] * out[at + 1] == sizes[label]
            rest = _doubts(
                (*out[:at], *out[at + 2 :]), (*labels[:at], *labels[at + 1 :]), [*wanted[:at], *wanted[at + 2 :]], sizes
            )
            if label in ("i", "j") or first is None and second is None or rest + (not proved) > 1:
                continue
            names = (f"{label}.0", f"{label}.1")
            minus = Value("const", attrs={"value": -1}, register=False)
            splits.parts[label] = (first if first is not None else minus, second if second is not None else minus)
            sizes[names[0]] = out[at] if first is not None else sizes[label] / out[at + 1]
            sizes[names[1]] = out[at + 1] if second is not None else sizes[label] / out[at]
            return (*labels[:at], *names, *labels[at + 1 :])
    elif len(out) == len(labels) - 1:  # two axes are merged
        for at in range(len(labels) - 1):
            pair = labels[at], labels[at + 1]
            proved = wanted[at] is not None and out[at] == sizes[pair[0]] * sizes[pair[1]]
            rest = _doubts(
                (*out[:at], *out[at + 1 :]), (*labels[:at], *labels[at + 2 :]), [*wanted[:at], *wanted[at + 1 :]], sizes
            )
            if {*pair} & {"i", "j"} or rest + (not proved) > 1:
                continue
            if pair[0].endswith(".0") and pair[1] == pair[0][:-2] + ".1":
                return (*labels[:at], pair[0][:-2], *labels[at + 2 :])
            merged = f"{pair[0]}+{pair[1]}"
            sizes[merged] = sizes[pair[0]] * sizes[pair[1]]
            return (*labels[:at], merged, *labels[at + 2 :])
    raise Unclear("a view whose axes cannot be followed", value)


def _doubts(out: tuple[Dim, ...], labels: Labels, wanted: list[Value | None], sizes: dict[str, Dim]) -> int:
    """How many sizes of a view are not known to be those of the axes."""
    return sum(1 for o, x, w in zip(out, labels, wanted, strict=True) if w is None or o != sizes[x])


def _rearrange(value: Value, labels: Labels, splits: Splits) -> Labels:
    left, right = value.attrs["left"], value.attrs["right"]
    names: dict[str, str] = {}
    if ("...",) in left:
        if "..." not in labels or left[0] != ("...",):
            raise Unclear("axes rearranged behind an ellipsis", value)
        tail = len(left) - 1
        pairs = list(zip(left[1:], labels[-tail:], strict=False)) if tail else []
        if len(labels) - 1 != tail:
            raise Unclear("axes rearranged behind an ellipsis", value)
        names["..."] = "..."
    else:
        labels = expand(labels, len(left))
        if len(labels) != len(left):
            raise Unclear("axes rearranged behind an ellipsis", value)
        pairs = list(zip(left, labels, strict=True))
    given = dict(zip(value.names[1:], value.args[1:], strict=True))
    for group, label in pairs:
        if len(group) == 1:
            names[group[0]] = label
        elif len(group) == 2:
            minus = Value("const", attrs={"value": -1}, register=False)
            splits.parts[label] = tuple(given.get(g, minus) for g in group)
            names[group[0]], names[group[1]] = f"{label}.0", f"{label}.1"
        else:
            raise Unclear("an axis is split in three", value)
    out: list[str] = []
    for group in right:
        found = [names.get(g, f"1@{value.order}" if g == "1" else "") for g in group]
        if "" in found:
            raise Unclear("a new axis is made", value)
        if len(found) == 2 and found[0].endswith(".0") and found[1] == found[0][:-2] + ".1":
            out.append(found[0][:-2])
        elif not found:
            out.append(f"1@{value.order}")
        else:
            out.append("+".join(found))
    return tuple(out)


def sizes_of(axes: ProductAxes, left: Value, right: Value, shapes: Shapes) -> dict[str, Dim]:
    """The size of each labelled axis of the scores, from the operands."""
    sizes: dict[str, Dim] = {}
    for side, labels in ((left, axes.left), (right, axes.right)):
        known = shapes.shape(side)
        for n, label in enumerate(labels):
            if label == "...":
                continue
            at = n - len(labels)
            if known is not None and len(known) == len(labels):
                size = known[at]
            elif "..." in labels:
                size = shapes.size(side, at)
            else:
                size = shapes.axis(side, n, len(labels))
            if label not in sizes or sizes[label] == Dim(1):
                sizes[label] = size
    for n, label in enumerate(axes.out):
        sizes.setdefault(label, atom(("label", id(axes), n)))
    return sizes
