"""One generated program through the tool: found, fixed, and the fix proved by running both."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from attn_advisor.fixes.executor import ALL_ROWS, NOT_EMPTY, Source, compare
from attn_advisor.pipeline import check_text, default_settings, fix_text
from attn_advisor.settings import Settings
from tests.generator.choices import shrink
from tests.generator.programs import Program, again

ATTENTION_CODES = ("ATN101", "ATN102", "ATN103")


@dataclass
class Trial:
    """What became of a program. `problem` is the kind of the first thing that went wrong, "" if nothing did; `detail` says more."""

    codes: list[str] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)
    blockers: list[str] = field(default_factory=list)
    safe: bool = False
    unsafe: bool = False
    executed: int = 0
    problem: str = ""
    detail: str = ""
    fixed: str = ""


@cache
def settings() -> Settings:
    """The tool as it comes."""
    return default_settings(str(Path(__file__).anchor + "generated/subject.py"))


def try_program(program: Program, signatures: bool = True) -> Trial:
    """Check, fix (safe, then unsafe), fix again, and run. Nothing raises: a traceback of the tool is a problem too."""
    trial = Trial()
    where = "/generated/subject.py"
    try:
        for found in check_text(program.text, where, settings()):
            if found.code in ATTENTION_CODES:
                trial.codes.append(found.code)
                trial.verdicts.append(found.verdict or "")
                trial.blockers += found.blockers
        results = []
        for unsafe in (False, True):
            text, _, _ = fix_text(program.text, where, settings(), unsafe=unsafe)
            again_text = text
            if text not in (program.text, *results):
                again_text, _, _ = fix_text(text, where, settings(), unsafe=unsafe)
            results.append(text)
            lost = [
                note
                for note in re.findall(r"# note \d+\.", program.text)
                if text.count(note) != program.text.count(note)
            ]
            if lost:
                trial.problem, trial.detail, trial.fixed = "a comment is lost or doubled", ", ".join(lost), text
                return trial
            if again_text != text:
                trial.problem, trial.detail, trial.fixed = "a second fix changes more", again_text, text
                return trial
    except Exception:
        trial.problem, trial.detail = "the tool raises", traceback.format_exc(limit=-3)
        return trial
    safe, unsafe_text = results
    trial.safe, trial.unsafe = safe != program.text, unsafe_text not in (program.text, safe)
    for kind, text, rows in (
        ("safe", safe, ALL_ROWS),
        ("unsafe", unsafe_text, NOT_EMPTY if program.additive else ALL_ROWS),
    ):
        if text == program.text or (kind == "unsafe" and text == safe):
            continue
        report = compare(
            Source(program.text, program.name),
            Source(text, program.name),
            program.recipe,
            rows=rows,
            signatures=signatures,
            meta=False,
        )
        trial.executed += report.compared
        if report.verdict == "could not run":
            continue  # an original that rejects every input proves nothing
        if not report.equal:
            trial.problem, trial.detail, trial.fixed = f"wrong {kind} rewrite", str(report), text
            return trial
    return trial


def smallest(program: Program, problem: str, signatures: bool = True, limit: int = 150) -> Program:
    """The program shrunk while the same kind of problem remains."""
    tries = 0
    if signatures and try_program(program, False).problem == problem:
        signatures = False

    def fails(choices: Mapping[str, int]) -> bool:
        nonlocal tries
        tries += 1
        return tries <= limit and try_program(again(choices), signatures).problem == problem

    return again(shrink(program.choices, fails))
