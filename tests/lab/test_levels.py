"""Every fixture, without any configuration, at both levels."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from attn_advisor.lab.attention_level import attention_program
from attn_advisor.lab.module_level import module_program
from attn_advisor.lab.programs import CannotRun, Source
from tests.lab.jobs import FIXTURES, found

SITES = [(t.job.target.rpartition("/")[2], t) for t in found(FIXTURES)]


def agree(program) -> None:
    """As written and rewritten on the same tiny inputs."""
    setup = program.setup(program.tiny, torch.float32, torch.device("cpu"), "forward")
    with torch.no_grad():
        written = setup.run("as_written")
        marked = setup.run("marked")
        assert torch.equal(written, marked)
        if "rewritten" in program.versions:
            rewritten = setup.run("rewritten")
            finite = torch.isfinite(written)
            assert torch.allclose(rewritten[finite], written[finite], atol=1e-4)


@pytest.mark.parametrize("target", [t for _, t in SITES], ids=[name for name, _ in SITES])
def test_attention_level(target):
    try:
        agree(attention_program(Source(target.job)))
    except CannotRun:
        assert target.finding.verdict != "exact", "every exact site runs at the attention level"


def test_module_level():
    """At least four of five classes are built and called."""
    tried = built = 0
    for _, target in SITES:
        source = Source(target.job)
        if source.found.class_name is None:
            continue
        tried += 1
        try:
            agree(module_program(source))
        except CannotRun:
            continue
        built += 1
    assert tried >= 15 and built >= 0.8 * tried
