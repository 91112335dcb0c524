"""Random programs: the verdict against what torch does at backward, and the fixed programs against the originals."""

from __future__ import annotations

import collections

import pytest

torch = pytest.importorskip("torch")
from hypothesis import HealthCheck, Phase, given, seed, settings  # noqa: E402

from attn_advisor.autograd.detector import inplace_hazards  # noqa: E402
from attn_advisor.fixes.apply import apply  # noqa: E402
from attn_advisor.source.module import Module  # noqa: E402
from attn_advisor.source.text import SourceText  # noqa: E402
from tests.autograd import programs  # noqa: E402

EXAMPLES = 1000
BREAKS = ("result", "outputs", "leaf", "input")
pytestmark = pytest.mark.filterwarnings("ignore")


def generated(number: int, examples: int = EXAMPLES):
    """Decorator: runs a function over programs, the same ones every time."""

    def decorate(run):
        limits = settings(
            max_examples=examples,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
        )
        return seed(number)(limits(given(programs.programs())(run)))

    return decorate


def detections(text: str):
    return list(inplace_hazards(Module(SourceText(text, "program.py"))))


@pytest.mark.parametrize("number", range(6))
def test_verdict_is_what_torch_does_at_backward(number):
    count = collections.Counter()
    missed, false = [], []

    @generated(number)
    def run(program):
        said = programs.torch_raises(program)
        facts = [detection.facts for detection in detections(program.source)]
        flagged = any(fact["kind"] in BREAKS or fact["breaks_if_shared"] for fact in facts)
        count[bool(said)] += 1
        if said and not flagged:
            missed.append(f"{program.source}\n{said}")
        if flagged and not said:
            false.append(program.source)

    run()
    assert not missed, missed[0]
    assert len(false) < 0.01 * count[False], false[0]
    assert min(count.values()) > 0.3 * EXAMPLES  # both kinds are there


def fixed(text: str, applicabilities: tuple[str, ...]) -> str:
    for _ in range(20):
        fixes = [d.fix for d in detections(text) if d.fix and d.fix.applicability in applicabilities]
        if not fixes:
            return text
        text, _ = apply(text, fixes)
    raise AssertionError(f"never settles:\n{text}")


def outputs(text: str, a, b):
    """Results of a program; random numbers are the same in every run."""
    space: dict = {}
    exec(text, space)
    torch.manual_seed(0)
    return space["program"](a * 1.0, b * 1.0, torch.eye(4, dtype=torch.bool))


def total(results):
    return sum(t.sum() for t in results if t.is_floating_point())


@pytest.mark.parametrize("number", range(100, 103))
def test_safe_fixes_keep_the_results_and_give_the_gradients_of_the_function(number):
    checked = collections.Counter()

    @generated(number, 700)
    def run(program):
        new = fixed(program.source, ("safe",))
        if new == program.source:
            return
        a, b = programs.inputs()
        with torch.no_grad():
            before, after = outputs(program.source, a, b), outputs(new, a, b)
        for old, now in zip(before, after, strict=True):
            assert torch.equal(old, now) and old.dtype == now.dtype or torch.isnan(old).any(), (
                f"{program.source}\n{new}"
            )
        checked["results"] += 1
        if "detach" in new or "no_grad" in new or programs.torch_raises(programs.Program(new)):
            return
        # the gradient that backward gives, against the slope of the original program along one direction
        leaves = [t.clone().requires_grad_() for t in (a, b)]
        loss = total(outputs(new, *leaves))
        if not loss.requires_grad or not torch.isfinite(loss):
            return
        grads = torch.autograd.grad(loss, leaves, allow_unused=True)
        generator = torch.Generator().manual_seed(1)
        steps = [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in (a, b)]
        slope = sum((g * step).sum() for g, step in zip(grads, steps, strict=True) if g is not None)
        with torch.no_grad():
            sides = [
                total(outputs(program.source, *(t + sign * 1e-6 * s for t, s in zip((a, b), steps, strict=True))))
                for sign in (1, -1)
            ]
        measured = (sides[0] - sides[1]) / 2e-6
        if abs(measured) < 1e5 and torch.isfinite(slope):
            assert abs(slope - measured) <= 1e-4 * max(1.0, abs(measured), abs(loss)), (
                f"{program.source}\n{new}\n{slope} {measured}"
            )
            checked["gradients"] += 1

    run()
    assert checked["results"] > 20 and checked["gradients"] > 5, checked


def test_all_fixes_together_train():
    trained = collections.Counter()

    @generated(200, 700)
    def run(program):
        new = fixed(program.source, ("safe", "unsafe"))
        left = [d for d in detections(new) if d.facts["kind"] in BREAKS or d.facts["breaks_if_shared"]]
        if new != program.source and not left:
            assert not programs.torch_raises(programs.Program(new)), f"{program.source}\n{new}"
            trained["yes"] += 1

    run()
    assert trained["yes"] > 200
