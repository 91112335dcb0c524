"""Cases of the pages that say how their two versions relate are executed: equal, different, or raising before and running after.

Inputs follow from the names of the parameters (tests/rules/named_inputs.py) or stand in the case. The pages about changes in place are executed in
tests/autograd, where what matters is backward, not the result.
"""

from __future__ import annotations

import ast

import pytest

pytest.importorskip("torch")

from attn_advisor.fixes.executor import Source, compare, make, run
from attn_advisor.fixes.inputs import Recipe, cases
from attn_advisor.fixes.load import load_source, lookup, unload
from attn_advisor.rules.page import Case
from attn_advisor.rules.registry import load_pages, shipped_pages
from tests.rules.named_inputs import recipe_for

CASES = [
    pytest.param(case, id=f"{rule.code}-{number}")
    for rule in load_pages([shipped_pages()]).rules.values()
    if rule.stage == "static" and rule.group != "autograd" and not rule.detector.endswith("inplace_hazards")
    for number, case in enumerate(rule.cases, 1)
    if case.relation
]


def subject(text: str) -> str:
    """The definition that runs: the last one of the file."""
    return [n.name for n in ast.parse(text).body if isinstance(n, (ast.FunctionDef, ast.ClassDef))][-1]


def outcomes(text: str, recipe: Recipe) -> list[str]:
    """What each call of the recipe raised, "" for nothing."""
    module = load_source(text)
    try:
        made = make(lookup(module, subject(text)), recipe)
        if hasattr(made, "double"):
            made.double()
        return [run(made, recipe, case).error for case in cases(recipe)]
    finally:
        unload(module)


@pytest.mark.parametrize("case", CASES)
def test_case_does_what_it_says(case: Case) -> None:
    module = load_source(case.bad)
    try:
        recipe = recipe_for(lookup(module, subject(case.bad)), case.inputs, case.init)
    finally:
        unload(module)
    if case.relation == "bad-raises":
        assert all(outcomes(case.bad, recipe)), "the bad code was to raise"
        assert not all(outcomes(case.fixed, recipe)), "the fixed code was to run"
        return
    bad, fixed = Source(case.bad, subject(case.bad)), Source(case.fixed, subject(case.fixed))
    report = compare(bad, fixed, recipe)
    if case.relation == "equal":
        assert report.equal, str(report)
        assert report.compared >= 3
    else:
        assert compare(bad, bad, recipe).equal, "the bad code runs and gives the same twice"
        assert report.verdict == "differs" and "raises" not in report.reason, str(report)
