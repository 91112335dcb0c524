"""SDPA's query, key and value as source text."""

from __future__ import annotations

from attn_advisor.attention import layout
from attn_advisor.attention.draft import Draft
from attn_advisor.attention.express import ATOM, COND, PRODUCT, UNARY, Inexpressible, Text
from attn_advisor.dataflow.values import Value

_TURNS = (
    "transpose",
    "permute",
    "reshape",
    "rearrange",
    "einops_rearrange",
    "getitem",
    "part",
    "unsqueeze",
    "flatten",
    "unflatten",
    "repeat_interleave",
    "expand",
)


def place_operands(draft: Draft) -> None:
    site, target, writer = draft.site, draft.target, draft.writer
    for operand in (site.query, site.key, site.val):
        rank = draft.shapes.rank(operand.value)
        if rank is not None and rank < 2:
            raise Inexpressible(f"{draft.shown(operand.value)} has a single axis")
    left, right = site.product.args[:2]
    if (
        site.product.op == "matmul"
        and not draft.folded.items
        and right.op not in _TURNS
        and draft.shapes.rank(left) is None
        and draft.shapes.rank(right) is None
    ):
        draft.problem(
            "unsafe", site.product.line, f"{draft.shown(right)}, which is not transposed here, may have a single axis"
        )
    texts = []
    for operand, tail in (
        (site.query, (site.query_axis, site.contracted)),
        (site.key, (site.key_axis, site.contracted)),
        (site.val, (site.key_axis, _value_axis(draft))),
    ):
        text = layout.operand_text(operand, tail, target, writer, site)
        texts.append(Text(layout.fill_sizes(text.text, site, writer), text.level))
    draft.texts = texts
    draft.call.query, draft.call.key, draft.call.value = (t.text for t in texts)


def _value_axis(draft: Draft) -> str:
    site = draft.site
    rest = [
        x
        for x in site.val.labels
        if x not in site.score_labels and x != site.key_axis and x != "..." and "." not in x and "+" not in x
    ]
    return rest[0] if rest else "e"


def weigh_values(draft: Draft) -> None:
    """Factors on the probabilities of each head or key, put on the values."""
    factors = draft.folded.value_factors
    if factors and (
        draft.target.lead
        or draft.target.flat
        or draft.target.split
        or any(x.endswith((".0", ".1")) for x in draft.target.batch)
    ):
        raise Inexpressible("the probabilities are weighed under another view")
    for factor in factors:
        draft.texts[2] = Text(
            f"{draft.texts[2].at(PRODUCT)} {'/' if factor.divide else '*'} {draft.writer.write(factor.value).at(UNARY)}",
            PRODUCT,
        )
        draft.call.value = draft.texts[2].text


def plain_query(draft: Draft) -> str:
    """The query before its leading axes are merged, for its shape."""
    text = draft.texts[0].text
    return text.rsplit(".flatten(", 1)[0]


def keep_dtypes(draft: Draft) -> None:
    """Keep the dtypes of the three operands equal, as the original's casts left them."""
    site = draft.site
    query, key, value = (_cast_kinds(o.value) for o in (site.query, site.key, site.val))
    back = any(k.kind == "cast" for k in site.behind)
    if not value and (query or key) and back:
        dtype = f"{draft.texts[2].at(ATOM)}.dtype"
        for name, cast in (("query", query), ("key", key)):
            if cast:
                text = Text(getattr(draft.call, name), COND if _loose(getattr(draft.call, name)) else ATOM)
                setattr(draft.call, name, f"{text.at(ATOM)}.to({dtype})")
    elif value == {"float32"} and not query and not key:
        for name in ("query", "key"):
            text = Text(getattr(draft.call, name), COND if _loose(getattr(draft.call, name)) else ATOM)
            setattr(draft.call, name, f"{text.at(ATOM)}.float()")
    elif value and query != value or value and key != value:
        draft.problem("no fix", site.output.line, "query, key and value are cast to different dtypes")


def _cast_kinds(value: Value, depth: int = 0) -> set[str]:
    """The dtypes an operand may have been cast to on its way to the product."""
    if depth > 12 or not value.args:
        return set()
    if value.op == "cast":
        return {value.attrs["kind"] or "other"}
    if value.op == "phi":
        return _cast_kinds(value.args[1], depth + 1) | _cast_kinds(value.args[2], depth + 1)
    if value.op in ("add", "sub", "mul", "div"):
        return _cast_kinds(value.args[0], depth + 1)
    if value.op in (
        "transpose",
        "permute",
        "identity",
        "reshape",
        "neg",
        "unsqueeze",
        "rearrange",
        "normalize",
        "expand",
        "repeat_interleave",
    ):
        return _cast_kinds(value.args[0], depth + 1)
    return set()


def _loose(text: str) -> bool:
    """Whether text has an operator at its outermost level."""
    depth = 0
    for at, char in enumerate(text):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char in " *+-/" and depth == 0 and at:
            return True
    return text.startswith("-")
