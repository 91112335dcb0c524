"""Baselines: findings that were there when a project adopted the tool, to be hidden until somebody gets to them.

A finding is known by its file, rule, function and the text it covers with the blanks squeezed, not by its line.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from attn_advisor.findings import Finding
from attn_advisor.pipeline import FileResult

VERSION = 1


class BaselineError(Exception):
    """A baseline file that cannot be used."""


def fingerprint(finding: Finding, text: str) -> str:
    """The same for a finding that only moved."""
    covered = " ".join(text[finding.start : finding.end].split())
    return hashlib.sha256("\0".join((finding.code, finding.function, covered)).encode("utf-8", "replace")).hexdigest()[
        :16
    ]


def _key(path: str, baseline: Path) -> str:
    return os.path.relpath(path, baseline.parent).replace(os.sep, "/")


def read(path: Path) -> dict[str, Counter[str]]:
    """Fingerprints by file, with how often each occurs. Raises BaselineError."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        if table["version"] != VERSION:
            raise BaselineError(f"{path}: version {table['version']} of the format is not known, {VERSION} is")
        return {
            file: Counter({str(mark): int(times) for mark, times in marks.items()})
            for file, marks in table["findings"].items()
        }
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BaselineError(f"Cannot read the baseline {path}: {error}") from error


def write(path: Path, results: Iterable[FileResult]) -> int:
    """Save the findings of a run; gives their number. Raises OSError."""
    findings: dict[str, dict[str, int]] = {}
    for result in results:
        if result.findings:
            marks = Counter(fingerprint(finding, result.text or "") for finding in result.findings)
            findings[_key(result.path, path)] = dict(sorted(marks.items()))
    table = {"version": VERSION, "findings": dict(sorted(findings.items()))}
    path.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    return sum(sum(marks.values()) for marks in findings.values())


def subtract(results: Iterable[FileResult], known: dict[str, Counter[str]], path: Path) -> int:
    """Take the known findings out of the results, each as often as it is known; gives how many went."""
    hidden = 0
    for result in results:
        left = Counter(known.get(_key(result.path, path), ()))
        kept = []
        for finding in result.findings:
            mark = fingerprint(finding, result.text or "")
            if left[mark] > 0:
                left[mark] -= 1
                hidden += 1
            else:
                kept.append(finding)
        result.findings = kept
    return hidden
