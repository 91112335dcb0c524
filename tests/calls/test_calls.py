"""Existing calls of SDPA: found where a cheaper call computes the same, left alone elsewhere, and equal when run."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("einops")

from attn_advisor.findings import Finding
from attn_advisor.pipeline import check_text, fix_text
from attn_advisor.settings import Overrides, Resolver
from tests.attention.cases import Case, load_cases, run_pair

FOLDER = Path(__file__).parent
CODES = ("ATN401", "ATN402")
CASES = [
    pytest.param(case, id=f"{path.stem}-{case.name}")
    for path in sorted(FOLDER.glob("*.py"))
    if not path.name.startswith(("test_", "__"))
    for case in load_cases(path)
]


SETTINGS = Resolver(Overrides(select=CODES, isolated=True), FOLDER).for_folder(FOLDER)


def findings(text: str, path: str) -> list[Finding]:
    return check_text(text, path, SETTINGS)


@pytest.mark.parametrize("case", CASES)
def test_case(case: Case) -> None:
    path = str(FOLDER / f"{case.name}.py")
    found = findings(case.text, path)
    report = run_pair(case, case.text)
    assert report.equal, str(report)
    safe, unsafe = (fix_text(case.text, path, SETTINGS, unsafe)[0] for unsafe in (False, True))
    if case.verdict == "none":
        assert not found, found
        assert safe == unsafe == case.text
        return
    assert found
    offered = {f.fix.applicability if f.fix else "none" for f in found}
    assert offered == {case.fix}, [f.blockers for f in found]
    for after in {safe, unsafe} - {case.text}:
        report = run_pair(case, after)
        assert report.equal, f"{report}\n{after}"
    own = unsafe[unsafe.index(case.name) :]  # what stands above is there for all cases
    for piece in case.pieces:
        assert piece in own, f"{piece} not in\n{own}"
    for piece in case.never:
        assert piece not in own, f"{piece} in\n{own}"


def test_a_file_that_only_speaks_of_it(monkeypatch) -> None:
    def interpret(*_: object) -> None:
        raise AssertionError("a function without a call was interpreted")

    monkeypatch.setattr("attn_advisor.calls.sdpa.interpret", interpret)
    text = 'def explain():\n    """Uses scaled_dot_product_attention."""\n    return "scaled_dot_product_attention"\n'
    assert findings(text, str(FOLDER / "explain.py")) == []


def test_stars_hide_the_arguments() -> None:
    text = (
        "import torch\nimport torch.nn.functional as F\n\n\ndef attend(x, **options):\n    B, L, D = x.shape\n"
        "    return F.scaled_dot_product_attention(x, x, x, **options)\n"
    )
    assert findings(text, str(FOLDER / "stars.py")) == []


def test_gradients_of_gradients_make_it_unsafe() -> None:
    text = (
        "import torch\nimport torch.nn.functional as F\n\n\ndef attend(x):\n    B, L, D = x.shape\n    return F.scaled_dot_product_attention(x, x, x)\n\n\n"
        "def penalty(x):\n    return torch.autograd.grad(attend(x).sum(), x, create_graph=True)[0].norm()\n"
    )
    (found,) = findings(text, str(FOLDER / "penalty.py"))
    assert found.fix is not None and found.fix.applicability == "unsafe"
    assert "line 11" in found.blockers[0]


def test_patterns_that_are_not_written_out() -> None:
    text = (
        "import torch\nimport torch.nn.functional as F\nfrom einops import rearrange\n\n\ndef attend(q, k, v, pattern, equation):\n"
        "    q, k = rearrange(q, pattern), rearrange(tensor=k, pattern=pattern)\n"
        "    return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.einsum(equation, q, k))\n"
    )
    assert findings(text, str(FOLDER / "patterns.py")) == []
