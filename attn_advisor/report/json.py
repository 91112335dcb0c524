"""JSON: ruff's keys, and more."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TextIO

from attn_advisor.report.entries import Entry


def _place(place: tuple[int, int]) -> dict[str, int]:
    return {"row": place[0], "column": place[1]}


def fix_object(entry: Entry) -> dict[str, Any] | None:
    fix = entry.finding.fix
    if fix is None:
        return None
    at = entry.source.position
    edits = [
        {"content": edit.content, "location": _place(at(edit.start)), "end_location": _place(at(edit.end))}
        for edit in sorted(fix.edits)
    ]
    return {"applicability": fix.applicability, "message": fix.message, "edits": edits}


def finding_object(entry: Entry) -> dict[str, Any]:
    """One finding. Rows and columns count from 1, columns in code points, ends are exclusive."""
    finding = entry.finding
    found = {
        "cell": None,
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity,
        "message": finding.message,
        "filename": entry.path,
        "location": _place(entry.start),
        "end_location": _place(entry.end),
        "fix": fix_object(entry),
        "noqa_row": entry.noqa_row,
        "url": finding.url or None,
        "function": finding.function,
        "facts": finding.facts,
        "blockers": finding.blockers,
        "assumes": finding.assumes,
        "prescription": finding.prescription,
    }
    if finding.verdict is not None:
        found["verdict"] = finding.verdict
    return found


def write_json(entries: Sequence[Entry], out: TextIO) -> None:
    json.dump([finding_object(entry) for entry in entries], out, indent=2, default=str)
    out.write("\n")


def write_json_lines(entries: Sequence[Entry], out: TextIO) -> None:
    for entry in entries:
        out.write(json.dumps(finding_object(entry), separators=(",", ":"), default=str) + "\n")
