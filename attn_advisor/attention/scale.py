"""SDPA's scale as source text."""

from __future__ import annotations

from attn_advisor.attention import layout
from attn_advisor.attention.draft import Draft
from attn_advisor.attention.express import ATOM, COND, OR, PRODUCT, UNARY, Text
from attn_advisor.attention.factors import has_axes, negative, positive
from attn_advisor.attention.folded import Factor
from attn_advisor.attention.synthetic import constant, synthetic
from attn_advisor.dataflow.dims import Dim
from attn_advisor.dataflow.values import Value


def write_scale(draft: Draft) -> None:
    numbers: list[Factor] = []
    query = draft.texts[0]
    flipped = False
    for factor in draft.folded.factors:
        if isinstance(factor.value.const, (int, float)) and factor.value.const < 0:
            flipped = not flipped
            if factor.value.const != -1:
                numbers.append(
                    Factor(constant(-factor.value.const), factor.divide, factor.conditions, factor.scalar, factor.line)
                )
            if factor.conditions:
                draft.problem("no fix", factor.line, "the sign of the scores depends on a condition")
        elif factor.scalar in ("number", "tensor"):
            numbers.append(factor)
        else:
            if factor.conditions:
                draft.problem("no fix", factor.line, "a learned scale under a condition")
            if factor.scalar == "unknown":
                _unknown_factor(draft, factor)
            query = Text(
                f"{query.at(PRODUCT)} {'/' if factor.divide else '*'} {draft.writer.write(factor.value).at(UNARY)}",
                PRODUCT,
            )
    if flipped:
        query = Text(f"-{query.at(UNARY)}", UNARY)
    draft.texts[0] = query
    draft.call.query = query.text
    numbers = without_pairs(numbers)
    if not numbers:
        draft.call.scale = "1.0"
        return
    if len(numbers) == 1 and not numbers[0].conditions and _is_default(draft, numbers[0]):
        return
    parts: list[Text] = []
    for conditions in dict.fromkeys(f.conditions for f in numbers):
        value = product_of([f for f in numbers if f.conditions == conditions])
        text = draft.writer.write(value)
        if conditions:
            text = Text(f"{text.at(OR)} if {draft.condition(conditions)} else 1.0", COND)
        parts.append(text)
    draft.call.scale = parts[0].text if len(parts) == 1 else " * ".join(p.at(PRODUCT) for p in parts)
    if any(f.scalar == "tensor" for f in numbers):
        draft.call.scale = f"float({draft.call.scale})"


def move_sign(draft: Draft) -> None:
    """A scale that may be zero or negative goes onto the query: with the causal flag, kernels make NaN of it."""
    numbers = [f.value for f in draft.folded.factors if f.scalar in ("number", "tensor") and not _negated(f)]
    doubtful = (
        any(negative(v) or v.const == 0 for v in numbers)
        or draft.call.causal is not None
        and not all(positive(v) for v in numbers)
    )
    if doubtful and draft.call.scale not in (None, "1.0") and not draft.call.statements:
        assert draft.call.scale is not None
        scale = Text(draft.call.scale, ATOM if draft.call.scale.replace(".", "").isidentifier() else COND)
        draft.texts[0] = Text(f"{draft.texts[0].at(PRODUCT)} * {scale.at(UNARY)}", PRODUCT)
        draft.call.query, draft.call.scale = draft.texts[0].text, "1.0"


def _unknown_factor(draft: Draft, factor: Factor) -> None:
    """A factor that may be a number or a tensor: only its name speaks for a number."""
    text = draft.shown(factor.value)
    named = any(word in text.lower() for word in ("scale", "scaling", "temp", "norm", "tau", "sqrt")) and not has_axes(
        factor.value
    )
    draft.problem("unsafe" if named else "no fix", factor.line, f"{text} is not known to be one number")


def _is_default(draft: Draft, factor: Factor) -> bool:
    """Whether the factor is D**-0.5 of the very axis that the product contracts."""
    power = _power(draft, factor.value)
    if power is None:
        return False
    size, exponent = power
    if factor.divide:
        exponent = -exponent
    return exponent == -0.5 and size == _contracted_size(draft)


def _contracted_size(draft: Draft) -> Dim:
    known = draft.shapes.shape(draft.site.query.value)
    return (
        known[draft.site.query.labels.index(draft.site.contracted) - len(draft.site.query.labels)]
        if known is not None
        else Dim(-1)
    )


def _power(draft: Draft, value: Value) -> tuple[Dim | None, float] | None:
    if value.op == "size":
        return (_contracted_size(draft) if _is_contracted(draft, value) else draft.shapes.dim(value)), 1.0
    if value.op == "sqrt":
        inner = _power(draft, value.args[0])
        return None if inner is None else (inner[0], inner[1] / 2)
    if value.op == "pow" and isinstance(value.args[1].const, (int, float)):
        inner = _power(draft, value.args[0])
        return None if inner is None else (inner[0], inner[1] * value.args[1].const)
    if value.op == "div" and value.args[0].const == 1:
        inner = _power(draft, value.args[1])
        return None if inner is None else (inner[0], -inner[1])
    if value.op == "number":
        return _power(draft, value.args[0])
    if value.op in ("floordiv", "attribute", "param"):
        return draft.shapes.dim(value), 1.0
    return None


def _is_contracted(draft: Draft, size: Value) -> bool:
    """`x.size(axis)` of the query or key on its contracted axis."""
    axis = size.attrs["axis"]
    for operand in (draft.site.query, draft.site.key):
        value, labels = operand.value, operand.labels
        for _ in range(4):
            if size.args[0] is value or size.args[0].key == value.key:
                at = axis if axis < 0 else axis - len(labels) if "..." not in labels else None
                if at is not None and -at <= len(labels) and labels[at] == draft.site.contracted:
                    return True
            inner = layout.peel(value, labels)
            if inner is None and value.op == "transpose" and value.attrs.get("dims") in ((-2, -1), (-1, -2)):
                inner = value.args[0], (*labels[:-2], labels[-1], labels[-2])
            if inner is None:
                break
            value, labels = inner
    return False


def without_pairs(factors: list[Factor]) -> list[Factor]:
    """Without numbers that are divided out again (`x / 32 * 32`)."""
    left: list[Factor] = []
    for factor in factors:
        pair = next(
            (
                f
                for f in left
                if f.divide != factor.divide
                and f.conditions == factor.conditions
                and f.value.const == factor.value.const
            ),
            None,
        )
        if pair is not None and isinstance(factor.value.const, (int, float)) and factor.value.const:
            left.remove(pair)
        else:
            left.append(factor)
    return left


def product_of(factors: list[Factor]) -> Value:
    """One value for a product of multiplied and divided numbers."""
    above = [f.value for f in factors if not f.divide]
    below = [f.value for f in factors if f.divide]
    value = above[0] if above else constant(1)
    for factor in above[1:]:
        value = synthetic("mul", value, factor)
    for factor in below:
        value = synthetic("div", value, factor)
    return value


def _negated(factor: Factor) -> bool:
    """Whether the sign of the factor has been moved to the query."""
    return isinstance(factor.value.const, (int, float)) and factor.value.const < 0
