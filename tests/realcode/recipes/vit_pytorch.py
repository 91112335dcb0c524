"""Attention classes and whole models of vit-pytorch 1.26.11."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.realcode.recipe import Function, Given, Recipe, given, keep, make, rand, some_empty

Calls = dict[str, Callable[[], Given]]
HEADS = {"heads": 2, "dim_head": 8}
DROP = {"dropout": 0.3}
TOKENS: Calls = {"tokens": lambda: given(rand(2, 5, 16))}
IMAGE: Calls = {"image": lambda: given(rand(2, 16, 4, 4))}
PHOTO: Calls = {"photo": lambda: given(rand(2, 3, 16, 16))}


def at(module: str, name: str, build: Callable[[types.ModuleType], Any], calls: Calls, **options: Any) -> Recipe:
    return Recipe("vit_pytorch", f"vit_pytorch.{module}", name, build, calls, **options)


def plain(module: str, name: str, *args: Any, calls: Calls = TOKENS, **kwargs: Any) -> Recipe:
    return at(module, name, make(name, *args, **kwargs), calls)


def model(module: str, name: str, calls: Calls = PHOTO, **kwargs: Any) -> Recipe:
    return at(module, name, make(name, **kwargs), calls, whole=True)


def masked(*shape: int, **kwargs: Any) -> Calls:
    """A key mask of this shape: none, some keys hidden, one sample hidden altogether."""
    return {
        "no mask": lambda: given(rand(2, 5, 16), mask=None, **kwargs),
        "mask": lambda: given(rand(2, 5, 16), mask=keep(*shape), **kwargs),
        "empty row": lambda: given(rand(2, 5, 16), mask=some_empty(keep(*shape)), **kwargs),
    }


def context(name: str = "context") -> Calls:
    return {"context": lambda: given(rand(2, 5, 16), **{name: rand(2, 3, 16)})}


def crossformer(kind: str) -> Callable[[types.ModuleType], Any]:
    """Its position bias feeds float32 positions to a layer, whatever the dtype of the model."""

    def as_weights(layer: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(argument.to(next(layer.parameters()).dtype) for argument in args)

    def build(module: types.ModuleType) -> Any:
        attention = module.Attention(16, kind, 2, dim_head=8, dropout=0.3)
        attention.dpb.register_forward_pre_hook(as_weights)
        return attention

    return build


def without_flex(module: types.ModuleType) -> Any:
    """flex_attention needs compilation; machines without it take the other path."""
    module.flex_attention_supported = lambda device: False  # type: ignore[attr-defined]
    return Function(module.nd_attention)


WITH_DROPOUT = (
    "deepvit jet_vit local_vit parallel_vit pit simple_vit_with_qk_norm vit vit_1d vit_3d vit_5 vit_with_decorr "
    "vit_with_keel_post_ln vit_with_patch_dropout vit_with_patch_merger"
).split()
WITHOUT_DROPOUT = (
    "jumbo_vit simple_uvit simple_vit simple_vit_1d simple_vit_3d simple_vit_orthog_residual_update simple_vit_with_fft "
    "simple_vit_with_hyper_connections simple_vit_with_patch_dropout simple_vit_with_register_tokens "
    "simple_vit_with_value_residual"
).split()
SIMPLE = {
    "image_size": 16,
    "patch_size": 8,
    "num_classes": 3,
    "dim": 16,
    "depth": 2,
    "heads": 2,
    "mlp_dim": 16,
    "dim_head": 8,
}

RECIPES = [
    *(
        plain(module, "Attention", 16, **HEADS, **DROP)
        for module in WITH_DROPOUT
        if module != "simple_vit_with_qk_norm"
    ),
    *(plain(module, "Attention", 16, **HEADS) for module in [*WITHOUT_DROPOUT, "simple_vit_with_qk_norm"]),
    at("ats_vit", "Attention", make("Attention", 16, **HEADS, **DROP), masked(2, 5)),
    at(
        "ats_vit",
        "Attention (sampling)",
        make("Attention", 16, **HEADS, output_num_tokens=2),
        {"mask": masked(2, 5)["mask"]},
    ),
    plain(
        "attn_residual_with_dca_simple_vit",
        "AttentionResidual",
        16,
        calls={"history": lambda: given([rand(2, 5, 16) for _ in range(3)])},
    ),
    plain(
        "attn_residual_with_dca_simple_vit",
        "Attention",
        16,
        **HEADS,
        calls={"three inputs": lambda: given(rand(2, 5, 16), rand(2, 4, 16), rand(2, 4, 16))},
    ),
    plain("cait", "Attention", 16, **HEADS, **DROP, calls=TOKENS | context()),
    plain("cct", "Attention", 16, num_heads=2, attention_dropout=0.3),
    plain("cct_3d", "Attention", 16, num_heads=2, attention_dropout=0.3),
    plain(
        "cross_vit",
        "Attention",
        16,
        **HEADS,
        **DROP,
        calls=TOKENS | {"both": lambda: given(rand(2, 1, 16), rand(2, 3, 16), True)},
    ),
    *(at("crossformer", f"Attention ({kind})", crossformer(kind), IMAGE) for kind in ("short", "long")),
    plain("cvt", "Attention", 16, 3, 2, **HEADS, **DROP, calls=IMAGE),
    plain(
        "jet_vit",
        "WindowAttention",
        16,
        4,
        4,
        dim_head=8,
        window_size=2,
        **DROP,
        calls={"tokens": lambda: given(rand(2, 16, 16))},
    ),
    at(
        "learnable_memory_vit",
        "Attention",
        make("Attention", 16, **HEADS, **DROP),
        TOKENS
        | {
            "memories": lambda: given(rand(2, 5, 16), memories=rand(3, 16)),
            "mask and memories": lambda: given(rand(2, 5, 16), attn_mask=keep(1, 1, 5, 8), memories=rand(3, 16)),
            "empty row": lambda: given(rand(2, 5, 16), attn_mask=some_empty(keep(1, 1, 5, 5))),
        },
    ),
    plain("levit", "Attention", 16, 4, heads=2, dim_key=8, dim_value=12, **DROP, calls=IMAGE),
    plain("levit", "Attention", 16, 4, heads=2, dim_key=8, dim_value=12, dim_out=24, downsample=True, calls=IMAGE),
    at(
        "levjepa_nd",
        "nd_attention",
        lambda m: Function(m.nd_attention),
        {
            "no mask": lambda: given(*(rand(2, 2, 5, 8) for _ in "qkv"), scale=0.3),
            "mask": lambda: given(*(rand(2, 2, 5, 8) for _ in "qkv"), dense_mask=keep(2, 5, 5), scale=0.3),
            "empty row": lambda: given(
                *(rand(2, 2, 5, 8) for _ in "qkv"), dense_mask=some_empty(keep(2, 5, 5)), scale=0.3
            ),
        },
    ),
    plain("look_vit", "Attention", 16, **HEADS, **DROP),
    at(
        "look_vit",
        "Attention (scores returned)",
        make("Attention", 16, **HEADS, **DROP, cross_attend=True),
        {"returned": lambda: given(rand(2, 5, 16), context=rand(2, 3, 16), return_qk_sim=True)} | context(),
    ),
    at(
        "look_vit",
        "Attention (scores reused)",
        make("Attention", 16, **HEADS, **DROP, cross_attend=True, reuse_attention=True),
        {"reused": lambda: given(rand(2, 5, 16), context=rand(2, 3, 16), qk_sim=rand(2, 2, 5, 3))},
    ),
    plain(
        "max_vit",
        "Attention",
        16,
        dim_head=8,
        window_size=2,
        **DROP,
        calls={"windows": lambda: given(rand(1, 2, 2, 2, 2, 16))},
    ),
    plain(
        "max_vit_with_registers",
        "Attention",
        16,
        dim_head=8,
        window_size=2,
        **DROP,
        calls={"windows": lambda: given(rand(3, 5, 16))},
    ),
    plain("mobile_vit", "Attention", 16, **HEADS, **DROP, calls={"patches": lambda: given(rand(2, 3, 5, 16))}),
    plain("mp3", "Attention", 16, **HEADS, **DROP, calls=TOKENS | context()),
    plain("nest", "Attention", 16, heads=2, **DROP, calls=IMAGE),
    plain(
        "regionvit",
        "Attention",
        16,
        **HEADS,
        **DROP,
        calls=TOKENS | {"bias": lambda: given(rand(2, 5, 16), rel_pos_bias=rand(2, 5, 5))},
    ),
    *(
        at(
            "rvt",
            f"Attention (rotary: {rotary})",
            make("Attention", 16, **HEADS, **DROP, use_rotary=rotary),
            {"tokens": lambda: given(rand(2, 17, 16), (rand(1, 16, 8), rand(1, 16, 8)), {"h": 4, "w": 4})},
        )
        for rotary in (False, True)
    ),
    plain(
        "scalable_vit",
        "ScalableSelfAttention",
        16,
        heads=2,
        dim_key=8,
        dim_value=6,
        reduction_factor=2,
        **DROP,
        calls=IMAGE,
    ),
    plain(
        "scalable_vit", "InteractiveWindowedSelfAttention", 16, 2, heads=2, dim_key=8, dim_value=8, **DROP, calls=IMAGE
    ),
    plain(
        "sep_vit",
        "DSSA",
        16,
        **HEADS,
        window_size=2,
        **DROP,
        calls=IMAGE | {"one window": lambda: given(rand(2, 16, 2, 2))},
    ),
    plain("simple_vit_attn_residual", "Attention", 16, **HEADS),
    at("simple_vit_attn_residual", "Attention (cross)", make("Attention", 16, **HEADS, cross_attend=True), context()),
    plain(
        "simple_vit_with_relative_proj_pos_bias",
        "Attention",
        16,
        **HEADS,
        calls={"image": lambda: given(rand(2, 3, 4, 16))},
    ),
    plain(
        "simple_vit_with_specialized_cls",
        "Attention",
        16,
        **HEADS,
        calls={"two kinds of tokens": lambda: given(rand(2, 5, 16), token_lens=(1, 4))},
    ),
    plain("simple_vit_with_sparse_gating", "Attention", 16, **HEADS, num_register_tokens=2),
    at(
        "simple_vit_with_value_residual",
        "Attention (mixed values)",
        make("Attention", 16, **HEADS, learned_value_residual_mix=True),
        {"mixed": lambda: given(rand(2, 5, 16), value_residual=rand(2, 2, 5, 8))},
    ),
    plain("twins_svt", "LocalAttention", 16, **HEADS, **DROP, patch_size=2, calls=IMAGE),
    plain("twins_svt", "GlobalAttention", 16, **HEADS, **DROP, k=2, calls=IMAGE),
    *(plain(module, "Attention", 16, **HEADS, **DROP) for module in ("vaat", "vat", "vat_siglip")),
    *(
        at(module, "Attention (cross)", make("Attention", 16, **HEADS, **DROP, cross_attend=True), context())
        for module in ("vaat", "vat")
    ),
    at("vat_siglip", "Attention (cross)", make("Attention", 16, dim_context=16, **HEADS, gate_attn=True), context()),
    at("vit_detpool", "Attention", make("Attention", 16, **HEADS, **DROP), masked(2, 5)),
    plain("vit_for_small_dataset", "LSA", 16, **HEADS, **DROP),
    plain("vit_with_patch_merger", "PatchMerger", 16, 3),
    at(
        "vit_nd_masking",
        "nd_attention",
        without_flex,
        {
            "no mask": lambda: given(*(rand(2, 2, 5, 8) for _ in "qkv"), scale=0.3),
            "causal": lambda: given(*(rand(2, 2, 5, 8) for _ in "qkv"), lambda b, h, i, j: i >= j, scale=0.3),
            "empty row": lambda: given(*(rand(2, 2, 5, 8) for _ in "qkv"), lambda b, h, i, j: i > j, scale=0.3),
        },
    ),
    at("vivit", "Attention", make("Attention", 16, **HEADS, **DROP, use_flash_attn=False), masked(2, 5)),
    at("vivit", "Attention (fused)", make("Attention", 16, **HEADS), {"no mask": masked(2, 5)["no mask"]}),
    at("vivit_with_moss", "Attention", make("Attention", 16, **HEADS, **DROP, use_flash_attn=False), masked(2, 5)),
    at(
        "vivit_with_moss",
        "Attention (causal)",
        make("Attention", 16, **HEADS, **DROP, use_flash_attn=False, causal=True),
        TOKENS
        | {
            "cache": lambda: given(rand(2, 1, 16), cache=(rand(2, 2, 4, 8), rand(2, 2, 4, 8)), return_cache=True),
            "long cache": lambda: given(rand(2, 3, 16), cache=(rand(2, 2, 4, 8), rand(2, 2, 4, 8))),
        },
    ),
    plain("xcit", "Attention", 16, **HEADS, **DROP, calls=TOKENS | context()),
    plain("xcit", "XCAttention", 16, **HEADS, **DROP, calls={"image": lambda: given(rand(2, 3, 4, 16))}),
    model("vit", "ViT", **SIMPLE, dropout=0.1),
    model("simple_vit", "SimpleViT", **SIMPLE),
    model("deepvit", "DeepViT", **SIMPLE),
    model("vit_for_small_dataset", "ViT", **SIMPLE),
    model("parallel_vit", "ViT", **SIMPLE),
    model("simple_vit_with_register_tokens", "SimpleViT", **SIMPLE),
    model("cait", "CaiT", **{**SIMPLE, "depth": 1}, cls_depth=1),
]
