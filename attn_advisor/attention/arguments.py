"""SDPA's arguments for a site: masks, scale, dropout and the operands, as source text."""

from __future__ import annotations

from attn_advisor.attention import layout
from attn_advisor.attention.draft import Call, Draft
from attn_advisor.attention.express import ATOM, BITAND, COND, OR, SUM, Inexpressible, Text, Writer
from attn_advisor.attention.folded import Folded, Item
from attn_advisor.attention.mask_checks import causal_flag, check_added, check_fills, may_be_empty
from attn_advisor.attention.mask_text import (
    attend_evenly,
    filled_bias,
    give_zero,
    joined_masks,
    keep_text,
    laid_out,
    term_text,
)
from attn_advisor.attention.operands import keep_dtypes, place_operands, plain_query, weigh_values
from attn_advisor.attention.scale import move_sign, write_scale
from attn_advisor.attention.site import Site
from attn_advisor.attention.synthetic import constant, synthetic
from attn_advisor.dataflow.shapes import Shapes


def sdpa_call(
    site: Site, folded: Folded, shapes: Shapes, writer: Writer, taken: set[str], undecided: bool = False
) -> Call:
    """The call for a site. Raises Inexpressible where something cannot be written here.

    taken: names that new variables must not have; undecided: nothing else is in the way of a safe fix.
    """
    draft = Draft(site, folded, shapes, writer, taken, undecided)
    place_operands(draft)
    write_scale(draft)
    _masks(draft)
    move_sign(draft)
    _dropout(draft)
    weigh_values(draft)
    shaped_as = plain_query(draft) if draft.target.flat else None
    draft.call.suffix += "".join(layout.output_operations(site, draft.target, shaped_as))
    keep_dtypes(draft)
    return draft.call


def _dropout(draft: Draft) -> None:
    drop = draft.folded.dropout
    if drop is None:
        return
    value = drop.value
    if value.op == "dropout" and value.attrs.get("module"):
        module = value.attrs["_module"]
        if module.op == "construct":  # nn.Dropout(p)(x) is always in training mode
            probability = module.args[0] if module.args else constant(0.5)
            text = draft.writer.write(probability)
        else:
            name = draft.writer.write(module).at(ATOM)
            text = Text(f"{name}.p if {name}.training else 0.0", COND)
            if value.attrs.get("maybe_identity"):
                draft.problem("unsafe", drop.line, f"`{name}` may be an nn.Identity, which has no p")
                text = Text(f'getattr({name}, "p", 0.0) if {name}.training else 0.0', COND)
    elif value.op == "dropout":
        probability = value.get("p") or constant(0.5)
        training = value.get("training")
        text = draft.writer.write(probability)
        if training is not None and training.const is False:
            return
        if training is not None and training.const is not True:
            text = Text(f"{text.at(OR)} if {draft.writer.write(training).at(OR)} else 0.0", COND)
    else:  # a function that is only called dropout
        name = draft.writer.write(value.args[0]).at(ATOM)
        text = Text(f'getattr({name}, "p", 0.0) if {name}.training else 0.0', COND)
    if drop.conditions:
        text = Text(f"({text.text}) if {draft.condition(drop.conditions)} else 0.0", COND)
    draft.call.dropout = text.text


def _masks(draft: Draft) -> None:
    items = draft.folded.items
    for item in (*items, *draft.folded.zeroed):
        if item.labels[-2:] == (draft.site.key_axis, draft.site.query_axis):
            _turn(draft, item)
    if draft.folded.zeroed:
        give_zero(draft, items)
        return
    if not items:
        return
    causal = causal_flag(draft, items)
    if causal is not None:
        draft.call.causal = causal
        return
    fills, adds = [i for i in items if i.kind == "fill"], [i for i in items if i.kind == "add"]
    for item in adds:
        check_added(draft, item, items)
    if fills:
        check_fills(draft, fills, adds)
    if fills and may_be_empty(draft, fills):
        attend_evenly(draft, fills, adds)
    elif fills and not adds:
        draft.call.mask = joined_masks(
            draft, [(laid_out(draft, keep_text(draft, i)), i.conditions) for i in fills], "&", BITAND
        )
    elif adds and not fills:
        draft.call.mask = joined_masks(
            draft, [(laid_out(draft, term_text(draft, i)), i.conditions) for i in adds], "+", SUM
        )
    else:
        draft.call.mask = filled_bias(draft, fills, adds)


def _turn(draft: Draft, item: Item) -> None:
    """A mask over (key, query) for SDPA's (query, key)."""
    rank = draft.shapes.rank(item.value)
    if rank is not None and rank < 2:
        raise Inexpressible("a mask of one axis over the queries")
    item.value = synthetic("transpose", item.value, dims=(-2, -1))
    if item.keep is not None:
        item.keep = synthetic("transpose", item.keep, dims=(-2, -1))
    item.labels = (*item.labels[:-2], item.labels[-1], item.labels[-2])
