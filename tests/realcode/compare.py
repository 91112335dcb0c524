"""Runs one class as it was and as it is after fixing, with the same weights and inputs, and says where they differ.

Values and gradients are compared in float64; float32, bfloat16 and autocast runs compare shapes, dtypes and finiteness
and, loosely, values. Where the original is not finite, or raises, the fixed code is free.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from tests.realcode.recipe import Given, Recipe
from tests.realcode.trees import Tree

EXACT, SINGLE = 1e-9, 1e-5  # float64 tolerances: as such, and where the source itself casts to float32
DROPOUT_ATTRIBUTES = ("p", "dropout", "dropout_p", "attn_dropout", "attention_dropout", "activation_dropout")


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of a nested output with its path; tensors and other values alike."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}")
    elif isinstance(value, (tuple, list)):
        yield f"{path}#", len(value)
        for number, item in enumerate(value):
            yield from leaves(item, f"{path}[{number}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name), f"{path}.{field.name}")
    else:
        yield path or "output", value


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The nested inputs with every tensor changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(mapped(item, change) for item in value)
    return value


def without_dropout(model: Any) -> None:
    """Sets every dropout probability to 0, so that training runs are comparable."""
    for module in model.modules() if isinstance(model, nn.Module) else ():
        for name in DROPOUT_ATTRIBUTES:
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


@contextmanager
def created_as(dtype: torch.dtype) -> Iterator[None]:
    """New floating tensors without a dtype of their own get this one."""
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@dataclasses.dataclass
class Run:
    """What one call gave: leaves of the output, gradients by name, or the error."""

    output: dict[str, Any] = dataclasses.field(default_factory=dict)
    gradients: dict[str, torch.Tensor | None] = dataclasses.field(default_factory=dict)
    error: BaseException | None = None


class Version:
    """One recipe built from one tree. `state` gives it the weights of another build."""

    def __init__(self, tree: Tree, recipe: Recipe, state: dict[str, torch.Tensor] | None = None) -> None:
        self.tree, self.recipe = tree, recipe
        with tree:
            torch.manual_seed(0)
            self.model = recipe.build(tree.load(recipe.module))
            self.state: dict[str, torch.Tensor] = {}
            if isinstance(self.model, nn.Module):
                with torch.no_grad():  # zero biases would hide a mistake; some weights are left uninitialised
                    for parameter in self.model.parameters():
                        parameter.nan_to_num_().clamp_(-3, 3).add_(torch.randn_like(parameter) * 0.2)
                if state is not None:
                    self.model.load_state_dict(state)
                self.state = copy.deepcopy(self.model.state_dict())

    def call(
        self,
        make: Callable[[], Given],
        dtype: torch.dtype = torch.float64,
        training: bool = False,
        dropout: bool = False,
        autocast: bool = False,
        finite: dict[str, torch.Tensor] | None = None,
    ) -> Run:
        """One forward, and in float64 a backward from the outputs named in `finite` (all, where None)."""
        recipe, model = self.recipe, self.model
        with self.tree:
            if isinstance(model, nn.Module):
                model = copy.deepcopy(model).to(dtype)
                model.train(training)
                if training and not dropout:
                    without_dropout(model)
            torch.manual_seed(1)
            given = make()

            def cast(tensor: torch.Tensor) -> torch.Tensor:
                if not tensor.is_floating_point():
                    return tensor.clone()
                return tensor.detach().to(dtype).clone().requires_grad_(tensor.requires_grad)

            args, kwargs = mapped(given.args, cast), mapped(given.kwargs, cast)
            # Changing an input in place is allowed to inputs that are results, not to leaves.
            sources = [t for _, t in leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad]
            args, kwargs = mapped((args, kwargs), lambda t: t * 1 if t.requires_grad else t)
            target = getattr(model, recipe.method) if recipe.method else model
            run = Run()
            torch.manual_seed(2)
            try:
                with (
                    torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext(),
                    created_as(dtype if recipe.follows_default else torch.float32),
                ):
                    run.output = dict(leaves(target(*args, **kwargs)))
                if dtype == torch.float64:
                    self.backward(run, model, sources, finite)
            except Exception as error:
                run.error = error
            return run

    def backward(
        self, run: Run, model: Any, sources: list[torch.Tensor], finite: dict[str, torch.Tensor] | None
    ) -> None:
        generator = torch.Generator().manual_seed(3)
        loss = torch.zeros((), dtype=torch.float64)
        for path, value in run.output.items():
            if isinstance(value, torch.Tensor) and value.requires_grad:
                weight = torch.rand(value.shape, generator=generator, dtype=torch.float64)
                keep = torch.isfinite(value) if finite is None else finite.get(path)
                if keep is not None and keep.shape == value.shape:
                    loss = loss + (value[keep] * weight[keep]).sum()
        if not loss.requires_grad:
            return
        loss.backward()
        run.gradients = {f"input {number}": source.grad for number, source in enumerate(sources)}
        if isinstance(model, nn.Module):
            run.gradients |= {f"weight {name}": p.grad for name, p in model.named_parameters()}


def differences(before: Any, after: Any, tolerance: float, where: str) -> Iterator[str]:
    """Why two leaves are not equal; nothing where they are."""
    if isinstance(before, torch.Tensor) != isinstance(after, torch.Tensor):
        yield f"{where}: {describe(before)} became {describe(after)}"
    elif not isinstance(before, torch.Tensor):
        if isinstance(before, (int, float, str, bool, type(None))) and before != after:
            yield f"{where}: {before!r} became {after!r}"
    elif before.shape != after.shape or before.dtype != after.dtype:
        yield f"{where}: {describe(before)} became {describe(after)}"
    elif before.numel():
        if not before.is_floating_point():
            if not torch.equal(before, after):
                yield f"{where}: values differ"
            return
        finite = torch.isfinite(before)
        if not finite.any():
            return
        kept, changed = before[finite].double(), after[finite].double()
        bound = tolerance * max(1.0, kept.abs().max().item())
        if not torch.isfinite(changed).all():
            yield f"{where}: finite values became infinite or NaN"
        elif (worst := (kept - changed).abs().max().item()) > bound:
            yield f"{where}: off by {worst:.3g} (values up to {kept.abs().max().item():.3g})"


def describe(value: Any) -> str:
    return f"{tuple(value.shape)} {value.dtype}" if isinstance(value, torch.Tensor) else repr(value)[:60]


def compared(before: Run, after: Run, tolerance: float, where: str) -> Iterator[str]:
    if before.error is not None:
        return
    if after.error is not None:
        yield f"{where}: raises {type(after.error).__name__}: {str(after.error)[:200]}"
        return
    for path in before.output.keys() | after.output.keys():
        if path not in before.output or path not in after.output:
            yield f"{where} {path}: another structure of the output"
            continue
        yield from differences(before.output[path], after.output[path], tolerance, f"{where} {path}")
    for name, gradient in before.gradients.items():
        yield from differences(gradient, after.gradients.get(name), tolerance, f"{where} gradient of {name}")


def equal(original: Version, fixed: Version, calls: Mapping[str, Callable[[], Given]]) -> list[str]:
    """Every difference between two builds over the calls; the original must run on all of them."""
    torch.set_num_threads(1)  # the tensors are tiny
    found: list[str] = []
    tolerance = SINGLE if original.recipe.single else EXACT
    for name, make in calls.items():
        for training in (True, False):
            where = f"{name} {'train' if training else 'eval'}"
            before = original.call(make, training=training)
            if before.error is not None:
                raise AssertionError(f"{original.recipe.name}: the original fails on {where}") from before.error
            finite = {p: torch.isfinite(v) for p, v in before.output.items() if isinstance(v, torch.Tensor)}
            found += compared(before, fixed.call(make, training=training, finite=finite), tolerance, where)
        drops = dropped(original, make, before)
        if drops is not None and drops != dropped(fixed, make, before):
            found.append(f"{name}: drops in training in one version only")
        for dtype, loose, autocast in (
            (torch.float32, 1e-4, False),
            (torch.bfloat16, 0.1, False),
            (torch.float32, 0.1, True),
        ):
            before = original.call(make, dtype, autocast=autocast)
            after = fixed.call(make, dtype, autocast=autocast)
            found += compared(before, after, loose, f"{name} {'autocast' if autocast else str(dtype)[6:]}")
    return found


def dropped(version: Version, make: Callable[[], Given], without: Run) -> bool | None:
    """Whether a training run with the dropout as built differs from one without; None where it raises."""
    run = version.call(make, training=True, dropout=True)
    if run.error is not None:
        return None
    return any(
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and path in without.output
        and value.shape == without.output[path].shape
        and any(differences(without.output[path], value, 1e-4, path))
        for path, value in run.output.items()
    )
