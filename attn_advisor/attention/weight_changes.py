"""What is done to the probabilities between the softmax and the product with the value."""

from __future__ import annotations

from attn_advisor.attention import masks
from attn_advisor.attention.chain import Link
from attn_advisor.attention.conditions import none_test
from attn_advisor.attention.factors import scalar_kind
from attn_advisor.attention.folded import Dropout, Factor, Folded, Item, Problem
from attn_advisor.attention.score_changes import SKIP, mixes_heads
from attn_advisor.attention.site import Site
from attn_advisor.attention.synthetic import synthetic
from attn_advisor.dataflow.attributes import definition
from attn_advisor.dataflow.dims import Dim
from attn_advisor.dataflow.shapes import Shapes
from attn_advisor.dataflow.values import Value


def change_weights(site: Site, link: Link, out: Folded, shapes: Shapes) -> None:
    kind, line = link.kind, link.value.line
    if kind in SKIP:
        return
    if kind == "cast":
        out.casts.append(link)
    elif kind == "dropout":
        if out.dropout is not None:
            out.problems.append(Problem("no fix", line, "a second dropout"))
        out.dropout = Dropout(link.value, link.conditions, line)
    elif kind == "unknown" and _named_dropout(link.value) and _other_module(link.value):
        out.problems.append(Problem("refuse", line, "drops the probabilities in a way of its own", "other-dropout"))
    elif kind == "unknown" and _named_dropout(link.value):
        out.problems.append(
            Problem(
                "unsafe",
                line,
                "what is applied to the probabilities is called dropout but is not known to be nn.Dropout",
            )
        )
        out.dropout = Dropout(link.value, link.conditions, line)
    elif kind == "mul" and link.conditions and none_test(link.conditions[-1]) is not None:
        out.problems.append(Problem("guard", line, "multiplies the probabilities by a mask on request"))
        out.guards.append((link.value, link.conditions[-1]))
    elif kind in ("masked_fill", "where"):
        _zeroed(link, out)
    elif kind == "nan_to_num":
        nan = link.value.get("nan")
        if nan is not None and nan.const != 0:
            out.problems.append(
                Problem("refuse", line, "replaces NaN weights by a number other than 0", "function-of-probabilities")
            )
        else:
            out.zeroed.append(Item("nan", link.value, link.conditions, link.labels, line, kind))
    elif kind in ("mul", "div"):
        if not _weighs(site, link, out, shapes):
            out.problems.append(
                Problem("refuse", line, "multiplies the probabilities by a tensor", "weighted-probabilities")
            )
    elif kind == "unknown" and mixes_heads(link.value):
        out.problems.append(Problem("refuse", line, "mixes the probabilities of the heads", "talking-heads"))
    elif kind == "unknown":
        out.problems.append(
            Problem(
                "refuse",
                line,
                "hands the probabilities to another function before the value product",
                "function-of-probabilities",
            )
        )
    elif kind in ("add", "sub"):
        out.problems.append(Problem("refuse", line, "adds to the probabilities", "added-weights"))
    else:
        out.problems.append(
            Problem("refuse", line, f"changes the probabilities by `{kind}`", "function-of-probabilities")
        )


def _zeroed(link: Link, out: Folded) -> None:
    """A mask put on the probabilities."""
    kind, line, args = link.kind, link.value.line, link.value.args
    mask = args[1] if kind == "masked_fill" else link.rest[0]
    fill = link.rest[-1] if kind == "where" else args[2] if len(args) > 2 else None
    if fill is None or fill.const != 0:
        out.problems.append(
            Problem("refuse", line, "changes the probabilities after the softmax", "function-of-probabilities")
        )
        return
    keep = masks.negated(mask, True) if kind == "masked_fill" or link.reversed else masks.as_bool(mask)
    out.zeroed.append(Item("fill", mask, link.conditions, link.labels, line, kind, keep))


def _weighs(site: Site, link: Link, out: Folded, shapes: Shapes) -> bool:
    """A factor of each head or key goes onto the values (inside SDPA, so that autocast treats it alike); one of each query or a full one goes nowhere."""
    if link.reversed or link.conditions or len(link.rest) != 1:
        return False
    factor, shape = link.rest[0], shapes.shape(link.rest[0])
    if link.labels[-2:] != (site.query_axis, site.key_axis):
        return False
    if any(k.kind in ("dropout", "unknown") for k in site.behind[site.behind.index(link) :]):
        return False  # what is dropped would be scaled before, not after
    number = scalar_kind(factor) == "number" or shape is not None and len(shape) == 0
    if not number and (shape is None or len(shape) < 2 or shape[-2] != Dim(1)):
        return False
    if not number and shape is not None and shape[-1] != Dim(1):
        factor = synthetic("transpose", factor, dims=(-2, -1))
    out.value_factors.append(Factor(factor, link.kind == "div", (), "number", link.value.line))
    return True


def _named_dropout(value: Value) -> bool:
    target = value.args[0] if value.args else None
    name = "" if target is None else str(target.attrs.get("name", target.attrs.get("qualified", "")))
    return value.op == "call" and "drop" in name.lower()


def _other_module(value: Value) -> bool:
    """Whether the module is known, and is not nn.Dropout."""
    made = definition(value.args[0]) if value.args[0].op == "attribute" else None
    return made is not None and made.op == "construct"
