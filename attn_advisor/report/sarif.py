"""SARIF 2.1.0, as GitHub code scanning and editors read it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TextIO

import attn_advisor
from attn_advisor.baseline import fingerprint
from attn_advisor.report.entries import Entry, uri
from attn_advisor.rules.page import Rule
from attn_advisor.rules.registry import registry

LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def write_sarif(entries: Sequence[Entry], out: TextIO) -> None:
    rules = registry().rules
    codes = sorted({entry.finding.code for entry in entries})
    driver = {
        "name": "attn-advisor",
        "version": attn_advisor.__version__,
        "rules": [_rule(rules[code]) for code in codes],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(entry, codes.index(entry.finding.code)) for entry in entries],
    }
    log = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    json.dump(log, out, indent=2, default=str)
    out.write("\n")


def _rule(rule: Rule) -> dict[str, Any]:
    text = f"## What it does\n{rule.what}\n\n## Why\n{rule.why}\n\n## Fix safety\n{rule.fix_safety or 'No fix.'}\n"
    found: dict[str, Any] = {
        "id": rule.code,
        "name": "".join(word.capitalize() for word in rule.name.split("-")),
        "shortDescription": {"text": rule.name.replace("-", " ")},
        "fullDescription": {"text": rule.what},
        "help": {"text": text, "markdown": text},
        "defaultConfiguration": {"level": LEVELS[rule.severity]},
        "properties": {"group": rule.group},
    }
    if rule.url:
        found["helpUri"] = rule.url
    return found


def _region(entry: Entry, start: int, end: int) -> dict[str, int]:
    (row, column), (end_row, end_column) = entry.source.position(start), entry.source.position(end)
    return {"startLine": row, "startColumn": column, "endLine": end_row, "endColumn": end_column}


def _result(entry: Entry, index: int) -> dict[str, Any]:
    finding = entry.finding
    artifact = {"uri": uri(entry.path)}
    text = finding.message + (f". {finding.prescription}" if finding.prescription else "")
    properties = {
        "function": finding.function,
        "verdict": finding.verdict,
        "blockers": finding.blockers,
        "assumes": finding.assumes,
        "facts": finding.facts,
    }
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": LEVELS[finding.severity],
        "message": {"text": text},
        "locations": [
            {"physicalLocation": {"artifactLocation": artifact, "region": _region(entry, finding.start, finding.end)}}
        ],
        "partialFingerprints": {"attnAdvisor/v1": fingerprint(finding, entry.source.text)},
        "properties": {key: value for key, value in properties.items() if value},
    }
    if finding.fix:
        replacements = [
            {"deletedRegion": _region(entry, edit.start, edit.end), "insertedContent": {"text": edit.content}}
            for edit in sorted(finding.fix.edits)
        ]
        changes = [{"artifactLocation": artifact, "replacements": replacements}]
        text = f"{finding.fix.message} ({finding.fix.applicability})"
        result["fixes"] = [{"description": {"text": text}, "artifactChanges": changes}]
    return result
