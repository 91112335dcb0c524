"""Text edits of one rewrite: statements removed, comments moved, the call in its place, the import."""

from __future__ import annotations

import ast
import re

from attn_advisor.attention.comments import comments_in
from attn_advisor.attention.draft import Call
from attn_advisor.attention.liveness import Removal
from attn_advisor.findings import Edit
from attn_advisor.source.line_length import line_length
from attn_advisor.source.module import Module, blocks

SDPA = "scaled_dot_product_attention"


FUNCTIONAL = "torch.nn.functional"


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
            edits.append(self.import_edit())
        return edits

    # -- removed statements ---------------------------------------------------------------------------------------------------------------
    def removals(self) -> tuple[list[Edit], list[str]]:
        """Edits that take out the statements nothing needs any more, and the comments that stood on their lines."""
        removed = self.removal.removed
        edits: list[Edit] = []
        comments: list[str] = []
        for block in blocks(self.removal.frame.function):
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

    def import_edit(self) -> Edit:
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


def _inside(stmt: ast.stmt, other: ast.stmt) -> bool:
    return (
        stmt is not other
        and other.lineno <= stmt.lineno
        and (stmt.end_lineno or 0) <= (other.end_lineno or 0)
        and isinstance(other, (ast.If, ast.With, ast.For, ast.While, ast.Try))
    )
