"""The generator itself: its programs are deterministic, importable, run, and shrink."""

from __future__ import annotations

import ast

import pytest

pytest.importorskip("torch")
pytest.importorskip("einops")

from attn_advisor.fixes.executor import Source, compare
from tests.generator.choices import shrink
from tests.generator.programs import TRAPS, again, generate


def test_a_seed_and_its_recorded_choices_give_the_same_program() -> None:
    for seed in range(50):
        program = generate(seed)
        assert generate(seed).text == program.text
        assert again(program.choices).text == program.text


def test_programs_parse_and_are_many() -> None:
    texts = {generate(seed).text for seed in range(500)}
    for text in texts:
        ast.parse(text)
    assert len(texts) > 495
    assert {generate(seed).trap for seed in range(1500)} == {"", *TRAPS}


@pytest.mark.parametrize("start", range(0, 160, 40))
def test_programs_run_and_equal_themselves(start: int) -> None:
    for seed in range(start, start + 40):
        program = generate(seed)
        side = Source(program.text, program.name)
        report = compare(side, side, program.recipe, signatures=False)
        assert report.equal, f"seed {seed}: {report}\n{program.text}"


def test_shrinking_keeps_what_matters() -> None:
    seed = next(seed for seed in range(1000) if generate(seed).trap == "softcap")
    program = again(shrink(generate(seed).choices, lambda choices: "tanh" in again(choices).text))
    assert "tanh" in program.text
    assert len(program.text) < 700
