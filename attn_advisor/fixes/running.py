"""One run of code on one input: outputs, gradients, what it left behind, or what it raised.

Dropout is made exact: while code runs, dropout with probability p in force is x * (1 + p * x), wherever it is applied and in whatever
layout, and SDPA with `dropout_p` applies the same to its probabilities. So code with another p, another place or another gate in train or
eval mode differs in its numbers, and nothing has to be sampled.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from attn_advisor.fixes.inputs import Case, Recipe, build

HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Mode:
    """How a module runs: train or eval, its dropout modules alike or the other way round, and with which probability (None: as built)."""

    train: bool = True
    dropout_train: bool | None = None
    p: float | None = 0.0

    def __str__(self) -> str:
        text = "train" if self.train else "eval"
        if self.dropout_train not in (None, self.train):
            text += f" with the dropout modules in {'train' if self.dropout_train else 'eval'}"
        return text + (f", dropout {self.p}" if self.p else "")


PLAIN = Mode(True, p=0.0)
CROSSED = (Mode(True, False, 0.3), Mode(False, True, 0.3))
MODES = (PLAIN, Mode(True, p=0.3), Mode(False, p=0.3), *CROSSED)


@dataclass
class Outcome:
    """One run: everything it produced, by name, or what it raised."""

    values: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    dropped: bool = False  # dropout was in force somewhere
    low: torch.dtype | None = None  # the lowest precision computed in


class _Dropout(TorchFunctionMode):
    """Makes dropout a function of the value alone."""

    def __init__(self) -> None:
        super().__init__()
        self.used = False

    def _drop(self, x: torch.Tensor, p: float, kind: str = "") -> torch.Tensor:
        if p == 0:
            return x
        self.used = True
        return x * (1 + p * x) if not kind else x * (1 + p * x * x)  # whole channels dropped are another distribution

    def _call(self, x: torch.Tensor, p: float, training: bool, inplace: bool, kind: str) -> torch.Tensor:
        if not 0 <= p <= 1:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        if not training or p == 0:
            return x if inplace or not training else x * 1
        return x.copy_(self._drop(x.clone(), p, kind)) if inplace else self._drop(x, p, kind)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _PYTHON_DROPOUT:
            kind = "" if func is F.dropout else func.__name__
            bound = inspect.signature(func).bind(*args, **kwargs)
            bound.apply_defaults()
            a = bound.arguments
            return self._call(a["input"], a["p"], a["training"], a["inplace"], kind)
        if func in _NATIVE_DROPOUT:
            names = dict(zip(("input", "p", "train"), args, strict=False)) | kwargs
            return self._call(names["input"], names["p"], names["train"], func.__name__.endswith("_"), "")
        if func is F.scaled_dot_product_attention:
            names = (
                dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, strict=False)) | kwargs
            )
            if names.get("dropout_p", 0.0) > 0:
                return self._attention(**names)
        return func(*args, **kwargs)

    def _attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """SDPA with the dropout above: the probabilities are SDPA's own, of an identity matrix as value."""
        keys = key.size(-2)
        eye = torch.eye(keys, dtype=query.dtype, device=query.device).expand(*key.shape[:-2], keys, keys)
        call: Callable[..., torch.Tensor] = F.scaled_dot_product_attention
        call(
            query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
        )  # raises what the real call raises
        probabilities = call(query, key, eye, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
        if enable_gqa:
            value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
        return self._drop(probabilities, dropout_p) @ value.to(probabilities.dtype)


_PYTHON_DROPOUT = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout}
_NATIVE_DROPOUT = {torch.dropout, torch.dropout_}


class _Precision(TorchDispatchMode):
    """Notes results of lower precision than float64."""

    def __init__(self) -> None:
        super().__init__()
        self.low: torch.dtype | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            low = isinstance(value, torch.Tensor) and value.dtype in (torch.float32, *HALF)
            if low and (self.low is None or value.dtype in HALF):
                self.low = value.dtype
        return result


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def make(target: Any, recipe: Recipe) -> Any:
    """The callable under test: the function or module itself, or the class built with a fixed seed."""
    if not inspect.isclass(target):
        return target
    torch.default_generator.manual_seed(0)
    arguments = [_fresh(value) for value in recipe.init_args]
    return target(*arguments, **{name: _fresh(value) for name, value in recipe.init.items()})


def shake(made: nn.Module) -> None:
    """Add noise to every parameter: those that start at zero or one would hide mistakes. Buffers keep their values."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.is_floating_point():
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.add_(0.3 * noise.to(parameter.dtype))


def _fresh(value: Any) -> Any:
    return value() if inspect.isfunction(value) and not inspect.signature(value).parameters else value


def _set_mode(module: Any, mode: Mode) -> None:
    if not isinstance(module, nn.Module):
        return
    module.train(mode.train)
    for child in module.modules():
        if isinstance(child, nn.modules.dropout._DropoutNd):
            if mode.p is not None:
                child.p = mode.p
            if mode.dropout_train is not None:
                child.train(mode.dropout_train)


def run(
    made: Any,
    recipe: Recipe,
    case: Case,
    *,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
    mode: Mode = PLAIN,
    autocast: torch.dtype | None = None,
    backward: bool = True,
    watch: bool = False,
) -> Outcome:
    """Call it once, forward and (where a result wants it) backward. Never raises what the code under test raises."""
    outcome = Outcome()
    dropout, precision = _Dropout(), _Precision()
    state = {k: v.detach().clone() for k, v in made.state_dict().items()} if isinstance(made, nn.Module) else {}
    attributes = _attributes(made) if isinstance(made, nn.Module) else {}
    try:
        _set_mode(made, mode)
        arguments = build(case, dtype, device)
        call = getattr(made, recipe.method) if recipe.method else made
        if isinstance(made, nn.Module):
            made.zero_grad(set_to_none=True)
        torch.default_generator.manual_seed(2)  # torch.manual_seed, with all devices, takes a third of a run
        with (
            warnings.catch_warnings(),
            _default_dtype(torch.float32 if dtype in HALF else dtype),
            dropout,
            precision if watch else nullcontext(),
            torch.autocast(device, autocast) if autocast else nullcontext(),
        ):
            warnings.simplefilter("ignore")
            result = call(*arguments.values()) if case.positional else call(**arguments)
        named = _tensors("argument ", arguments)
        for name, value in _flatten(result):
            outcome.values[f"output{name}"] = value
        for name, value in named.items():
            outcome.values[f"{name} after the call"] = value.detach()
        if isinstance(made, nn.Module):
            for name, value in _attributes(made).items():
                if value is not attributes.get(name) and isinstance(value, torch.Tensor):
                    outcome.values[f"attribute {name}"] = value.detach()
            for name, value in made.named_buffers():
                outcome.values[f"buffer {name}"] = value.detach()
        if backward:
            _backward(outcome, made, named)
    except Exception as error:
        outcome.error = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    finally:
        if isinstance(made, nn.Module):
            _restore(made, state, attributes)
    outcome.dropped, outcome.low = dropout.used, precision.low
    return outcome


def _backward(outcome: Outcome, made: Any, arguments: dict[str, torch.Tensor]) -> None:
    generator = torch.Generator().manual_seed(3)
    ends: list[torch.Tensor] = []
    weights: list[torch.Tensor] = []
    for name, value in list(outcome.values.items()):
        if name.startswith("output") and isinstance(value, torch.Tensor) and value.requires_grad:
            ends.append(value)
            weight = torch.randn(value.shape, generator=generator, dtype=torch.float64)
            weights.append(weight.to(device=value.device, dtype=value.dtype))
    leaves = {f"gradient of {name}": value for name, value in arguments.items() if value.requires_grad}
    if isinstance(made, nn.Module):
        leaves |= {f"gradient of {name}": p for name, p in made.named_parameters() if p.requires_grad}
    if not ends or not leaves:
        return
    gradients = torch.autograd.grad(ends, list(leaves.values()), weights, allow_unused=True)
    for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
        outcome.values[name] = torch.zeros_like(leaf) if gradient is None else gradient


def _attributes(module: nn.Module) -> dict[str, Any]:
    found = {}
    for prefix, child in module.named_modules():
        for name, value in vars(child).items():
            if not name.startswith("_"):
                found[f"{prefix}.{name}" if prefix else name] = value
    return found


def _restore(module: nn.Module, state: dict[str, torch.Tensor], attributes: dict[str, Any]) -> None:
    """Undo what a call left behind, so that each run starts from the same weights, buffers and attributes."""
    modules = dict(module.named_modules())
    for name in set(_attributes(module)) | set(attributes):
        owner, _, attribute = name.rpartition(".")
        if owner not in modules or attribute in ("training", "p"):
            continue
        if name in attributes:
            modules[owner].__dict__[attribute] = attributes[name]
        else:
            modules[owner].__dict__.pop(attribute, None)
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if name in state and value.shape == state[name].shape:
                value.copy_(state[name])


def _tensors(prefix: str, value: Any) -> dict[str, torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return {prefix: value}
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (tuple, list)) else ()
    found: dict[str, torch.Tensor] = {}
    for key, item in pairs:
        found |= _tensors(f"{prefix}{key}" if prefix.endswith(" ") else f"{prefix}[{key}]", item)
    return found


def _flatten(result: Any) -> list[tuple[str, Any]]:
    """The parts of a result, named by their place in it."""
    if isinstance(result, torch.Tensor) or result is None:
        return [("", result)]
    if hasattr(result, "__dataclass_fields__") and not isinstance(result, type):
        result = {name: getattr(result, name) for name in result.__dataclass_fields__}
    if isinstance(result, dict):
        return [(f"[{key!r}]{name}", v) for key, value in result.items() for name, v in _flatten(value)]
    if isinstance(result, (tuple, list)):
        return [(f"[{at}]{name}", v) for at, value in enumerate(result) for name, v in _flatten(value)]
    leaves, _ = tree_flatten(result)
    return [(f"<{at}>", leaf) for at, leaf in enumerate(leaves)]
