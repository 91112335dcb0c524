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


RETURNS = """
import torch
from torch import nn


class Attention(nn.Module):
    def forward(self, q, k, v):
        weights = torch.softmax(q @ k.transpose(-2, -1), -1)
        return weights @ v, weights


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Attention()

    def forward(self, x):
        {use}
        return y
"""


@pytest.mark.parametrize(
    "use", ["y, _ = self.attn(x, x, x)", "y, weights = self.attn(x, x, x)", "y = self.attn(x, x, x)[0]"]
)
def test_callers_that_throw_the_weights_away(use: str) -> None:
    found = check_text(RETURNS.format(use=use), "block.py")
    blockers = [b for f in found if f.code == "ATN102" for b in f.blockers]
    assert any("the only call of it (line 18) throws them away" in b for b in blockers), blockers


@pytest.mark.parametrize(
    "use", ["y = self.attn(x, x, x)", "y = self.attn(x, x, x)[-1]", "y, w = self.attn(x, x, x); y = y + w.sum()"]
)
def test_callers_that_keep_the_weights(use: str) -> None:
    found = check_text(RETURNS.format(use=use), "block.py")
    blockers = [b for f in found if f.code == "ATN102" for b in f.blockers]
    assert any("always returned" in b for b in blockers), blockers
    assert not any("throws" in b for b in blockers), blockers


def test_scripted_code_keeps_its_only_path() -> None:
    text = "import torch\n\n\n@torch.jit.script\ndef attend(q, k, v, full: bool = False):\n    p = torch.softmax(q @ k.transpose(-2, -1), -1)\n    y = p @ v\n    return (y, p) if full else (y, None)\n"
    found = [f for f in check_text(text, "scripted.py") if f.code == "ATN102"]
    assert len(found) == 1 and found[0].fix is None
    assert "line 4: scripted code" in found[0].blockers


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("unit", ["  ", "    ", "\t"])
def test_indentation_and_line_endings(unit: str, newline: str) -> None:
    lines = [
        "import torch",
        "import torch.nn.functional as F",
        "def attend(q, k, v, full=False):",
        "\tp = torch.softmax(",
        "\t\tq @ k.mT,  # scores",
        "\t\t-1,",
        "\t)",
        "",
        "\ty = p @ v  # values",
        "\treturn (y, p) if full else (y, None)",
        "",
    ]
    due = [
        *lines[:3],
        "\tif full:",
        *(f"\t{line}" if line else "" for line in lines[3:9]),
        "\telse:",
        "\t\ty = F.scaled_dot_product_attention(q, k, v, scale=1.0)",
        "\t\tp = None",
        *lines[9:],
    ]
    text, wanted = (newline.join(part).replace("\t", unit) for part in (lines, due))
    assert fix_text(text, "units.py", unsafe=True)[0] == wanted
