"""Which SDPA backends other GPUs have, from the constraints in torch's own selection code.

Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp of torch 2.5 to 2.13; the H200's rows were also measured (benchmarks/).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attn_advisor.lab.job import Sizes

GPUS: dict[str, tuple[int, int]] = {
    "V100": (7, 0),
    "T4": (7, 5),
    "A100": (8, 0),
    "A10": (8, 6),
    "A6000": (8, 6),
    "RTX3090": (8, 6),
    "L4": (8, 9),
    "L40S": (8, 9),
    "RTX4090": (8, 9),
    "H100": (9, 0),
    "H200": (9, 0),
    "B200": (10, 0),
    "RTX5090": (12, 0),
}
"""Compute capability of each GPU."""


@dataclass(frozen=True)
class Ask:
    """A 4-D SDPA call with dense strides: mask is none, causal, bool, float or float-grad."""

    sizes: Sizes
    dtype: str
    mask: str = "none"
    dropout: float = 0.0


def serve(capability: tuple[int, int], ask: Ask) -> dict[str, Any]:
    """`chosen` and `rejected` for a GPU of that compute capability: the first usable in torch's order of preference."""
    rejected = {name: reason for name in ("cudnn", "flash", "efficient") if (reason := _reason(name, capability, ask))}
    order = ("cudnn", "flash", "efficient") if capability in ((9, 0), (10, 0)) else ("flash", "efficient", "cudnn")
    chosen = next((name for name in order if name not in rejected), "math")
    return {"chosen": chosen, "rejected": rejected}


def _reason(name: str, capability: tuple[int, int], ask: Ask) -> str:
    dense = ask.mask in ("bool", "float", "float-grad")
    half = ask.dtype in ("float16", "bfloat16")
    if name == "efficient":
        if ask.dtype == "bfloat16" and capability < (8, 0):
            return "bfloat16 needs compute capability 8.0"
        return ""
    if capability < (8, 0):
        return f"needs compute capability 8.0, this has {capability[0]}.{capability[1]}"
    if not half:
        return "takes float16 and bfloat16 only"
    if name == "flash":
        if dense:
            return "takes no mask tensor"
        return "head size above 256" if ask.sizes.D > 256 else ""
    if ask.mask == "float-grad":
        return "the mask requires a gradient"
    if ask.sizes.D % 8:
        return "head size is not a multiple of 8"
    limit = 256 if capability == (9, 0) else 128
    return f"head size above {limit}" if limit < ask.sizes.D else ""
