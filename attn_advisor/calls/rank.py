"""ATN402: query, key and value with another number of axes than four, for which SDPA has no fast kernel."""

from __future__ import annotations

import ast
import re

from attn_advisor.attention import masks
from attn_advisor.attention.express import Inexpressible
from attn_advisor.attention.hiding import hides
from attn_advisor.attention.outputs import view_edits
from attn_advisor.attention.triangles import triangle
from attn_advisor.calls.sdpa import ATOMS, Call
from attn_advisor.dataflow.attributes import definition
from attn_advisor.dataflow.dims import Dim, Shape
from attn_advisor.dataflow.shapes import Shapes
from attn_advisor.dataflow.values import Graph, Value
from attn_advisor.findings import Detection, Edit, Fix
from attn_advisor.source.line_length import line_length

_OPERANDS = ("query", "key", "value")
_NESTED = re.compile(r"nested_tensor|NestedTensor|torch\.nested|is_nested|jagged")
# Operations whose result may be None, or anything else: everything else here is a tensor.
_ANYTHING = frozenset(
    "param const call opaque element loop undefined name part mutated rest starred method apply".split()
)


def not_4d(call: Call, mask_goes: bool = False) -> Detection | None:
    """The finding for one call, None if the operands have four axes or perhaps have. `mask_goes`: another fix drops the mask."""
    operands = [v for v in map(call.operand, _OPERANDS) if v is not None]
    sizes = [shape for shape in map(call.shapes.shape, operands) if shape is not None]
    if len(sizes) != 3 or len({len(s) for s in sizes}) != 1 or not _worth_it(sizes):
        return None
    if not call.shapes_sure() or _asked(call.interpreter.graph) or _NESTED.search(call.source.text):
        return None
    rank = len(sizes[0])
    start, end = call.source.span(call.node)
    facts = {**{n: call.text(n) for n in _OPERANDS}, "rank": rank}
    detection = Detection("ATN402", start, end, call.function, facts, values={"rank": str(rank)})
    if rank > 2:
        detection.assumes = [f"the leading axes of `{facts['query']}` together stay below 65,536"]
    try:
        edits = _edits(call, sizes[0], mask_goes)
        unsafe = _unsafe(call)
        detection.blockers += unsafe
        detection.fix = Fix("unsafe" if unsafe else "safe", "Call with four axes", edits)
    except Inexpressible as why:
        detection.blockers.append(f"line {call.node.lineno}: {why}")
    return detection


def _worth_it(sizes: list[Shape]) -> bool:
    """Whether four axes bring a fast kernel: with equal leading axes, of which 5-D operands have two that can be merged."""
    query, *others = sizes
    if len(query) == 5:
        return all(other[:3] == query[:3] for other in others)
    if len(query) == 3:
        return all((other[0] == Dim(1)) == (query[0] == Dim(1)) for other in others)
    return len(query) == 2


def _asked(graph: Graph) -> bool:
    """Whether the function asks for a number of axes, other than to insist on it."""
    asked = [*graph.by_op.get("ndim", []), *graph.by_op.get("dim", [])]
    asked += [v for v in graph.by_op.get("py_len", []) if v.args and v.args[0].op == "shape"]
    return any(not isinstance(v.stmt, ast.Assert) for v in asked)


def _unsafe(call: Call) -> list[str]:
    """Why the fused kernels may compute something else than the one that runs now."""
    reasons = call.differentiated_twice()
    mask = call.operand("attn_mask")
    if mask is not None and not _keeps_a_key(mask, call.shapes):
        reasons.append(
            f"line {call.node.lineno}: `{call.text('attn_mask')}` may hide every key of a row, where kernels differ"
        )
    return reasons


def _keeps_a_key(mask: Value, shapes: Shapes) -> bool:
    """Whether every row of a mask keeps a key for certain."""
    if mask.const is None:
        return True
    if mask.op == "phi":
        return all(_keeps_a_key(branch, shapes) for branch in mask.args[1:])
    if masks.is_bool(mask):
        found = triangle(mask, shapes)
        kept = found.keep() if found is not None else None
        return kept is not None and kept.nonempty and kept.row_start == "0"
    return hides(mask, shapes) != "possible"


# -- the fix -----------------------------------------------------------------------------------------------------------------------------------


def _edits(call: Call, query: Shape, mask_goes: bool) -> tuple[Edit, ...]:
    """Raises Inexpressible where the call cannot be rewritten."""
    changed = call.changed_later()
    if changed is not None:
        raise Inexpressible(f"line {changed.line} changes in place what a fused kernel keeps for the backward pass")
    before, after = _suffixes(call, len(query))
    edits = [edit for name in _OPERANDS for edit in call.appended(name, before)]
    if not mask_goes or len(query) == 5:
        edits += _mask_edits(call, query)
    end = call.source.span(call.node)[1]
    edits.append(Edit(end, end, after))
    edits = _within_line(call, edits)
    edits += view_edits(call.value, call.frame.module)
    return tuple(sorted(set(edits)))


def _within_line(call: Call, edits: list[Edit]) -> list[Edit]:
    """The edits of a call that stands on one line, with its arguments on a line of their own where it gets too long."""
    source, node = call.source, call.node
    line = source.line(node.lineno).rstrip()
    if node.end_lineno != node.lineno:
        return edits
    if len(line) + sum(len(e.content) - (e.end - e.start) for e in edits) <= line_length(call.frame.module):
        return edits
    newline = "\r\n" if "\r\n" in source.text else "\n"
    indent = line[: len(line) - len(line.lstrip())]
    first, last = call.items()[0][0], source.span(node)[1] - 1
    breaks = {first: f"{newline}{indent}    ", last: f"{newline}{indent}"}
    placed = {e.start: e for e in edits if e.start == e.end}
    for at, text in breaks.items():
        there = placed.get(at)
        content = there.content if there is not None else ""
        edits = [e for e in edits if e is not there]
        edits.append(Edit(at, at, text + content if at == first else content + text))
    return edits


def _suffixes(call: Call, rank: int) -> tuple[str, str]:
    """What makes four axes of an operand's, and what takes the result back."""
    if rank == 2:
        return "[None, None]", "[0, 0]"
    if rank == 3:
        return ".unsqueeze(0)", ".squeeze(0)"
    named = next((n for n in _OPERANDS if isinstance(call.arguments[n], ast.Name)), None)
    if named is None:
        raise Inexpressible("none of query, key and value is a variable")
    return ".flatten(0, 1)", f".unflatten(0, {call.text(named)}.shape[:2])"


def _mask_edits(call: Call, query: Shape) -> list[Edit]:
    """The mask for operands of four axes. It lines up with the scores from the right, so that only axes beyond the query's last three matter."""
    mask = call.operand("attn_mask")
    if mask is None:
        return []
    text = f"`{call.text('attn_mask')}`"
    shape = call.shapes.shape(mask)
    if len(query) < 5:
        # SDPA takes 1-D masks only with fewer axes than four, and 3-D ones in slower kernels
        return [] if shape is not None and len(shape) == 2 else _changed(call, mask, ".unsqueeze(0)")
    if shape is None:
        raise Inexpressible(f"the number of axes of {text} is not known")
    if len(shape) == 1:
        return _changed(call, mask, ".unsqueeze(0)")
    if len(shape) == 5 and shape[:2] in (query[:2], (Dim(1), Dim(1))):
        return _changed(call, mask, ".flatten(0, 1)")
    if len(shape) > 4 or len(shape) == 4 and shape[0] != Dim(1):
        raise Inexpressible(f"{text} differs along the leading axes")
    return []


def _changed(call: Call, mask: Value, suffix: str) -> list[Edit]:
    """The mask with a method call behind it, and None as it is. Replaces the whole argument, so that no other fix does the same at once."""
    node, text = call.arguments["attn_mask"], call.source.segment(call.arguments["attn_mask"])
    if _may_be_none(mask):
        if not isinstance(node, (ast.Name, ast.Attribute)):
            raise Inexpressible(f"`{call.text('attn_mask')}` may be None")
        return [Edit(*call.source.span(node), f"None if {text} is None else {text}{suffix}")]
    return [Edit(*call.source.span(node), f"{text if isinstance(node, ATOMS) else f'({text})'}{suffix}")]


def _may_be_none(mask: Value) -> bool:
    if mask.op == "phi":
        return any(_may_be_none(branch) for branch in mask.args[1:])
    if mask.op == "attribute":
        made = definition(mask)
        return made is None or made.op != "buffer" and made.attrs.get("qualified") != "torch.nn.Parameter"
    if mask.op == "getitem" or mask.op == "part" and mask.args[0].op in ("unbind", "chunk", "split"):
        return _may_be_none(mask.args[0])
    return mask.op in _ANYTHING
