"""Times of naive attention, in place and every SDPA backend, by the shortest straight-line code: what `profile` is compared with.

Nothing of attn_advisor is used here. `python benchmarks/gpu_reference.py` prints one JSON line a shape; CUDA only.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = [
    ((4, 16, 4096, 64), torch.bfloat16),
    ((32, 8, 4096, 64), torch.float16),
    ((4, 16, 2048, 64), torch.float32),
    ((64, 12, 197, 64), torch.float16),
]


def naive(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, drop: torch.Tensor) -> torch.Tensor:
    scores = torch.matmul(q, k.transpose(-2, -1))
    scores = scores * (1.0 / math.sqrt(q.shape[-1]))
    scores = scores.masked_fill(drop, float("-inf"))
    return torch.matmul(torch.softmax(scores, dim=-1), v)


def in_place(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, drop: torch.Tensor) -> torch.Tensor:
    scores = torch.matmul(q, k.transpose(-2, -1))
    scores.mul_(1.0 / math.sqrt(q.shape[-1]))
    scores.masked_fill_(drop, float("-inf"))
    return torch.matmul(torch.softmax(scores, dim=-1), v)


def median_ms(run: Callable[[], object], flush: torch.Tensor, repeats: int = 40) -> float:
    for _ in range(5):
        run()
    torch.cuda.synchronize()
    pairs = []
    for _ in range(repeats):
        flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in pairs)


def row(shape: tuple[int, int, int, int], dtype: torch.dtype, flush: torch.Tensor, train: bool) -> dict[str, object]:
    batch, heads, length, size = shape
    q, k, v = (torch.randn(shape, device="cuda", dtype=dtype, requires_grad=train) for _ in range(3))
    fused = torch.randn(
        batch, length, 3 * heads * size, device="cuda", dtype=dtype
    )  # a projection's output: heads lie after the length
    split = [
        t.view(batch, length, heads, size).transpose(1, 2).requires_grad_(train)
        for t in fused.split(heads * size, dim=2)
    ]
    keep = torch.ones(length, length, dtype=torch.bool, device="cuda").tril()
    drop = ~keep
    gradient = torch.randn_like(q)
    calls: dict[str, Callable[[], torch.Tensor]] = {
        "naive": lambda: naive(q, k, v, drop),
        "in_place": lambda: in_place(q, k, v, drop),
        "sdpa_mask": lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=~drop),
        "sdpa_causal": lambda: F.scaled_dot_product_attention(split[0], split[1], split[2], is_causal=True),
    }
    leaves = {"sdpa_causal": tuple(split)}
    forced = [
        (name, getattr(SDPBackend, name))
        for name in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH")
    ]
    result: dict[str, object] = {"shape": shape, "dtype": str(dtype), "train": train}
    for name, call in calls.items():
        result[name] = timed(call, leaves.get(name, (q, k, v)), gradient, flush, train)
    for name, backend in forced:
        for kind in ("mask", "causal"):
            with sdpa_kernel([backend]):
                try:
                    result[f"{name}_{kind}"] = timed(
                        calls[f"sdpa_{kind}"], leaves.get(f"sdpa_{kind}", (q, k, v)), gradient, flush, train
                    )
                except RuntimeError:
                    result[f"{name}_{kind}"] = None
    return result


def timed(
    call: Callable[[], torch.Tensor],
    leaves: tuple[torch.Tensor, ...],
    gradient: torch.Tensor,
    flush: torch.Tensor,
    train: bool,
) -> float:
    if train:
        return median_ms(lambda: torch.autograd.grad(call(), leaves, gradient), flush)
    with torch.no_grad():
        return median_ms(call, flush)


if __name__ == "__main__":
    cache = torch.empty(64 << 20, dtype=torch.int32, device="cuda")
    for train in (False, True):
        for shape, dtype in SHAPES:
            print(json.dumps(row(shape, dtype, cache, train)), flush=True)
