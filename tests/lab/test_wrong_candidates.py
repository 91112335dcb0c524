"""A rewrite that computes something else is rejected, whatever it gains; the right one is not."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("torch")

import torch

from attn_advisor.lab import experiment
from attn_advisor.lab.attention_level import attention_program
from attn_advisor.lab.job import Sizes
from attn_advisor.lab.module_level import module_program
from attn_advisor.lab.programs import Source
from tests.lab.jobs import RIGHT, by_hand

SIZES = Sizes(2, 3, 32, 32, 8)
WRONG = {
    "inverted mask": "return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scale)",
    "no mask": "return F.scaled_dot_product_attention(q, k, v, scale=self.scale)",
    "missing scale": "return F.scaled_dot_product_attention(q, k, v, attn_mask=~mask, scale=1.0)",
    "scaled twice": "return F.scaled_dot_product_attention(q * self.scale, k, v, attn_mask=~mask, scale=self.scale)",
    "causal off by one": "return F.scaled_dot_product_attention(q, k, v, attn_mask=~mask.roll(-1, -1), scale=self.scale)",
    "diagonal hidden": "return F.scaled_dot_product_attention(q, k, v, attn_mask=(~mask).tril(-1), scale=self.scale)",
    "wrong axis": "return F.scaled_dot_product_attention(q.mT, k.mT, v.mT).mT",
    "heads for length": "return F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)",
    "detached": "return F.scaled_dot_product_attention(q.detach(), k, v, attn_mask=~mask, scale=self.scale)",
}


def run(job, make, mode: str, dtype: str = "float32"):
    program = make(Source(job))
    return experiment.run(job, program, SIZES, dtype, mode, torch.device("cpu"), lambda stage, name: None)


def row(result, name: str):
    return next(c for c in result["candidates"] if c["name"] == name)


@pytest.mark.parametrize("make", [attention_program, module_program])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_rewrites_are_rejected(tmp_path, name, make):
    job = by_hand(tmp_path / "tutorial.py", WRONG[name])
    found = row(run(job, make, "train"), "sdpa")
    assert not found["ok"] and found["reason"]
    assert found["median_ms"] is None and found["speedup"] is None


@pytest.mark.parametrize("make", [attention_program, module_program])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_right_rewrite_agrees(tmp_path, make, dtype):
    result = run(by_hand(tmp_path / "tutorial.py", RIGHT), make, "train", dtype)
    for name in ("as_written", "inplace", "sdpa"):
        found = row(result, name)
        assert found["ok"], found["reason"]
        assert found["max_abs_error"] <= 2 * row(result, "as_written")["max_abs_error"] + 1e-5
        assert found["max_grad_error"] <= 2 * row(result, "as_written")["max_grad_error"] + 1e-5
        assert found["runs"] >= 1 and found["median_ms"] > 0 and found["peak_bytes"] > 0


def test_bottom_right_mask_is_not_the_flag(tmp_path):
    """With more keys than queries the mask is not what is_causal means: the what-if must not be offered."""
    job = dataclasses.replace(by_hand(tmp_path / "tutorial.py", RIGHT))
    program = attention_program(Source(job))
    result = experiment.run(
        job, program, Sizes(2, 3, 16, 32, 8), "float32", "forward", torch.device("cpu"), lambda s, n: None
    )
    assert row(result, "sdpa")["ok"]
    assert "causal_flag" not in result["what_ifs"]


def test_causal_flag_is_measured(tmp_path):
    result = run(by_hand(tmp_path / "tutorial.py", RIGHT), attention_program, "forward")
    assert result["what_ifs"]["causal_flag"]["ok"]
