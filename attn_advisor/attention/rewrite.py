"""One SDPA call in place of a site's statements."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field

from attn_advisor.attention.arguments import sdpa_call
from attn_advisor.attention.draft import Call
from attn_advisor.attention.editor import SDPA, Editor
from attn_advisor.attention.express import Inexpressible, Writer
from attn_advisor.attention.folded import Folded, Problem
from attn_advisor.attention.functional import functional_name, names_of
from attn_advisor.attention.guarded import Guard
from attn_advisor.attention.liveness import Liveness, Removal
from attn_advisor.attention.outputs import later_changes, view_edits
from attn_advisor.attention.place import place_of
from attn_advisor.attention.score_sizes import About, about_scores, give_sizes
from attn_advisor.attention.site import Site
from attn_advisor.dataflow.shapes import Shapes
from attn_advisor.dataflow.statements import Interpreter
from attn_advisor.dataflow.values import Effect, Frame, Graph, Value
from attn_advisor.findings import Edit


@dataclass
class Rewrite:
    """What a rewrite of one site would do. `edits` is empty where it cannot be written."""

    call: Call | None = None
    expression: str = ""
    edits: list[Edit] = field(default_factory=list)
    escapes: list[tuple[Value, Effect | None]] = field(default_factory=list)
    always: list[Effect | None] = field(default_factory=list)  # those of the escapes that no condition guards
    guarded: bool = False  # the edits keep the old lines, under a condition


def rewrite(site: Site, folded: Folded, shapes: Shapes, interpreter: Interpreter, frame: Frame) -> Rewrite:
    """Build the call and its edits. What stands in the way is appended to folded.problems."""
    out = Rewrite()
    about = about_scores(site, interpreter.graph, frame)
    liveness = Liveness(interpreter.graph, frame, site.chain_values, (a.value for a in about))
    before = Liveness(interpreter.graph, frame).live()
    place = place_of(site, frame)
    if isinstance(place, Problem):
        folded.problems.append(place)
        _note_escapes(site, liveness, folded, [site.query.value, site.key.value, site.val.value], out)
        return out
    stmt, node = place
    writer = _writer(site, interpreter.graph, frame, stmt, about)
    _note_escapes(site, liveness, folded, [site.query.value, site.key.value, site.val.value], out)
    undecided = not out.escapes and not any(p.kind in ("refuse", "no fix", "guard") for p in folded.problems)
    try:
        out.call = sdpa_call(site, folded, shapes, writer, set(names_of(frame.function)), undecided)
    except Inexpressible as why:
        folded.problems.append(Problem("no fix", site.output.line, str(why)))
        return out
    _note_escapes(site, liveness, folded, writer.used, out)
    if any(p.kind in ("refuse", "no fix") for p in folded.problems):
        return out
    if out.escapes or any(p.kind == "guard" for p in folded.problems):
        guard = Guard(site, folded, shapes, interpreter.graph, frame, liveness, about, out)
        _guarded(guard, stmt, node, writer.used, _writer(site, interpreter.graph, frame, stmt, about), out)
        return out
    needed = [*writer.used, *(v for a in about for v in a.used)]
    after = liveness.live(site.output, needed)
    removal = Removal(interpreter.graph, frame, before, after, stmt)
    dangling = removal.dangling(node, [a.node for a in about])
    for _ in range(6):  # what only a nested function or another unread place reads stays
        more = removal.bound_to({n.id for n in dangling}) if dangling else []
        if not more or any(v in site.chain_values for v in more):
            break
        needed += more
        after = liveness.live(site.output, needed)
        removal = Removal(interpreter.graph, frame, before, after, stmt)
        dangling = removal.dangling(node, [a.node for a in about])
    if dangling:
        folded.problems.append(Problem("no fix", dangling[0].lineno, f"`{dangling[0].id}` is still used"))
        return out
    elsewhere = liveness.live(site.output, ())
    if any(
        a.value.op == "dtype" and id(a.value) in elsewhere and not _within(a.node, [node, *removal.removed])
        for a in about
    ):
        folded.problems.append(
            Problem(
                "no fix", site.output.line, "the dtype of the scores, which autocast lowers, is used for something else"
            )
        )
    changes = later_changes(site, folded, frame)
    if any(p.kind == "no fix" for p in folded.problems):
        return out
    name, imported = functional_name(frame.module, frame)
    out.expression = f"{name}.{SDPA}({', '.join(out.call.arguments())}){out.call.suffix}"
    out.edits = Editor(frame.module, removal, stmt, node, out.call, name, imported).edits()
    out.edits += view_edits(site.output, frame.module)
    out.edits += changes
    out.edits += [
        Edit(*frame.module.source.span(a.node), a.text)
        for a in about
        if id(a.value) in after and not _within(a.node, [node, *removal.removed])
    ]
    return out


def _writer(site: Site, graph: Graph, frame: Frame, stmt: ast.stmt, about: list[About]) -> Writer:
    """A writer for the statement of the call, which reads sizes of the scores off the query and key."""
    writer = Writer(frame, stmt)
    writer.nodes = {id(a.node): a.text for a in about}
    writer.given.update({id(a.value): a.text for a in about})
    writer.stand_in = site.query.value
    writer.forbidden = {id(v) for v in site.chain_values} | {id(k.operand) for k in (*site.before, *site.behind)}
    give_sizes(site, graph, writer)
    return writer


def _guarded(guard: Guard, stmt: ast.stmt, node: ast.expr, used: list[Value], writer: Writer, out: Rewrite) -> None:
    """The old lines where the weights are wanted, SDPA elsewhere."""
    frame = guard.frame
    branches = guard.fix(stmt, node, used, writer, set(names_of(frame.function)))
    changes = later_changes(guard.site, guard.folded, frame)
    if branches is None or any(p.kind == "no fix" for p in guard.folded.problems):
        return
    name, imported = functional_name(frame.module, frame)
    out.call, out.guarded = branches.call, True
    out.expression = f"{name}.{SDPA}({', '.join(out.call.arguments())}){out.call.suffix}"
    editor = Editor(frame.module, branches.removal, stmt, node, out.call, name, imported)
    out.edits = branches.edits(editor, [*changes, *view_edits(guard.site.output, frame.module)])
    if imported:
        out.edits.append(editor.import_edit())


def _within(node: ast.AST, others: Iterable[ast.AST]) -> bool:
    return any(node is inner for other in others for inner in ast.walk(other))


def _note_escapes(site: Site, liveness: Liveness, folded: Folded, used: list[Value], out: Rewrite) -> None:
    """Who else needs the scores or probabilities; a mask made from them, or a size that cannot be read elsewhere, is a matter of the call itself."""
    chain = site.chain_values
    inside = {id(v) for v in chain} | {id(k.operand) for k in (*site.before, *site.behind)}
    sizes = [
        v
        for op in ("size", "shape", "dtype", "device", "ndim", "numel")
        for v in liveness.graph.by_op.get(op, ())
        if id(v.args[0]) in inside
    ]
    content = Liveness(liveness.graph, liveness.frame, chain, sizes)
    live = content.live(site.output, ())
    wanted = [v for v in chain if id(v) in live]
    out.escapes = content.reasons(wanted, site.output, ()) if wanted else []
    if not wanted and any(id(v) in liveness.live(site.output, used) for v in chain):
        text = "a mask is made from the scores, or their size is asked"
        if not any(p.text == text for p in folded.problems):
            folded.problems.append(Problem("no fix", site.output.line, text))
