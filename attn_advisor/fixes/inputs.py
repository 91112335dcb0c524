"""Generated inputs: what a piece of code is called with, described without torch, built with it.

A `Recipe` says how to build a module and call it; `cases(recipe)` lists concrete calls, smallest first. Shapes may name sizes ("B", "L"), which
each entry of `Recipe.dims` fixes; the name "*" stands for any number of leading axes.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    import torch

Size: TypeAlias = int | str
Shape = tuple[Size, ...]
Dims: TypeAlias = dict[str, int | tuple[int, ...]]
MaskForm = Literal["bool", "int", "uint8", "float01", "additive", "finite", "bias"]
Sense = Literal["keep", "drop", "any"]
Rows = Literal["random", "empty", "full", "causal"]


@dataclass(frozen=True)
class Tensor:
    """Normal floats of the run's dtype, which want a gradient unless told otherwise."""

    shape: Shape
    grad: bool = True


@dataclass(frozen=True)
class Mask:
    """A mask over scores, its last axis the keys.

    forms: bool; int, uint8 and float01 (0 and 1); additive (0 and -inf), finite (0 and -1e9), bias (normal floats that want a gradient).
    sense: what True or 1 means; "any" makes rows that keep something either way.
    empty: whether rows that hide every key are tried too.
    """

    shape: Shape
    forms: tuple[MaskForm, ...] = ("bool",)
    sense: Sense = "any"
    empty: bool = True


@dataclass(frozen=True)
class Ids:
    """Whole numbers below `high`."""

    shape: Shape
    high: int


@dataclass(frozen=True)
class Value:
    """Any plain object, passed as it is; a string that names a size is not looked up."""

    value: Any


@dataclass(frozen=True)
class Dim:
    """A size, passed as a number."""

    name: str


@dataclass(frozen=True)
class Many:
    """A tuple or list of arguments (a key-value cache, a fused q, k, v)."""

    items: tuple[Any, ...]
    kind: type = tuple


@dataclass(frozen=True)
class Choice:
    """Alternatives of which each is tried; the first is the usual one."""

    items: tuple[Any, ...]


def optional(spec: Any) -> Choice:
    """The argument given, and None."""
    return Choice((spec, Value(None)))


Spec: TypeAlias = Tensor | Mask | Ids | Value | Dim | Many | Choice


@dataclass(frozen=True)
class Recipe:
    """How to call a function, or to build a module and call one of its methods.

    `dims` are the sizes tried, the first the usual ones. `init` holds the constructor's arguments, plain objects or a function without
    arguments that makes them (for config objects that a constructor may change).
    """

    arguments: dict[str, Spec]
    dims: tuple[Dims, ...] = ({},)
    init: dict[str, Any] = field(default_factory=dict)
    init_args: tuple[Any, ...] = ()
    method: str = ""
    positional: bool = False  # pass arguments by position, for functions with other parameter names


@dataclass(frozen=True)
class Case:
    """One concrete call: every choice made, sizes fixed."""

    arguments: dict[str, Spec]
    dims: Dims
    rows: Rows
    strided: bool = (
        False  # 4-D tensors are built with their middle axes exchanged in memory, as heads split from a projection are
    )
    positional: bool = False

    def __str__(self) -> str:
        parts = [f"{name}: {_describe(spec, self)}" for name, spec in self.arguments.items()]
        return ", ".join(parts) + (" (not contiguous)" if self.strided else "")

    @property
    def has_mask(self) -> bool:
        return any(isinstance(s, Mask) for s in self.arguments.values())


def _describe(spec: Spec, case: Case) -> str:
    if isinstance(spec, Tensor):
        return f"float {resolve(spec.shape, case.dims)}"
    if isinstance(spec, Mask):
        rows = {"random": "no empty row", "empty": "with empty rows", "full": "nothing masked", "causal": "causal"}[
            case.rows
        ]
        return f"{spec.forms[0]} mask {resolve(spec.shape, case.dims)}" + (
            "" if spec.forms[0] == "bias" else f", {rows}"
        )
    if isinstance(spec, Ids):
        return f"ids {resolve(spec.shape, case.dims)}"
    if isinstance(spec, Dim):
        return str(case.dims[spec.name])
    if isinstance(spec, Many):
        return f"({', '.join(_describe(item, case) for item in spec.items)})"
    return repr(spec.value) if isinstance(spec, Value) else str(spec)


def resolve(shape: Shape, dims: Dims) -> tuple[int, ...]:
    """The shape in numbers."""
    sizes: list[int] = []
    for size in shape:
        value = dims[size] if isinstance(size, str) else size
        sizes += value if isinstance(value, tuple) else (value,)
    return tuple(sizes)


def _choices(spec: Spec) -> list[Spec]:
    if isinstance(spec, Choice):
        return [choice for item in spec.items for choice in _choices(item)]
    if isinstance(spec, Mask):
        return [Mask(spec.shape, (form,), spec.sense, spec.empty) for form in spec.forms]
    if isinstance(spec, Many):
        return [Many(items, spec.kind) for items in itertools.product(*(_choices(item) for item in spec.items))]
    return [spec]


def _masks(specs: Any) -> Iterator[Mask]:
    for spec in specs:
        if isinstance(spec, Mask):
            yield spec
        elif isinstance(spec, Many):
            yield from _masks(spec.items)


def cases(recipe: Recipe, limit: int = 24) -> list[Case]:
    """The calls to try, smallest tensors first. Every choice of every argument occurs; their product is sampled above the limit."""
    names = list(recipe.arguments)
    combinations = list(itertools.product(*(_choices(recipe.arguments[name]) for name in names)))
    if len(combinations) > limit:
        combinations = _covering(combinations, limit)
    found: list[Case] = []
    for number, dims in enumerate(recipe.dims):
        for combination in (
            combinations if number == 0 else combinations[:1] + combinations[-1:][: len(combinations) - 1]
        ):
            masks = [mask for mask in _masks(combination) if mask.forms[0] != "bias"]
            kinds: list[Rows] = ["random"]
            if masks:
                kinds += ["full"] if number == 0 else []
                kinds += ["empty"] if any(mask.empty for mask in masks) else []
            for rows in kinds:
                found.append(Case(dict(zip(names, combination, strict=True)), dims, rows, positional=recipe.positional))
    first = found[0]
    found.append(Case(first.arguments, first.dims, first.rows, True, recipe.positional))
    return sorted(found, key=lambda case: sum(_elements(spec, case.dims) for spec in case.arguments.values()))


def _covering(combinations: list[tuple[Spec, ...]], limit: int) -> list[tuple[Spec, ...]]:
    """The first, then a fixed sample in which every single choice occurs."""
    kept: list[tuple[Spec, ...]] = []
    seen: set[tuple[int, str]] = set()
    for combination in combinations:
        new = {(at, repr(spec)) for at, spec in enumerate(combination)} - seen
        if new:
            kept.append(combination)
            seen |= new
    rest = [c for c in combinations if c not in kept]
    return kept + random.Random(0).sample(rest, min(len(rest), max(0, limit - len(kept))))


def _elements(spec: Spec, dims: Dims) -> int:
    if isinstance(spec, Many):
        return sum(_elements(item, dims) for item in spec.items)
    if not isinstance(spec, (Tensor, Mask, Ids)):
        return 0
    total = 1
    for size in resolve(spec.shape, dims):
        total *= size
    return total


def build(case: Case, dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> dict[str, Any]:
    """Fresh arguments of the case; the same seed gives the same values in every dtype."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return {name: _build(spec, case, dtype, device, generator) for name, spec in case.arguments.items()}


def _build(spec: Spec, case: Case, dtype: torch.dtype, device: str, generator: torch.Generator) -> Any:
    import torch

    if isinstance(spec, Value):
        return spec.value
    if isinstance(spec, Dim):
        return case.dims[spec.name]
    if isinstance(spec, Many):
        return spec.kind(_build(item, case, dtype, device, generator) for item in spec.items)
    if isinstance(spec, Ids):
        return torch.randint(spec.high, resolve(spec.shape, case.dims), generator=generator).to(device)
    if isinstance(spec, Tensor):
        shape = resolve(spec.shape, case.dims)
        value = torch.randn(shape, generator=generator, dtype=torch.float64).to(device=device, dtype=dtype)
        if case.strided and len(shape) == 4:
            value = value.transpose(1, 2).contiguous().transpose(1, 2)
        return value.requires_grad_(spec.grad)
    assert isinstance(spec, Mask)
    return _mask(spec, resolve(spec.shape, case.dims), case.rows, dtype, device, generator)


def _mask(
    spec: Mask, shape: tuple[int, ...], rows: Rows, dtype: torch.dtype, device: str, generator: torch.Generator
) -> torch.Tensor:
    import torch

    form = spec.forms[0]
    if form == "bias":
        return (
            torch.randn(shape, generator=generator, dtype=torch.float64).to(device=device, dtype=dtype).requires_grad_()
        )
    keep = torch.rand(shape, generator=generator) < 0.6
    last = shape[-1] if shape else 1
    if rows == "full":
        keep = torch.ones(shape, dtype=torch.bool)
    elif rows == "causal":
        keep = torch.ones(shape, dtype=torch.bool).tril()
    elif shape:  # every row keeps its first cell, so that several masks and a causal one together empty no row
        keep[..., 0] = True
        if len(shape) > 1:  # and every column its first, for scores laid out (keys, queries)
            keep[..., 0, :] = True
        if spec.sense == "any" and last > 1:  # where either sense is possible, one cell of the other kind
            keep[..., 1] = False
    additive = form in ("additive", "finite")
    sense = "keep" if additive else spec.sense
    if rows == "empty" and spec.empty:
        hidden = torch.rand(shape[:-1], generator=generator) < 0.3
        if hidden.numel():
            hidden.view(-1)[0] = True
        if sense == "any":  # half of the rows all True, half all False
            value = torch.rand(shape[:-1], generator=generator) < 0.5
            if hidden.numel() > 1:
                hidden.view(-1)[-1] = True
                value.view(-1)[0], value.view(-1)[-1] = True, False
            keep = torch.where(hidden.unsqueeze(-1), value.unsqueeze(-1).expand(shape), keep)
        else:
            keep = keep & ~hidden.unsqueeze(-1)
    if additive:
        hide = float("-inf") if form == "additive" else -1e9
        return (
            torch.zeros(shape, dtype=dtype)
            .masked_fill(~keep, max(hide, torch.finfo(dtype).min) if form == "finite" else hide)
            .to(device)
        )
    value = ~keep if sense == "drop" else keep
    kinds = {"bool": torch.bool, "int": torch.int64, "uint8": torch.uint8, "float01": dtype}
    return value.to(device=device, dtype=kinds[form])
