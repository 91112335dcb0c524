"""`profile --fix`: the rewrites that agreed with float64 and gained enough are made, nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attn_advisor import files
from attn_advisor.fixes.apply import apply
from attn_advisor.lab.advice import clearly_faster
from attn_advisor.lab.targets import Target


def refused(target: Target, results: list[dict[str, Any]], min_speedup: float) -> str:
    """Why a target's rewrite is not applied; empty if it is. Every shape, dtype and mode measured must agree and gain."""
    fix = target.finding.fix
    if fix is None:
        return "there is no rewrite"
    if fix.applicability != "safe":
        return "its fix is unsafe: attn-advisor check --fix --unsafe-fixes applies it"
    rows = [c for r in results for c in r["candidates"] if c["name"] == "sdpa"]
    if not rows or len(rows) < len(results):
        return "it was not measured"
    if bad := next((c for c in rows if not c["ok"]), None):
        return f"it did not agree or run: {bad['reason']}"
    for result, found in zip(results, rows):
        written = next(c for c in result["candidates"] if c["name"] == "as_written")
        if not written["median_ms"]:
            continue  # the code as written does not even fit
        if not clearly_faster(found, written, min_speedup):
            return f"its speed-up of {found['speedup']:.2f} is below {min_speedup:g} or within the spread of the measurements"
    return ""


def apply_measured(measured: list[tuple[Target, list[dict[str, Any]]]], min_speedup: float) -> Iterator[str]:
    """Apply what may be applied, file by file; one line a target says what was done."""
    by_file: dict[str, list[Target]] = {}
    together: dict[str, tuple[Target, list[dict[str, Any]]]] = {}
    for target, results in measured:  # a script's calls of one attention with other inputs are targets of their own
        together.setdefault(target.job.target, (target, []))[1].extend(results)
    for target, results in together.values():
        if reason := refused(target, results, min_speedup):
            yield f"{target.job.target}: not applied, {reason}"
        else:
            by_file.setdefault(target.job.path, []).append(target)
    for path, targets in by_file.items():
        content = targets[0].content
        fixes = [t.finding.fix for t in targets if t.finding.fix is not None]
        text, applied = apply(content.text, fixes)
        try:
            files.write(path, text, content)
        except files.WriteError as error:
            yield f"{path}: not applied, the file {error}"
            continue
        for target in targets:
            done = target.finding.fix in applied
            yield f"{target.job.target}: " + ("applied" if done else "not applied, it overlaps another fix; run again")
