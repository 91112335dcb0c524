"""Cases of the in-place rules, executed: the bad code goes wrong as its page says, the fixed code trains."""

from __future__ import annotations

import inspect

import pytest

torch = pytest.importorskip("torch")

from attn_advisor.rules.registry import load_pages, shipped_pages  # noqa: E402

RULES = [rule for rule in load_pages([shipped_pages()]).rules.values() if rule.detector.endswith("inplace_hazards")]
CASES = [
    pytest.param(rule.code, case, id=f"{rule.code}-{number}")
    for rule in RULES
    for number, case in enumerate(rule.cases, 1)
    if case.bad and case.relation
]


def block(text: str):
    """An instance of the case's module, with the same weights every time."""
    space: dict = {}
    exec(text, space)
    torch.manual_seed(1)
    made = space["Block"]()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return made


def arguments(module) -> dict:
    """Floats of shape (2, 4, 8) that need no gradient; gates and masks that fit the scores or the result."""
    generator = torch.Generator().manual_seed(2)
    given = {}
    for name in inspect.signature(module.forward).parameters:
        shape = (4, 4) if name == "gate" else (4, 8) if "mask" in name or name == "bias" else (2, 4, 8)
        given[name] = torch.randn(shape, generator=generator)
        if name == "attention_mask":
            given[name] = given[name] > 1
    return given


def run(text: str):
    """(result in eval mode without gradients, gradients or the error of training, arguments left unchanged)."""
    module = block(text).eval()
    given = arguments(module)
    with torch.no_grad():
        result = module(**given)
    unchanged = all(
        torch.equal(now, before) for now, before in zip(given.values(), arguments(module).values(), strict=True)
    )
    try:
        torch.manual_seed(3)
        module(**arguments(module)).square().sum().backward()
    except RuntimeError as error:
        assert "inplace" in str(error) or "in-place" in str(error)
        return result, None, unchanged
    return result, [p.grad for p in module.parameters()], unchanged


@pytest.mark.parametrize(("code", "case"), CASES)
def test_case_does_what_its_page_says(code, case):
    result, gradients, unchanged = run(case.bad)
    if code in ("ATN501", "ATN502", "ATN503"):
        assert gradients is None, "backward of the bad code was to raise"
    elif code in ("ATN506", "ATN310") or (code == "ATN505" and case.relation == "differs"):
        assert not unchanged, "the bad code was to change its caller's tensor"
    if not case.fixed:
        return
    fixed, good, kept = run(case.fixed)
    assert kept and good is not None
    assert fixed.dtype == result.dtype and torch.equal(fixed, result)
    if code == "ATN504":
        assert not all(torch.equal(one, other) for one, other in zip(gradients, good, strict=True))
