"""How large S and B may grow: peak memory as a polynomial in S, measured at two lengths."""

from __future__ import annotations

import contextlib
import gc
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from attn_advisor.lab import measure
from attn_advisor.lab import trace as tracing
from attn_advisor.lab.candidates import Candidate
from attn_advisor.lab.programs import Program, Setup


def free_bytes(device: torch.device) -> int:
    """Memory that can still be had, counting what this process's allocator holds unused."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(device)[0])
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) * 1024
    return 0


def input_bytes(setup: Setup) -> int:
    """Bytes of the argument tensors."""
    return sum(v.numel() * v.element_size() for v in setup.values.values() if isinstance(v, torch.Tensor))


def quadratic(small: tuple[int, float], large: tuple[int, float]) -> tuple[float, float]:
    """(a, b) with bytes = a * S^2 + b * S through two (S, bytes) points; neither is negative."""
    (s1, y1), (s2, y2) = small, large
    a = max(0.0, (y2 / s2 - y1 / s1) / (s2 - s1))
    return a, max(0.0, y2 / s2 - a * s2)


def largest_length(a: float, b: float, free: float) -> int:
    """The largest S with a * S^2 + b * S <= free."""
    if a <= 0:
        return int(free / b) if b > 0 else 0
    return int((-b + math.sqrt(b * b + 4 * a * free)) / (2 * a))


def forecast(
    program: Program, setup: Setup, rows: dict[str, dict[str, Any]], dtype: torch.dtype, mode: str, device: torch.device
) -> dict[str, Any]:
    """The JSON's `memory_forecast`: for the code as written and the rewrite, the largest S at this B and the largest B at this S.

    Peaks are measured at S and S/2 (L follows S where they are equal); the inputs count.
    """
    free = free_bytes(device) + input_bytes(setup)
    sizes = setup.sizes
    half = replace(sizes, S=max(2, sizes.S // 2), L=max(2, sizes.L // 2) if sizes.L == sizes.S else sizes.L)
    largest: dict[str, dict[str, int] | None] = {}
    for name, version in (("as_written", "as_written"), ("sdpa", "rewritten")):
        peak = rows.get(name, {}).get("peak_bytes")
        if peak is None:
            continue
        try:
            small_setup = program.setup(half, dtype, device, mode)
            small = _peak(Candidate(name, version), small_setup, mode == "train", device) + input_bytes(small_setup)
        except Exception:
            continue
        total = peak + input_bytes(setup)
        a, b = quadratic((half.S, small), (sizes.S, total))
        largest[name] = {"S": largest_length(a, b, free), "B": int(free / (total / sizes.B)) if total else 0}
        del small_setup
        gc.collect()
    return {"free_bytes": free, "largest": largest}


def _peak(candidate: Candidate, setup: Setup, train: bool, device: torch.device) -> int:
    if device.type == "cuda":
        return measure.peak_bytes(candidate, setup, train, device)
    return tracing.trace(measure.step_of(candidate, setup, train), device).peak_bytes
