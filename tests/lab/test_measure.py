"""Statistics, memory forecasts, traces."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch

from attn_advisor.lab import backends, measure, memory, sdpa, session, slices, trace
from attn_advisor.lab.candidates import Candidate
from attn_advisor.lab.job import CANDIDATES, CPU_SIZES, Sizes, parse_sizes
from tests.lab.jobs import FIXTURES, found


def test_timing_is_median_and_quartiles():
    found = measure.timing([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (found.median_ms, found.iqr_ms, found.runs) == (3.0, 2.0, 5)


@pytest.fixture
def timed(monkeypatch):
    """Times candidates that take the given seconds, turn by turn, by a clock of their own: (timings, seconds passed)."""
    now = 0.0
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: now))

    def run(budget: float, **seconds: list[float]):
        def step(turns: list[float]):
            taken = 0

            def advance() -> None:
                nonlocal now, taken
                now += turns[taken % len(turns)]
                taken += 1

            return advance

        candidates = [Candidate(name, "", compiled=step(turns)) for name, turns in seconds.items()]
        found = measure.times(candidates, None, False, torch.device("cpu"), budget, lambda name: None)
        return found, now

    return run


def test_rounds_end_with_the_budget(timed):
    found, passed = timed(6.0, slow=[0.8, 0.4, 0.6], fast=[0.1])
    assert passed <= 6.0 and found["slow"].runs >= 5
    found, passed = timed(0.5, slow=[2.0, 3.0])
    assert found["slow"].runs == 2, "the warm-up and one round are always run"


def test_rounds_end_once_medians_are_stable(timed):
    found, passed = timed(60.0, steady=[0.1], also=[0.2])
    assert found["steady"].runs == measure.MIN_ROUNDS + 1 and passed < 3
    found, _ = timed(60.0, wavering=[0.1, 0.2], steady=[0.1])
    assert found["steady"].runs > 50


def test_one_target_on_the_cpu_takes_less_than_30_seconds():
    (target,) = found(FIXTURES / "tutorial.py", shapes=[""], candidates=list(CANDIDATES), budget=6.0)
    started = time.monotonic()
    (result,) = session.measure(target.job, lambda event: None)
    assert time.monotonic() - started < 30
    assert result["shape"] == "B=2,H=8,L=1024,S=1024,D=64"
    assert {c["name"] for c in result["candidates"] if c["ok"]} >= {"as_written", "inplace", "sdpa", "sdpa_flash"}


def test_memory_grows_as_a_polynomial():
    a, b = memory.quadratic((1024, 3 * 1024**2 + 7 * 1024), (2048, 3 * 2048**2 + 7 * 2048))
    assert (a, b) == pytest.approx((3.0, 7.0))
    assert memory.largest_length(a, b, 3 * 5000**2 + 7 * 5000) == pytest.approx(5000, abs=1)
    assert memory.largest_length(0.0, 7.0, 70) == 10


def test_sizes():
    assert parse_sizes("S=128", CPU_SIZES) == Sizes(2, 8, 128, 128, 64)
    assert parse_sizes("L=1,S=128,D=32", CPU_SIZES) == Sizes(2, 8, 1, 128, 32)
    for wrong in ("S=0", "X=3", "S", "S=-1"):
        with pytest.raises(ValueError, match="expected B, H, L, S or D"):
            parse_sizes(wrong, CPU_SIZES)


def test_peak_memory_of_a_known_program():
    x = torch.ones(1 << 18)  # 1 MiB

    def run():
        a = x + 1
        b = a + 1
        del a
        return b + 1

    assert trace.trace(run, torch.device("cpu")).peak_bytes == pytest.approx(2 << 20, abs=256)  # and the scalars


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::matmul", "matmul"),
        ("aten::masked_fill", "mask"),
        ("aten::softmax", "softmax"),
        ("aten::mul", "scale"),
        ("aten::contiguous", "copy"),
        ("autograd::engine::evaluate_function: SoftmaxBackward0", "softmax"),
        ("autograd::engine::evaluate_function: MaskedFillBackward0", "mask"),
        ("aten::scaled_dot_product_attention", "attention"),
    ],
)
def test_kinds_of_operations(name, kind):
    assert trace.operation(name) == kind


def test_breakdown_charges_lines_forward_and_backward():
    q = torch.randn(2, 64, 64, requires_grad=True)

    def run():
        with torch.profiler.record_function("attn_advisor:7"):
            s = q @ q.mT
        with torch.profiler.record_function("attn_advisor:8"):
            p = s.softmax(-1)
        p.sum().backward()

    found = trace.trace(run, torch.device("cpu"), (7, 8))
    by_line = {(r.line, r.op) for r in found.rows if r.attention}
    assert {(7, "matmul"), (8, "softmax")} <= by_line
    assert found.peak_line in (7, 8)


def test_causal_by_value():
    q = torch.randn(2, 2, 8, 4)
    keep = torch.ones(8, 8, dtype=torch.bool).tril()
    additive = torch.zeros(8, 8).masked_fill(~keep, float("-inf"))
    assert sdpa.Call(q, q, q, keep).causal_by_value() and sdpa.Call(q, q, q, additive).causal_by_value()
    assert sdpa.Call(q, q, q, is_causal=True).causal_by_value()
    for wrong in (keep.tril(-1), ~keep, torch.ones(8, 8, dtype=torch.bool), keep.clone().triu(-3)):
        assert not sdpa.Call(q, q, q, wrong).causal_by_value()
    padded = keep.expand(2, 1, 8, 8).clone()
    padded[1, :, :, 0] = False
    assert not sdpa.Call(q, q, q, padded).causal_by_value()
    assert not sdpa.Call(q, q[:, :, :4], q[:, :, :4], keep[:, :4]).causal_by_value()


def test_backend_on_the_cpu_is_the_operation_that_ran():
    q = torch.randn(2, 2, 64, 16)
    call = sdpa.Call(q, q, q)
    assert backends.of(trace.trace(call.run, torch.device("cpu"))) == "flash"
    flat = sdpa.Call(q[0], q[0], q[0])
    assert backends.of(trace.trace(flat.run, torch.device("cpu"))) == "math"
    assert backends.of(trace.trace(lambda: q @ q.mT, torch.device("cpu"))) is None


def test_kernel_names():
    for name, kernel in {
        "flash": "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(Flash_fwd_params)",
        "efficient": "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel::Params)",
        "cudnn": "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128x64_4x1x1_kernel0_0",
    }.items():
        assert backends.of(trace.Trace(1, [kernel], [], 0, 0)) == name


def test_slices_of_every_kind_of_axis():
    sizes = Sizes(2, 3, 5, 7, 4)
    assert slices.taken(torch.zeros(2, 3, 5, 4), "bhld", sizes, 1, (1, 3)).shape == (1, 2, 5, 4)
    assert slices.taken(torch.zeros(6, 5, 4), "nld", sizes, 1, (0, 1)).shape == (1, 5, 4)
    assert slices.taken(torch.zeros(2, 5, 12), "blc", sizes, 0, (1, 2)).shape == (1, 5, 4)
    assert slices.taken(torch.zeros(1, 1, 5, 7), "b1ls", sizes, 0, (0, 3)).shape == (1, 1, 5, 7)
    x = torch.arange(12.0).view(6, 2, 1)
    assert torch.equal(slices.taken(x, "nld", Sizes(2, 3, 2, 2, 1), 1, (2, 3)), x[5:6])
