"""Running a program slice by slice over batch and heads, so that a float64 reference fits wherever the program itself fits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from attn_advisor.lab import inputs
from attn_advisor.lab.job import Sizes
from attn_advisor.lab.programs import Program, Setup, doubled, no_dropout
from attn_advisor.lab.roles import Spec, side

OUTPUTS = (
    "bhld",
    "blhd",
    "blc",
    "nld",
    "lbc",
    "lnd",
    "bcl",
    "bcyx",
    "byxc",
    "bhdl",
    "bld",
    "lbhd",
    "hbld",
    "ld",
    "lc",
    "nle",
)


@dataclass(frozen=True)
class Plan:
    """How a program may be sliced: over batch, over heads, and the axes of its output (empty: not at all)."""

    batch: bool
    heads: bool
    output: str


@dataclass
class Results:
    """A forward's output and, in train mode, the gradient of each leaf by name."""

    output: torch.Tensor
    grads: dict[str, torch.Tensor]


def leaves(setup: Setup, version: str) -> dict[str, torch.Tensor]:
    """Tensors that want a gradient by name: arguments, then the owner's parameters."""
    found = {k: v for k, v in setup.values.items() if isinstance(v, torch.Tensor) and v.requires_grad}
    owner = setup.owners.get(version)
    if isinstance(owner, torch.nn.Module):
        found |= {f"self.{k}": p for k, p in owner.named_parameters() if p.requires_grad}
    return found


def gradient_of(output: torch.Tensor, seed: int = 1) -> torch.Tensor:
    """The fixed gradient that every candidate gets for its output."""
    generator = torch.Generator(device=output.device).manual_seed(seed)
    return torch.randn(output.shape, generator=generator, device=output.device, dtype=output.dtype)


def backward(output: torch.Tensor, wanted: dict[str, torch.Tensor], gradient: torch.Tensor) -> dict[str, torch.Tensor]:
    """Gradients of the wanted tensors; those that do not take part are left out."""
    if not output.requires_grad:
        return {}
    grads = torch.autograd.grad(output, list(wanted.values()), gradient, allow_unused=True)
    return {name: grad for name, grad in zip(wanted, grads) if grad is not None}


def whole(setup: Setup, version: str, train: bool) -> Results:
    """One run on everything, dropout off."""
    with no_dropout(setup), torch.set_grad_enabled(train):
        output = setup.run(version)
        grads = backward(output, leaves(setup, version), gradient_of(output)) if train else {}
    return Results(output.detach(), grads)


def taken(tensor: torch.Tensor, axes: str, sizes: Sizes, b: int | None, heads: tuple[int, int]) -> torch.Tensor:
    """The part of a tensor that belongs to one sample (all with None) and a range of heads."""
    h0, h1 = heads
    for at, letter in enumerate(axes):
        if tensor.shape[at] == 1 and side(letter, sizes) != 1:
            continue  # broadcast axis
        if letter == "b" and b is not None and tensor.shape[at] == sizes.B:
            tensor = tensor.narrow(at, b, 1)
        elif letter == "h" and tensor.shape[at] == sizes.H:
            tensor = tensor.narrow(at, h0, h1 - h0)
        elif letter == "n" and b is not None:
            tensor = tensor.narrow(at, b * sizes.H + h0, h1 - h0)
        elif letter == "c" and (h0, h1) != (0, sizes.H):
            tensor = tensor.narrow(at, h0 * sizes.D, (h1 - h0) * sizes.D)
    return tensor


def output_axes(output: torch.Tensor, sizes: Sizes) -> str:
    """Axis letters of an output, told by its lengths at a size where all differ; empty if they fit no known layout."""
    for axes in OUTPUTS:
        if tuple(side(a, sizes) for a in axes) == tuple(output.shape):
            return axes
    return ""


def plan(program: Program, tiny: Sizes, train: bool) -> Plan:
    """How the program may be sliced, proved by comparing slices with the whole at a tiny size."""
    if not program.sliceable:
        return Plan(False, False, "")
    setup = program.setup(tiny, torch.float64, torch.device("cpu"), "train" if train else "forward")
    full = whole(setup, "as_written", train)
    axes = output_axes(full.output, tiny)
    for option in (Plan(True, True, axes), Plan(True, False, axes)):
        if not axes or not ("b" in axes or "n" in axes) or ("n" in axes and not option.heads):
            continue
        with contextlib.suppress(Exception):
            sliced = run(program, setup, option, torch.float64, train, 1)
            same = _close(sliced.output, full.output) and full.grads.keys() == sliced.grads.keys()
            if same and all(_close(sliced.grads[k], full.grads[k]) for k in full.grads):
                return option
    return Plan(False, False, axes)


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-5, atol=1e-5, equal_nan=True)


def run(program: Program, setup: Setup, how: Plan, dtype: torch.dtype, train: bool, heads_at_once: int) -> Results:
    """The code as written, in another dtype, slice by slice; outputs and gradients put together as for one run on everything."""
    sizes, owner = setup.sizes, setup.owners.get("as_written")
    owner = doubled(owner) if dtype == torch.float64 else owner
    device = next((v.device for v in setup.values.values() if isinstance(v, torch.Tensor)), torch.device("cpu"))
    output: torch.Tensor | None = None
    grads: dict[str, torch.Tensor] = {}
    shape = _output_shape(how, sizes)
    gradient = gradient_of(torch.empty(shape, device=device, dtype=_dtype(setup))) if shape else None
    for b, heads in _pieces(how, sizes, heads_at_once):
        part = _part(setup, owner, b, heads, dtype, device)
        with no_dropout(part), torch.set_grad_enabled(train):
            made = part.run("as_written")
            output = torch.empty(shape or made.shape, device=device, dtype=made.dtype) if output is None else output
            where = taken(output, how.output, sizes, b, heads)
            where.copy_(made.detach())
            if train:
                upstream = (
                    gradient_of(made.to(_dtype(setup)))
                    if gradient is None
                    else taken(gradient, how.output, sizes, b, heads)
                )
                found = backward(made, leaves(part, "as_written"), upstream.to(made.dtype))
                _gather(grads, found, setup, b, heads)
        del made
    assert output is not None
    return Results(output, grads)


def _dtype(setup: Setup) -> torch.dtype:
    return next(v.dtype for v in setup.values.values() if isinstance(v, torch.Tensor) and v.is_floating_point())


def _output_shape(how: Plan, sizes: Sizes) -> tuple[int, ...] | None:
    return tuple(side(a, sizes) for a in how.output) if how.batch or how.heads else None


def _pieces(how: Plan, sizes: Sizes, heads_at_once: int) -> Iterator[tuple[int | None, tuple[int, int]]]:
    for b in range(sizes.B) if how.batch else (None,):
        step = max(1, heads_at_once) if how.heads else sizes.H
        for h in range(0, sizes.H, step):
            yield b, (h, min(h + step, sizes.H))


def _part(
    setup: Setup, owner: Any, b: int | None, heads: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> Setup:
    """The setup of one slice: tensors narrowed and cast, numbers as for the slice's sizes."""
    sizes = setup.sizes
    smaller = replace(sizes, B=sizes.B if b is None else 1, H=heads[1] - heads[0])
    values: dict[str, Any] = {}
    for spec in setup.specs:
        value = setup.values[spec.name]
        if isinstance(value, torch.Tensor):
            piece = taken(value.detach(), spec.axes, sizes, b, heads)
            piece = piece.to(dtype) if piece.is_floating_point() else piece
            values[spec.name] = piece.clone(memory_format=torch.preserve_format).requires_grad_(value.requires_grad)
        else:
            values[spec.name] = _plain(spec, value, smaller, device)
    return Setup(values, {"as_written": owner}, setup.versions, setup.specs, smaller)


def _plain(spec: Spec, value: Any, sizes: Sizes, device: torch.device) -> Any:
    return inputs.make(spec, sizes, torch.float64, device, 0) if isinstance(spec.value, partial) else value


def _gather(
    grads: dict[str, torch.Tensor], found: dict[str, torch.Tensor], setup: Setup, b: int | None, heads: tuple[int, int]
) -> None:
    axes = {spec.name: spec.axes for spec in setup.specs}
    for name, grad in found.items():
        if name in axes:
            if name not in grads:
                grads[name] = torch.zeros(setup.values[name].shape, dtype=grad.dtype, device=grad.device)
            taken(grads[name], axes[name], setup.sizes, b, heads).add_(grad)
        else:
            grads[name] = grads[name] + grad if name in grads else grad
