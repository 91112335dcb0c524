"""Runnable versions of one detected attention, at the attention and at the module level.

A `Program` holds the versions (as written, in place, rewritten, and one whose lines are marked), the arguments they all take, and
what stands behind `self`. `setup` makes all of it concrete for given sizes, dtype, device and mode.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from attn_advisor.lab import cut as cutting
from attn_advisor.lab import inputs, roles
from attn_advisor.lab.job import Job, Sizes
from attn_advisor.lab.loading import Loaded, load
from attn_advisor.lab.needed import names_around, needed
from attn_advisor.lab.roles import Spec

TINY_ATTENTION = (Sizes(2, 3, 5, 5, 4), Sizes(2, 3, 5, 7, 4))
TINY_MODULE = (Sizes(3, 4, 16, 16, 8), Sizes(3, 4, 49, 49, 8))
VERSIONS = ("as_written", "inplace", "rewritten", "marked")


class CannotRun(Exception):
    """No program can be made at this level; the message says what is missing and how to give it."""


Version = Callable[[Any, dict[str, Any]], torch.Tensor]


@dataclass
class Setup:
    """A program made concrete: `run(version)` is one forward on the same arguments and weights."""

    values: dict[str, Any]
    owners: dict[str, Any]
    versions: dict[str, Version]
    specs: tuple[Spec, ...]
    sizes: Sizes

    def run(self, version: str) -> torch.Tensor:
        return self.versions[version](self.owners.get(version), self.values)


@dataclass
class Program:
    """Versions of one attention, their arguments and their owner."""

    level: str
    specs: tuple[Spec, ...]
    versions: dict[str, Version]
    owner: Callable[[str, Sizes], Any]
    """Makes what stands behind `self` for a version and sizes; None where there is none."""
    unavailable: dict[str, str] = field(default_factory=dict)
    """Why a version does not exist."""
    notes: list[str] = field(default_factory=list)
    tiny: Sizes = TINY_ATTENTION[0]
    """The size at which the program was found to run."""
    rows: tuple[int, int] = (0, 0)
    """First and last row of the attention in the file."""
    sliceable: bool = True
    """Whether it can be made for fewer samples and heads."""

    def setup(self, sizes: Sizes, dtype: torch.dtype, device: torch.device, mode: str, seed: int = 0) -> Setup:
        """Arguments and owners on the device. Raises what the user's constructor raises."""
        train = mode == "train"
        owners: dict[str, Any] = {}
        first: Any = None
        for version in self.versions:
            if self.level == "attention" and first is not None:
                owners[version] = first  # one object serves all versions of a cut
                continue
            owner = self.owner(version, sizes)
            if isinstance(owner, torch.nn.Module):
                if first is not None:
                    _share_weights(first, owner)
                owner.to(device=device, dtype=dtype).train(train)
                owner.requires_grad_(train and self.level == "module")
            first = owner if first is None else first
            owners[version] = owner
        plain = tuple(s for s in self.specs if not s.name.startswith("self."))
        values = inputs.make_all(plain, sizes, dtype, device, seed, grad=train)
        for name, value in values.items():
            if isinstance(value, torch.nn.Module):  # a dropout handed in as an argument
                values[name] = copy.deepcopy(value).train(train)
        for spec in self.specs:
            if spec.name.startswith("self."):
                put(first, spec.name[5:], inputs.make(spec, sizes, dtype, device, seed))
        return Setup(values, owners, self.versions, plain, sizes)


def _share_weights(source: torch.nn.Module, target: torch.nn.Module) -> None:
    """The same parameters and buffers; buffers that exist in one only (a rewrite may drop a mask) stay."""
    target.load_state_dict(source.state_dict(), strict=False)
    for name, buffer in source.named_buffers():
        with contextlib.suppress(AttributeError):
            target.get_buffer(name).data = buffer.data.clone()


def put(owner: Any, name: str, value: Any) -> None:
    """Give what stands behind `self` an attribute."""
    if isinstance(owner, torch.nn.Module) and isinstance(value, torch.Tensor):
        owner.register_buffer(name, value)
    else:
        object.__setattr__(owner, name, value) if isinstance(owner, torch.nn.Module) else setattr(owner, name, value)


def first_tensor(output: Any) -> torch.Tensor:
    """The first floating tensor of whatever a forward returns. Raises CannotRun if there is none."""
    if isinstance(output, torch.Tensor) and output.is_floating_point():
        return output
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, (tuple, list)) else ()
    for part in parts:
        if isinstance(part, (torch.Tensor, tuple, list, dict)):
            with contextlib.suppress(CannotRun):
                return first_tensor(part)
    raise CannotRun("no floating tensor is returned")


class Source:
    """The job's file, parsed and cut, with its versions loaded."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.path = Path(job.path)
        self.root = Path(job.root) if job.root else None
        cuts = cutting.cuts(job)
        self.tree, self.found = cuts.tree, cuts.found
        self.fixed_tree, self.fixed_cut = cuts.fixed_tree, cuts.fixed
        self.loaded = self.load(self.tree, "as_written")

    def load(self, tree: ast.Module, suffix: str, names: dict[str, Any] | None = None) -> Loaded:
        if self.job.recorded:  # the file may be the script itself, which is not to run again
            tree = needed(tree, names_around(tree, self.found.class_name or self.found.function.name))
        return load(tree, self.path, self.root, suffix, names)

    def no_rewrite(self) -> str:
        """Why there is no rewritten version."""
        if self.job.fixed_text is not None:
            return "the rewritten statements cannot be cut out"
        return "; ".join(self.job.blockers) or "no rewrite is known"

    @property
    def notes(self) -> list[str]:
        """What of the file could not be imported or run."""
        return (
            [f"not importable here, replaced by placeholders: {', '.join(self.loaded.missing[:6])}"]
            if self.loaded.missing
            else []
        )

    def class_named(self, loaded: Loaded) -> type | None:
        name = self.found.class_name
        made = loaded.namespace.get(name) if name else None
        return made if inspect.isclass(made) else None

    def class_node(self) -> ast.ClassDef | None:
        nodes = (n for n in ast.walk(self.tree) if isinstance(n, ast.ClassDef) and n.name == self.found.class_name)
        return next(nodes, None)

    def constructor_overrides(self) -> dict[str, Any]:
        """What the user gave for the constructor and for config objects."""
        return {**self.overrides("config"), **self.overrides("init")}

    def overrides(self, part: str) -> dict[str, Any]:
        """Values the user gave under [tool.attn-advisor.profile] for this class: `init`, `config` or `forward`."""
        table = self.job.overrides.get(self.found.class_name or "", {})
        return dict(table.get(part, {})) if isinstance(table, dict) else {}


def mark(row: int) -> Any:
    """What marked code calls around each statement: a range that the profiler records."""
    return torch.profiler.record_function(f"attn_advisor:{row}")


@contextlib.contextmanager
def no_dropout(setup: Setup) -> Iterator[None]:
    """Every dropout rate of arguments and owners is 0 inside, so that versions can be compared in training mode."""
    undo: list[Callable[[], None]] = []

    def put(target: Any, name: str, value: Any) -> None:
        old = getattr(target, name)
        undo.append(lambda: setattr(target, name, old))
        setattr(target, name, value)

    for owner in {id(o): o for o in (*setup.owners.values(), *setup.values.values())}.values():
        for module in owner.modules() if isinstance(owner, torch.nn.Module) else ():
            for key, value in list(vars(module).items()):
                rate = isinstance(value, float) and (
                    roles.means(r".*drop.*", key) or isinstance(module, torch.nn.modules.dropout._DropoutNd)
                )
                if rate:
                    put(module, key, 0.0)
    saved = dict(setup.values)
    for spec in setup.specs:
        if spec.role == "dropout":
            setup.values[spec.name] = 0.0
    try:
        yield
    finally:
        setup.values.update(saved)
        for action in reversed(undo):
            action()


def doubled(owner: Any) -> Any:
    """A float64 copy of an owner."""
    return copy.deepcopy(owner).double() if isinstance(owner, torch.nn.Module) else copy.deepcopy(owner)
