"""The smallest examples of what people write: found or left alone, judged, rewritten, executed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("einops")

from tests.attention.cases import Case, check, load_cases, run_pair

FOLDER = Path(__file__).with_name("spellings")
CASES = [case for path in sorted(FOLDER.glob("*.py")) for case in load_cases(path)]

# What is due and not there yet. A case that begins to pass fails here until its line is taken out.
BEHIND = {
    "loop_over_chunks": "each chunk is rewritten inside the loop, which is exact, rather than refused with the way out",
    "written_by_index": "`scores[:, :, mask] = fill` is not followed",
    "factor_of_each_key": "a factor of each key could multiply the key; it gets no fix",
    "scores_times_a_full_factor": "a factor of unknown shape gets no fix, where a full one is to be refused",
    "weights_scaled_by_key": "probabilities scaled by key, of unknown rank, are refused, not moved to the values",
}


def marked(case: Case) -> Any:
    behind = BEHIND.get(case.name)
    return pytest.param(case, marks=pytest.mark.xfail(reason=behind, strict=True) if behind else ())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_original_runs(case: Case) -> None:
    report = run_pair(case, case.text)
    assert report.equal, str(report)


@pytest.mark.parametrize("case", [marked(case) for case in CASES], ids=lambda case: case.name)
def test_case(case: Case) -> None:
    check(case)
