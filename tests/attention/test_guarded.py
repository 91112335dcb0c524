"""Weights on request: where the old lines can stay under a condition, and where they are needed always."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from attn_advisor.pipeline import check_text, fix_text
from tests.attention.cases import Case, check, load_cases, run_pair

FOLDER = Path(__file__).with_name("guarded")
REQUESTED, KEPT = load_cases(FOLDER / "requested.py"), load_cases(FOLDER / "kept.py")


def name_of(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", REQUESTED + KEPT, ids=name_of)
def test_original_runs(case: Case) -> None:
    report = run_pair(case, case.text)
    assert report.equal, str(report)


@pytest.mark.parametrize("case", REQUESTED + KEPT, ids=name_of)
def test_fix_and_execution(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", REQUESTED, ids=name_of)
def test_fixed_once(case: Case) -> None:
    once = fix_text(case.text, "once.py", unsafe=True)[0]
    assert fix_text(once, "once.py", unsafe=True)[0] == once
    assert not any(f.fix for f in check_text(once, "once.py"))
    assert case.text.count("#") <= once.count("#")
