"""SDPA's attn_mask as source text."""

from __future__ import annotations

from attn_advisor.attention import masks
from attn_advisor.attention.conditions import all_follow, none_test
from attn_advisor.attention.draft import Draft
from attn_advisor.attention.express import ATOM, BITAND, COMPARE, COND, OR, PRODUCT, SUM, Inexpressible, Text
from attn_advisor.attention.folded import Item
from attn_advisor.attention.operands import plain_query
from attn_advisor.attention.scale import without_pairs
from attn_advisor.attention.synthetic import synthetic
from attn_advisor.dataflow.values import Condition, Value

EVENLY = "  # a fully masked row attends evenly, as before"


def keep_text(draft: Draft, item: Item) -> Text:
    assert item.keep is not None
    return _rows(draft, draft.under(item.keep, item.conditions), item)


def _drop_text(draft: Draft, item: Item) -> Text:
    if item.form in ("masked_fill", "setitem"):
        return _rows(draft, draft.under(item.value, item.conditions), item)
    assert item.keep is not None
    return _rows(draft, draft.under(masks.negated(item.keep, True), item.conditions), item)


def _rows(draft: Draft, text: Text, item: Item) -> Text:
    """SDPA wants a mask of two axes at least, under the view of the scores that all masks share."""
    rank = draft.shapes.rank(item.value)
    if rank == 1:
        text = Text(f"{text.at(ATOM)}[None, :]")
    elif rank is None and _given(item.value):
        draft.call.assumes.append(f"{draft.shown(item.value)} has two axes or more, and none that the scores have not")
    return _rejoined(draft, text, item)


def term_text(draft: Draft, item: Item) -> Text:
    value = item.value
    for factor in without_pairs(item.factors):
        value = synthetic("div" if factor.divide else "mul", value, factor.value)
        if factor.conditions != item.conditions and factor.conditions:
            draft.problem("no fix", item.line, "the mask is scaled under a condition")
    if item.subtract:
        value = synthetic("neg", value)
    return _rows(draft, draft.under(value, item.conditions), item)


def laid_out(draft: Draft, text: Text) -> Text:
    """A mask for 4-D inputs: right-aligned as the scores were."""
    if draft.target.lead == 1:
        return Text(f"{text.at(ATOM)}.unsqueeze(0)")
    return text


def _rejoined(draft: Draft, text: Text, item: Item) -> Text:
    """A mask that was put on a finer view of the scores (windows of an image), for the view the others have."""
    at = next(
        (n for n, label in enumerate(item.labels) if label.endswith(".0") and label not in draft.target.batch), None
    )
    if at is None or "..." in item.labels:
        return text
    first, second = draft.site.splits.parts[item.labels[at][:-2]]
    if second.const == -1 or any(x.endswith(".0") for n, x in enumerate(item.labels) if n != at):
        raise Inexpressible("a mask under a view of unknown size")
    inner = draft.writer.write(second)
    outer = (
        draft.writer.write(first)
        if first.const != -1
        else Text(f"{plain_query(draft)}.size({at}) // {inner.at(PRODUCT + 1)}", PRODUCT)
    )
    sizes = ["-1"] * len(item.labels)
    sizes[at], sizes[at + 1] = outer.text, inner.text
    return Text(f"{text.at(ATOM)}.expand({', '.join(sizes)}).flatten({at}, {at + 1})")


def joined_masks(draft: Draft, parts: list[tuple[Text, tuple[Condition, ...]]], sign: str, level: int) -> str:
    """The masks combined, each under its condition; None where none applies."""
    always = [t for t, c in parts if not c]
    base = (
        (always[0] if len(always) == 1 else Text(f" {sign} ".join(t.at(level) for t in always), level))
        if always
        else None
    )
    perhaps = [(t, c) for t, c in parts if c]
    if not perhaps:
        assert base is not None
        return base.text
    if len(perhaps) == 1 and (base is None or base.text.isidentifier()):
        text, conditions = perhaps[0]
        return _when(
            draft,
            text if base is None else Text(f"{base.at(level)} {sign} {text.at(level + 1)}", level),
            base,
            conditions,
        ).text
    paths = {c for _, c in perhaps}
    if len(paths) == 2 and base is None:
        (a, ca), (b, cb) = perhaps
        if len(ca) == len(cb) == 1 and ca[0][0] is cb[0][0] and ca[0][1] != cb[0][1]:  # one or the other
            first, second = (a, b) if ca[0][1] else (b, a)
            return f"{first.at(OR)} if {draft.condition(((ca[0][0], True),))} else {second.at(COND)}"
    name = draft.fresh("attn_mask")
    start = base.text if base is not None else "None"
    given: list[tuple[Condition, ...]] = []  # under any of these there is a mask already
    if base is None and _passes(draft, *perhaps[0]):
        start, given, perhaps = perhaps[0][0].text, [perhaps[0][1]], perhaps[1:]
    draft.call.statements.append(f"{name} = {start}")
    for text, conditions in perhaps:
        draft.call.statements.append(f"if {draft.condition(conditions)}:")
        if base is None and not given:
            draft.call.statements.append(f"    {name} = {text.text}")
        elif base is None and not any(all_follow(c, conditions) for c in given):
            draft.call.statements.append(
                f"    {name} = {text.at(OR)} if {name} is None else {name} {sign} {text.at(level + 1)}"
            )
        else:
            draft.call.statements.append(f"    {name} = {name} {sign} {text.at(level + 1)}")
        given.append(conditions)
    return name


def _passes(draft: Draft, text: Text, conditions: tuple[Condition, ...]) -> bool:
    """Whether the text is None exactly where the conditions do not hold."""
    tested = none_test(conditions[0]) if len(conditions) == 1 else None
    return tested is not None and draft.writer.write(tested).text == text.text


def _when(draft: Draft, text: Text, otherwise: Text | None, conditions: tuple[Condition, ...]) -> Text:
    """text under the conditions, else `otherwise` (None if there is nothing)."""
    other = otherwise.text if otherwise is not None else "None"
    if len(conditions) == 1:
        tested = none_test(conditions[0])
        if tested is not None:
            name = draft.tested(conditions[0][0], tested)
            if text.text == name.text and otherwise is None:
                return text
            return Text(f"{other} if {name.at(COMPARE)} is None else {text.at(COND)}", COND)
    return Text(f"{text.at(OR)} if {draft.condition(conditions)} else {other}", COND)


def filled_bias(draft: Draft, fills: list[Item], adds: list[Item]) -> str:
    """A bias with -inf where a bool mask drops."""
    perhaps_fill, perhaps_add = [i for i in fills if i.conditions], [i for i in adds if i.conditions]
    if len(fills) > 1 or len(perhaps_add) > 1 or perhaps_fill and perhaps_add:
        raise Inexpressible("a bias and several optional masks")
    fill = fills[0]
    if not perhaps_add:
        bias = _sum_text(draft, adds)
        filled = Text(f'{bias.at(ATOM)}.masked_fill({_drop_text(draft, fill).text}, float("-inf"))')
        return (
            _when(draft, laid_out(draft, filled), laid_out(draft, bias), fill.conditions).text
            if fill.conditions
            else laid_out(draft, filled).text
        )
    if len(adds) > 1:
        raise Inexpressible("several biases, some of them optional, and a mask")
    bias = term_text(draft, adds[0])
    filled = Text(f'{bias.at(ATOM)}.masked_fill({_drop_text(draft, fill).text}, float("-inf"))')
    return _when(draft, laid_out(draft, filled), laid_out(draft, keep_text(draft, fill)), adds[0].conditions).text


def _sum_text(draft: Draft, adds: list[Item]) -> Text:
    texts = [term_text(draft, i) for i in adds]
    return texts[0] if len(texts) == 1 else Text(" + ".join(t.at(SUM) for t in texts), SUM)


def _keep_all(draft: Draft, fills: list[Item]) -> Text:
    texts = [keep_text(draft, i) for i in fills]
    return texts[0] if len(texts) == 1 else Text(" & ".join(t.at(BITAND) for t in texts), BITAND)


def attend_evenly(draft: Draft, fills: list[Item], adds: list[Item]) -> None:
    """A finite fill: rows without any kept key must attend evenly, on every backend."""
    if any(i.conditions for i in adds) or len({i.conditions for i in fills}) > 1:
        raise Inexpressible("optional masks with a finite fill")
    conditions = fills[0].conditions
    if conditions and adds:
        raise Inexpressible("a bias and an optional mask with a finite fill")
    kept = laid_out(draft, _keep_all(draft, fills))
    keep = kept.text if kept.text.isidentifier() else draft.fresh("keep")
    some = draft.fresh("some")
    lines = [] if keep == kept.text else [f"{keep} = {kept.text}"]
    lines.append(f"{some} = {keep}.any(dim=-1, keepdim=True){EVENLY}")
    hard = [i for i in fills if i.fill.strength == "inf"]
    mask = f"{keep} | ~{some}"
    if hard:  # what -inf hides stays hidden
        if adds:
            raise Inexpressible("a bias and masks with different fills")
        mask = f"{keep} | (~{some} & {laid_out(draft, _keep_all(draft, hard)).at(BITAND + 1)})"
    if adds:
        mask = f'{laid_out(draft, _sum_text(draft, adds)).at(ATOM)}.masked_fill(~{keep}, float("-inf")).masked_fill(~{some}, 0.0)'
    query = f"{draft.texts[0].at(PRODUCT)} * {some}"
    if not conditions:
        draft.call.statements += lines
        draft.call.query, draft.call.mask = query, mask
        return
    masked_query, name = draft.fresh("masked_query"), draft.fresh("attn_mask")
    draft.call.statements += [
        f"{masked_query}, {name} = {draft.texts[0].text}, None",
        f"if {draft.condition(conditions)}:",
        *(f"    {line}" for line in lines),
        f"    {masked_query}, {name} = {query}, {mask}",
    ]
    draft.call.query, draft.call.mask = masked_query, name


def give_zero(draft: Draft, items: list[Item]) -> None:
    """Fully masked rows give 0: the same mask put on the probabilities again, or nan_to_num."""
    zeroed, fills = draft.folded.zeroed, [i for i in items if i.kind == "fill"]
    if len(zeroed) != 1 or len(fills) != 1 or len(items) != 1 or zeroed[0].conditions != fills[0].conditions:
        again = zeroed[0].keep is not None and any(zeroed[0].keep.same(f.keep) for f in fills)
        draft.problem(
            "no fix" if again else "refuse",
            zeroed[0].line,
            "masks the probabilities after the softmax",
            "late-mask",
        )
        raise Inexpressible("a mask after the softmax")
    same = (
        zeroed[0].kind == "nan"
        and fills[0].fill.strength == "inf"
        or zeroed[0].keep is not None
        and zeroed[0].keep.same(fills[0].keep)
    )
    if not same or fills[0].conditions:
        draft.problem("no fix", zeroed[0].line, "masks the probabilities after the softmax")
        raise Inexpressible("another mask after the softmax")
    kept = laid_out(draft, keep_text(draft, fills[0]))
    keep = kept.text if kept.text.isidentifier() else draft.fresh("keep")
    some = draft.fresh("some")
    draft.call.statements += [] if keep == kept.text else [f"{keep} = {kept.text}"]
    draft.call.statements.append(f"{some} = {keep}.any(dim=-1, keepdim=True)  # a fully masked row gives 0, as before")
    draft.call.mask = f"{keep} | ~{some}"
    draft.call.suffix = f".masked_fill(~{some}, 0.0)"


def _given(value: Value) -> bool:
    """Whether a mask comes from outside, so that its axes are not known."""
    while (
        value.op != "param"
        and value.args
        and value.op in ("compare", "invert", "logical_not", "cast", "phi", "identity")
    ):
        value = value.args[1] if value.op == "phi" else value.args[0]
    return value.op == "param"
