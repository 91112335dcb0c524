"""ATN401: a causal mask handed to SDPA as a tensor, where `is_causal=True` is provably the same."""

from __future__ import annotations

import ast

from attn_advisor.attention import masks
from attn_advisor.attention.comments import comments_in
from attn_advisor.attention.conditions import bool_attribute
from attn_advisor.attention.draft import Call as SDPACall
from attn_advisor.attention.editor import Editor
from attn_advisor.attention.express import OR, Inexpressible, Writer
from attn_advisor.attention.liveness import Liveness, Removal
from attn_advisor.attention.masks import STRONG
from attn_advisor.attention.outputs import view_edits
from attn_advisor.attention.place import root_statement
from attn_advisor.attention.synthetic import constant, synthetic
from attn_advisor.attention.triangles import Triangle, triangle
from attn_advisor.calls.sdpa import Call
from attn_advisor.dataflow.attributes import definition
from attn_advisor.dataflow.dims import Dim
from attn_advisor.dataflow.shapes import Shapes
from attn_advisor.dataflow.values import Graph, Value
from attn_advisor.findings import Applicability, Detection, Edit, Fix

_TESTS = frozenset({"is", "is_not", "in", "not_in"})
_ACTIONS = frozenset({"call", "method", "apply", "py_print"})


def dense_causal_mask(call: Call) -> Detection | None:
    """The finding for one call, None if its mask is not the causal one of equal lengths."""
    mask, given = call.operand("attn_mask"), call.value.get("is_causal")
    if mask is None or (given is not None and given.const is not False):
        return None
    flag = _flag(mask, call)
    if flag is None or flag.const is False or not call.shapes_sure():
        return None
    start, end = call.source.span(call.node)
    facts = {**{n: call.text(n) for n in ("query", "key", "value")}, "mask": call.text("attn_mask")}
    detection = Detection("ATN401", start, end, call.function, facts, assumes=_assumed(mask))
    try:
        text, used = _written(flag, call)
        if not _fused(mask, call):
            detection.blockers += call.differentiated_twice()
        safety: Applicability = "unsafe" if detection.blockers else "safe"
        detection.fix = Fix(safety, f"Pass `is_causal={text}` in place of the mask", _edits(call, text, used))
    except Inexpressible as why:
        detection.blockers.append(f"line {call.node.lineno}: {why}")
    detection.values = {"mask": facts["mask"]}
    return detection


# -- what the mask is --------------------------------------------------------------------------------------------------------------------------


def _flag(mask: Value, call: Call) -> Value | None:
    """What is_causal must be: True, False (no mask) or the test that chooses between them; None if the mask is another."""
    if mask.const is None:
        return constant(False)
    if mask.op == "phi":
        test, body, orelse = mask.args
        flags = _flag(body, call), _flag(orelse, call)
        if flags[0] is None or flags[1] is None:
            return None
        match flags[0].const, flags[1].const:
            case True, False:
                return test
            case False, True:
                return synthetic("not", test)
            case (True, True) | (False, False):
                return flags[0]
        return None
    query, key = call.operand("query"), call.operand("key")
    if query is None or key is None:
        return None
    length = call.shapes.size(query, -2)
    return constant(True) if length == call.shapes.size(key, -2) and is_causal(mask, length, call.shapes) else None


def is_causal(mask: Value, length: Dim, shapes: Shapes) -> bool:
    """Whether an attn_mask keeps key j for query i exactly where j <= i, over `length` queries and as many keys."""
    found = triangle(mask, shapes)
    if found is None:
        return False
    kept: Triangle | None
    if masks.is_bool(mask):
        kept = found.keep()
    else:
        if 0 not in (found.inside, found.outside) or min(found.inside, found.outside) > STRONG:
            return False
        inside, outside = float(found.inside == 0), float(found.outside == 0)
        kept = Triangle(found.lower, found.diagonal, found.rows, found.columns, inside, outside, found.row_start).keep()
    if kept is None or kept.diagonal != 0 or kept.row_start not in ("0", "end:" + repr(length)):
        return False
    return kept.rows == length and kept.columns == length


def _assumed(mask: Value) -> list[str]:
    """The persistent buffer the mask is read from, which a checkpoint may overwrite."""
    stack, seen = [mask], 0
    while stack and seen < 50:
        value = stack.pop()
        seen += 1
        made = definition(value) if value.op == "attribute" else None
        if made is not None and made.op == "buffer" and made.attrs.get("persistent"):
            return [f"the buffer `self.{value.attrs['name']}` keeps the value given in __init__"]
        stack.extend(value.args)
    return []


# -- the fix -----------------------------------------------------------------------------------------------------------------------------------


def _written(flag: Value, call: Call) -> tuple[str, list[Value]]:
    """The flag as source, and the variables it reads. Raises Inexpressible."""
    if flag.const is True:
        return "True", []
    assert call.value.stmt is not None
    if _acting(flag):
        raise Inexpressible("the test that chooses the mask calls what cannot be followed")
    writer = Writer(call.frame, call.value.stmt)
    text = writer.write(flag)
    return (text.at(OR) if _certainly_bool(flag) else f"bool({text.text})"), writer.used


def _acting(value: Value) -> bool:
    """Whether computing the value again may do something."""
    stack, seen = [value], set()
    while stack:
        at = stack.pop()
        if at.op in _ACTIONS:
            return True
        if id(at) not in seen:
            seen.add(id(at))
            stack.extend(at.args)
    return False


def _certainly_bool(test: Value) -> bool:
    """Whether a test is True or False itself: SDPA takes nothing else, and while tracing even sizes compare to a tensor."""
    if test.op == "compare":
        return test.attrs["how"] in _TESTS
    return test.op == "not" or bool_attribute(test)


def _edits(call: Call, flag: str, used: list[Value]) -> tuple[Edit, ...]:
    """The argument exchanged, and what only the mask needed taken out. Raises Inexpressible."""
    edits = _exchanged(call, f"is_causal={flag}")
    mask = call.operand("attn_mask")
    if mask is not None and not _fused(mask, call):
        changed = call.changed_later()
        if changed is not None:
            raise Inexpressible(f"line {changed.line} changes in place what a fused kernel keeps for the backward pass")
        edits += view_edits(call.value, call.frame.module)
    return tuple(sorted({*edits, *_removed(call, used)}))


def _fused(mask: Value, call: Call) -> bool:
    """Whether fused kernels take the mask. The math kernel keeps less for the backward pass, and lays out its result otherwise."""
    return call.shapes.rank(mask) in (2, 4)


def _exchanged(call: Call, text: str) -> list[Edit]:
    """`attn_mask=...` becomes `text`, in its place; `is_causal=False` goes."""
    node, source = call.node, call.source
    keywords = {k.arg: source.span(k) for k in node.keywords}
    edits = []
    if "attn_mask" in keywords:
        start, end = keywords["attn_mask"]
    else:
        start, end = source.span(node.args[3])
        if any(call.parenthesised(source.span(a)[0]) for a in node.args[3:]):
            raise Inexpressible("the mask or what follows it stands in parentheses")
        if len(node.args) > 4:  # no argument without a name may follow one with a name
            at = source.span(node.args[4])[0]
            edits.append(Edit(at, at, "dropout_p="))
    edits.append(Edit(start, end, text))
    if "is_causal" in call.arguments:
        span = keywords.get("is_causal") or source.span(call.arguments["is_causal"])
        before = max((e for _, e in call.items() if e <= span[0]), default=None)
        if before is None or set("()#") & set(source.text[before : span[1]]):
            raise Inexpressible("`is_causal` cannot be taken out")
        edits.append(Edit(before, span[1], ""))
    return edits


def _removed(call: Call, used: list[Value]) -> list[Edit]:
    """Edits that take out the statements that only built the mask; none where they cannot go cleanly."""
    graph, frame, value = call.interpreter.graph, call.frame, call.value
    stmt = value.stmt
    assert stmt is not None
    mask = call.arguments["attn_mask"]
    comments = comments_in(call.source.segment(mask))
    needed = [a for n, a in zip(value.names, value.args, strict=True) if n not in ("attn_mask", "is_causal")]
    liveness = Liveness(graph, frame)
    removal = Removal(graph, frame, liveness.live(), liveness.live(value, [*needed, *used]), stmt)
    edits: list[Edit] = []
    if removal.removed and not removal.dangling(mask) and not _acts(removal, graph):
        editor = Editor(frame.module, removal, stmt, call.node, SDPACall(), "", False)
        edits, above = editor.removals()
        comments = [*above, *comments]
    start = call.source.span(stmt)[0]
    line = call.source.line_starts[stmt.lineno - 1]
    indent = call.source.text[line:start]
    if comments and indent.strip():
        raise Inexpressible("a comment has no place to go")
    newline = "\r\n" if "\r\n" in call.source.text else "\n"
    if comments:
        edits.append(Edit(start, start, "".join(comment + newline + indent for comment in comments)))
    return edits


def _acts(removal: Removal, graph: Graph) -> bool:
    """Whether a statement that would go does more than compute: a helper that stores something, a call of the unknown."""
    frame = removal.frame
    for value in graph.values:
        if value.op in _ACTIONS and root_statement(value, frame) in removal.removed:
            return True
    for effect in graph.effects:
        at, stmt = effect.frame, effect.stmt
        while at is not frame and at.caller is not None and at.call_stmt is not None:
            stmt, at = at.call_stmt, at.caller
        if (
            effect.kind in ("store", "yield", "delete", "unknown")
            and stmt in removal.removed
            and effect.frame is not frame
        ):
            return True
    return any(isinstance(node, ast.NamedExpr) for stmt in removal.removed for node in ast.walk(stmt))
