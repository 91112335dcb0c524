"""Attention sites: softmax(query @ key^T ...) @ value, found in a value graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from attn_advisor.attention import axes as ax
from attn_advisor.attention.axes import Labels, ProductAxes, Splits, Unclear
from attn_advisor.attention.chain import Chain, Link, Walker, as_softmax, is_product
from attn_advisor.dataflow.dims import Dim
from attn_advisor.dataflow.shapes import Shapes
from attn_advisor.dataflow.statements import Interpreter
from attn_advisor.dataflow.values import Frame, Value


@dataclass
class Operand:
    """query, key or value: the tensor in the product and the labels of its axes."""

    value: Value
    labels: Labels


@dataclass(eq=False)
class Site:
    """One attention. before: links from the product up to the softmax; behind: from the softmax up to the product with the value."""

    frame: Frame
    product: Value
    softmax: Value
    output: Value
    query: Operand
    key: Operand
    val: Operand
    out_labels: Labels
    before: list[Link]
    behind: list[Link]
    score_labels: Labels
    key_axis: str = "j"
    query_axis: str = "i"
    contracted: str = "c"
    value_axis: str = "e"
    sizes: dict[str, Dim] = field(default_factory=dict)
    splits: Splits = field(default_factory=Splits)
    unclear: list[tuple[str, Value]] = field(default_factory=list)  # what could not be followed
    others: list[Value] = field(default_factory=list)  # further products the same probabilities go into
    softmaxes: tuple[Value, ...] = ()

    @property
    def chain_values(self) -> list[Value]:
        """Everything between the operands and the output that a rewrite removes, product first."""
        found = [self.product]
        for link in (*self.before, *self.behind):
            found.append(link.value)
        found += self.softmaxes
        return found


def find_sites(interpreter: Interpreter, frame: Frame) -> Iterator[Site]:
    """Sites of one interpreted function. The caller decides which function owns a site that spans several."""
    graph = interpreter.graph
    walker = Walker()
    shapes = Shapes(interpreter.rank_hints)
    by_softmax: dict[int, Site] = {}
    for output in list(graph.values):
        if not is_product(output):
            continue
        found = _site(output, walker, shapes, frame)
        if found is None:
            continue
        known = next((by_softmax[id(s)] for s in found.softmaxes if id(s) in by_softmax), None)
        if known is not None:
            known.others.append(output)
            continue
        for softmax in found.softmaxes:
            by_softmax[id(softmax)] = found
    yield from dict.fromkeys(by_softmax.values())


def _site(output: Value, walker: Walker, shapes: Shapes, frame: Frame) -> Site | None:
    operands = output.args if output.op == "einsum" else output.args[1:3] if output.op == "baddbmm" else output.args[:2]
    for side, operand in enumerate(operands):
        if walker.reach(operand, "probabilities") is None:
            continue
        upper = walker.walk(operand, "probabilities")
        if upper is None:
            continue
        soft = as_softmax(upper.end)
        assert soft is not None
        if walker.reach(soft[0], "scores") is None:
            continue
        lower = walker.walk(soft[0], "scores")
        if lower is None or lower.end is output:
            continue
        site = _assemble(output, side, upper, lower, soft, shapes, frame)
        if site is not None:
            return site
    return None


def _assemble(
    output: Value, side: int, upper: Chain, lower: Chain, soft: tuple[Value, int | None], shapes: Shapes, frame: Frame
) -> Site | None:
    product = lower.end
    before, behind = lower.links[::-1], upper.links[::-1]
    unclear = [*lower.notes, *upper.notes]
    left, right = factors(product)
    try:
        axes = _axes(product, before, behind, soft[1], output, side, shapes)
    except Unclear:
        return None
    sizes = ax.sizes_of(axes, left, right, shapes)
    splits = Splits()
    labels, broken = _follow(axes.out, before, sizes, shapes, splits, unclear)
    over: str | None = None
    if not broken and soft[1] is not None:
        try:
            over = ax.position(labels, soft[1], upper.end, shapes)
        except Unclear:
            over = None
    if over is None:
        if soft[1] is None or (soft[1] != -1 and not broken):
            return None  # the axis is missing or cannot be told
        over = next((x for x in reversed(axes.out) if x in axes.right and x not in axes.left), None)
        unclear.append(("axis", upper.end))
    if over in axes.right and over not in axes.left:
        query, key = Operand(left, axes.left), Operand(right, axes.right)
    elif over in axes.left and over not in axes.right:
        query, key = Operand(right, axes.right), Operand(left, axes.left)
    else:
        return None  # over a batch axis: not attention
    own = [x for x in query.labels if x in axes.out and x not in key.labels and x != "..."]
    if len(own) != 1 or over is None:
        return None
    if not broken:
        labels, broken = _follow(labels, behind, sizes, shapes, splits, unclear)
    combined = _value_axes(output, side, labels, over, own[0], shapes, broken)
    if combined is None:
        return None
    val_labels, out_labels = combined
    site = Site(
        frame,
        product,
        upper.end,
        output,
        query,
        key,
        Operand(factors(output)[1 - side], val_labels),
        out_labels,
        before,
        behind,
        axes.out,
    )
    site.key_axis, site.query_axis, site.contracted = over, own[0], axes.contracted
    site.value_axis = next(
        (
            x
            for x in val_labels
            if x in out_labels and x not in axes.out and x != "..." and "+" not in x and "." not in x
        ),
        "e",
    )
    site.sizes, site.splits, site.unclear = sizes, splits, unclear
    site.softmaxes = tuple(upper.end.attrs.get("_merged", (upper.end,)))
    return site


def _axes(
    product: Value, before: list[Link], behind: list[Link], dim: int | None, output: Value, side: int, shapes: Shapes
) -> ProductAxes:
    """The axes of the product of query and key, with those that only what follows tells of. Raises Unclear."""
    axes = ax.product_axes(product, shapes)
    rank = _rank_evidence(axes.out, before, behind, dim, output, side, shapes)
    if rank is not None and "..." in axes.out:
        axes = ProductAxes(
            ax.expand(axes.left, rank), ax.expand(axes.right, rank), ax.expand(axes.out, rank), axes.contracted
        )
    extra = _hidden_axes(axes.out, before, behind, output, side)
    if extra:
        axes = ProductAxes(
            ax.expand_tail(axes.left, extra),
            ax.expand_tail(axes.right, extra),
            ax.expand_tail(axes.out, extra),
            axes.contracted,
        )
    return axes


_MOVES = ("reshape", "unsqueeze", "squeeze", "flatten", "unflatten", "permute", "transpose", "rearrange")


def factors(product: Value) -> tuple[Value, Value]:
    """The two tensors a product contracts."""
    return (product.args[1], product.args[2]) if product.op == "baddbmm" else (product.args[0], product.args[1])


def _rank_evidence(
    labels: Labels,
    before: list[Link],
    behind: list[Link],
    softmax_dim: int | None,
    output: Value,
    side: int,
    shapes: Shapes,
) -> int | None:
    """How many axes the scores must have for the later operations to be possible."""
    for link in (*before, *behind):
        if link.kind == "permute" and link.value.attrs.get("dims"):
            return len(link.value.attrs["dims"])
        if link.kind == "rearrange" and ("...",) not in link.value.attrs["left"]:
            return len(link.value.attrs["left"])
        if link.kind in ("reshape", "unsqueeze", "flatten", "unflatten"):
            break
        if link.rest and link.kind in ("add", "sub"):
            continue
    if any(k.kind in ("reshape", "unsqueeze", "squeeze", "flatten", "unflatten") for k in (*before, *behind)):
        return None
    if output.op == "einsum" and "..." not in output.attrs["inputs"][side]:
        return len(output.attrs["inputs"][side])
    if output.op == "baddbmm" or output.attrs.get("spelled") == "bmm":
        return 3
    if softmax_dim is not None and softmax_dim >= 2:
        return softmax_dim + 1
    for link in before:
        if link.kind == "setitem" and link.value.args[1].op == "tuple":
            return None
    return None


def _hidden_axes(labels: Labels, before: list[Link], behind: list[Link], output: Value, side: int) -> int:
    """How many of the unknown leading axes a later einsum names."""
    if "..." not in labels or output.op != "einsum" or any(k.kind in _MOVES for k in (*before, *behind)):
        return 0
    term = output.attrs["inputs"][side]
    return max(0, len(term) - len(labels)) if "..." in term else 0


def _follow(
    labels: Labels,
    links: list[Link],
    sizes: dict[str, Dim],
    shapes: Shapes,
    splits: Splits,
    unclear: list[tuple[str, Value]],
) -> tuple[Labels, bool]:
    """Labels behind all links. Links under a condition must hand on the axes they were given."""
    outer = links[0].conditions if links else ()
    for link in links:
        if len(link.conditions) < len(outer):
            outer = link.conditions
    branches: dict[tuple[tuple[int, bool], ...], Labels] = {}
    for link in links:
        path = tuple((id(test), way) for test, way in link.conditions)
        if link.conditions == outer or len(link.conditions) == len(outer):
            if any(x != labels for x in branches.values()):
                unclear.append(("axes differ between branches", link.value))
                return labels, True
            branches = {}
            current = labels
        else:
            current = branches.get(path, labels)
        link.labels = current
        if link.kind in (
            "getitem",
            "part",
            "mutated",
            "topk",
            "sort",
            "repeat",
            "repeat_interleave",
            "pad",
            "movedim",
            "einops_repeat",
        ):
            unclear.append((link.kind, link.value))
            return labels, True
        if link.kind in ("unknown", "cat", "loop"):
            unclear.append((link.kind, link.value))
            continue
        try:
            current = ax.after(link, current, sizes, shapes, splits)
        except Unclear as why:
            unclear.append((str(why.args[0]), link.value))
            return labels, True
        if link.conditions == outer or len(link.conditions) == len(outer):
            labels = current
        else:
            branches[path] = current
    if any(x != labels for x in branches.values()):
        unclear.append(("axes differ between branches", links[-1].value))
        return labels, True
    return labels, False


def _value_axes(
    output: Value, side: int, labels: Labels, key_axis: str, query_axis: str, shapes: Shapes, broken: bool
) -> tuple[Labels, Labels] | None:
    """Axes of the value and of the output; None if the product does not sum over the key axis."""
    value = factors(output)[1 - side]
    if broken:
        return ("...", key_axis, "e"), ("...", query_axis, "e")
    if output.op == "einsum":
        return _einsum_value(output, side, labels, key_axis, query_axis)
    batch = labels[:-2]
    rank = shapes.rank(value)
    if "..." not in labels and rank is not None and 2 <= rank < len(labels):
        batch = batch[len(batch) - (rank - 2) :]
    if side == 0 and labels[-1] == key_axis and labels[-2] == query_axis:
        return (*batch, key_axis, "e"), (*labels[:-2], query_axis, "e")
    if side == 1 and labels[-2] == key_axis and labels[-1] == query_axis:
        return (*batch, "e", key_axis), (*labels[:-2], "e", query_axis)
    return None


def _einsum_value(
    output: Value, side: int, labels: Labels, key_axis: str, query_axis: str
) -> tuple[Labels, Labels] | None:
    term, other, out = output.attrs["inputs"][side], output.attrs["inputs"][1 - side], output.attrs["output"]
    if "..." in labels and "..." not in term:
        labels = ax.expand(labels, len(term))
    if len(labels) != len(term) or ("..." in labels) != ("..." in term):
        return None
    names = dict(zip(term, labels, strict=True))
    summed = [x for x in term if x in other and x not in out and x != "..."]
    if [names[x] for x in summed] != [key_axis] or any(x not in out and x not in summed for x in (*term, *other)):
        return None
    fresh = [x for x in other if x not in names]
    if len(fresh) != 1:
        return None
    rename = {**names, fresh[0]: "e"}
    if any(names.get(x) == query_axis for x in other):
        return None  # values of their own for each query: pooling
    return tuple(rename[x] for x in other), tuple(rename.get(x, x) for x in out)
