"""What can go wrong where masks are handed to SDPA, and whether they are the causal one."""

from __future__ import annotations

from attn_advisor.attention import masks
from attn_advisor.attention.conditions import bool_attribute, none_test
from attn_advisor.attention.draft import Draft
from attn_advisor.attention.factors import negative, positive
from attn_advisor.attention.folded import Item
from attn_advisor.attention.hiding import hides
from attn_advisor.attention.triangles import Triangle, triangle
from attn_advisor.dataflow.attributes import definition
from attn_advisor.dataflow.values import Value


def check_added(draft: Draft, item: Item, items: list[Item]) -> None:
    answer = hides(item.value, draft.shapes, ask_callers=draft.undecided)
    name = draft.shown(item.value)
    if masks.whole(item.value):
        draft.problem("no fix", item.line, f"{name} holds whole numbers, which SDPA does not add")
    if answer == "possible" or item.subtract and answer == "rows kept":
        draft.problem("unsafe", item.line, f"{name} may hide every key of a row; SDPA then differs")
    finite = any(i.kind == "fill" and i.fill.strength == "finite" for i in items)
    if answer != "no" and finite and triangle(item.value, draft.shapes) is not None:
        draft.problem("no fix", item.line, f"{name} and a finite fill may together hide every key of a row")
    elif answer == "rows kept" and len(items) > 1:
        draft.problem("unsafe", item.line, f"{name} and another mask may together hide every key of a row")
    if not masks.is_bool(item.value):
        root = item.value
        while root.args and root.op in ("unsqueeze", "reshape", "getitem", "expand", "transpose", "permute", "phi"):
            root = root.args[1] if root.op == "phi" else root.args[0]
        if root.op not in ("mul", "einsum", "matmul", "embedding", "div", "pow") and not (
            root.op == "attribute" and _parameter(root)
        ):
            draft.call.assumes.append(f"{name} is a floating tensor")


def check_fills(draft: Draft, fills: list[Item], adds: list[Item]) -> None:
    """What can go wrong where a row may be fully masked by finite fills: the original is then finite too."""
    for item in fills:
        if (
            item.factors
            and item.fill.strength == "finite"
            and not (item.fill.number is not None and item.fill.number <= -1e8)
        ):
            draft.problem("unsafe", item.line, "the fill is scaled afterwards")
        if any(f.scalar not in ("number", "tensor") or not positive(f.value) for f in item.factors):
            draft.problem("unsafe", item.line, "the fill is multiplied by a factor that may be negative")
        if (
            item.fill.number is not None
            and item.factors
            and all(isinstance(f.value.const, (int, float)) and f.value.const for f in item.factors)
        ):
            number = item.fill.number
            for factor in item.factors:
                number = number / factor.value.const if factor.divide else number * factor.value.const
            if number > masks.STRONG:
                draft.problem("no fix", item.line, f"scaling makes the fill {number:g}, which does not mask")
        elif any(negative(f.value) for f in item.factors):
            draft.problem("no fix", item.line, "the fill is multiplied by a negative factor")
    if not may_be_empty(draft, fills):
        return
    order = draft.folded.items
    finite = [i for i in fills if i.fill.strength == "finite"]
    if not finite:
        return
    if any(order.index(a) > order.index(f) for a in adds for f in finite):
        draft.problem("no fix", finite[0].line, "a bias is added after a finite fill, and a row may be fully masked")
    if len({i.fill.number for i in finite}) > 1:
        draft.problem("no fix", finite[-1].line, "masks with different fills may together hide every key of a row")
    if any(order.index(i) < order.index(f) for i in fills if i.fill.strength == "inf" for f in finite):
        draft.problem("no fix", finite[-1].line, "a finite fill after one with -inf may fill a whole row")
    if any(f.scalar not in ("number", "tensor") for i in finite for f in i.factors):
        draft.problem("no fix", finite[0].line, "a learned factor after a finite fill, and a row may be fully masked")
    if draft.site.softmax.op != "softmax":
        draft.problem("no fix", finite[0].line, "a softmax written by hand rounds fully masked rows in its own way")


def _triangle_of(draft: Draft, item: Item) -> Triangle | None:
    """The cells an item keeps, if they are a lower triangle."""
    if item.kind == "fill" and item.keep is not None:
        found = triangle(item.keep, draft.shapes)
        return found.keep() if found is not None else None
    if item.kind == "add" and not item.subtract and not item.factors:
        found = triangle(item.value, draft.shapes)
        if (
            found is None
            or {found.inside, found.outside} & {0.0} == set()
            or min(found.inside, found.outside) > masks.STRONG
        ):
            return None
        return Triangle(
            found.lower,
            found.diagonal,
            found.rows,
            found.columns,
            float(found.inside == 0),
            float(found.outside == 0),
            found.row_start,
        ).keep()
    return None


def may_be_empty(draft: Draft, fills: list[Item]) -> bool:
    """Whether a row can be fully masked with a finite fill, where the original is finite too."""
    if all(i.fill.strength == "inf" for i in fills):
        return False
    found = _triangle_of(draft, fills[0]) if len(fills) == 1 else None
    return found is None or not found.nonempty or found.columns is None


def causal_flag(draft: Draft, items: list[Item]) -> str | None:
    """is_causal's value, if the only mask is the causal one of equal lengths."""
    shapes = {_triangle_of(draft, i) for i in items}
    if len(items) > 1 and (len(shapes) > 1 or any(i.conditions or i.kind != "fill" for i in items)):
        return None  # the same triangle may be put on twice
    if any(f.scalar not in ("number", "tensor") or not positive(f.value) for i in items for f in i.factors):
        return None
    item, site = items[0], draft.site
    found = _triangle_of(draft, item)
    if found is None or found.diagonal != 0:
        return None
    rows, columns = site.sizes.get(site.query_axis), site.sizes.get(site.key_axis)
    if rows is None or rows != columns or found.rows != rows or found.columns != columns:
        return None
    if found.row_start not in ("0", "end:" + repr(rows)):
        return None
    if any(i.kind == "fill" and i.fill.strength not in ("inf", "finite") for i in items):
        return None
    _assume_buffer(draft, item.value)
    if not item.conditions:
        return "True"
    if none_test(item.conditions[-1]) is not None:
        return None
    text = draft.condition(item.conditions)
    test = item.conditions[0][0]
    return text if len(item.conditions) == 1 and bool_attribute(test) else f"bool({text})"


def _assume_buffer(draft: Draft, value: Value) -> None:
    stack, seen = [value], 0
    while stack and seen < 50:
        at = stack.pop()
        seen += 1
        made = definition(at) if at.op == "attribute" else None
        if made is not None and made.op == "buffer" and made.attrs.get("persistent"):
            draft.call.assumes.append(f"the buffer `self.{at.attrs['name']}` keeps the value given in __init__")
            return
        stack.extend(at.args)


def _parameter(value: Value) -> bool:
    made = definition(value)
    return made is not None and made.op == "construct" and made.attrs["qualified"].endswith("Parameter")
