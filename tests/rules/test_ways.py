"""The ways out that a page names: each is given where it is due, and its code computes what the code by hand does."""

from __future__ import annotations

import ast
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import attn_advisor.attention
from attn_advisor.pipeline import check_text
from attn_advisor.rules.page import Rule, Way, fill
from attn_advisor.rules.registry import load_pages, shipped_pages
from attn_advisor.settings import Overrides, Resolver

RULES = load_pages([shipped_pages()]).rules
WAYS = [
    pytest.param(rule, way, id=f"{rule.code}-{way.key}") for rule in RULES.values() for way in rule.ways if way.code
]


@pytest.mark.parametrize(("rule", "way"), WAYS)
def test_the_code_gives_the_same(rule: Rule, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", minversion="2.9")
    compared: list[tuple[Any, Any]] = []
    same = torch.testing.assert_close
    monkeypatch.setattr(torch.testing, "assert_close", lambda a, b: (compared.append((a, b)), same(a, b)))
    with torch.random.fork_rng(), warnings.catch_warnings():
        torch.manual_seed(0)
        warnings.simplefilter("ignore")  # flex_attention says that it is not compiled
        module = ModuleType("way")
        monkeypatch.setitem(sys.modules, "way", module)
        exec(compile(way.code, way.key, "exec"), vars(module))
    assert len(compared) == 1
    instead, by_hand = compared[0]
    assert instead is not by_hand
    assert by_hand.dtype == torch.float64 and by_hand.isfinite().all() and by_hand.std() > 0.01


@pytest.mark.parametrize(("rule", "way"), WAYS)
def test_the_code_by_hand_is_given_this_way(rule: Rule, way: Way) -> None:
    settings = Resolver(Overrides(select=(rule.code,), isolated=True), Path("/ways")).for_folder(Path("/ways"))
    found = check_text(way.code, "/ways/subject.py", settings)
    assert [finding.prescription for finding in found] == [fill(way.text, {})]


def test_every_refusal_names_a_way_of_the_page() -> None:
    """The keys that stand in the analysis are those of the page, all of them, and no refusal goes without."""
    keys = {way.key for way in RULES["ATN103"].ways}
    words = set()
    for path in Path(attn_advisor.attention.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            words |= {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("Problem", "problem"):
                kinds = {at.value for at in ast.walk(node.args[0]) if isinstance(at, ast.Constant)}
                assert "refuse" not in kinds or len(node.args) == 4 or isinstance(node.args[-1], ast.Starred), (
                    ast.unparse(node)
                )
    assert keys <= words
    for code in ("ATN101", "ATN102", "ATN103"):
        assert RULES[code].advice("fallback") != RULES[code].prescription
