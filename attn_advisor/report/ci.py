"""Formats of continuous integration services: GitHub annotations, GitLab code quality, JUnit."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import TextIO
from xml.sax.saxutils import escape, quoteattr

from attn_advisor.baseline import fingerprint
from attn_advisor.report.entries import Entry

GITHUB_LEVELS = {"error": "error", "warning": "warning", "info": "notice"}
GITLAB_LEVELS = {"error": "major", "warning": "minor", "info": "info"}
NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def write_github(entries: Sequence[Entry], out: TextIO) -> None:
    for entry in entries:
        finding, (row, column), (end_row, end_column) = entry.finding, entry.start, entry.end
        place = f"file={_property(entry.shown)},line={row},col={column},endLine={end_row},endColumn={end_column}"
        text = f"{entry.shown}:{row}:{column}: {finding.code} {finding.message}"
        if finding.prescription:
            text += f"\n  help: {finding.prescription}"
        title = _property(f"attn-advisor ({finding.code})")
        out.write(f"::{GITHUB_LEVELS[finding.severity]} title={title},{place}::{_data(text)}\n")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def write_gitlab(entries: Sequence[Entry], out: TextIO) -> None:
    seen: Counter[str] = Counter()
    found = []
    for entry in entries:
        finding, (row, column), (end_row, end_column) = entry.finding, entry.start, entry.end
        mark = f"{entry.shown}:{fingerprint(finding, entry.source.text)}"
        seen[mark] += 1
        found.append(
            {
                "check_name": finding.code,
                "description": f"{finding.code}: {finding.message}",
                "severity": GITLAB_LEVELS[finding.severity],
                "fingerprint": hashlib.sha256(f"{mark}:{seen[mark]}".encode()).hexdigest()[:32],
                "location": {
                    "path": entry.shown,
                    "positions": {
                        "begin": {"line": row, "column": column},
                        "end": {"line": end_row, "column": end_column},
                    },
                },
            }
        )
    json.dump(found, out, indent=2)
    out.write("\n")


def write_junit(entries: Sequence[Entry], out: TextIO) -> None:
    total = len(entries)
    lines = ['<?xml version="1.0" encoding="UTF-8"?>']
    lines.append(f'<testsuites name="attn-advisor" tests="{max(total, 1)}" failures="{total}" errors="0">')
    for shown, group in groupby(entries, key=lambda entry: entry.shown):
        members = list(group)
        count = len(members)
        lines.append(f'    <testsuite name={_attribute(shown)} tests="{count}" failures="{count}" errors="0">')
        for entry in members:
            finding, (row, column) = entry.finding, entry.start
            name, where = _attribute(finding.code), _attribute(re.sub(r"\.py$", "", shown))
            lines.append(f'        <testcase name={name} classname={where} line="{row}" column="{column}">')
            text = f"line {row}, col {column}, {finding.message}. {finding.prescription}".strip()
            message, kind = _attribute(finding.message), _attribute(finding.severity)
            lines.append(f"            <failure message={message} type={kind}>{escape(_clean(text))}</failure>")
            lines.append("        </testcase>")
        lines.append("    </testsuite>")
    if not entries:
        lines.append('    <testsuite name="attn-advisor" tests="1" failures="0" errors="0">')
        lines.append('        <testcase name="No findings" classname="attn-advisor"/>')
        lines.append("    </testsuite>")
    out.write("\n".join([*lines, "</testsuites>", ""]))


def _clean(text: str) -> str:
    return NOT_XML.sub("�", text)


def _attribute(text: str) -> str:
    return quoteattr(_clean(text))
