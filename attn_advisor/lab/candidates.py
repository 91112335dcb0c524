"""The ways to run a program: as written, in place, rewritten, through each backend, compiled, through other kernels."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from attn_advisor.lab import sdpa
from attn_advisor.lab.job import FLASH_ATTN
from attn_advisor.lab.programs import Program, Setup

BACKENDS = {
    "sdpa_flash": "FLASH_ATTENTION",
    "sdpa_efficient": "EFFICIENT_ATTENTION",
    "sdpa_cudnn": "CUDNN_ATTENTION",
    "sdpa_math": "MATH",
}
WHAT_IFS = ("causal_flag", "bfloat16")
"""Runs behind a prescription, measured like candidates but not listed among them."""


@dataclass
class Candidate:
    """One way to run: a version of the program inside a context."""

    name: str
    version: str
    context: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    compiled: Callable[[], torch.Tensor] | None = None
    loose: bool = False
    """Its error is reported, not judged: a lower precision on purpose."""

    def bind(self, setup: Setup) -> Callable[[], torch.Tensor]:
        """One forward on the setup's arguments; to be called inside `context()`."""
        return self.compiled or (lambda: setup.run(self.version))


class Unavailable(Exception):
    """A candidate that cannot be had here; the message says why."""


def make(name: str, program: Program, setup: Setup, calls: list[sdpa.Call]) -> Candidate:
    """The candidate of that name. `calls` are the SDPA calls of the rewritten version. Raises Unavailable."""
    device = next(v.device for v in setup.values.values() if isinstance(v, torch.Tensor))
    if name == "as_written":
        return Candidate(name, "as_written")
    if name == "inplace":
        return Candidate(name, _version(program, "inplace"))
    if name in ("compile", "compile_max_autotune"):
        mode = "max-autotune-no-cudagraphs" if name == "compile_max_autotune" else None
        torch._dynamo.reset()
        run = torch.compile(lambda: setup.run("as_written"), dynamic=False, mode=mode)
        return Candidate(name, "as_written", compiled=run)
    version = _version(program, "rewritten")
    if name == "sdpa":
        return Candidate(name, version)
    if name in BACKENDS:
        return _forced(name, version, device)
    if not calls:
        raise Unavailable("the rewrite made no call of scaled_dot_product_attention here")
    if name == "causal_flag":
        if not all(c.attn_mask is not None and c.causal_by_value() for c in calls):
            raise Unavailable("the mask is not the causal one")
        return Candidate(name, version, lambda: sdpa.Intercept(sdpa.with_causal_flag))
    if name == "bfloat16":
        if calls[0].query.dtype != torch.float32 or device.type != "cuda":
            raise Unavailable("only asked of float32 on CUDA")
        return Candidate(name, version, lambda: sdpa.Intercept(sdpa.in_bfloat16), loose=True)
    if name in FLASH_ATTN:
        return _flash_attn(name, version, calls, device)
    if name == "flex":
        replace = sdpa.through_flex(calls)
        return Candidate(name, version, lambda: sdpa.Intercept(replace))
    raise Unavailable(f"there is no candidate of that name: {name}")


def _version(program: Program, version: str) -> str:
    if version not in program.versions:
        raise Unavailable(program.unavailable.get(version, "not available"))
    return version


def _forced(name: str, version: str, device: torch.device) -> Candidate:
    if device.type != "cuda" and name in ("sdpa_efficient", "sdpa_cudnn"):
        raise Unavailable("only on CUDA")
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backend = getattr(SDPBackend, BACKENDS[name])
    return Candidate(name, version, lambda: sdpa_kernel([backend]))


def _flash_attn(name: str, version: str, calls: list[sdpa.Call], device: torch.device) -> Candidate:
    number = int(name[-1])
    if device.type != "cuda":
        raise Unavailable("only on CUDA")
    try:
        function = sdpa.flash_attn(number)
    except Exception as error:
        raise Unavailable(
            f"FlashAttention {number} is not installed ({type(error).__name__}: {error})"[:200]
        ) from error
    if calls[0].query.dtype not in (torch.float16, torch.bfloat16):
        raise Unavailable("only for float16 and bfloat16")
    replace = sdpa.through_flash_attn(function)
    return Candidate(name, version, lambda: sdpa.Intercept(replace))


def flash_attn_installed() -> list[str]:
    """Candidate names of the FlashAttention packages that can be found, without importing them."""
    found: list[str] = []
    for name, module in (
        ("flash_attn_2", "flash_attn.flash_attn_interface"),
        ("flash_attn_3", "flash_attn_interface"),
        ("flash_attn_4", "flash_attn.cute"),
    ):
        with contextlib.suppress(Exception):
            if importlib.util.find_spec(module) is not None:
                found.append(name)
    return found


@contextlib.contextmanager
def quiet_compile() -> Iterator[None]:
    """Compilation errors are raised, not worked around."""
    import torch._dynamo

    before = torch._dynamo.config.suppress_errors
    torch._dynamo.config.suppress_errors = False
    try:
        yield
    finally:
        torch._dynamo.config.suppress_errors = before
