"""Comments that silence findings: `# noqa`, `# noqa: ATN101`, `# attn-advisor: ignore[ATN101]`, `# attn-advisor: ignore-file`.

A comment speaks for the logical line it stands on; `ignore[...]` on a line of its own speaks for the next one.
A finding is silenced on the logical line it starts on.
"""

from __future__ import annotations

import re
import tokenize
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from attn_advisor.findings import Detection, Edit, Finding, Fix
from attn_advisor.source.text import SourceText

CODES = r"[A-Za-z]+[0-9]+(?:[ \t]*[, \t][ \t]*[A-Za-z]+[0-9]+)*"
DIRECTIVE = re.compile(
    rf"#\s*(?:(?P<noqa>[nN][oO][qQ][aA])(?:\s*:\s*(?P<codes>{CODES})|(?!\s*:)\b)"
    rf"|attn-advisor:\s*(?P<kind>ignore-file|ignore)\b(?:\[\s*(?P<listed>{CODES})\s*\]|(?!\[)))"
)
CODE = re.compile(r"[A-Za-z]+[0-9]+")
OURS = re.compile(r"attn-advisor:\s*ignore|(?:noqa|NOQA)\s*:[^\n#]*?[A-Za-z]{2,}[0-9]")
FSTRING_START = getattr(tokenize, "FSTRING_START", -1)
FSTRING_END = getattr(tokenize, "FSTRING_END", -1)
LAYOUT = (tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER)


@dataclass
class Directive:
    """One comment. `codes` is empty where it silences everything; rows count from 1, both ends included."""

    kind: str  # "noqa", "ignore" or "ignore-file"
    start: int
    end: int
    codes: dict[str, tuple[int, int]]
    first_row: int
    last_row: int
    used: set[str] = field(default_factory=set)

    def silences(self, code: str, row: int) -> bool:
        at = self.kind == "ignore-file" or self.first_row <= row <= self.last_row
        return at and (not self.codes or code in self.codes)


def may_matter(text: str, findings: bool) -> bool:
    """Whether the text can hold a comment that silences a finding, or one of ours that silences none."""
    if findings:
        return "noqa" in text.lower() or "attn-advisor:" in text
    if not ("noqa" in text or "NOQA" in text or "attn-advisor:" in text):  # quicker than the pattern
        return False
    return OURS.search(text) is not None


def directives(source: SourceText) -> list[Directive]:
    """All such comments of a file; none if it cannot be tokenized."""
    found: list[Directive] = []
    waiting: list[Directive] = []  # on lines of their own, for the next logical line
    here: list[Directive] = []
    first_row = 0
    try:
        for token in _tokens(source):
            if token.type == tokenize.COMMENT:
                parsed = _parse(token, source)
                found += parsed
                if first_row:
                    here += parsed
                else:
                    waiting += [directive for directive in parsed if directive.kind == "ignore"]
            elif token.type == tokenize.NEWLINE:
                for directive in here:
                    directive.first_row, directive.last_row = first_row, token.start[0]
                for directive in waiting:
                    directive.last_row = token.start[0]
                first_row, here, waiting = 0, [], []
            elif token.type not in LAYOUT and not first_row:
                first_row = token.start[0]
    except (tokenize.TokenError, SyntaxError):
        return []
    return found


def _tokens(source: SourceText) -> Iterable[tokenize.TokenInfo]:
    lines = (source.line(row) for row in range(1, len(source.line_starts) + 1))
    return tokenize.generate_tokens(lambda: next(lines, ""))


def _parse(token: tokenize.TokenInfo, source: SourceText) -> list[Directive]:
    row, column = token.start
    base = source.line_starts[row - 1] + column
    found = []
    for match in DIRECTIVE.finditer(token.string):
        group = "codes" if match["noqa"] else "listed"
        listed = match[group] or ""
        at = base + (match.start(group) if listed else 0)
        codes = {code[0].upper(): (at + code.start(), at + code.end()) for code in CODE.finditer(listed)}
        kind = "noqa" if match["noqa"] else match["kind"]
        found.append(Directive(kind, base + match.start(), base + match.end(), codes, row, row))
    return found


def silence(findings: Iterable[Finding], found: list[Directive], source: SourceText) -> list[Finding]:
    """The findings that no comment silences; the comments remember which codes they did silence."""
    kept = []
    for finding in findings:
        row = source.position(finding.start)[0]
        by = [directive for directive in found if directive.silences(finding.code, row)]
        for directive in by:
            directive.used.add(finding.code)
        if not by:
            kept.append(finding)
    return kept


def unused(found: list[Directive], source: SourceText, code: str, judged: Callable[[str], bool]) -> list[Detection]:
    """A detection for each of our comments that silences nothing, with the fix that removes it.

    `judged` tells whether a code's absence may be judged: it is a rule that is on, or no rule of ours at all. A bare
    `# noqa` is left alone: it may be meant for another tool.
    """
    detections = []
    for directive in found:
        idle = [
            listed for listed in directive.codes if listed not in directive.used and listed != code and judged(listed)
        ]
        if not idle and (directive.codes or directive.used or directive.kind == "noqa"):
            continue
        kept = [listed for listed in directive.codes if listed not in idle]
        what = {"noqa": "# noqa", "ignore": "# attn-advisor: ignore", "ignore-file": "# attn-advisor: ignore-file"}[
            directive.kind
        ]
        detections.append(
            Detection(
                code=code,
                start=directive.start,
                end=directive.end,
                values={"comment": what, "codes": ", ".join(idle) or "every rule"},
                facts={"comment": what, "unused": idle},
                fix=Fix("safe", f"Remove the unused `{what}`", (_removal(directive, kept, source),)),
            )
        )
    return detections


def _removal(directive: Directive, kept: list[str], source: SourceText) -> Edit:
    """Take out the idle codes; with none kept the comment goes, and its line too if nothing else stands on it."""
    text = source.text
    if kept:
        spans = list(directive.codes.values())
        return Edit(
            spans[0][0], spans[-1][1], ", ".join(text[a:b] for c, (a, b) in directive.codes.items() if c in kept)
        )
    row = source.position(directive.start)[0]
    line_start = source.line_starts[row - 1]
    line_end = line_start + len(source.line(row).rstrip("\r\n"))
    rest = text[directive.end : line_end].strip()
    if rest and not rest.startswith("#"):
        return Edit(directive.start, directive.end, "#")  # what follows is still a comment
    start = line_start + len(text[line_start : directive.start].rstrip())
    if rest:
        return Edit(directive.start, line_start + text[line_start:line_end].index(rest, directive.end - line_start), "")
    if start == line_start:
        return Edit(line_start, line_start + len(source.line(row)), "")
    return Edit(start, line_end, "")


def comment_rows(source: SourceText, rows: Iterable[int]) -> dict[int, int]:
    """For each row, the row whose end takes a comment for it: past the string or the continuation it runs into."""
    wanted = sorted(set(rows))
    places = {row: row for row in wanted}
    lines = {row: source.line(row).rstrip("\r\n") for row in wanted}
    if not any('"""' in line or "'''" in line or line.endswith("\\") for line in lines.values()):
        return places
    spans = []
    opened = 0
    try:
        for token in _tokens(source):
            if token.type == FSTRING_START:
                opened = token.start[0]
            if token.type in (tokenize.STRING, FSTRING_END):
                start = opened if token.type == FSTRING_END else token.start[0]
                if token.end[0] > start:
                    spans.append((start, token.end[0]))
    except (tokenize.TokenError, SyntaxError):
        return places
    for row in wanted:
        place, moved = row, True
        while moved:
            moved = False
            for start, end in spans:
                if start <= place < end:
                    place, moved = end, True
            if source.line(place).rstrip("\r\n").endswith("\\"):
                place, moved = place + 1, True
        places[row] = place
    return places


def add_noqa(source: SourceText, findings: Iterable[Finding]) -> tuple[str, int]:
    """The text with a `# noqa: CODE` for each finding, and how many codes were added."""
    by_row: dict[int, list[str]] = {}
    rows = [(source.position(finding.start)[0], finding.code) for finding in findings]
    places = comment_rows(source, [row for row, _ in rows])
    for row, code in rows:
        codes = by_row.setdefault(places[row], [])
        if code not in codes:
            codes.append(code)
    existing = {source.position(d.start)[0]: d for d in directives(source) if d.kind == "noqa" and d.codes}
    text, added = source.text, 0
    for row in sorted(by_row, reverse=True):
        codes = by_row[row]
        if directive := existing.get(row):
            codes = [code for code in codes if code not in directive.codes]
            at = max(end for _, end in directive.codes.values())
            text = text[:at] + "".join(f", {code}" for code in codes) + text[at:]
        else:
            start = source.line_starts[row - 1]
            at = start + len(source.line(row).rstrip())
            rest = start + len(source.line(row).rstrip("\r\n"))
            text = text[:at] + f"  # noqa: {', '.join(codes)}" + text[rest:]
        added += len(codes)
    return text, added
