"""Prescriptions speak when their alternative was measured to be worth it, and are silent else."""

from __future__ import annotations

from typing import Any

from attn_advisor.lab import advice


def candidate(
    name: str, ms: float | None, *, ok: bool = True, iqr: float = 0.0, backend: str | None = None
) -> dict[str, Any]:
    return {
        "name": name, "ok": ok and ms is not None, "reason": "" if ok else "differs", "median_ms": ms, "iqr_ms": iqr, "runs": 9, "peak_bytes": 1 << 20,
        "kernels": 5, "backend": backend, "max_abs_error": 1e-3, "max_grad_error": None, "speedup": None,
    }  # fmt: skip


def result(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    given = {
        "candidates": list(rows),
        "inputs": [{"name": "mask", "role": "mask"}],
        "level": "attention",
        "breakdown": [],
        "rows": [10, 14],
    }
    return given | more


def codes(measured: dict[str, Any], least: float = 1.1) -> list[str]:
    return [p["code"] for p in advice.prescriptions(measured, least)]


SLOW, FAST = candidate("as_written", 10.0), candidate("sdpa", 1.0, backend="cudnn")


def test_ranked_by_time_saved():
    flag = candidate("causal_flag", 0.3, backend="cudnn")
    found = advice.prescriptions(result(SLOW, FAST, what_ifs={"causal_flag": flag}), 1.1)
    assert [p["code"] for p in found] == ["ATN901", "ATN902"]
    assert found[0]["gain_ms"] == 9.0 and found[0]["speedup"] == 10.0
    assert found[0]["evidence"]["baseline"] == "as_written" and found[1]["evidence"]["baseline"] == "sdpa"
    assert "`mask`" in found[1]["message"] and "{" not in found[0]["message"] + found[1]["prescription"]


def test_a_candidate_that_disagrees_is_never_recommended():
    assert codes(result(SLOW, candidate("sdpa", 1.0, ok=False))) == []


def test_gains_below_the_threshold_or_within_the_spread():
    assert codes(result(SLOW, candidate("sdpa", 9.5))) == []
    assert codes(result(candidate("as_written", 10.0, iqr=12.0), candidate("sdpa", 5.0, iqr=2.0))) == []


def test_the_spread_of_one_run_is_not_known():
    once = [row | {"runs": 1} for row in (candidate("as_written", 10.0), candidate("sdpa", 8.5))]
    assert codes(result(*once)) == []
    assert codes(result(candidate("as_written", 10.0), candidate("sdpa", 8.5))) == ["ATN901"]


def test_a_faster_backend():
    flash = candidate("sdpa_flash", 0.5, backend="flash")
    assert "ATN908" in codes(result(SLOW, FAST, flash))
    assert "ATN908" not in codes(result(SLOW, FAST, candidate("sdpa_cudnn", 0.5, backend="cudnn"))), (
        "it is the default's own kernel"
    )


def test_in_place_only_where_nothing_else_helps():
    inplace = candidate("inplace", 9.0)
    assert codes(result(SLOW, inplace, candidate("sdpa", None, ok=False))) == ["ATN911"]
    assert "ATN911" not in codes(result(SLOW, inplace, FAST))


def test_nothing_slower_than_the_code_as_written_is_advised():
    slow_rewrite = candidate("sdpa", 20.0, backend="math")
    faster = candidate("sdpa_flash", 15.0, backend="flash")
    what_ifs = {"causal_flag": candidate("causal_flag", 12.0), "bfloat16": candidate("bfloat16", 11.0)}
    assert codes(result(SLOW, slow_rewrite, faster, what_ifs=what_ifs)) == []
    what_ifs = {"causal_flag": candidate("causal_flag", 8.0), "bfloat16": candidate("bfloat16", 7.0)}
    assert codes(result(SLOW, slow_rewrite, faster, what_ifs=what_ifs)) == ["ATN903", "ATN902"]


def test_in_place_asks_for_the_least_gain_too():
    assert codes(result(SLOW, candidate("inplace", 9.0)), least=1.2) == []


def test_a_rewrite_with_blockers_is_not_called_safe():
    (found,) = advice.prescriptions(result(SLOW, FAST, blockers=["the mask may hide a whole row"]), 1.1)
    assert "the mask may hide a whole row" in found["prescription"] and "--unsafe-fixes" in found["prescription"]
    (found,) = advice.prescriptions(result(SLOW, FAST, blockers=[]), 1.1)
    assert "unsafe" not in found["prescription"]


def test_a_mask_without_a_name():
    flag = candidate("causal_flag", 0.3, backend="cudnn")
    found = advice.prescriptions(result(SLOW, FAST, what_ifs={"causal_flag": flag}, inputs=[]), 1.1)
    assert "in place of the dense mask takes" in found[1]["message"] and "``" not in found[1]["prescription"]


def test_compiling_is_compared_with_the_best_that_needs_none():
    flash = candidate("sdpa_flash", 0.5, backend="flash")
    assert "ATN910" not in codes(result(SLOW, FAST, flash, candidate("compile", 0.6)))
    found = advice.prescriptions(result(SLOW, FAST, flash, candidate("flex", 0.3)), 1.1)
    (compiled,) = [p for p in found if p["code"] == "ATN910"]
    assert compiled["evidence"]["baseline"] == "sdpa_flash" and "flex_attention" in compiled["prescription"]


def test_compile_only_where_it_beats_sdpa():
    compiled = candidate("compile", 4.0)
    assert codes(result(SLOW, compiled)) == ["ATN910"]
    assert codes(result(SLOW, FAST, compiled)) == ["ATN901"]


def test_lower_precision_needs_no_agreement():
    low = candidate("bfloat16", 0.2, ok=True)
    assert "ATN903" in codes(result(SLOW, FAST, what_ifs={"bfloat16": low}))


def test_not_the_bottleneck():
    rows = [{"line": 5, "op": "matmul", "time_share": 0.8}, {"line": 12, "op": "softmax", "time_share": 0.1}]
    found = advice.prescriptions(result(SLOW, level="module", attention_share=0.1, breakdown=rows), 1.1)
    assert [p["code"] for p in found] == ["ATN913"]
    assert "10 %" in found[0]["message"] and "line 5" in found[0]["prescription"]
    assert codes(result(SLOW, level="module", attention_share=0.9, breakdown=rows)) == []
    elsewhere = [{"line": 0, "op": "other", "time_share": 0.9}, rows[1]]
    (found,) = advice.prescriptions(result(SLOW, level="module", attention_share=0.1, breakdown=elsewhere), 1.1)
    assert "line 0" not in found["prescription"]
