"""What is kept when a user's script reaches an attention: the form in which tensors and other values travel from that script to a worker.

Each value is written on its own, so that one that cannot be kept or read again costs only itself. Classes of the script itself are
found by name in the module that the worker makes of it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

MOST_BYTES = 4 << 30
"""Inputs of one call that take more than this are not kept."""
LOOSE = 4
"""Strides are kept if the tensor's memory is then at most so many times its elements."""


class NotKept(Exception):
    """A value cannot be written or read again; the message says why."""


@dataclass
class Kept:
    """A tensor's elements, its shape and strides (in elements), and whether it required a gradient."""

    data: torch.Tensor
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool

    def restored(self, device: torch.device) -> torch.Tensor:
        """The tensor with its strides, detached."""
        data = self.data.to(device)
        expanded = [n > 1 and s == 0 for n, s in zip(self.shape, self.stride)]
        lengths = [1 if e else n for n, e in zip(self.shape, expanded)]
        extent = 1 + sum((n - 1) * s for n, s in zip(lengths, self.stride))
        if extent <= LOOSE * max(1, data.numel()):
            data = torch.empty_strided(lengths, self.stride, dtype=data.dtype, device=device).copy_(data)
        return data.expand(self.shape)


@dataclass
class Call:
    """One call of an attention: the local names that it reads and the attributes of `self`, each as its own pickle."""

    names: dict[str, bytes]
    owner: dict[str, bytes]
    training: bool
    autocast: str = ""
    """The dtype of an autocast region around the call."""
    device: str = "cpu"
    problems: dict[str, str] = field(default_factory=dict)
    """Why a value is missing, by name."""


def keep(tensor: torch.Tensor) -> Kept:
    """A tensor as it is now. Expanded axes are kept once."""
    found = tensor.detach()
    for axis, stride in enumerate(found.stride()):
        if stride == 0 and found.shape[axis] > 1:
            found = found.narrow(axis, 0, 1)
    return Kept(found.cpu().clone(), tuple(tensor.shape), tuple(tensor.stride()), tensor.requires_grad)


def deep(value: Any, change: Any) -> Any:
    """The value with `change` made to the tensors (or kept tensors) in its tuples, lists and dictionaries."""
    if isinstance(value, (torch.Tensor, Kept)) and not isinstance(value, torch.nn.Parameter):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)(deep(v, change) for v in value)
    if type(value) is dict:
        return {k: deep(v, change) for k, v in value.items()}
    return value


def size(value: Any) -> int:
    """Bytes of the tensors in a value."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, torch.nn.Module):
        return sum(size(t) for t in (*value.parameters(), *value.buffers()))
    if isinstance(value, (tuple, list)):
        return sum(map(size, value))
    return sum(map(size, value.values())) if isinstance(value, dict) else 0


def write(value: Any) -> bytes:
    """A value as bytes. Raises NotKept."""
    buffer = io.BytesIO()
    try:
        torch.save(deep(value, keep), buffer)
    except Exception as error:
        raise NotKept(f"a {type(value).__name__} cannot be kept ({type(error).__name__}: {error})"[:200]) from error
    return buffer.getvalue()


def read(data: bytes, main: Callable[[str], Any], device: torch.device) -> Any:
    """The value, its tensors on the device; `main` looks up names of the script itself. Raises NotKept."""

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            return main(name) if module == "__main__" else super().find_class(module, name)

    reader: Any = type("reader", (), {"Unpickler": Unpickler, "load": pickle.load, "__name__": "pickle"})
    try:
        value = torch.load(io.BytesIO(data), map_location="cpu", pickle_module=reader, weights_only=False)
    except Exception as error:
        raise NotKept(f"{type(error).__name__}: {error}"[:200]) from error
    value = deep(value, lambda kept: kept.restored(device).requires_grad_(kept.requires_grad))
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(value.detach().to(device), value.requires_grad)
    return value.to(device) if isinstance(value, torch.nn.Module) else value
