"""Over thousands of generated programs: no wrong rewrite, nothing left for a second fix, no traceback."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("torch")
pytest.importorskip("einops")
pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, given, settings

from tests.generator.programs import Program, generate
from tests.generator.strategies import programs
from tests.generator.trial import smallest, try_program

CHUNK, CHUNKS = 100, 20
SIGNATURES_EVERY = 4  # other dtypes and autocast for every fourth program: they take two thirds of the time


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_wrong_rewrite(chunk: int) -> None:
    import torch

    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        program = generate(seed)
        signatures = seed % SIGNATURES_EVERY == 0
        trial = try_program(program, signatures)
        if trial.problem:
            small = smallest(program, trial.problem, signatures)
            again = try_program(small, signatures)
            pytest.fail(f"seed {seed}: {trial.problem}\n{small.text}\n{again.detail}\n{again.fixed}")
        plain = program.attention and not program.trap
        counts["plain"] += plain
        counts["found"] += plain and bool(trial.codes)
        counts["fixed"] += plain and (trial.safe or trial.unsafe)
    assert counts["found"] >= 0.85 * counts["plain"], dict(counts)
    assert counts["fixed"] >= 0.5 * counts["plain"], dict(counts)


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(programs())
def test_no_wrong_rewrite_of_a_drawn_program(program: Program) -> None:
    trial = try_program(program, signatures=False)
    assert not trial.problem, f"{trial.problem}\n{trial.detail}\n{trial.fixed}"
