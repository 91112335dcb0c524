"""Attention-level programs whose inputs are captured: the module is built and run, and what its attention reads is kept.

Used where no inputs for the cut can be made up from names alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from attn_advisor.lab import inputs, instantiate, module_level, transform
from attn_advisor.lab.job import Sizes
from attn_advisor.lab.programs import CannotRun, Program, Setup, Source, Version
from attn_advisor.lab.roles import Spec, side

LETTERS = "bhlsdcnyx"


class _Captured(Exception):
    """Ends the forward once its attention is reached."""


@dataclass
class CapturedProgram(Program):
    """A cut whose arguments come from a run of the module around it."""

    module_specs: tuple[Spec, ...] = ()
    seen: dict[str, Any] = field(default_factory=dict)

    def setup(self, sizes: Sizes, dtype: torch.dtype, device: torch.device, mode: str, seed: int = 0) -> Setup:
        owner = (
            self.owner("as_written", sizes).to(device=device, dtype=dtype).train(mode == "train").requires_grad_(False)
        )
        arguments = inputs.make_all(self.module_specs, sizes, dtype, device, seed)
        found = captured(owner, arguments, self.seen)
        values = {spec.name: _leaf(found[spec.name], mode == "train" and spec.grad) for spec in self.specs}
        return Setup(values, dict.fromkeys(self.versions, owner), self.versions, self.specs, sizes)


def captured(owner: Any, arguments: dict[str, Any], seen: dict[str, Any]) -> dict[str, Any]:
    """The local variables at the attention when the module is called. Raises CannotRun if it is not reached."""
    seen.clear()
    try:
        with torch.no_grad():
            owner(**arguments)
    except _Captured:
        return dict(seen)
    raise CannotRun("the attention was not reached")


def _leaf(value: Any, grad: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().requires_grad_(grad and value.is_floating_point())


def program(
    source: Source, free: list[str], versions: dict[str, Version], unavailable: dict[str, str], problem: str
) -> CapturedProgram:
    """A program for the cut's versions, which take the names `free`. Raises CannotRun with both problems if the module cannot be built either."""
    try:
        made = module_level.module_class(source)
        place, module_specs, tiny = module_level.solved(source, made)
    except CannotRun as error:
        raise CannotRun(f"{problem}; {error}") from error
    seen: dict[str, Any] = {}

    def capture(names: dict[str, Any]) -> None:
        seen.update(names)
        raise _Captured

    tree = transform.capturing(source.tree, source.found.statements)
    loaded = source.load(tree, "captured", {transform.CAPTURE: capture})
    again = source.class_named(loaded)
    assert again is not None

    def owner(version: str, sizes: Sizes) -> Any:
        return instantiate.rebuild(again, sizes, loaded.namespace, source.constructor_overrides(), place)

    arguments = inputs.make_all(module_specs, tiny, torch.float32, torch.device("cpu"))
    found = captured(owner("", tiny).eval(), arguments, seen)
    missing = [name for name in free if name not in found]
    if missing:
        raise CannotRun(f"{problem}; {', '.join(missing)} is not set before the attention")
    specs = tuple(_spec(source, name, found[name], tiny) for name in free)
    notes = [*source.notes, "the attention's inputs were captured from a run of the module"]
    return CapturedProgram(
        "attention",
        specs,
        versions,
        owner,
        unavailable,
        notes,
        tiny,
        source.found.rows,
        module_specs=module_specs,
        seen=seen,
    )


def _spec(source: Source, name: str, value: Any, tiny: Sizes) -> Spec:
    """Role by the detection's facts, axes by the lengths at a size where nearly all differ (`slices.plan` proves them)."""
    facts = source.job.facts
    role = next((r for r in ("query", "key", "value") if facts.get(r) == name), "captured")
    if isinstance(value, torch.Tensor):
        role = "mask" if value.dtype == torch.bool else role
        axes = "".join(_letter(length, tiny) for length in value.shape)
        return Spec(name, role, axes, pattern="captured", kind="bool", grad=value.is_floating_point())
    letter = _letter(value, tiny) if isinstance(value, int) and not isinstance(value, bool) else "1"
    return (
        Spec(name, "size", value=partial(side, letter)) if letter not in "1?" else Spec(name, "captured", value=value)
    )


def _letter(length: int, tiny: Sizes) -> str:
    return "1" if length == 1 else next((a for a in LETTERS if side(a, tiny) == length), "?")
