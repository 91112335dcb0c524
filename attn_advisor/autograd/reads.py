"""Where names are read: by position in the source, and by loops around a statement."""

from __future__ import annotations

import ast

from attn_advisor.source.module import Function


def used_later(name: str, stmt: ast.stmt, function: Function, loops: tuple[ast.stmt, ...] = ()) -> bool:
    """Whether a name is read after the statement, or anywhere in a loop around it."""
    end = (stmt.end_lineno or 0, stmt.end_col_offset or 0)
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            here = (node.lineno, node.col_offset)
            if here > end:
                return True
            if any(_start(loop) < here < _end(loop) for loop in loops) and not _start(stmt) <= here <= end:
                return True
    return False


def _start(node: ast.stmt) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.stmt) -> tuple[int, int]:
    return node.end_lineno or 0, node.end_col_offset or 0
