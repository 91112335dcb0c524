"""Tensors for specs: queries, keys and values in the code's layout, masks in the sense the code expects."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from attn_advisor.lab.job import Sizes
from attn_advisor.lab.roles import Spec, side


def make(spec: Spec, sizes: Sizes, dtype: torch.dtype, device: torch.device, seed: int) -> Any:
    """The argument a spec describes. The values depend on seed and spec only, never on the device's state."""
    if spec.role == "mask":
        return mask(spec, sizes, dtype, device)
    if not spec.axes:
        return spec.value(sizes) if isinstance(spec.value, partial) else spec.value
    generator = torch.Generator(device=device).manual_seed(seed + sum(map(ord, spec.name)))
    order = spec.memory or spec.axes
    shape = [side(letter, sizes) for letter in order]
    if spec.role == "ids":
        return torch.randint(1 if spec.pattern == "first" else sizes.S, shape, generator=generator, device=device)
    values = torch.randn(shape, generator=generator, device=device, dtype=dtype)
    if spec.role == "bias":
        values *= 0.1
    if order != spec.axes:
        values = values.permute([order.index(letter) for letter in spec.axes])
    return Given(values) if spec.kind == "call" else values


class Given(torch.nn.Module):
    """Stands for a method or module that computes a tensor: gives one whatever it is called with."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("value", value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.value


def keep_mask(pattern: str, axes: str, sizes: Sizes, device: torch.device) -> torch.Tensor:
    """True where a query may attend. Causal is aligned at the bottom right; padding hides up to half of the keys, none in the first sample."""
    batch = torch.arange(sizes.B, device=device)
    keys = torch.arange(sizes.S, device=device)
    if pattern == "causal":
        rows = torch.arange(sizes.L, device=device)
        keep = (keys[None, :] <= rows[:, None] + (sizes.S - sizes.L))[None].expand(sizes.B, -1, -1)
    elif pattern == "padding":
        lengths = sizes.S - (batch * sizes.S) // (2 * max(sizes.B, 2))
        keep = (keys[None, :] < lengths[:, None])[:, None].expand(-1, sizes.L, -1)
    else:
        keep = torch.ones(sizes.B, sizes.L, sizes.S, dtype=torch.bool, device=device)
    if "b" not in axes and "n" not in axes:
        keep = keep[0]
        return (keep if "l" in axes else keep[-1]).reshape([side(a, sizes) for a in axes]).contiguous()
    if "n" in axes:
        return keep.repeat_interleave(sizes.H, 0).contiguous()
    if "l" not in axes:
        keep = keep[:, -1]
    return keep.reshape([side(a, sizes) if a != "h" else 1 for a in axes]).contiguous()


def mask(spec: Spec, sizes: Sizes, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The mask in its kind: bool or int (True or 1 hides where `spec.drop`), or additive (0 and the most negative number)."""
    keep = keep_mask(spec.pattern, spec.axes, sizes, device)
    if spec.kind == "additive":
        return torch.zeros(keep.shape, dtype=dtype, device=device).masked_fill(~keep, torch.finfo(dtype).min)
    value = ~keep if spec.drop else keep
    return value if spec.kind == "bool" else value.to(torch.int64)


def make_all(
    specs: Sequence[Spec], sizes: Sizes, dtype: torch.dtype, device: torch.device, seed: int = 0, *, grad: bool = False
) -> dict[str, Any]:
    """All arguments by name; with `grad` those that want a gradient are leaves that require it."""
    values = {spec.name: make(spec, sizes, dtype, device, seed) for spec in specs}
    for spec in specs:
        if grad and spec.grad:
            values[spec.name].requires_grad_()
    return values


def describe(specs: Sequence[Spec], values: dict[str, Any]) -> list[dict[str, Any]]:
    """The JSON's `inputs`: name, role, shape, stride, dtype, requires_grad and, of masks, kind; plain values as `value`."""
    rows: list[dict[str, Any]] = []
    for spec in specs:
        value = values[spec.name]
        row: dict[str, Any] = {"name": spec.name, "role": spec.role}
        if isinstance(value, torch.Tensor):
            row |= {
                "shape": list(value.shape),
                "stride": list(value.stride()),
                "dtype": str(value.dtype).removeprefix("torch."),
            }
            row["requires_grad"] = value.requires_grad
            if spec.role == "mask":
                row["kind"] = f"{spec.pattern} {spec.kind}" + (
                    " (True hides)" if spec.drop and spec.kind != "additive" else ""
                )
        else:
            row["value"] = (
                value if isinstance(value, (int, float, str, bool, type(None), list, tuple)) else repr(value)[:80]
            )
        rows.append(row)
    return rows
