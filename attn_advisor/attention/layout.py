"""Bringing query, key and value into (..., heads, length, head_dim) and the output back."""

from __future__ import annotations

from dataclasses import dataclass

from attn_advisor.attention.axes import Labels
from attn_advisor.attention.express import ATOM, Inexpressible, Text, Writer
from attn_advisor.attention.site import Operand, Site
from attn_advisor.dataflow.shapes import Shapes
from attn_advisor.dataflow.values import Value


@dataclass
class Target:
    """The batch axes SDPA gets, in order. lead: how many axes of size one stand in front of them (3-D inputs get one).

    split: label whose axis is divided into its two parts; flat: number of leading axes merged into one (5-D inputs).
    """

    batch: Labels
    lead: int = 0
    split: str | None = None
    flat: int = 0


def choose(site: Site, mask_labels: list[Labels], shapes: Shapes) -> Target:
    """The batch axes, from the axes the masks see. Raises Inexpressible where the masks see different ones."""
    seen = {tuple(x for x in labels if x not in (site.query_axis, site.key_axis)) for labels in mask_labels}
    for labels in mask_labels:
        if labels and labels[-2:] not in ((site.query_axis, site.key_axis), (site.key_axis, site.query_axis)):
            raise Inexpressible("a mask is laid out with other axes last")
    own = tuple(x for x in site.score_labels if x not in (site.query_axis, site.key_axis))
    if any(len(s) > 3 for s in seen) or len(seen) > 1:  # what was added under a finer view is brought back
        seen = {tuple(_joined(labels)) for labels in seen}
    if len(seen) > 1:
        raise Inexpressible("the masks are added under different views of the scores")
    batch = next(iter(seen)) if seen else own
    if any("@" in x or "+" in x for x in batch):
        raise Inexpressible("the scores have an axis of their own")
    split = next((x[:-2] for x in batch if x.endswith(".0")), None)
    if "..." in batch:
        return Target(batch)
    named = len(batch)
    if named == 1:
        return Target(batch, 1, split)
    if named == 0:
        return Target(batch, 2, split)
    flat = 0
    if named > 2 and not mask_labels and _same_batch(site, shapes):
        flat = named - 1
    return Target(batch, 0, split, flat)


def _joined(labels: Labels) -> list[str]:
    """Labels with the two parts of a split axis made one again."""
    out: list[str] = []
    for label in labels:
        if label.endswith(".1") and out and out[-1] == label[:-2] + ".0":
            out[-1] = label[:-2]
        else:
            out.append(label)
    return out


def _same_batch(site: Site, shapes: Shapes) -> bool:
    """Whether query, key and value have equal batch sizes for certain, so that their leading axes can be merged."""
    found = []
    for operand in (site.query, site.key, site.val):
        shape = shapes.shape(operand.value)
        if shape is None or len(shape) != len(operand.labels):
            return False
        found.append(dict(zip(operand.labels, shape, strict=True)))
    batch = [x for x in site.score_labels if x not in (site.query_axis, site.key_axis)]
    return all(len({f.get(label) for f in found}) == 1 and found[0].get(label) is not None for label in batch)


def operand_text(operand: Operand, tail: Labels, target: Target, writer: Writer, site: Site) -> Text:
    """Source for one of query, key, value with axes (batch..., *tail)."""
    best: tuple[int, Text, list[Value], set[str]] | None = None
    value, labels = operand.value, operand.labels
    for _ in range(4):
        used, names = list(writer.used), set(writer.names)
        try:
            text = writer.write(value)
            ops = _operations(labels, (*target.batch, *tail), target, site)
            cost = 2 * len(ops) + (
                0 if writer.name_of(value) is not None else 1 + text.text.count("(") + len(text.text) // 40
            )
            if best is None or cost < best[0]:
                best = (cost, Text(text.at(ATOM) + "".join(ops)) if ops else text, list(writer.used), set(writer.names))
        except Inexpressible as why:
            if best is None and value is operand.value:
                failure = why
        writer.used, writer.names = used, names
        inner = peel(value, labels)
        if inner is None:
            break
        value, labels = inner
    if best is None:
        raise failure
    writer.used, writer.names = best[2], best[3]
    return best[1]


def peel(value: Value, labels: Labels) -> tuple[Value, Labels] | None:
    """The value under a swap of axes, with its labels."""
    if value.inplace:
        return None
    if value.op == "identity" and value.attrs.get("spelled") in ("contiguous", "clone", "to"):
        return value.args[0], labels
    if value.op == "transpose" and value.attrs.get("dims"):
        a, b = value.attrs["dims"]
        if "..." in labels and (min(a, b) < -len(labels) + 1 or a >= 0 or b >= 0):
            return None
        if not (-len(labels) <= a < len(labels) and -len(labels) <= b < len(labels)):
            return None
        out = list(labels)
        out[a], out[b] = out[b], out[a]
        return value.args[0], tuple(out)
    if (
        value.op == "permute"
        and value.attrs.get("dims")
        and "..." not in labels
        and len(value.attrs["dims"]) == len(labels)
    ):
        inner = [""] * len(labels)
        for at, dim in enumerate(value.attrs["dims"]):
            inner[dim] = labels[at]
        return value.args[0], tuple(inner)
    if (
        value.op == "rearrange"
        and "..." not in labels
        and all(len(g) == 1 for g in (*value.attrs["left"], *value.attrs["right"]))
    ):
        left, right = [g[0] for g in value.attrs["left"]], [g[0] for g in value.attrs["right"]]
        if sorted(left) == sorted(right) and len(right) == len(labels) and "..." not in left:
            names = dict(zip(right, labels, strict=True))
            return value.args[0], tuple(names[x] for x in left)
    return None


def _operations(have: Labels, want: Labels, target: Target, site: Site) -> list[str]:
    """Method calls that turn axes `have` into `want`."""
    ops: list[str] = []
    if target.split is not None and target.split in have:
        at = have.index(target.split)
        first, second = site.splits.parts[target.split]
        ops.append(f".unflatten({at}, ({{{id(first)}}}, {{{id(second)}}}))")
        have = (*have[:at], target.split + ".0", target.split + ".1", *have[at + 1 :])
    missing = [x for x in want if x not in have and x != "..."]
    if any(x not in want for x in have):
        raise Inexpressible("an operand has an axis of its own")
    order = [x for x in want if x in have]
    if list(have) != order:
        ops.append(_permutation(have, tuple(order)))
    present = list(order)
    for label in missing:
        at = want.index(label)
        if "..." in want:
            raise Inexpressible("an operand lacks an axis")
        ops.append(f".unsqueeze({at})")
        present.insert(at, label)
    if target.lead:
        ops += [".unsqueeze(0)"] * target.lead
    if target.flat:
        ops.append(f".flatten(0, {target.flat - 1})")
    return ops


def _permutation(have: Labels, want: Labels) -> str:
    moved = [n for n in range(len(have)) if have[n] != want[n]]
    if len(moved) == 2:
        a, b = moved
        if b == len(have) - 1 and a == b - 1 or "..." in have:
            if "..." in have and have[0] != "...":
                raise Inexpressible("axes in front of unknown ones")
            return f".transpose({a - len(have)}, {b - len(have)})"
        return f".transpose({a}, {b})"
    if "..." in have:
        raise Inexpressible("axes of a tensor of unknown rank would have to be permuted")
    return f".permute({', '.join(str(have.index(x)) for x in want)})"


def output_operations(site: Site, target: Target, query_shape: str | None) -> list[str]:
    """Method calls that turn SDPA's output into the layout of the original product."""
    have: Labels = (*target.batch, site.query_axis, site.value_axis)
    ops: list[str] = []
    if target.flat:
        ops.append(f".unflatten(0, {query_shape}.shape[:{target.flat}])")
    if target.lead:
        ops += [".squeeze(0)"] * target.lead
    want = site.out_labels
    if target.split is not None and target.split in want:
        at = have.index(target.split + ".0")
        ops.append(f".flatten({at}, {at + 1})")
        have = (*have[:at], target.split, *have[at + 2 :])
    elif target.split is None:
        joined = next((x for x in want if x.endswith(".0") and x[:-2] in have), None)
        if joined is not None:
            raise Inexpressible("the probabilities are split into heads behind the softmax")
    if any(x not in have for x in want) or any(x not in want for x in have):
        raise Inexpressible("the output's axes cannot be followed")
    if have != want:
        ops.append(_permutation(have, want))
    return ops


def fill_sizes(text: str, site: Site, writer: Writer) -> str:
    """The sizes of a split axis written into a method call made by `_operations`."""
    for parts in site.splits.parts.values():
        for part in parts:
            marker = f"{{{id(part)}}}"
            if marker in text:
                text = text.replace(marker, writer.write(part).text)
    return text
