"""Programs whose inputs were recorded from a run of the user's own script."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from attn_advisor.lab import cut as cutting
from attn_advisor.lab import inputs, layouts, recording, roles
from attn_advisor.lab.attention_level import cut_versions
from attn_advisor.lab.job import Sizes
from attn_advisor.lab.loading import load
from attn_advisor.lab.needed import needed
from attn_advisor.lab.programs import CannotRun, Program, Setup, Source, Version, put
from attn_advisor.lab.recording import Call, NotKept, deep
from attn_advisor.lab.roles import Spec, side

SCORES = "bhls"
NAMES = (("h", roles.HEADS), ("d", roles.HEAD_DIM), ("b", roles.BATCH), ("s", roles.KEY_LENGTH), ("l", roles.CONTEXT))


@dataclass
class RecordedProgram(Program):
    """A cut whose arguments and owner are those of one call in the user's script."""

    made: type | None = None
    read: Callable[[bytes, torch.device], Any] = field(default=lambda data, device: None)
    call: Call = field(default_factory=lambda: Call({}, {}, False))
    dtype: torch.dtype = torch.float32
    base: Sizes = field(default_factory=lambda: Sizes(1, 1, 1, 1, 1))

    def setup(self, sizes: Sizes, dtype: torch.dtype, device: torch.device, mode: str, seed: int = 0) -> Setup:
        """The recorded values, for the first samples and heads only where sizes ask for fewer. Raises CannotRun for other lengths."""
        if replace(sizes, B=self.base.B, H=self.base.H) != self.base:
            raise CannotRun("recorded inputs have the lengths they have")
        cast = partial(_cast, dtype=dtype) if dtype != self.dtype else _same
        owner = self._owner(device, dtype)
        values: dict[str, Any] = {}
        for spec in self.specs:
            if isinstance(spec.value, partial) and sizes != self.base:
                values[spec.name] = inputs.make(spec, sizes, dtype, device, seed)
                continue
            value = cast(self.read(self.call.names[spec.name], device))
            if isinstance(value, torch.Tensor):
                value = _first(value, spec.axes, self.base, sizes).detach()
                value.requires_grad_(mode == "train" and spec.grad)
            values[spec.name] = value
        return Setup(values, dict.fromkeys(self.versions, owner), self.versions, self.specs, sizes)

    def _owner(self, device: torch.device, dtype: torch.dtype) -> Any:
        """What stands behind self: an object of the class that has the recorded attributes."""
        if self.made is None:
            owner: Any = types.SimpleNamespace()
        else:
            owner = object.__new__(self.made)
        if isinstance(owner, torch.nn.Module):
            torch.nn.Module.__init__(owner)
        for name, data in self.call.owner.items():
            value = self.read(data, device)
            if isinstance(value, (torch.nn.Module, torch.nn.Parameter)):
                setattr(owner, name, value)
            else:
                put(owner, name, value)
        if isinstance(owner, torch.nn.Module):
            owner.training = self.call.training
            if dtype != self.dtype:
                owner.to(dtype)
        return owner


def program(source: Source) -> RecordedProgram:
    """The program of the call in the job's recorded file. Raises CannotRun if it cannot be read again or does not run."""
    call = Call(**torch.load(source.job.recorded["file"], weights_only=True))
    reader = partial(_read, main=_names_of(Path(source.job.recorded["script"]), source))
    names = cutting.names_read(source.found, source.fixed_cut)
    if lost := {n: why for n, why in call.problems.items() if n in names}:
        raise CannotRun("; ".join(f"`{name}` cannot be recorded: {why}" for name, why in lost.items()))
    names = [n for n in names if n in call.names]
    cpu = torch.device("cpu")
    values = {}
    for name in names:
        try:
            values[name] = reader(call.names[name], cpu)
        except NotKept as error:
            raise CannotRun(f"`{name}` cannot be read again: {error}") from error
    tensors = {k: v for k, v in values.items() if isinstance(v, torch.Tensor)}
    axes, base = layouts.fit(source.job.facts, {k: tuple(v.shape) for k, v in tensors.items()})
    specs = tuple(_spec(source, name, value, axes.get(name), base) for name, value in values.items())
    versions, unavailable = cut_versions(source, source.found, source.fixed_cut)
    if call.autocast:
        versions = {name: _in_autocast(version, call) for name, version in versions.items()}
    dtype = next((t.dtype for t in tensors.values() if t.is_floating_point()), torch.float32)
    small = replace(base, B=min(base.B, 2), H=min(base.H, 3))
    made = source.class_named(source.loaded)
    notes = [*source.notes, *(f"`self.{n}` is left out: {why}" for n, why in call.problems.items() if n not in names)]
    found = RecordedProgram(
        "captured", specs, versions, lambda version, sizes: None, unavailable, notes, small, source.found.rows,
        made=made if inspect.isclass(made) else None, read=reader, call=call, dtype=dtype, base=base,
    )  # fmt: skip
    found.sliceable = bool(axes) and _runs(found, small)
    return found


def _runs(program: RecordedProgram, sizes: Sizes) -> bool:
    try:
        with torch.no_grad():
            program.setup(sizes, torch.float64, torch.device("cpu"), "forward").run("as_written")
    except (Exception, SystemExit):
        return False
    return True


def _read(data: bytes, device: torch.device, main: Callable[[str], Any]) -> Any:
    return recording.read(data, main, device)


def _names_of(script: Path, source: Source) -> Callable[[str], Any]:
    """Looks up a name that the script itself defines, without running the rest of it. Raises AttributeError."""
    tree: ast.Module | None = None

    def find(name: str) -> Any:
        nonlocal tree
        if script == source.path and name in source.loaded.namespace:
            return source.loaded.namespace[name]
        if tree is None:
            tree = ast.parse(script.read_bytes())
        namespace = load(needed(tree, {name}), script, source.root, f"main_{name}").namespace
        if name not in namespace:
            raise AttributeError(f"{script.name} defines no {name}")
        return namespace[name]

    return find


def _in_autocast(version: Version, call: Call) -> Version:
    kind, dtype = torch.device(call.device).type, getattr(torch, call.autocast)

    def run(owner: Any, values: dict[str, Any]) -> torch.Tensor:
        with torch.autocast(kind, dtype):
            return version(owner, values)

    return run


def _same(value: Any) -> Any:
    return value


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return deep(value, lambda t: t.to(dtype) if t.is_floating_point() else t)


def _first(value: torch.Tensor, axes: str, base: Sizes, sizes: Sizes) -> torch.Tensor:
    """The first samples and heads of a tensor."""
    for at, letter in enumerate(axes):
        wanted = side(letter, sizes)
        if letter in "bhnc" and value.shape[at] == side(letter, base) > wanted:
            value = value.narrow(at, 0, wanted)
    return value


def _spec(source: Source, name: str, value: Any, axes: str | None, sizes: Sizes) -> Spec:
    """Role by the detection's facts or the name; axes of other tensors as they broadcast against the scores, or by their lengths."""
    if isinstance(value, torch.Tensor):
        facts = source.job.facts
        role = next((r for r in ("query", "key", "value") if axes and facts.get(r, "").find(name) >= 0), "recorded")
        masks = value.dtype == torch.bool or (axes is None and roles.means(roles.MASK, name))
        axes = axes or _broadcast(tuple(value.shape), sizes)
        kind = "bool" if value.dtype == torch.bool else "additive" if value.is_floating_point() else "int"
        return Spec(name, "mask" if masks else role, axes, pattern="recorded", kind=kind, grad=value.requires_grad)
    if isinstance(value, float) and roles.means(roles.DROPOUT, name):
        return Spec(name, "dropout", value=value)
    if isinstance(value, int) and not isinstance(value, bool):
        named = [letter for letter, pattern in NAMES if roles.means(pattern, name)]
        letter = next((x for x in (*named, *"lsdhbnc") if side(x, sizes) == value), "")
        if letter:
            return Spec(name, "size", value=partial(side, letter))
    return Spec(name, "recorded", value=value)


def _broadcast(shape: tuple[int, ...], sizes: Sizes) -> str:
    letters = SCORES[len(SCORES) - len(shape) :] if len(shape) <= len(SCORES) else ""
    if letters and all(n in (1, side(x, sizes)) for n, x in zip(shape, letters)):
        return letters
    left, found = list("bhlsdcn"), ""
    for length in shape:
        letter = next((x for x in left if side(x, sizes) == length), "1")
        left = [x for x in left if x != letter]
        found += letter
    return found
