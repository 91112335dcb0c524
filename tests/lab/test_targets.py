"""What the command line's targets name."""

from __future__ import annotations

from attn_advisor.lab import targets
from attn_advisor.settings import Resolver
from tests.lab.jobs import FIXTURES

OPTIONS = {
    "shapes": [], "dtypes": [], "modes": ["forward"], "device": "cpu", "level": "auto", "candidates": [], "budget": 1.0, "min_speedup": 1.1,
}  # fmt: skip
NESTED = """import torch

class Outer:
    class Inner:
        def forward(self, q, k, v):
            return torch.softmax(q @ k.transpose(-2, -1), dim=-1) @ v

def other(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1), dim=-1) @ v
"""


def find(*given: str) -> tuple[list[str], list[str]]:
    found, problems = targets.find(given, Resolver(), OPTIONS)
    return [t.job.function for t in found], problems


def test_an_attention_named_twice_is_measured_once():
    file = str(FIXTURES / "tutorial.py")
    once, _ = find(file)
    assert find(file, file, f"{file}:17")[0] == once


def test_names_of_classes_and_functions(tmp_path):
    file = tmp_path / "nested.py"
    file.write_text(NESTED)
    for name in ("Outer", "Inner", "Outer.Inner", "Inner.forward", "forward"):
        assert find(f"{file}::{name}") == (["Outer.Inner.forward"], []), name
    assert find(f"{file}::other")[0] == ["other"]
    assert find(f"{file}::nner")[0] == []


def test_each_target_without_attention_is_said(tmp_path):
    (tmp_path / "broken.py").write_text("def (:\n")
    (tmp_path / "clean.py").write_text("x = 1\n")
    _, problems = find(str(tmp_path / "missing.py"), str(tmp_path / "broken.py"), str(tmp_path / "clean.py"))
    assert len(problems) == 3 and "no hand-written attention" in problems[2], problems
