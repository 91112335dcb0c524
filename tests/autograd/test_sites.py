"""The labelled in-place sites: each verdict is what its program shows when run, and what check says of the program itself."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from attn_advisor.autograd.detector import inplace_hazards  # noqa: E402
from attn_advisor.source.module import Module  # noqa: E402
from attn_advisor.source.text import SourceText  # noqa: E402
from tests.autograd import site_programs  # noqa: E402

SITES = [json.loads(line) for line in Path(__file__).with_name("sites.jsonl").read_text().splitlines()]
FOUND = ("breaks_backward", "view_hazard", "mutates_argument")


@pytest.mark.parametrize("name", site_programs.PROGRAMS)
def test_program_shows_its_verdict(name):
    assert site_programs.observed(name) == site_programs.PROGRAMS[name][0]


def test_each_site_has_the_verdict_of_its_program():
    assert len(SITES) >= 80
    for site in SITES:
        assert site["verdict"] == site_programs.PROGRAMS[site["program"]][0], site


def test_check_finds_in_the_programs_what_running_them_shows():
    source = (
        Path(site_programs.__file__)
        .read_text()
        .replace("(x, y, mask)", "(x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor)")
    )
    found = {d.function for d in inplace_hazards(Module(SourceText(source, "site_programs.py")))}
    expected = {name for name, (verdict, _) in site_programs.PROGRAMS.items() if verdict in FOUND}
    assert found & set(site_programs.PROGRAMS) == expected


def test_programs_are_ours():
    """No program is longer than the shape it shows."""
    assert all(len(inspect.getsource(function).splitlines()) <= 14 for _, function in site_programs.PROGRAMS.values())
