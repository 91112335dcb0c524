"""Two branches in place of the lines of an attention: the lines as they were, and what remains of them around one SDPA call."""

from __future__ import annotations

import ast
import io
import tokenize
from dataclasses import dataclass
from typing import Any

from attn_advisor.attention.draft import Call
from attn_advisor.attention.folded import Problem
from attn_advisor.attention.liveness import Removal, only_refuses
from attn_advisor.attention.place import root_statement
from attn_advisor.attention.site import Site
from attn_advisor.dataflow.values import Frame
from attn_advisor.findings import Edit
from attn_advisor.source.line_length import line_length
from attn_advisor.source.module import Module, blocks, nodes_in

_LOOPS = (
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.With,
    ast.AsyncWith,
    ast.Try,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Match,
)


@dataclass
class Region:
    """The statements from the product of query and key to the product with the value, all of one block."""

    frame: Frame
    stmts: list[ast.stmt]
    nodes: set[int]  # ids of all that stands in them

    @property
    def first(self) -> ast.stmt:
        return self.stmts[0]

    @property
    def last(self) -> ast.stmt:
        return self.stmts[-1]

    def holds(self, frame: Frame | None, stmt: ast.stmt | None) -> bool:
        """Whether the statement, or the one of this function that calls its function, is one of them."""
        while frame is not None and frame is not self.frame:
            stmt, frame = frame.call_stmt, frame.caller
        return frame is not None and id(stmt) in self.nodes


def region_of(site: Site, frame: Frame) -> Region | Problem:
    first, last = root_statement(site.product, frame), site.output.stmt
    block = next((b for b in blocks(frame.function) if any(s is first for s in b) and any(s is last for s in b)), None)
    line = site.output.line
    if block is None:
        return Problem("no fix", line, "the two products of the attention stand in different branches")
    start, stop = (next(n for n, s in enumerate(block) if s is own) for own in (first, last))
    stmts = block[start : stop + 1]
    if not stmts:
        return Problem("no fix", line, "the product with the value stands first")
    nodes = [n for s in stmts for n in ast.walk(s)]
    inner = next((n for n in nodes if isinstance(n, _LOOPS)), None)
    if inner is not None:
        return Problem("no fix", inner.lineno, "another block stands between the two products of the attention")
    region = Region(frame, stmts, {id(n) for n in nodes})
    text = frame.module.source.text
    begin, end = lines_of(region, frame.module)
    at, stop = frame.module.source.span(stmts[0])[0], frame.module.source.span(stmts[-1])[1]
    if text[begin:at].strip() or text[stop:end].strip() and not text[stop:end].lstrip().startswith("#"):
        return Problem("no fix", line, "the attention shares a line with other statements")
    if text[begin:at] == "" or _strings_over_lines(text[begin:end]):
        return Problem("no fix", line, "the attention holds a string of several lines")
    return region


def lines_of(region: Region, module: Module) -> tuple[int, int]:
    """Offsets of the region's first line and of the end of its last one, line ending not included."""
    starts, text = module.source.line_starts, module.source.text
    begin = starts[region.first.lineno - 1]
    last = region.last.end_lineno or region.last.lineno
    end = starts[last] if last < len(starts) else len(text)
    return begin, begin + len(text[begin:end].rstrip("\r\n"))


def _strings_over_lines(text: str) -> bool:
    """Whether indenting the lines would change a string."""
    begun = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(f"if True:\n{text}\n").readline):
            name = tokenize.tok_name[token.type]
            if name == "STRING" and token.start[0] != token.end[0]:
                return True
            if name == "FSTRING_START":
                begun = token.start[0] if len(token.string) >= 4 else begun
            elif (
                name in ("FSTRING_MIDDLE", "FSTRING_END")
                and begun
                and token.end[0] != begun
                and token.string.endswith(('"""', "'''"))
            ):
                return True
    except (tokenize.TokenError, IndentationError):
        return True
    return False


class Branches:
    """The text of both branches. `condition` is set once the guards can be written."""

    def __init__(
        self,
        frame: Frame,
        region: Region,
        removal: Removal,
        facts: Any,
        stmt: ast.stmt,
        node: ast.expr,
        call: Call,
        about: list[Any],
    ) -> None:
        self.frame, self.region, self.removal, self.facts = frame, region, removal, facts
        self.stmt, self.node, self.call, self.about = stmt, node, call, about
        self.module, self.source = frame.module, frame.module.source
        self.newline = "\r\n" if "\r\n" in self.source.text else "\n"
        self.condition = ""
        self.inner: list[Edit] = []  # changes inside the region, for the second branch alone
        self._kept: dict[int, ast.stmt] = {}
        self._keep(region.stmts)

    def edits(self, editor: Any, others: list[Edit]) -> list[Edit]:
        """`others` are edits that go with the call (views that become reshapes)."""
        begin, end = lines_of(self.region, self.module)
        changes = [*others, *(Edit(*self.source.span(a.node), a.text) for a in self.about)]
        self.inner = [e for e in changes if begin <= e.start < end]
        outer = [e for e in changes if not begin <= e.start < end]
        unit = self._unit()
        indent = self._indent(self.region.first)
        text = self.source.text[begin:end]
        before = "".join(line if not line.strip() else unit + line for line in text.splitlines(keepends=True))
        lines = self._lines(self.region.stmts, indent + unit, editor)
        lines += [f"{indent}{unit}{name} = None" for name in self._unset()]
        content = (
            self._header(indent, unit)
            + self.newline
            + before
            + self.newline
            + f"{indent}else:{self.newline}"
            + self.newline.join(lines)
        )
        return [Edit(begin, end, content), *outer]

    # -- what the second branch keeps ---------------------------------------------------------------------------------------------------------
    def _keep(self, stmts: list[ast.stmt]) -> bool:
        """Notes the statements that the second branch repeats."""
        kept = False
        for stmt in stmts:
            if isinstance(stmt, ast.If) and stmt is not self.stmt:
                if only_refuses(stmt):
                    continue
                decided = self.truth(stmt)
                own = False if decided is False else self._keep(stmt.body)
                other = False if decided is True else self._keep(stmt.orelse)
                if own or other:
                    self._kept[id(stmt)] = stmt
                    kept = True
            elif stmt is self.stmt or self._needed(stmt):
                self._kept[id(stmt)] = stmt
                kept = True
        return kept

    def _needed(self, stmt: ast.stmt) -> bool:
        made = self.removal.made.get(stmt)
        if made and self.removal.binds_only_names(stmt):
            return any(id(v) in self.removal.after for v in made)
        return stmt not in self.removal.removed and not isinstance(stmt, (ast.Assert, ast.Pass))

    def truth(self, stmt: ast.If) -> bool | None:
        """The outcome of the statement's test, if it is known in the second branch."""
        for effect in self.frame.graph.effects:
            if effect.kind == "condition" and effect.stmt is stmt:
                return self.facts.truth(effect.value)
        return None

    def dangling(self) -> int | None:
        """The line of a repeated statement that reads what no repeated one binds."""
        frame, live = self.frame, self.removal.after
        left_out = [
            (name, v) for s, name, v in frame.bindings if id(s) in self.region.nodes and id(s) not in self._kept
        ]
        for node in nodes_in(frame.function):
            if isinstance(node, (ast.Nonlocal, ast.Global)) and any(name in node.names for name, _ in left_out):
                return node.lineno
        gone = {id(v) for _, v in left_out}
        names = {name for s, name, _ in frame.bindings if id(s) in self.region.nodes}
        skip = {id(n) for a in [self.node, *(a.node for a in self.about)] for n in ast.walk(a)}
        for stmt in self._kept.values():
            for node in ast.walk(stmt.test if isinstance(stmt, ast.If) else stmt):
                if (
                    not isinstance(node, ast.Name)
                    or isinstance(node.ctx, ast.Store)
                    or node.id not in names
                    or id(node) in skip
                ):
                    continue
                value = frame.name_values.get(node)
                if (
                    value is None
                    or (id(value) in gone or self.region.holds(value.frame, value.stmt))
                    and id(value) not in live
                ):
                    return node.lineno
        return self._unseen()

    def _unseen(self) -> int | None:
        """The line of a later read, by a nested function or in code that never runs, of what the second branch leaves out."""
        left_out = set(self._unset())
        nested = {
            id(n)
            for f in nodes_in(self.frame.function)
            if isinstance(f, (ast.FunctionDef, ast.Lambda, ast.AsyncFunctionDef)) and f is not self.frame.function
            for n in nodes_in(f)
        }
        for node in self._reads():
            if node.id in left_out and (id(node) in nested or node not in self.frame.name_values):
                return node.lineno
        return None

    def _reads(self) -> list[ast.Name]:
        """Names read outside the region, at places that may run after it."""
        looped = bool(self.frame.contexts_at[self.region.first][1])
        return [
            n
            for n in nodes_in(self.frame.function)
            if isinstance(n, ast.Name)
            and isinstance(n.ctx, (ast.Load, ast.Del))
            and id(n) not in self.region.nodes
            and (looped or n.lineno > (self.region.last.end_lineno or 0))
        ]

    def _unset(self) -> list[str]:
        """Names that are read later and that the second branch would leave without a value, in the order of their binding."""
        bound: dict[str, set[int]] = {}
        for stmt, name, value in self.frame.bindings:
            if id(stmt) in self.region.nodes:
                bound.setdefault(name, set()).add(id(value))
        read = {n.id for n in self._reads() if n.id in bound and self._may_hold(n, bound[n.id])}
        return [name for name in bound if name in read and not self._ends_bound(name, self.region.stmts)]

    def _may_hold(self, read: ast.Name, values: set[int]) -> bool:
        """Whether the name may still hold one of the values there, or whether that is not known."""
        if read not in self.frame.name_values:
            return True
        stack, seen = [self.frame.name_values[read]], set()
        while stack:
            value = stack.pop()
            if id(value) in values:
                return True
            if id(value) not in seen and (value.inplace or value.op in ("phi", "loop", "mutated")):
                seen.add(id(value))
                stack += value.args
        return False

    def _ends_bound(self, name: str, stmts: list[ast.stmt]) -> bool:
        """Whether what binds the name last stands in the second branch too."""
        for stmt in reversed(stmts):
            if isinstance(stmt, ast.If):
                decided = self.truth(stmt)
                taken = [*stmt.body, *stmt.orelse] if decided is None else stmt.body if decided else stmt.orelse
                binding = [
                    s
                    for s in ast.walk(ast.Module(taken, []))
                    if isinstance(s, ast.stmt) and not isinstance(s, ast.If) and name in _stored(s)
                ]
                if binding:
                    return all(id(s) in self._kept for s in binding)
            elif name in _stored(stmt):
                return id(stmt) in self._kept and not (stmt is self.stmt and name in _stored(self.node))
        return True

    # -- its text -----------------------------------------------------------------------------------------------------------------------------
    def _lines(self, stmts: list[ast.stmt], indent: str, editor: Any) -> list[str]:
        lines: list[str] = []
        for stmt in stmts:
            if id(stmt) not in self._kept:
                continue
            if stmt is self.stmt:
                lines += self._called(indent, editor)
            elif isinstance(stmt, ast.If):
                lines += self._choice(stmt, indent, editor)
            else:
                lines.append(indent + self._moved(*self.source.span(stmt), stmt, indent))
        return lines

    def _choice(self, stmt: ast.If, indent: str, editor: Any) -> list[str]:
        decided = self.truth(stmt)
        if decided is not None:
            return self._lines(stmt.body if decided else stmt.orelse, indent, editor)
        inner = indent + self._unit()
        body, orelse = self._lines(stmt.body, inner, editor), self._lines(stmt.orelse, inner, editor)
        test = self._moved(*self.source.span(stmt.test), stmt, indent)
        if test.count("\n") and not self._within_parentheses(stmt.test):
            test = f"({test})"
        lines = [f"{indent}if {test}:", *(body or [f"{inner}pass"])]
        if not orelse:
            return lines
        if len(stmt.orelse) == 1 and isinstance(stmt.orelse[0], ast.If) and self.truth(stmt.orelse[0]) is None:
            chained = self._choice(stmt.orelse[0], indent, editor)
            return [*lines, f"{indent}el{chained[0][len(indent) :]}", *chained[1:]]
        return [*lines, f"{indent}else:", *orelse]

    def _within_parentheses(self, node: ast.expr) -> bool:
        return self.source.segment(node).startswith("(") or isinstance(node, ast.Call)

    def _called(self, indent: str, editor: Any) -> list[str]:
        """The statements before the call and the one that holds it."""
        start, end = self.source.span(self.stmt)
        at, stop = editor._span_with_parentheses()
        prefix, suffix = self._moved(start, at, self.stmt, indent), self._moved(stop, end, self.stmt, indent)
        call = editor._format(indent, prefix, suffix)
        return [*(indent + line for line in self.call.statements), f"{indent}{prefix}{call}{suffix}"]

    def _moved(self, start: int, end: int, stmt: ast.stmt, indent: str) -> str:
        """A piece of source with its changes made and its further lines indented for the new place."""
        text, at = "", start
        for edit in sorted(set(self.inner)):
            if start <= edit.start and edit.end <= end:
                text += self.source.text[at : edit.start] + edit.content
                at = edit.end
        text += self.source.text[at:end]
        old = self._indent(stmt)
        first, *rest = text.split("\n")
        return "\n".join(
            [first, *(indent + line[len(old) :] if line.startswith(old) and line.strip() else line for line in rest)]
        )

    def _header(self, indent: str, unit: str) -> str:
        line = f"{indent}if {self.condition}:"
        if len(line) <= line_length(self.module) or " or " not in self.condition:
            return line
        return f"{indent}if ({self.newline}{indent}{unit}{self.condition}{self.newline}{indent}):"

    def _indent(self, stmt: ast.stmt) -> str:
        line = self.source.line(stmt.lineno)
        return line[: len(line) - len(line.lstrip())]

    def _unit(self) -> str:
        """One level of indentation, as the function itself has it."""
        function = self.frame.function
        outer, inner = self._indent(function), self._indent(function.body[0])  # type: ignore[attr-defined,arg-type]
        return inner[len(outer) :] if inner.startswith(outer) and len(inner) > len(outer) else "    "


def _stored(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


__all__ = ["Branches", "Region", "region_of"]
