"""One line a finding, and the same grouped by file."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TextIO

from attn_advisor.report.entries import Entry, Options, marker, summary, write_lines


def write_concise(entries: Sequence[Entry], out: TextIO, options: Options) -> None:
    lines = []
    for entry in entries:
        row, column = entry.start
        finding = entry.finding
        lines.append(f"{entry.shown}:{row}:{column}: {finding.code} {marker(finding, options)}{finding.message}")
    write_lines([*lines, *(summary(entries, options) if options.summary else [])], out)


def write_grouped(entries: Sequence[Entry], out: TextIO, options: Options) -> None:
    lines = []
    for shown, group in groupby(entries, key=lambda entry: entry.shown):
        lines.append(f"{shown}:")
        members = list(group)
        places = [f"{entry.start[0]}:{entry.start[1]}" for entry in members]
        width = max(map(len, places))
        for place, entry in zip(places, members, strict=True):
            finding = entry.finding
            lines.append(f"  {place:<{width}} {finding.code} {marker(finding, options)}{finding.message}")
        lines.append("")
    write_lines([*lines, *(summary(entries, options) if options.summary else [])], out)
