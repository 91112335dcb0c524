"""Cutting an attention out of its function: the statements from q@k to the product with v become a function of their own.

The syntax nodes keep their line numbers, so profiles and tracebacks of the cut speak of the user's file.
"""

from __future__ import annotations

import ast
import contextlib
import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

from attn_advisor.lab.job import Job
from attn_advisor.source.text import SourceText

Function = ast.FunctionDef | ast.AsyncFunctionDef
Edits = Sequence[tuple[int, int, str]]


class CannotCut(Exception):
    """The attention cannot be made a function of its own; the message says why."""


@dataclass
class Cut:
    """The statements of one attention and what they need from outside."""

    function: Function
    class_name: str | None
    statements: list[ast.stmt]
    free: list[str]
    """Local names read before they are assigned, in order of use, without self."""
    self_name: str | None
    output: str | None
    """Name of the result; None if the statements return it."""
    start: int
    end: int

    @property
    def rows(self) -> tuple[int, int]:
        """First and last row (from 1) of the statements."""
        return self.statements[0].lineno, self.statements[-1].end_lineno or self.statements[-1].lineno


@dataclass
class Cuts:
    """A job's attention as written and, where its rewrite can be cut out too, as rewritten."""

    tree: ast.Module
    found: Cut
    fixed_tree: ast.Module | None = None
    fixed: Cut | None = None


def cuts(job: Job) -> Cuts:
    """Both cuts of a job. The one as written covers all that the fix changes in the function. Raises CannotCut."""
    source, tree = SourceText(job.text, job.path), ast.parse(job.text)
    edits = [(e[0], e[1], e[2]) for e in job.edits]
    made = Cuts(tree, cut(source, tree, job.start, job.end))
    if job.fixed_text is None:
        return made
    made.found = cut(source, tree, *widened(source, made.found, edits))
    made.fixed_tree = ast.parse(job.fixed_text)
    start, end = moved(made.found.start, edits, after=False), moved(made.found.end, edits, after=True)
    with contextlib.suppress(CannotCut):
        made.fixed = cut(SourceText(job.fixed_text, job.path), made.fixed_tree, start, end)
        if made.fixed.output is not None and made.found.output is not None:
            made.fixed.output = made.found.output
    return made


def cut(source: SourceText, tree: ast.Module, start: int, end: int) -> Cut:
    """The statements that cover offsets [start, end). Raises CannotCut."""
    function, owner = _enclosing(source, tree, start, end)
    if function is None:
        raise CannotCut("the attention stands outside any function")
    statements = _cover(source, function.body, start, end)
    if not statements:
        raise CannotCut("the attention's statements were not found in its function")
    reader = _Reader()
    for statement in statements:
        reader.visit(statement)
    scope = _locals(function)
    self_name = None
    if owner is not None and function.args.args and not _is_static(function):
        self_name = function.args.args[0].arg
    free = [n for n in reader.free if n in scope and n != self_name]
    free = [n for n in free if n not in reader.stored or _bound_before(function, statements[0].lineno, n)]
    if self_name is not None and self_name not in reader.free:
        self_name = None
    output = _output(function, statements, reader)
    first, last = source.span(statements[0])[0], source.span(statements[-1])[1]
    return Cut(function, owner.name if owner else None, statements, free, self_name, output, first, last)


def names_read(found: Cut, fixed: Cut | None) -> list[str]:
    """Free names of the cut and of its rewrite, which may read more (a guard)."""
    return list(dict.fromkeys([*found.free, *(fixed.free if fixed else [])]))


def attributes_read(tree: ast.Module, *found: Cut) -> set[str]:
    """Attributes of self that the cuts read, also in methods of the same class that they call."""
    name = found[0].class_name
    owner = next((n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == name), None)
    methods = {
        n.name: n for n in (owner.body if owner else []) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    read: set[str] = set()
    waiting: list[tuple[ast.AST, str]] = [(s, cut.self_name) for cut in found if cut.self_name for s in cut.statements]
    while waiting:
        code, self_name = waiting.pop()
        for node in ast.walk(code):
            if not (
                isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == self_name
            ):
                continue
            if node.attr not in read and (method := methods.get(node.attr)) and method.args.args:
                waiting.append((method, method.args.args[0].arg))
            read.add(node.attr)
    return read


def moved(offset: int, edits: Edits, *, after: bool) -> int:
    """Where an offset of the old text stands in the new one. An offset inside an edit goes to its start, or with `after` to its end."""
    shift = 0
    for start, end, content in sorted(edits):
        if end <= offset and not (start == end == offset and not after):
            shift += len(content) - (end - start)
        elif start < offset:
            return start + shift + (len(content) if after else 0)
        else:
            break
    return offset + shift


def widened(source: SourceText, found: Cut, edits: Edits) -> tuple[int, int]:
    """The cut's offsets, widened over the fix's edits in the same function (a mask built above, a `.view` below)."""
    low, high = source.span(found.function)
    inside = [edit for edit in edits if low <= edit[0] and edit[1] <= high]
    return min([found.start, *(e[0] for e in inside)]), max([found.end, *(e[1] for e in inside)])


def build(found: Cut, statements: list[ast.stmt] | None = None, name: str = "attention") -> ast.FunctionDef:
    """A function definition with self and the free names as arguments, ready to compile in the module's namespace."""
    body = copy.deepcopy(found.statements if statements is None else statements)
    if found.output is not None:
        body.append(ast.copy_location(ast.Return(ast.Name(found.output, ast.Load())), body[-1]))
    names = ([found.self_name] if found.self_name else []) + found.free
    arguments = ast.arguments([], [ast.arg(n) for n in names], None, [], [], None, [])
    made = ast.FunctionDef(name, arguments, body, [], None, None)
    if "type_params" in ast.FunctionDef._fields:  # Python 3.12 and newer
        made.type_params = []  # type: ignore[attr-defined]
    ast.copy_location(made, found.statements[0])
    return ast.fix_missing_locations(made)


def without_views(found: Cut) -> tuple[Cut, str]:
    """The cut without the `.view(...)`, `.reshape(...)` and `.flatten(...)` at the end of its last statement, and these as text."""
    last = found.statements[-1]
    if not isinstance(last, (ast.Assign, ast.Return)) or last.value is None:
        return found, ""
    value, views = last.value, ""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr not in ("view", "reshape", "flatten"):
            break
        whole, inner = ast.unparse(value), ast.unparse(value.func.value)
        views, value = whole.removeprefix(f"({inner})").removeprefix(inner) + views, value.func.value
    if not views or isinstance(value, ast.Name):
        return found, ""
    changed = copy.copy(last)
    changed.value = value
    statements = [*found.statements[:-1], changed]
    reader = _Reader()
    for statement in statements:
        reader.visit(statement)
    return replace(found, statements=statements, free=[n for n in found.free if n in reader.free]), views


def _enclosing(
    source: SourceText, tree: ast.Module, start: int, end: int
) -> tuple[Function | None, ast.ClassDef | None]:
    """Innermost function whose span holds the offsets, and the class it is a method of."""
    function: Function | None = None
    owner: ast.ClassDef | None = None

    def visit(node: ast.AST, parent: ast.ClassDef | None) -> None:
        nonlocal function, owner
        for child in ast.iter_child_nodes(node):
            if not hasattr(child, "lineno"):
                continue
            low, high = source.span(child)
            if not (low <= start and end <= high):
                continue
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                function, owner = child, parent
                visit(child, None)
            else:
                visit(
                    child,
                    child if isinstance(child, ast.ClassDef) else parent if isinstance(node, ast.ClassDef) else None,
                )

    visit(tree, None)
    return function, owner


def _cover(source: SourceText, body: list[ast.stmt], start: int, end: int) -> list[ast.stmt]:
    """The shortest run of statements of one block that covers the offsets."""
    touched = [s for s in body if source.span(s)[0] < end and source.span(s)[1] > start]
    if len(touched) == 1 and not isinstance(touched[0], (ast.For, ast.While, ast.AsyncFor)):
        for block in _blocks(touched[0]):
            low, high = source.span(block[0])[0], source.span(block[-1])[1]
            if low <= start and end <= high:
                return _cover(source, block, start, end)
    return touched


def _blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    blocks = [getattr(statement, name, None) for name in ("body", "orelse", "finalbody")]
    blocks += [handler.body for handler in getattr(statement, "handlers", [])]
    return [block for block in blocks if isinstance(block, list) and block and isinstance(block[0], ast.stmt)]


def _is_static(function: Function) -> bool:
    return any(isinstance(d, ast.Name) and d.id in ("staticmethod", "classmethod") for d in function.decorator_list)


def _locals(function: Function) -> set[str]:
    """Names that are local to the function or to one around it (the caller checks they are not module-level)."""
    names = {a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}
    names |= {a.arg for a in (function.args.vararg, function.args.kwarg) if a}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node is not function:
            names.add(node.name)
    return names


def _bound_before(function: Function, row: int, name: str) -> bool:
    """Whether the name is an argument or is assigned above a row."""
    arguments = function.args
    given = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
    stores = (n for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return any(a is not None and a.arg == name for a in given) or any(n.id == name and n.lineno < row for n in stores)


class _Reader(ast.NodeVisitor):
    """Names read before they are surely assigned, in order of evaluation."""

    def __init__(self) -> None:
        self.free: list[str] = []
        self.stored: list[str] = []
        self._bound: set[str] = set()

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            if node.id not in self._bound and node.id not in self.free:
                self.free.append(node.id)
        else:
            self._bound.add(node.id)
            self.stored.append(node.id)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
        self.visit(node.target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.visit_Name(ast.Name(node.target.id, ast.Load()))
        self.visit(node.value)
        self.visit(node.target)

    def _branches(self, *blocks: list[ast.stmt]) -> None:
        """Only what every branch assigns is surely assigned afterwards."""
        before, results = set(self._bound), []
        for block in blocks:
            self._bound = set(before)
            for statement in block:
                self.visit(statement)
            leaves = bool(block) and isinstance(block[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break))
            if not leaves:
                results.append(self._bound)
        self._bound = set.intersection(*results) if results else before

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        self._branches(node.body, node.orelse)

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        self.visit(node.target)
        self._branches(node.body + node.orelse, [])

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self._branches(node.body + node.orelse, [])

    def _scoped(self, node: ast.AST, names: set[str]) -> None:
        before = set(self._bound)
        self._bound |= names
        self.generic_visit(node)
        self._bound = before

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        names = {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        self.visit(node.generators[0].iter)
        self._scoped(node, names)

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._scoped(node, {a.arg for a in node.args.args})

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._bound.add(node.name)
        names = {a.arg for a in node.args.args} | {
            n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        self._scoped(node, names)


def _output(function: Function, statements: list[ast.stmt], reader: _Reader) -> str | None:
    """Name that holds the result: what the last statement assigns and, of several, what is read afterwards."""
    last = statements[-1]
    if isinstance(last, ast.Return):
        return None
    stored = [n.id for n in ast.walk(last) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    if not stored:
        raise CannotCut("the attention's last statement assigns no name")
    row = last.end_lineno or last.lineno
    later = {
        n.id for n in ast.walk(function) if isinstance(n, ast.Name) and n.lineno > row and isinstance(n.ctx, ast.Load)
    }
    used = [name for name in stored if name in later]
    return (used or stored)[-1]
