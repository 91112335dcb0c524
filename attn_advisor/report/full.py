"""The default report: the source with the finding marked, what it is, why it matters and what to do."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from attn_advisor.findings import Edit, Finding
from attn_advisor.report.entries import Entry, Options, marker, summary
from attn_advisor.rules.registry import registry
from attn_advisor.source.text import SourceText

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

CONTEXT = 2  # rows shown before and after
LONGEST = 24  # rows of a finding shown before its middle is left out
COLORS = {"error": "red", "warning": "yellow", "info": "cyan"}
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
CODE = re.compile(r",? (with|else) `[^`]{40,}`$")  # what the rows below a finding show anyway
SENTENCE = re.compile(r".+?(?:[a-z)`\]]\.(?=\s)|\Z)", re.DOTALL)


def write_full(entries: Sequence[Entry], out: TextIO, options: Options) -> None:
    from rich.console import Console

    console = Console(file=out, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 100
    for entry in entries:
        show(entry, console, options)
    if options.summary:
        for line in summary(entries, options):
            console.print(line, markup=False)


def show(entry: Entry, console: Console, options: Options) -> None:
    """One finding, on a rich console."""
    from rich.text import Text

    finding = entry.finding
    color = COLORS[finding.severity]
    last = min(entry.end[0] + CONTEXT, len(entry.source.line_starts))
    gutter = len(str(last))
    head = Text()
    head.append(finding.code, f"bold {color}")
    head.append(f" {marker(finding, options)}", "bold cyan")
    head.append(_printable(finding.message), "bold")
    place = Text(" " * gutter)
    place.append("--> ", "bold blue")
    place.append(f"{entry.shown}:{entry.start[0]}:{entry.start[1]}")
    if finding.function:
        place.append(f", in {finding.function}", "dim")
    lines = [head, place]
    if entry.source.text:
        lines += excerpt(entry, gutter, color)
    width = max(min(console.width, 120), 60)
    for label, text in notes(finding, options):
        lines += _note(label, text, gutter, width)
    lines += fix_diff(entry, gutter)
    if not console.is_terminal and console.color_system is None:  # the same text, without the work of styling it
        console.file.write("".join(f"{line.plain}\n" for line in lines) + "\n")
        return
    for line in lines:
        console.print(line)
    console.print()


def _printable(text: str) -> str:
    """Tabs widened, control characters (a terminal would obey them) replaced."""
    return CONTROL.sub("�", text.expandtabs(4))


def excerpt(entry: Entry, gutter: int, color: str) -> list[Text]:
    """The rows of the finding with their numbers; a span over several rows is bracketed on the left, as ruff and rustc do it."""
    from rich.text import Text

    source, (row, column), (end_row, end_column) = entry.source, entry.start, entry.end
    if end_column == 1 and end_row > row:  # the end is exclusive: nothing of that row belongs to it
        end_row, end_column = end_row - 1, len(source.line(end_row - 1).rstrip("\r\n")) + 1
    several = end_row > row
    first, last = max(row - CONTEXT, 1), min(end_row + CONTEXT, len(source.line_starts))
    if last == len(source.line_starts) and not source.line(last).strip() and last > end_row:
        last -= 1
    blank = Text(" " * gutter + " |", "bold blue")
    lines = [blank]
    for number in range(first, last + 1):
        if end_row - row >= LONGEST and row + LONGEST // 2 <= number <= end_row - LONGEST // 3:
            if number == row + LONGEST // 2:
                lines.append(Text("." * gutter + " |", "bold blue"))
                lines[-1].append(" |" if several else "", f"bold {color}")
            continue
        text = source.line(number).rstrip("\r\n")
        line = Text()
        line.append(f"{number:>{gutter}} | ", "bold blue")
        if several:
            mark = "/ " if number == row else "| " if row < number <= end_row else "  "
            line.append(mark, f"bold {color}")
        line.append(_printable(text), "" if row <= number <= end_row else "dim")
        line.rstrip()
        lines.append(line)
        if number == end_row:
            lines.append(_underline(text, gutter, color, 1 if several else column, end_column, several))
    lines.append(blank)
    return lines


def _underline(text: str, gutter: int, color: str, column: int, end_column: int, several: bool) -> Text:
    from rich.text import Text

    before, marked = _printable(text[: column - 1]), _printable(text[: max(end_column - 1, column)])
    line = Text(" " * gutter + " | ", "bold blue")
    if several:
        line.append("|" + "_" * max(len(marked), 1) + "^", f"bold {color}")
    else:
        line.append(" " * len(before) + "^" * max(len(marked) - len(before), 1), f"bold {color}")
    return line


def notes(finding: Finding, options: Options) -> list[tuple[str, str]]:
    """Labelled remarks below the excerpt: why, what to do, and what stands in the way."""
    rule = registry().rules[finding.code]
    why = SENTENCE.match(" ".join(rule.why.split()))
    found = [("why", why[0] if why else ""), ("do", finding.prescription)]
    told = [text for text in finding.blockers if text.replace(": ", " ", 1) not in finding.message]
    found += [("also" if len(told) < len(finding.blockers) else "no safe fix", text) for text in told]
    if finding.fix:
        found += [("assumes", text) for text in finding.assumes]
        option = "--fix" if finding.fix.applicability == "safe" else "--fix --unsafe-fixes"
        message = CODE.sub(" as below", finding.fix.message)
        found.append(("fix", f"{message} ({finding.fix.applicability}: `{option}`)"))
    else:
        found.append(("help", f"`attn-advisor rule {finding.code}` says more"))
    return [(label, text) for label, text in found if text]


def _note(label: str, text: str, gutter: int, width: int) -> list[Text]:
    from rich.text import Text

    lead = f"{' ' * gutter} = {label}: "
    wrapped = textwrap.wrap(_printable(" ".join(text.split())), max(width - len(lead), 30), break_long_words=False)
    lines = []
    for number, part in enumerate(wrapped):
        line = Text()
        if number == 0:
            line.append(f"{' ' * gutter} = ", "bold blue")
            line.append(f"{label}: ", "bold")
        else:
            line.append(" " * len(lead))
        line.append(part)
        lines.append(line)
    return lines


def fix_diff(entry: Entry, gutter: int) -> list[Text]:
    """The rows that the fix takes out and puts in, each with its number in the old or the new text."""
    from rich.text import Text

    if entry.finding.fix is None:
        return []
    source = entry.source
    lines: list[Text] = []
    moved = 0  # rows that earlier edits added
    for edits in _clusters(entry.finding.fix.edits, source):
        first, last = source.position(edits[0].start)[0], source.position(edits[-1].end)[0]
        first, last = max(first - 1, 1), min(last + 1, len(source.line_starts))
        start = source.line_starts[first - 1]
        old = source.text[start : source.line_starts[last - 1]] + source.line(last)
        new = old
        for edit in reversed(edits):
            new = new[: edit.start - start] + edit.content + new[edit.end - start :]
        if lines:
            lines.append(Text("." * gutter + " |", "bold blue"))
        lines += _hunk(old.splitlines(), new.splitlines(), first, first + moved, gutter)
        moved += new.count("\n") - old.count("\n")
    blank = Text(" " * gutter + " |", "bold blue")
    return [blank, *lines, blank]


def _clusters(edits: Sequence[Edit], source: SourceText) -> list[list[Edit]]:
    """The edits in order, those that stand close together in one list."""
    found: list[list[Edit]] = []
    for edit in sorted(edits):
        if found and source.position(edit.start)[0] - source.position(found[-1][-1].end)[0] <= 3:
            found[-1].append(edit)
        else:
            found.append([edit])
    return found


def _hunk(before: list[str], after: list[str], row: int, new_row: int, gutter: int) -> list[Text]:
    lines = []
    for tag, first, last, new_first, new_last in difflib.SequenceMatcher(None, before, after, False).get_opcodes():
        if tag == "equal":
            lines += [_row(row + n, "|", before[n], gutter, "dim") for n in range(first, last)]
        else:
            lines += [_row(row + n, "-", before[n], gutter, "red") for n in range(first, last)]
            lines += [_row(new_row + n, "+", after[n], gutter, "green") for n in range(new_first, new_last)]
    return lines


def _row(number: int, sign: str, text: str, gutter: int, style: str) -> Text:
    from rich.text import Text

    line = Text(f"{number:>{gutter}} ", "bold blue")
    line.append(f"{sign} ", "bold blue" if sign == "|" else f"bold {style}")
    line.append(_printable(text), style)
    line.rstrip()
    return line
