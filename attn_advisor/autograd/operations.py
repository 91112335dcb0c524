"""The table of operations.json: what an operation saves for backward and whether its result shares memory with an argument."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

Alias = Literal["", "view", "maybe", "views", "list"]


@dataclass(frozen=True)
class Form:
    """One overload. `saves`: tensor kept for backward ("result", "result.1" or an argument) -> arguments, one of which must need a gradient.

    alias: "view" (always the argument's memory), "maybe" (sometimes), "views" (several), "list" (several, none of which may be changed in
    place), "" (new memory). constant: no gradient flows through. outputs: how many tensors it returns.
    """

    args: tuple[str, ...]
    tensors: frozenset[str]
    saves: dict[str, tuple[str, ...]]
    alias: Alias
    constant: bool
    outputs: int


@cache
def table() -> dict[str, tuple[Form, ...]]:
    raw = json.loads(Path(__file__).with_name("operations.json").read_text(encoding="utf-8"))["operations"]
    return {name: tuple(_form(entry) for entry in forms) for name, forms in raw.items()}


def _form(entry: dict) -> Form:  # type: ignore[type-arg]
    saves = {name: tuple(needs) for name, needs in entry.get("saves", {}).items()}
    tensors = frozenset(entry["tensors"])
    return Form(
        tuple(entry["args"]),
        tensors,
        saves,
        entry.get("alias", ""),
        entry.get("constant", False),
        entry.get("outputs", 1),
    )


# Methods that write into their tensor and have no counterpart of the same name without the underscore.
WRITERS = {
    "zero",
    "fill",
    "copy",
    "normal",
    "uniform",
    "bernoulli",
    "exponential",
    "random",
    "index_put",
    "masked_scatter",
}
WRITERS |= {"cauchy", "geometric", "log_normal", "fill_diagonal", "put", "set", "apply", "map", "t", "transpose"}
# Underscored methods that change no values.
METADATA = {
    "requires_grad_",
    "share_memory_",
    "retain_grad",
    "detach_",
    "resize_",
    "swapaxes_",
    "squeeze_",
    "unsqueeze_",
}
METADATA |= {"t_", "transpose_", "rename_", "names_", "sparse_resize_", "as_strided_"}
# New tensors of which nothing needs a gradient.
CREATORS = set(
    "zeros ones empty full arange linspace eye rand randn randint randperm tensor zeros_like ones_like".split()
)
CREATORS |= set(
    "empty_like full_like rand_like randn_like as_tensor from_numpy tril_indices triu_indices one_hot".split()
)
CREATORS |= set("new_zeros new_ones new_full new_empty new_tensor bernoulli multinomial".split())
# Methods that give Python numbers, sizes and the like.
NUMBERS = set(
    "size dim numel item tolist stride is_contiguous ndimension element_size nelement get_device data_ptr".split()
)
NUMBERS |= set("is_floating_point numpy storage_offset is_complex type".split())
# Methods that numpy arrays have too: they make no tensor of something unknown.
SHARED_WITH_ARRAYS = set(
    "reshape transpose clip sum mean max min std var prod round copy flatten squeeze ravel repeat take all any".split()
)
SHARED_WITH_ARRAYS |= set(
    "argmax argmin argsort sort dot cumsum diagonal swapaxes view real imag T conj trace fill nonzero".split()
)
SYNONYMS = {
    "sigmoid": "sigmoid",
    "view_as": "view",
    "mm": "mm",
    "concat": "cat",
    "swapaxes": "transpose",
    "swapdims": "transpose",
}
# Results of these are laid out as one contiguous block whatever the operands are.
CONTIGUOUS = {
    "matmul",
    "mm",
    "bmm",
    "linear",
    "cat",
    "stack",
    "softmax",
    "log_softmax",
    "layer_norm",
    "clone",
    "contiguous",
}
CONTIGUOUS |= {"einsum", "sum", "mean", "embedding", "gather", "repeat"} | CREATORS
AUGMENTED = {
    "Add": "add",
    "Sub": "sub",
    "Mult": "mul",
    "Div": "div",
    "FloorDiv": "floor_divide",
    "Mod": "remainder",
    "Pow": "pow",
    "BitAnd": "bitwise_and",
    "BitOr": "bitwise_or",
    "BitXor": "bitwise_xor",
    "LShift": "bitwise_left_shift",
    "RShift": "bitwise_right_shift",
    "MatMult": "matmul",
}
MODULES = {  # torch.nn class -> operation; those with weights list them in `PARAMETRISED`
    "Linear": "linear",
    "LayerNorm": "layer_norm",
    "RMSNorm": "rms_norm",
    "GroupNorm": "group_norm",
    "BatchNorm1d": "batch_norm",
    "BatchNorm2d": "batch_norm",
    "BatchNorm3d": "batch_norm",
    "Conv1d": "conv1d",
    "Conv2d": "conv2d",
    "Conv3d": "conv3d",
    "ConvTranspose1d": "conv_transpose1d",
    "ConvTranspose2d": "conv_transpose2d",
    "Softmax": "softmax",
    "LogSoftmax": "log_softmax",
    "ReLU": "relu",
    "ReLU6": "relu6",
    "LeakyReLU": "leaky_relu",
    "ELU": "elu",
    "SELU": "selu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Mish": "mish",
    "Hardswish": "hardswish",
    "Tanh": "tanh",
    "Sigmoid": "sigmoid",
    "Dropout": "dropout",
    "Dropout1d": "dropout1d",
    "Dropout2d": "dropout2d",
    "Dropout3d": "dropout3d",
    "Flatten": "flatten",
    "AvgPool2d": "avg_pool2d",
    "MaxPool2d": "max_pool2d",
    "AdaptiveAvgPool2d": "adaptive_avg_pool2d",
    "Embedding": "embedding",
}
PARAMETRISED = {"linear", "layer_norm", "rms_norm", "group_norm", "batch_norm", "embedding"}
PARAMETRISED |= {"conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"}


TENSOR_MODULES = tuple(f"torch.{name}." for name in ("nn.functional", "linalg", "special", "fft", "Tensor", "_C._nn"))


def torch_function(qualified: str) -> str | None:
    """The name of a function of torch that works on tensors ("softmax" for torch.nn.functional.softmax), else None."""
    if not qualified.startswith("torch.") or not (qualified.count(".") == 1 or qualified.startswith(TENSOR_MODULES)):
        return None
    name = qualified.rsplit(".", 1)[-1]
    return f"linalg.{name}" if qualified.startswith("torch.linalg.") else name


def writes(method: str) -> str | None:
    """The operation an in-place method does ("mul" for "mul_"), or None when the method is none."""
    if not method.endswith("_") or method.startswith("_") or method.endswith("__") or method in METADATA:
        return None
    base = method[:-1]
    return base if base in WRITERS or base in table() else None
