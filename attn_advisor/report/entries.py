"""What every report starts from: a finding, the text it stands in and where that is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TextIO

from attn_advisor.findings import Finding
from attn_advisor.fixes.apply import wanted
from attn_advisor.pipeline import FileResult
from attn_advisor.source.noqa import comment_rows
from attn_advisor.source.text import SourceText


@dataclass(frozen=True)
class Options:
    """How to show findings. `unsafe` says that unsafe fixes count as available."""

    unsafe: bool = False
    summary: bool = True
    fixed: int = 0  # findings fixed in this run
    fixing: bool = False
    failed: int = 0  # files that could not be checked completely


@dataclass
class Entry:
    """A finding with its source. Rows and columns count from 1, columns in code points; the end is exclusive."""

    path: str
    shown: str
    source: SourceText
    finding: Finding

    @cached_property
    def start(self) -> tuple[int, int]:
        return self.source.position(self.finding.start)

    @cached_property
    def end(self) -> tuple[int, int]:
        return self.source.position(self.finding.end)

    @property
    def noqa_row(self) -> int:
        """The row whose end takes a `# noqa` for this finding."""
        row = self.start[0]
        return comment_rows(self.source, [row])[row]


def relative(path: str, cwd: Path) -> str:
    """The path as shown: relative to the working folder where it lies below it."""
    try:
        return str(Path(path).relative_to(cwd))
    except ValueError:
        return path


def entries(results: Iterable[FileResult], cwd: Path) -> list[Entry]:
    """All findings of all files, in order."""
    found = []
    for result in results:
        source = SourceText(result.text or "", result.path)
        shown = relative(result.path, cwd)
        found += [Entry(result.path, shown, source, finding) for finding in result.findings]
    return found


def marker(finding: Finding, options: Options) -> str:
    """`[*]` for a finding that `--fix` would fix as called."""
    return "[*] " if wanted(finding, options.unsafe) else ""


def summary(found: Sequence[Entry], options: Options) -> list[str]:
    """The closing lines: how many findings, how many fixable and how."""
    total = len(found)
    plural = "" if total == 1 else "s"
    if options.fixing and options.fixed:
        lines = [f"Found {total + options.fixed} findings ({options.fixed} fixed, {total} remaining)."]
    elif not total:
        return ["All checks passed!" if not options.failed else "No findings in what could be checked."]
    else:
        lines = [f"Found {total} finding{plural}."]
    available = sum(wanted(entry.finding, options.unsafe) for entry in found)
    hidden = 0 if options.unsafe else sum(wanted(entry.finding, True) for entry in found) - available
    if available:
        lines.append(f"[*] {available} fixable with `--fix`" + (f" ({_more(hidden)})." if hidden else "."))
    elif hidden:
        lines.append(f"No safe fixes; {_more(hidden)}.")
    return lines


def _more(hidden: int) -> str:
    return f"{hidden} more with `--unsafe-fixes`" if hidden > 1 else "1 more with `--unsafe-fixes`"


def write_lines(lines: Iterable[str], out: TextIO) -> None:
    out.writelines(line + "\n" for line in lines)


def uri(path: str, cwd: str | None = None) -> str:
    """A file's address: relative to the working folder where it lies below it, else a file: URI."""
    from urllib.parse import quote

    shown = relative(path, Path(cwd or os.getcwd()))
    return quote(shown.replace(os.sep, "/")) if not os.path.isabs(shown) else Path(shown).as_uri()
