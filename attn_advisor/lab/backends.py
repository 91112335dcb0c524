"""Which SDPA backend ran, judged by the kernels, and why the faster ones did not."""

from __future__ import annotations

import re
import warnings
from typing import Any

import torch

from attn_advisor.lab.sdpa import Call
from attn_advisor.lab.trace import Trace

KERNELS = (
    ("cudnn", r"cudnn.*(sdpa|flash|fprop|mha)|sm\d+_flash_(fprop|bprop)|cudnn_generated_fort_native_sdpa"),
    ("flash_attn_4", r"cutlass.*flash.*(sm90|sm100)|flash_attn.*cute|FlashAttentionForwardSm"),
    ("flash_attn_3", r"hopper.*flash|flash::.*Sm90|FlashAttnFwdSm90"),
    ("flash", r"flash_fwd|flash_bwd|pytorch_flash"),
    ("efficient", r"fmha_cutlass|efficient_attention|mem_eff"),
    ("flex", r"triton_.*flex|flex_attention"),
)
OPS = (
    ("flash", r"flash_attention_for_cpu"),
    ("math", r"scaled_dot_product_attention_math|_scaled_dot_product_attention_math"),
)

BY_SPEED = ("cudnn", "flash", "efficient", "math")
MEMBERS = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "math": "MATH"}


def of(found: Trace) -> str | None:
    """The attention kernel that ran: cudnn, flash, efficient, flex, flash_attn_3, flash_attn_4, math; None if no fused kernel nor SDPA did."""
    for name, pattern in KERNELS:
        if any(re.search(pattern, kernel, re.IGNORECASE) for kernel in found.names):
            return name
    if found.kernels is None:
        for name, pattern in OPS:
            if any(re.search(pattern, op) for op in found.ops):
                return name
    return "math" if any("scaled_dot_product_attention" in op for op in found.ops) else None


def params(call: Call) -> Any:
    """The call as torch's own backend selection sees it."""
    made = torch.backends.cuda.SDPAParams
    arguments = (call.query, call.key, call.value, call.attn_mask, call.dropout_p, call.is_causal)
    try:
        return made(*arguments, call.enable_gqa)
    except TypeError:  # torch before 2.5
        return made(*arguments)


def rejections(call: Call, device: torch.device) -> dict[str, str]:
    """Why each fused backend cannot serve the call on this device: empty for those that can."""
    if device.type != "cuda":
        return {"cudnn": "only on CUDA", "efficient": "only on CUDA"} | _cpu_flash(call)
    found: dict[str, str] = {}
    for name in ("cudnn", "flash", "efficient"):
        ask = getattr(
            torch.backends.cuda,
            {
                "cudnn": "can_use_cudnn_attention",
                "flash": "can_use_flash_attention",
                "efficient": "can_use_efficient_attention",
            }[name],
            None,
        )
        if ask is None:
            found[name] = "not in this torch"
            continue
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            usable = ask(params(call), debug=True)
        if not usable:
            found[name] = first_reason([str(w.message) for w in caught]) or "not usable for this call"
    return found


def _cpu_flash(call: Call) -> dict[str, str]:
    mask = call.attn_mask
    if any(t.dim() != 4 for t in (call.query, call.key, call.value)):
        return {"flash": "query, key and value are not 4-dimensional"}
    if mask is not None and mask.requires_grad:
        return {"flash": "the mask requires a gradient"}
    if mask is not None and mask.dim() not in (2, 4):
        return {"flash": f"the mask has {mask.dim()} axes (2 or 4 are served)"}
    if call.query.shape[-1] != call.value.shape[-1]:
        return {"flash": "value has another head size than query"}
    if call.dropout_p:
        return {"flash": "dropout"}
    return {}


def first_reason(messages: list[str]) -> str:
    """The reason in torch's warnings, without source positions and general remarks."""
    for message in messages:
        text = re.sub(r"\s*\(Triggered internally at .*", "", message).strip()
        if text and not re.search(r"kernel not used because:?$|attention kernel not used because", text):
            return text
    return ""


def chosen_by_torch(call: Call) -> str:
    """What torch's dispatcher says it would choose (a forecast: the kernels decide)."""
    from torch.nn.attention import SDPBackend

    number = torch._fused_sdp_choice(
        call.query,
        call.key,
        call.value,
        attn_mask=call.attn_mask,
        dropout_p=call.dropout_p,
        is_causal=call.is_causal,
        scale=call.scale,
    )
    member = SDPBackend(number).name
    return next((name for name, value in MEMBERS.items() if value == member), member.lower())
