"""Every case of every page: found or not found, fixed exactly so, and, where it says so, equal when run."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from attn_advisor.pipeline import check_text, fix_text
from attn_advisor.rules.page import Case, Rule
from attn_advisor.rules.registry import load_pages, shipped_pages
from attn_advisor.settings import Overrides, Resolver, Settings

PATH = "/cases/subject.py"
HAS_TORCH = importlib.util.find_spec("torch") is not None


def cases(kind: str) -> list[Any]:
    return [
        pytest.param(rule, case, id=f"{rule.code}-{number}")
        for rule in load_pages([shipped_pages()]).rules.values()
        for number, case in enumerate(rule.cases, 1)
        if rule.stage == "static" and getattr(case, kind)
    ]


def settings(rule: Rule, case: Case) -> Settings:
    """The rule alone; ATN001 needs the others to know what is unused."""
    select = ("ALL",) if rule.code == "ATN001" else (rule.code,)
    given = Overrides(
        select=select, isolated=True, target_torch=case.target_torch or None, values={"preview": rule.preview}
    )
    return Resolver(given, Path("/cases")).for_folder(Path("/cases"))


@pytest.mark.parametrize(("rule", "case"), cases("bad"))
def test_bad_is_found(rule, case):
    found = [finding for finding in check_text(case.bad, PATH, settings(rule, case)) if finding.code == rule.code]
    assert found
    for finding in found:
        assert "{" not in finding.message.replace("{}", ""), "a placeholder of the message has no value"
        assert not case.verdict or finding.verdict == case.verdict
        assert case.fixed or finding.fix is None or rule.fix == "unsafe"


@pytest.mark.parametrize(("rule", "case"), cases("ok"))
def test_ok_is_not_found(rule, case):
    assert [f.message for f in check_text(case.ok, PATH, settings(rule, case)) if f.code == rule.code] == []


@pytest.mark.parametrize(("rule", "case"), cases("fixed"))
def test_fixed_exactly_so(rule, case):
    text, fixed, _ = fix_text(case.bad, PATH, settings(rule, case), unsafe=True)
    assert text == case.fixed
    assert {finding.code for finding in fixed} == {rule.code}
    if any(finding.fix and finding.fix.applicability == "safe" for finding in fixed) and rule.group == "attention":
        assert case.relation == "equal", "only a pair that is equal when run may carry a safe fix"
    assert fix_text(text, PATH, settings(rule, case), unsafe=True)[0] == text


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
@pytest.mark.parametrize(
    ("rule", "case"),
    [case for case in cases("fixed") if case.values[1].relation == "equal" and case.values[0].group == "attention"],
)
def test_equal_when_run(rule, case):
    from attn_advisor.fixes.verify import verify

    findings = check_text(case.bad, PATH, settings(rule, case))
    verdicts = verify(PATH, case.bad, findings)
    assert [verdict for verdict, _ in verdicts.values()] == ["equal"] * len(findings), verdicts
