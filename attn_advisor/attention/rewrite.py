"""Text edits that put one SDPA call in place of a site's statements."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from attn_advisor.attention.arguments import sdpa_call
from attn_advisor.attention.draft import Call
from attn_advisor.attention.express import ATOM, Inexpressible, Writer
from attn_advisor.attention.factors import scalar_kind
from attn_advisor.attention.folded import Folded, Problem
from attn_advisor.attention.guarded import Guard
from attn_advisor.attention.liveness import Liveness, Removal
from attn_advisor.attention.outputs import in_callers, works_in_place
from attn_advisor.attention.site import Operand, Site
from attn_advisor.dataflow.evaluate import storage
from attn_advisor.dataflow.operations import VIEWS
from attn_advisor.dataflow.shapes import Shapes
from attn_advisor.dataflow.statements import Interpreter
from attn_advisor.dataflow.values import Effect, Frame, Graph, Value
from attn_advisor.findings import Edit
from attn_advisor.source.module import Module, nodes_in

SDPA = "scaled_dot_product_attention"
_SAME_OBJECT = frozenset({"phi", "dropout", "cast", "identity", "loop"})  # may hand back the very tensor they are given
FUNCTIONAL = "torch.nn.functional"


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
    place = _place(site, frame)
    if isinstance(place, Problem):
        folded.problems.append(place)
        _note_escapes(site, liveness, folded, [site.query.value, site.key.value, site.val.value], out)
        return out
    stmt, node = place
    writer = _writer(site, interpreter.graph, frame, stmt, about)
    _note_escapes(site, liveness, folded, [site.query.value, site.key.value, site.val.value], out)
    undecided = not out.escapes and not any(p.kind in ("refuse", "no fix", "guard") for p in folded.problems)
    try:
        out.call = sdpa_call(site, folded, shapes, writer, set(_names(frame.function)), undecided)
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
    changes = _later_changes(site, folded, frame)
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
    _give_sizes(site, graph, writer)
    return writer


def _guarded(guard: Guard, stmt: ast.stmt, node: ast.expr, used: list[Value], writer: Writer, out: Rewrite) -> None:
    """The old lines where the weights are wanted, SDPA elsewhere."""
    frame = guard.frame
    branches = guard.fix(stmt, node, used, writer, set(_names(frame.function)))
    changes = _later_changes(guard.site, guard.folded, frame)
    if branches is None or any(p.kind == "no fix" for p in guard.folded.problems):
        return
    name, imported = functional_name(frame.module, frame)
    out.call, out.guarded = branches.call, True
    out.expression = f"{name}.{SDPA}({', '.join(out.call.arguments())}){out.call.suffix}"
    editor = Editor(frame.module, branches.removal, stmt, node, out.call, name, imported)
    out.edits = branches.edits(editor, [*changes, *view_edits(guard.site.output, frame.module)])
    if imported:
        out.edits.append(editor._import())


@dataclass
class About:
    """A size, dtype or device of the scores, and how to read it off the query or key."""

    value: Value
    node: ast.expr
    text: str
    used: list[Value]


def about_scores(site: Site, graph: Graph, frame: Frame) -> list[About]:
    """Uses of the scores, in this function's own text, that only ask for their size, dtype or device."""
    found = []
    read_off = {id(value): read for value, read in _asked(site, graph)}
    for value in graph.by_op.get("tuple", []):  # sizes taken together: scores.shape[-2:]
        sizes = [read_off.get(id(a)) for a in value.args]
        if (
            value.frame is frame
            and value.stmt is not None
            and isinstance(value.node, ast.Subscript)
            and sizes
            and None not in sizes
        ):
            writer = Writer(frame, value.stmt)
            try:
                parts = [writer.write(of).at(ATOM) + suffix for of, suffix in sizes]  # type: ignore[misc]
            except Inexpressible:
                continue
            found += [About(a, value.node, f"({', '.join(parts)})", writer.used) for a in value.args]
    for value, read in _asked(site, graph):
        if value.frame is not frame or value.stmt is None or not isinstance(value.node, ast.expr):
            continue
        if value.op == "size" and not isinstance(value.node, (ast.Call, ast.Subscript)):
            continue
        writer = Writer(frame, value.stmt)
        try:
            text = writer.write(read[0]).at(ATOM) + read[1]
        except Inexpressible:
            continue
        found.append(About(value, value.node, text, writer.used))
    return found


def _give_sizes(site: Site, graph: Graph, writer: Writer) -> None:
    """Let the writer read sizes, dtype and device of the scores off the query and key."""
    for value, (of, suffix) in _asked(site, graph):
        if id(value) not in writer.given:
            used, names = list(writer.used), set(writer.names)
            try:
                writer.given[id(value)] = writer.write(of).at(ATOM) + suffix
            except Inexpressible:
                continue
            finally:
                writer.used, writer.names = used, names


def _asked(site: Site, graph: Graph) -> list[tuple[Value, tuple[Value, str]]]:
    """Sizes, dtypes and devices of the scores, each with the tensor and the suffix that give the same."""
    labels = {id(site.product): site.score_labels}
    links = [*site.before, *site.behind]
    labels.update({id(link.operand): link.labels for link in links})
    for link, following in pairwise(links):
        labels[id(link.value)] = following.labels
    cast = False
    same_dtype = {id(site.product)}
    for link in site.before:
        if not cast:
            same_dtype.add(id(link.operand))
        cast = cast or link.kind in ("cast", "unknown")
        if not cast:
            same_dtype.add(id(link.value))
    found = []
    for op in ("size", "dtype", "device"):
        for value in graph.by_op.get(op, []):
            of = value.args[0]
            if id(of) not in labels:
                continue
            operand, suffix = site.query, f".{op}"
            if op == "size":
                axes, axis = labels[id(of)], value.attrs["axis"]
                if not -len(axes) <= axis < len(axes) or ("..." in axes and axis >= 0):
                    continue
                label = axes[axis]
                if label not in (site.query_axis, site.key_axis):
                    continue
                operand = site.query if label == site.query_axis else site.key
                suffix = f".size({operand.labels.index(label) - len(operand.labels)})"
            elif op == "dtype" and id(of) not in same_dtype:
                continue
            found.append((value, _unswapped(operand, suffix)))
    return found


def _unswapped(operand: Operand, suffix: str) -> tuple[Value, str]:
    """The tensor under a swap of the last two axes, with the axis number swapped along."""
    value = operand.value
    if value.op == "transpose" and value.attrs.get("dims") in ((-2, -1), (-1, -2)):
        swapped = {".size(-1)": ".size(-2)", ".size(-2)": ".size(-1)"}
        return value.args[0], swapped.get(suffix, suffix)
    return value, suffix


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


def _place(site: Site, frame: Frame) -> tuple[ast.stmt, ast.expr] | Problem:
    """The statement and the expression that the call replaces."""
    output = site.output
    if output.frame is not frame or not isinstance(output.node, ast.expr) or output.stmt is None:
        return Problem("no fix", output.line, "the product with the value stands in another function")
    if output.inplace or output.get("out") is not None:
        return Problem("no fix", output.line, "the product with the value is written into a given tensor")
    if not isinstance(output.stmt, (ast.Assign, ast.AnnAssign, ast.Return, ast.Expr, ast.AugAssign)):
        return Problem("no fix", output.line, "the product with the value stands in a compound statement")
    at_product = _root_statement(site.product, frame)
    if at_product is None:
        return Problem("no fix", output.line, "the product of query and key stands in another function")
    here, there = frame.contexts_at[output.stmt], frame.contexts_at[at_product]
    if here != there or any(_contexts(v) != _contexts(output) for v in site.chain_values):
        return Problem("no fix", output.line, "the attention runs across a `with` block or a loop")
    replaced = next((f for v in _everything(site) for f in _path(v, frame) if f.overridden), None)
    if replaced is not None:
        return Problem("no fix", output.line, f"a subclass has a `{replaced.function.name}` of its own")  # type: ignore[attr-defined]
    reader = next(
        (
            n
            for n in ast.walk(frame.function)
            if isinstance(n, ast.Call)
            and isinstance(n.func, ast.Name)
            and n.func.id in ("locals", "vars", "eval", "exec")
            and n.func.id not in frame.module.functions
        ),
        None,
    )
    if reader is not None:
        return Problem("no fix", reader.lineno, f"`{ast.unparse(reader)}` may read any name")
    if site.others:
        return Problem("no fix", site.others[0].line, "the probabilities go into a second product")
    return output.stmt, output.node


_GRADIENT = ("no_grad", "inference_mode", "enable_grad", "set_grad_enabled")
_HARMLESS = ("autocast", "record_function", "profile", "range", "annotate", "timer")


def _contexts(value: Value) -> list[ast.AST]:
    """The `with` blocks and decorators around the value's computation that may change what it means, those around the calls included."""
    if value.frame is None or value.stmt is None:
        return []
    around = value.frame.contexts_at.get(value.stmt, (value.frame.contexts, ()))[0]
    decorators = [
        d for f in value.frame.ancestors() for d in getattr(f.function, "decorator_list", ()) if _called(d) in _GRADIENT
    ]
    return [*decorators, *(w for w in around if not all(_called(i.context_expr) in _HARMLESS for i in w.items))]


def _called(node: ast.expr) -> str:
    function = node.func if isinstance(node, ast.Call) else node
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _path(value: Value, frame: Frame) -> list[Frame]:
    """The inlined executions that the value was computed in, down to `frame`."""
    path: list[Frame] = []
    for at in value.frame.ancestors() if value.frame is not None else ():
        if at is frame:
            return path
        path.append(at)
    return []


def _everything(site: Site) -> list[Value]:
    """The attention's own values and all that goes into its masks and factors."""
    stack, found = [*site.chain_values, *(r for k in (*site.before, *site.behind) for r in k.rest)], {}
    stop = {id(site.query.value), id(site.key.value), id(site.val.value)}
    while stack:
        value = stack.pop()
        if id(value) not in found and id(value) not in stop:
            found[id(value)] = value
            stack.extend(value.args)
    return list(found.values())


def _root_statement(value: Value, frame: Frame) -> ast.stmt | None:
    """The statement of `frame` during which the value was computed."""
    at, stmt = value.frame, value.stmt
    while at is not None and at is not frame:
        stmt, at = at.call_stmt, at.caller
    return stmt if at is frame else None


root_statement = _root_statement


def _names(function: ast.AST) -> set[str]:
    return {
        n.id if isinstance(n, ast.Name) else n.arg for n in nodes_in(function) if isinstance(n, (ast.Name, ast.arg))
    }


def _later_changes(site: Site, folded: Folded, frame: Frame) -> list[Edit]:
    """In-place changes of the output, which fused kernels keep for the backward pass, made out of place, here and in callers."""
    kept = {id(storage(o.value)) for o in (site.query, site.key, site.val)}
    changed = next(
        (v for v in frame.graph.values if v.inplace and v.order > site.output.order and id(storage(v)) in kept), None
    )
    if changed is not None:
        folded.problems.append(
            Problem("no fix", changed.line, "changes in place what SDPA keeps for the backward pass")
        )
    edits = _changes_of(site.output, folded, frame)
    for output, caller in in_callers(site.output, frame):
        edits += _changes_of(output, folded, caller) + view_edits(output, frame.module)
    return edits


def _changes_of(output: Value, folded: Folded, frame: Frame) -> list[Edit]:
    edits: list[Edit] = []
    seen: set[int] = set()
    memory = {id(storage(output))}  # what may be the output itself, behind joins too
    stack = list(output.users)
    while stack:
        user = stack.pop()
        if id(user) in seen:
            continue
        seen.add(id(user))
        if user.inplace and id(storage(user)) in memory or works_in_place(user):
            edit = _out_of_place(user, frame) if user.args[0] is output else None
            if edit is None:
                folded.problems.append(
                    Problem("no fix", user.line, "changes the output in place, which SDPA keeps for the backward pass")
                )
                return []
            edits.append(edit)
            continue
        if user.op in VIEWS or user.op in _SAME_OBJECT:
            memory.add(id(storage(user)))
            stack.extend(user.users)
    return edits


def _out_of_place(user: Value, frame: Frame) -> Edit | None:
    """`x *= y` as `x = x * y`, for a plain name and a number, which keeps the dtype."""
    stmt = user.stmt
    if (
        user.frame is not frame
        or not isinstance(stmt, ast.AugAssign)
        or not isinstance(stmt.target, ast.Name)
        or len(user.args) != 2
    ):
        return None
    if scalar_kind(user.args[1]) != "number":
        return None
    source = frame.module.source
    start, end = source.span(stmt)
    value = source.segment(stmt.value)
    sign = {ast.Mult: "*", ast.Div: "/", ast.Add: "+", ast.Sub: "-"}.get(type(stmt.op))
    if sign is None:
        return None
    if not isinstance(stmt.value, (ast.Name, ast.Attribute, ast.Constant, ast.Call, ast.Subscript)):
        value = f"({value})"
    return Edit(start, end, f"{stmt.target.id} = {stmt.target.id} {sign} {value}")


def view_edits(output: Value, module: Module) -> list[Edit]:
    """`.view` of the output becomes `.reshape`: SDPA's output may have other strides."""
    edits: dict[tuple[int, int], Edit] = {}
    stack, seen = list(output.users), set()
    while stack:
        user = stack.pop()
        if id(user) in seen:
            continue
        seen.add(id(user))
        if user.op == "reshape":
            node = user.node
            if (
                user.attrs.get("spelled") == "view"
                and isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "view"
                and user.frame is not None
                and user.frame.module is module
            ):
                end = module.source.span(node.func)[1]
                edits[end - 4, end] = Edit(end - 4, end, "reshape")
            continue
        if user.op in (
            "transpose",
            "permute",
            "phi",
            "unsqueeze",
            "squeeze",
            "getitem",
            "cast",
            "tuple",
            "identity",
        ) and user.attrs.get("spelled") not in ("contiguous", "clone"):
            stack.extend(user.users)
    return list(edits.values())


def _missing_at_runtime(tree: ast.Module) -> set[str]:
    """Names that the file imports for type checkers only, or deletes again."""
    missing: set[str] = set()
    present: set[str] = set()
    for stmt in tree.body:
        if isinstance(stmt, ast.If) and "TYPE_CHECKING" in ast.unparse(stmt.test):
            missing |= {
                (a.asname or a.name).split(".")[0]
                for n in stmt.body
                if isinstance(n, (ast.Import, ast.ImportFrom))
                for a in n.names
            }
        elif isinstance(stmt, ast.Delete):
            missing |= {t.id for t in stmt.targets if isinstance(t, ast.Name)}
            present -= missing
        elif isinstance(stmt, (ast.Import, ast.ImportFrom)):
            present |= {(a.asname or a.name).split(".")[0] for a in stmt.names}
    return missing - present


def functional_name(module: Module, frame: Frame) -> tuple[str, bool]:
    """(how the file names torch.nn.functional, whether an import must be added)."""
    local = _names(frame.function)
    nodes = nodes_in(frame.function)
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} | {
        a.arg for a in nodes if isinstance(a, ast.arg)
    }
    for name, value in frame.env.items():
        if value.op == "import" and value.attrs["qualified"] == FUNCTIONAL and "." not in name:
            return name, False
    missing = _missing_at_runtime(module.tree)
    candidates = [
        (name, imported.qualified) for name, imported in module.imports.items() if name not in stored | missing
    ]
    for wanted, suffix in ((FUNCTIONAL, ""), ("torch.nn", ".functional"), ("torch", ".nn.functional")):
        for name, qualified in candidates:
            if qualified == wanted:
                return name + suffix, False
    free = (
        "F" not in module.imports
        and "F" not in local
        and "F" not in module.functions
        and "F" not in module.classes
        and "F" not in module.constants
    )
    return ("F" if free else "torch.nn.functional"), True


class Editor:
    """Edits for one rewrite: removed statements, moved comments, the call in the output's statement."""

    def __init__(
        self, module: Module, removal: Removal, stmt: ast.stmt, node: ast.expr, call: Call, name: str, imported: bool
    ) -> None:
        self.source = module.source
        self.module = module
        self.removal, self.stmt, self.node, self.call = removal, stmt, node, call
        self.name, self.imported = name, imported
        self.newline = "\r\n" if "\r\n" in self.source.text else "\n"

    def edits(self) -> list[Edit]:
        edits, comments = self.removals()
        edits.append(self._replacement(comments))
        if self.imported:
            edits.append(self._import())
        return edits

    # -- removed statements ---------------------------------------------------------------------------------------------------------------
    def removals(self) -> tuple[list[Edit], list[str]]:
        """Edits that take out the statements nothing needs any more, and the comments that stood on their lines."""
        removed = self.removal.removed
        edits: list[Edit] = []
        comments: list[str] = []
        for block in _blocks(self.removal.frame.function):
            gone = [s for s in block if s in removed]
            for stmt in gone:
                if any(stmt is not other and _inside(stmt, other) for other in removed):
                    continue
                edits.append(self._remove(stmt, comments))
            if gone and len(gone) == len(block) and not self._owner_removed(block):
                first = edits[-len(gone)]
                indent = self._indent(block[0])
                edits[-len(gone)] = Edit(first.start, first.end, f"{indent}pass{self.newline}")
        return self._tidied(edits), comments

    def _owner_removed(self, block: list[ast.stmt]) -> bool:
        return any(_inside(block[0], other) for other in self.removal.removed if other is not block[0])

    def _remove(self, stmt: ast.stmt, comments: list[str]) -> Edit:
        """Whole lines of the statement; its comments are kept for later."""
        from attn_advisor.attention.comments import comments_in

        source = self.source
        start = source.line_starts[stmt.lineno - 1]
        last = stmt.end_lineno or stmt.lineno
        end = source.line_starts[last] if last < len(source.line_starts) else len(source.text)
        own_start, own_end = source.span(stmt)
        if source.text[start:own_start].strip() or not _ends_line(source.text[own_end:end]):
            tail = source.text[own_end:end]
            if tail.lstrip().startswith(";"):
                own_end += len(tail) - len(tail.lstrip()) + 1
                own_end += len(source.text[own_end:end]) - len(source.text[own_end:end].lstrip(" "))
                return Edit(own_start, own_end, "")
            return Edit(own_start, own_end, "pass")
        comments += comments_in(source.text[start:end])
        return Edit(start, end, "")

    def _tidied(self, edits: list[Edit]) -> list[Edit]:
        """Removed lines with only blank ones between them go as one, and leave no more blank lines than stood above them."""
        text = self.source.text
        lines = sorted(
            e
            for e in edits
            if not e.content and text[e.end - 1 : e.end] == "\n" and (e.start == 0 or text[e.start - 1] == "\n")
        )
        groups: list[tuple[int, int]] = []
        for edit in lines:
            if groups and not text[groups[-1][1] : edit.start].strip():
                groups[-1] = groups[-1][0], edit.end
            else:
                groups.append((edit.start, edit.end))
        tidied = []
        for start, end in groups:
            above = text[:start].rstrip(" \t")
            blank = re.compile(r"(?:[ \t]*\r?\n)+").match(text, end)
            if (
                blank
                and blank.end() <= self._stmt_start()
                and (above.endswith(("\n\n", "\n\r\n")) or above.rstrip().endswith(":"))
            ):
                end = blank.end()
            tidied.append(Edit(start, end, ""))
        return [*(e for e in edits if e not in lines), *tidied]

    def _stmt_start(self) -> int:
        return self.source.line_starts[self.stmt.lineno - 1]

    def _indent(self, stmt: ast.stmt) -> str:
        start = self.source.line_starts[stmt.lineno - 1]
        line = self.source.text[start : self.source.span(stmt)[0]]
        return line if not line.strip() else line[: len(line) - len(line.lstrip())]

    # -- the call -------------------------------------------------------------------------------------------------------------------------
    def _replacement(self, comments: list[str]) -> Edit:
        from attn_advisor.attention.comments import comments_in

        source = self.source
        start, end = source.span(self.stmt)
        at, stop = self._span_with_parentheses()
        comments = comments + comments_in(source.text[at:stop])
        indent = self._indent(self.stmt)
        prefix, suffix = source.text[start:at], source.text[stop:end]
        before = [*comments, *self.call.statements]
        lead = "".join(line + self.newline + indent for line in before)
        if source.text[source.line_starts[self.stmt.lineno - 1] : start].strip() and before:
            lead = ""  # shares its line with other statements
        call = self._format(indent, prefix, suffix)
        return Edit(start, stop, f"{lead}{prefix}{call}")

    def _format(self, indent: str, prefix: str, suffix: str) -> str:
        """The call on one line if it fits, else an argument a line."""
        function = f"{self.name}.{SDPA}"
        arguments = self.call.arguments()
        one = f"{function}({', '.join(arguments)}){self.call.suffix}"
        line = indent + prefix.rsplit("\n", 1)[-1] + one + suffix.split("\n", 1)[0]
        limit = line_length(self.module)
        if len(line) <= limit:
            return one
        inner = (
            indent
            if "\n" not in prefix
            else prefix.rsplit("\n", 1)[-1][
                : len(prefix.rsplit("\n", 1)[-1]) - len(prefix.rsplit("\n", 1)[-1].lstrip())
            ]
        ) + "    "
        together = inner + ", ".join(arguments)
        if len(together) <= limit:
            return f"{function}({self.newline}{together}{self.newline}{inner[:-4]}){self.call.suffix}"
        operands = ", ".join(arguments[:3]) + ","
        rows = [operands] if len(inner + operands) <= limit else [f"{a}," for a in arguments[:3]]
        rows += [f"{a}," for a in arguments[3:]]
        body = "".join(f"{self.newline}{inner}{row}" for row in rows)
        return f"{function}({body}{self.newline}{inner[:-4]}){self.call.suffix}"

    def _span_with_parentheses(self) -> tuple[int, int]:
        """The replaced expression with parentheses around it that the call does not need."""
        text = self.source.text
        start, stop = self.source.span(self.node)
        low, high = self.source.span(self.stmt)
        while True:
            left, right = start, stop
            while left > low and text[left - 1] in " \t\r\n":
                left -= 1
            while right < high and text[right] in " \t\r\n":
                right += 1
            if left <= low or right >= high or text[left - 1] != "(" or text[right] != ")":
                return start, stop
            before = text[low : left - 1].rstrip()
            if (
                before
                and (before[-1].isalnum() or before[-1] in "_)]")
                and not before.endswith(("return", "in", "not", "and", "or", "if", "else", "await", "yield"))
            ):
                return start, stop
            start, stop = left - 1, right + 1

    def _import(self) -> Edit:
        """`import torch.nn.functional as F` behind the last import of torch, else of anything at the top."""
        text = f"import {FUNCTIONAL} as F" if self.name == "F" else f"import {FUNCTIONAL}"
        body = self.module.tree.body
        imports = [
            n
            for n in body
            if isinstance(n, (ast.Import, ast.ImportFrom))
            and not (isinstance(n, ast.ImportFrom) and n.module == "__future__")
        ]
        torch = [
            n
            for n in imports
            if (n.names[0].name if isinstance(n, ast.Import) else n.module or "").split(".")[0] == "torch"
        ]
        docstring = [n for n in body[:1] if isinstance(n, ast.Expr)]
        anchor: ast.stmt | None = next((found[-1] for found in (torch, imports, docstring) if found), None)
        future = [n for n in body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
        if anchor is None and future:
            anchor = future[-1]
        if anchor is None:
            return Edit(0, 0, text + self.newline)
        last = anchor.end_lineno or anchor.lineno
        at = self.source.line_starts[last] if last < len(self.source.line_starts) else len(self.source.text)
        lead = "" if self.source.text[:at].endswith(("\n", "\r")) else self.newline
        return Edit(at, at, f"{lead}{text}{self.newline}")


def _ends_line(rest: str) -> bool:
    rest = rest.strip()
    return not rest or rest.startswith("#")


def _blocks(function: ast.AST) -> list[list[ast.stmt]]:
    """Every statement list of a function, outermost first."""
    found = []
    for node in (function, *nodes_in(function)):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                found.append(block)
    return found


def _inside(stmt: ast.stmt, other: ast.stmt) -> bool:
    return (
        stmt is not other
        and other.lineno <= stmt.lineno
        and (stmt.end_lineno or 0) <= (other.end_lineno or 0)
        and isinstance(other, (ast.If, ast.With, ast.For, ast.While, ast.Try))
    )


def line_length(module: Module) -> int:
    """The project's formatter's line length, 88 if it has none."""
    cached = module.project.__dict__.get("_line_length")
    if cached is None:
        cached = _configured(module)
        module.project.__dict__["_line_length"] = cached
    return cached


def _configured(module: Module) -> int:
    import sys

    if module.project.root is None:
        return 88
    path = module.project.root / "pyproject.toml"
    try:
        text = path.read_bytes()
    except OSError:
        return 88
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        tool = tomllib.loads(text.decode()).get("tool", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return 88
    for section in (tool.get("ruff", {}), tool.get("black", {})):
        length = section.get("line-length")
        if isinstance(length, int):
            return length
    return 88
