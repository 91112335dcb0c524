"""Does a candidate compute what the code as written computes? Judged against float64, by the rule in the JSON's contract.

`ok`: the largest absolute error of the output, and of each gradient in train mode, is at most twice that of the code as written in the same
dtype, plus 1e-5. Where the reference itself is not finite the candidate is free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from attn_advisor.lab import slices
from attn_advisor.lab.programs import Program, Setup
from attn_advisor.lab.slices import Plan, Results

SLACK = 1e-5
FACTOR = 2.0


@dataclass(frozen=True)
class Errors:
    """Largest absolute differences from the reference; gradient is None in forward mode."""

    output: float
    gradient: float | None


@dataclass
class Reference:
    """Float64 results, and the errors of the code as written in the measured dtype."""

    results: Results
    written: Errors | None = None
    note: str = ""


def heads_that_fit(setup: Setup, device: torch.device) -> int:
    """How many heads of one sample a float64 run may hold at once: ten score matrices each, within a third of the free memory."""
    sizes = setup.sizes
    one = 10 * 8 * sizes.L * sizes.S
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 2 << 30
    return max(1, min(sizes.H, int(free / 3 / one)))


def reference(program: Program, setup: Setup, how: Plan, train: bool, device: torch.device) -> Reference:
    """Float64 values of the code as written, slice by slice. In float32 where the code itself insists on a dtype."""
    try:
        return Reference(slices.run(program, setup, how, torch.float64, train, heads_that_fit(setup, device)))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if "dtype" not in str(error) and "scalar type" not in str(error):
            raise
        results = slices.run(program, setup, how, torch.float32, train, heads_that_fit(setup, device))
        return Reference(
            results,
            note=f"the code does not run in float64 ({str(error).splitlines()[0][:120]}): the reference is float32",
        )


def difference(value: torch.Tensor, wanted: torch.Tensor) -> float:
    """Largest absolute difference where `wanted` is finite; infinity if the shapes differ or the value is not finite there."""
    if value.shape != wanted.shape:
        return math.inf
    largest = 0.0
    rows = max(1, value.shape[0]) if value.dim() else 1
    for a, b in zip(
        value.reshape(rows, -1), wanted.reshape(rows, -1)
    ):  # a row at a time: no second copy of everything in float64
        gap = torch.where(torch.isfinite(b), a.double() - b.double(), 0.0).abs().max() if a.numel() else a.new_zeros(())
        number = float(gap)
        largest = math.inf if math.isnan(number) else max(largest, number)
    return largest


def errors(found: Results, wanted: Results, train: bool) -> Errors:
    """Differences of output and gradients. A gradient that only one side has counts as infinite, unless it is zero."""
    gradient: float | None = None
    if train:
        gradient = 0.0
        for name, value in wanted.grads.items():
            other = found.grads.get(name)
            gap = difference(other, value) if other is not None else (0.0 if not value.any() else math.inf)
            gradient = max(gradient, gap)
    return Errors(difference(found.output, wanted.output), gradient)


def verdict(found: Errors, written: Errors) -> str:
    """Empty if the candidate agrees, else the reason it does not."""
    limit = FACTOR * written.output + SLACK
    if not found.output <= limit:
        return f"output differs from float64 by {found.output:.3g}; the code as written by {written.output:.3g} (limit {limit:.3g})"
    if found.gradient is not None and written.gradient is not None:
        limit = FACTOR * written.gradient + SLACK
        if not found.gradient <= limit:
            return f"gradients differ from float64 by {found.gradient:.3g}; those of the code as written by {written.gradient:.3g} (limit {limit:.3g})"
    return ""
