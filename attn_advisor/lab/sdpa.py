"""Watching and replacing the scaled_dot_product_attention calls of a running program."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode


@dataclass
class Call:
    """The arguments of one SDPA call; query (B, H, L, D), key and value (B, H, S, D)."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    attn_mask: torch.Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    def run(self) -> torch.Tensor:
        """The call as it was made."""
        extra: dict[str, Any] = {"enable_gqa": True} if self.enable_gqa else {}
        return F.scaled_dot_product_attention(
            self.query,
            self.key,
            self.value,
            attn_mask=self.attn_mask,
            dropout_p=self.dropout_p,
            is_causal=self.is_causal,
            scale=self.scale,
            **extra,
        )

    def causal_by_value(self) -> bool:
        """Whether the mask hides exactly what is_causal=True would; a flag already set counts."""
        if self.attn_mask is None:
            return self.is_causal
        length, keys = self.query.shape[-2], self.key.shape[-2]
        mask = self.attn_mask
        if length != keys or self.is_causal or mask.shape[-2:] != (length, keys):
            return False
        keep = mask if mask.dtype == torch.bool else mask == 0
        if mask.dtype != torch.bool and not bool((mask[~keep] < -1e4).all()):
            return False
        lower = torch.ones(length, keys, dtype=torch.bool, device=mask.device).tril()
        return all(torch.equal(part, lower) for part in keep.reshape(-1, length, keys)[:64]) and bool(
            (keep == lower).all()
        )


class Intercept(TorchFunctionMode):
    """Hands every SDPA call to a function; other torch functions run as they are."""

    def __init__(self, replace: Callable[[Call], torch.Tensor]) -> None:
        super().__init__()
        self.replace = replace

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            return self.replace(_call(args, kwargs or {}))
        return func(*args, **(kwargs or {}))


_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def _call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    return Call(**{**dict(zip(_NAMES, args)), **kwargs})


def seen(run: Callable[[], Any]) -> list[Call]:
    """The SDPA calls that `run` makes."""
    calls: list[Call] = []

    def note(call: Call) -> torch.Tensor:
        calls.append(call)
        return call.run()

    with torch.no_grad(), Intercept(note):
        run()
    return calls


def with_causal_flag(call: Call) -> torch.Tensor:
    """The call with is_causal=True in place of its mask."""
    return Call(call.query, call.key, call.value, None, call.dropout_p, True, call.scale, call.enable_gqa).run()


def in_bfloat16(call: Call) -> torch.Tensor:
    """The call computed in bfloat16, casts included."""
    low = torch.bfloat16
    mask = call.attn_mask
    if mask is not None and mask.is_floating_point():
        mask = mask.to(low)
    made = Call(
        call.query.to(low),
        call.key.to(low),
        call.value.to(low),
        mask,
        call.dropout_p,
        call.is_causal,
        call.scale,
        call.enable_gqa,
    )
    return made.run().to(call.query.dtype)


FlashFunction = Callable[..., Any]


def flash_attn(version: int) -> FlashFunction:
    """flash_attn_func of FlashAttention 2, 3 or 4. Raises ImportError if it is not installed."""
    if version == 2:
        from flash_attn import flash_attn_func
    elif version == 3:
        from flash_attn_interface import flash_attn_func  # type: ignore[import-not-found,no-redef]
    else:
        from flash_attn.cute import flash_attn_func
    found: FlashFunction = flash_attn_func
    return found


def through_flash_attn(function: FlashFunction) -> Callable[[Call], torch.Tensor]:
    """The call through flash_attn_func, which takes (B, S, H, D). Raises ValueError for a mask it has no argument for."""
    takes_dropout = "dropout_p" in inspect.signature(function).parameters

    def replace(call: Call) -> torch.Tensor:
        if call.attn_mask is not None and not call.causal_by_value():
            raise ValueError("flash_attn_func takes no mask")
        causal = call.is_causal or call.attn_mask is not None
        extra = {"dropout_p": call.dropout_p} if takes_dropout else {}
        if call.dropout_p and not takes_dropout:
            raise ValueError("this flash_attn_func has no dropout")
        q, k, v = (t.transpose(1, 2) for t in (call.query, call.key, call.value))
        out = function(q, k, v, causal=causal, softmax_scale=call.scale, **extra)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    return replace


def through_flex(calls: list[Call]) -> Callable[[Call], torch.Tensor]:
    """The call through compiled flex_attention: a bool or causal mask as block mask made once, an additive one as score_mod.

    Raises ValueError for dropout, which flex_attention does not have.
    """
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)
    blocks: list[Any] = []
    for call in calls:
        length, keys = call.query.shape[-2], call.key.shape[-2]
        if call.attn_mask is None and not call.is_causal:
            blocks.append(None)
            continue
        mask = call.attn_mask
        if mask is None or call.causal_by_value():
            blocks.append(
                create_block_mask(lambda b, h, i, j: i >= j, None, None, length, keys, device=call.query.device)
            )
        elif mask.dtype == torch.bool:
            four = mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape)).expand(-1, -1, length, keys)
            nb, nh = four.shape[:2]
            blocks.append(
                create_block_mask(
                    lambda b, h, i, j, four=four, nb=nb, nh=nh: four[b if nb > 1 else 0, h if nh > 1 else 0, i, j],
                    nb if nb > 1 else None,
                    nh if nh > 1 else None,
                    length,
                    keys,
                    device=call.query.device,
                )
            )
        else:
            blocks.append(None)
    turn = iter(())

    def replace(call: Call) -> torch.Tensor:
        nonlocal turn
        if call.dropout_p:
            raise ValueError("flex_attention has no dropout")
        block = next(turn, _END)
        if block is _END:
            turn = iter(blocks)
            block = next(turn)
        mask, score_mod = call.attn_mask, None
        if mask is not None and mask.dtype != torch.bool and block is None:
            four = mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape)).expand(
                call.query.shape[0], call.query.shape[1], *call.query.shape[-2:-1], call.key.shape[-2]
            )
            score_mod = lambda s, b, h, i, j: s + four[b, h, i, j]  # noqa: E731
        out: torch.Tensor = compiled(
            call.query,
            call.key,
            call.value,
            score_mod=score_mod,
            block_mask=block,
            scale=call.scale,
            enable_gqa=call.enable_gqa,
        )
        return out

    return replace


_END = object()
