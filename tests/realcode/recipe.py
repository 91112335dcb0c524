"""How to build a class of a public package at a small size, and what to call it with."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Given:
    """Arguments of one call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Recipe:
    """`build` makes the object from its loaded module; each of `calls` makes fresh arguments.

    `method` is called instead of `forward`. `single`: the source itself casts to float32.
    `follows_default`: it makes float32 tensors of its own, so torch's default dtype is set to the dtype of the run.
    `whole`: a whole model rather than one attention class.
    Calls whose name begins with "empty" hold a mask that hides every key of some row.
    """

    package: str
    module: str
    name: str
    build: Callable[[types.ModuleType], Any]
    calls: dict[str, Callable[[], Given]]
    method: str = ""
    single: bool = False
    follows_default: bool = False
    whole: bool = False


def given(*args: Any, **kwargs: Any) -> Given:
    return Given(args, kwargs)


def rand(*shape: int) -> torch.Tensor:
    """Normal values that need a gradient."""
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


def additive(*shape: int, low: float = -1e4) -> torch.Tensor:
    """A floating mask to be added: 0 or `low`; the first key is always kept."""
    mask = torch.zeros(*shape, dtype=torch.float64).masked_fill(torch.rand(*shape) < 0.4, low)
    mask[..., 0] = 0.0
    return mask


def keep(*shape: int) -> torch.Tensor:
    """A bool mask, True where attended; the first key is always kept."""
    mask = torch.rand(*shape) < 0.6
    mask[..., 0] = True
    return mask


def some_empty(mask: torch.Tensor) -> torch.Tensor:
    """The keep mask with every key of the first row (of the first sample) hidden."""
    mask = mask.clone()
    mask[(0,) * (mask.dim() - 1)] = False
    return mask


def tokens(*shape: int, high: int = 50) -> torch.Tensor:
    return torch.randint(1, high, shape)


class Function(nn.Module):
    """A free function as a module, so that functions and classes are run alike."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def make(name: str, *args: Any, **kwargs: Any) -> Callable[[types.ModuleType], Any]:
    """Builds the class called `name` of the loaded module."""
    return lambda module: getattr(module, name)(*args, **kwargs)
