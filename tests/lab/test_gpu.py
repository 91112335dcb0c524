"""On a CUDA GPU: times agree with straight-line code, and the backend reported is the kernel that ran. Skipped elsewhere."""

from __future__ import annotations

import time

import pytest

from attn_advisor.lab import session
from attn_advisor.lab.job import CANDIDATES
from tests.lab.jobs import FIXTURES, RIGHT, by_hand, found, straight_line

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

SHAPE = (4, 16, 4096, 64)
TEXT = "B=4,H=16,S=4096,D=64"
BACKENDS = {"sdpa_flash": "flash", "sdpa_efficient": "efficient", "sdpa_cudnn": "cudnn", "sdpa_math": "math"}


def rows(job) -> dict[str, dict]:
    (result,) = session.measure(job, lambda event: None)
    assert result["candidates"], result["reason"]
    return {c["name"]: c for c in result["candidates"]}


@pytest.mark.parametrize("mode", ["forward", "train"])
def test_times_agree_with_straight_line_code(tmp_path, mode):
    reference = straight_line().row(SHAPE, torch.bfloat16, "cuda", mode == "train")
    torch.cuda.empty_cache()
    changes = {
        "shapes": [TEXT],
        "dtypes": ["bfloat16"],
        "modes": [mode],
        "device": "cuda",
        "candidates": list(CANDIDATES),
        "budget": 6.0,
    }
    measured = rows(by_hand(tmp_path / "tutorial.py", RIGHT, **changes))
    (causal,) = found(f"{FIXTURES / 'gpt.py'}::CausalSelfAttention", level="attention", **changes)
    flagged = rows(causal.job)
    pairs = {
        "naive": measured["as_written"],
        "in_place": measured["inplace"],
        "sdpa_mask": measured["sdpa"],
        "sdpa_causal": flagged["sdpa"],
        "FLASH_ATTENTION_causal": flagged["sdpa_flash"],
        "EFFICIENT_ATTENTION_mask": measured["sdpa_efficient"],
        "CUDNN_ATTENTION_mask": measured["sdpa_cudnn"],
        "MATH_mask": measured["sdpa_math"],
    }
    for name, row in pairs.items():
        expected = reference[name]
        assert abs(row["median_ms"] - expected) <= max(0.05 * expected, 0.010), (name, row["median_ms"], expected)


def test_backends_are_the_kernels_that_ran(tmp_path):
    (causal,) = found(f"{FIXTURES / 'gpt.py'}::CausalSelfAttention", level="attention", shapes=[TEXT], dtypes=["bfloat16"], device="cuda",
                      candidates=list(CANDIDATES), budget=1.0)  # fmt: skip
    measured = rows(causal.job)
    for name, backend in BACKENDS.items():
        if measured[name]["ok"]:
            assert measured[name]["backend"] == backend
    assert measured["sdpa"]["backend"] in BACKENDS.values()
    assert measured["as_written"]["backend"] is None and measured["as_written"]["kernels"] >= 5
    scores = 2 * SHAPE[0] * SHAPE[1] * SHAPE[2] ** 2
    assert measured["as_written"]["peak_bytes"] >= 2 * scores > 20 * measured["sdpa"]["peak_bytes"]


def test_one_target_takes_less_than_15_seconds(tmp_path):
    changes = {
        "shapes": [TEXT],
        "dtypes": ["bfloat16"],
        "device": "cuda",
        "candidates": list(CANDIDATES),
        "budget": 6.0,
    }
    started = time.monotonic()
    rows(by_hand(tmp_path / "tutorial.py", RIGHT, **changes))
    assert time.monotonic() - started < 15


def test_out_of_memory_is_a_reason(tmp_path):
    """The scores do not fit, the rewrite does: it is still checked, slice by slice, and measured."""
    total = torch.cuda.get_device_properties(0).total_memory
    batch = int(total / (16 * 16384**2 * 2)) + 1
    shape = f"B={batch},H=16,S=16384,D=64"
    measured = rows(
        by_hand(tmp_path / "tutorial.py", RIGHT, shapes=[shape], dtypes=["bfloat16"], device="cuda", budget=3.0)
    )
    assert "out of memory" in measured["as_written"]["reason"]
    assert measured["sdpa"]["ok"] and measured["sdpa"]["median_ms"]
