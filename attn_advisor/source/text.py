"""The decoded text of one file and conversions between offsets, rows and columns."""

from __future__ import annotations

import ast
import itertools
from bisect import bisect_right
from functools import cached_property


class SourceText:
    """Text of one file. Newlines are kept as they stand in the file.

    Offsets count Unicode code points from 0. Rows count from 1. A line ends at \\n, \\r or \\r\\n (as Python's tokenizer sees it),
    not at the other separators `str.splitlines` knows.
    """

    def __init__(self, text: str, path: str = "<string>") -> None:
        self.text = text
        self.path = path

    @cached_property
    def line_starts(self) -> list[int]:
        """Offset of the first code point of each row."""
        text, starts, at = self.text, [0], 0
        if "\r" not in text:
            return [0, *itertools.accumulate(len(line) + 1 for line in text.split("\n")[:-1])]
        for at, char in enumerate(text):
            if char == "\n" or (char == "\r" and text[at + 1 : at + 2] != "\n"):
                starts.append(at + 1)
        return starts

    @cached_property
    def _ascii(self) -> bool:
        return self.text.isascii()

    def line(self, row: int) -> str:
        """The row's text with its line ending."""
        starts = self.line_starts
        end = starts[row] if row < len(starts) else len(self.text)
        return self.text[starts[row - 1] : end]

    def lines(self, node: ast.AST) -> str:
        """The rows that an `ast` node stands on."""
        starts, last = self.line_starts, node.end_lineno  # type: ignore[attr-defined]
        return self.text[starts[node.lineno - 1] : starts[last] if last < len(starts) else len(self.text)]  # type: ignore[attr-defined]

    def offset(self, row: int, byte_column: int) -> int:
        """Offset of an `ast` position: row from 1, column in UTF-8 bytes from 0."""
        start = self.line_starts[row - 1]
        if self._ascii:
            return start + byte_column
        return start + len(self.line(row).encode()[:byte_column].decode(errors="replace"))

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Offsets of an `ast` node's first code point and of the one after its last."""
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def segment(self, node: ast.AST) -> str:
        """The node's source."""
        start, end = self.span(node)
        return self.text[start:end]

    def position(self, offset: int) -> tuple[int, int]:
        """(row, column), both from 1, column in code points."""
        row = bisect_right(self.line_starts, offset)
        return row, offset - self.line_starts[row - 1] + 1
