"""Times of naive attention, in place and every SDPA backend, by the shortest straight-line code: what `profile` is compared with.

Nothing of attn_advisor is used here. `python benchmarks/straight_line.py` prints one JSON line a shape and mode, with medians in ms: on
CUDA over device events, on the CPU by torch.utils.benchmark.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.benchmark import Timer

SHAPES = {
    "cuda": [
        ((4, 16, 4096, 64), torch.bfloat16),
        ((32, 8, 4096, 64), torch.float16),
        ((4, 16, 2048, 64), torch.float32),
        ((64, 12, 197, 64), torch.float16),
    ],
    "cpu": [((2, 8, 1024, 64), torch.float32), ((8, 12, 197, 64), torch.float32)],
}
BACKENDS = {
    "cuda": ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"),
    "cpu": ("FLASH_ATTENTION", "MATH"),
}
ROUNDS, BURST = 6, 8
"""Samples on CUDA: every call in turn, so that a chip that gets hotter slows all of them, and each several times in a row."""
CYCLES_A_MS = 2e6
"""More cycles of the device than there are in a millisecond."""


@dataclass(frozen=True)
class Call:
    """What is timed; in train mode its gradients go to `leaves`. A forced backend stands in `backend`."""

    run: Callable[[], torch.Tensor]
    leaves: tuple[torch.Tensor, ...]
    backend: SDPBackend | None = None

    def context(self) -> contextlib.AbstractContextManager[object]:
        return sdpa_kernel([self.backend]) if self.backend is not None else contextlib.nullcontext()


def naive(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, drop: torch.Tensor) -> torch.Tensor:
    scores = torch.matmul(q, k.transpose(-2, -1))
    scores = scores * (1.0 / math.sqrt(q.shape[-1]))
    scores = scores.masked_fill(drop, float("-inf"))
    return torch.matmul(torch.softmax(scores, dim=-1), v)


def in_place(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, drop: torch.Tensor) -> torch.Tensor:
    scores = torch.matmul(q, k.transpose(-2, -1))
    scores.mul_(1.0 / math.sqrt(q.shape[-1]))
    scores.masked_fill_(drop, float("-inf"))
    return torch.matmul(torch.softmax(scores, dim=-1), v)


def calls(shape: tuple[int, int, int, int], dtype: torch.dtype, device: str, train: bool) -> dict[str, Call]:
    """Every call by name; q, k and v are (B, H, S, D), those of the causal flag views of one projection's output (heads after the length)."""
    batch, heads, length, size = shape
    q, k, v = (torch.randn(shape, device=device, dtype=dtype, requires_grad=train) for _ in range(3))
    projected = torch.randn(batch, length, 3 * heads * size, device=device, dtype=dtype)
    a, b, c = (
        t.view(batch, length, heads, size).transpose(1, 2).requires_grad_(train)
        for t in projected.split(heads * size, dim=2)
    )
    keep = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    drop = ~keep
    found = {
        "naive": Call(lambda: naive(q, k, v, drop), (q, k, v)),
        "in_place": Call(lambda: in_place(q, k, v, drop), (q, k, v)),
        "sdpa_mask": Call(lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=~drop), (q, k, v)),
        "sdpa_causal": Call(lambda: F.scaled_dot_product_attention(a, b, c, is_causal=True), (a, b, c)),
    }
    for name in BACKENDS[device]:
        for kind in ("mask", "causal"):
            default = found[f"sdpa_{kind}"]
            found[f"{name}_{kind}"] = Call(default.run, default.leaves, getattr(SDPBackend, name))
    return found


def row(shape: tuple[int, int, int, int], dtype: torch.dtype, device: str, train: bool) -> dict[str, object]:
    """Median ms of every call that runs; None for a backend that refuses."""
    gradient = torch.randn(shape, device=device, dtype=dtype)
    steps: dict[str, tuple[Call, Callable[[], object]]] = {}
    medians: dict[str, float | None] = {}
    for name, call in calls(shape, dtype, device, train).items():
        medians[name] = None

        def step(call: Call = call) -> object:
            if train:
                return torch.autograd.grad(call.run(), call.leaves, gradient)
            with torch.no_grad():
                return call.run()

        with call.context(), contextlib.suppress(RuntimeError):
            step()
            steps[name] = (call, step)
    timed = by_events(steps) if device == "cuda" else by_timer(steps)
    return {"shape": shape, "dtype": str(dtype), "train": train, "device": device, **medians, **timed}


def by_events(steps: dict[str, tuple[Call, Callable[[], object]]]) -> dict[str, float]:
    """Medians over device events. The device sleeps while Python queues a call, so that no call waits for Python; then the L2 cache is flushed."""
    flush = torch.empty(64 << 20, dtype=torch.int32, device="cuda")
    samples: dict[str, list[float]] = {name: [] for name in steps}
    cycles: dict[str, int] = {}
    for name, (call, step) in steps.items():
        with call.context():
            for _ in range(3):
                step()
            torch.cuda.synchronize()
            start = time.perf_counter()
            step()
            cycles[name] = int(1000 * (time.perf_counter() - start) * 2 * CYCLES_A_MS)
            torch.cuda.synchronize()
    for _ in range(ROUNDS):
        for name, (call, step) in steps.items():
            pairs = []
            with call.context():
                for _ in range(BURST):
                    start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    torch.cuda._sleep(cycles[name])
                    flush.zero_()
                    start_event.record()
                    step()
                    end_event.record()
                    pairs.append((start_event, end_event))
            torch.cuda.synchronize()
            samples[name] += [first.elapsed_time(last) for first, last in pairs]
    return {name: statistics.median(found) for name, found in samples.items()}


def by_timer(steps: dict[str, tuple[Call, Callable[[], object]]]) -> dict[str, float]:
    """Medians by torch.utils.benchmark, with as many threads as torch uses by itself."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, (call, step) in steps.items():
            with call.context():
                timer = Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads())
                found[name] += [1000 * t for t in timer.blocked_autorange(min_run_time=0.25).times]
    return {name: statistics.median(times) for name, times in found.items()}


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for train in (False, True):
        for shape, dtype in SHAPES[device]:
            print(json.dumps(row(shape, dtype, device, train)), flush=True)
