"""Attention classes and whole models of timm 0.6.13."""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tests.realcode.recipe import Given, Recipe, additive, given, make, rand

Build = Callable[[types.ModuleType], Any]
Calls = dict[str, Callable[[], Given]]
DROP = {"attn_drop": 0.3, "proj_drop": 0.1}
TOKENS: Calls = {"tokens": lambda: given(rand(2, 5, 16))}
IMAGE: Calls = {"image": lambda: given(rand(2, 16, 4, 4))}


def at(module: str, name: str, build: Build, calls: Calls, **options: bool) -> Recipe:
    return Recipe("timm", f"timm.models.{module}", name, build, calls, **options)


def plain(module: str, name: str, *args: Any, calls: Calls = TOKENS, **kwargs: Any) -> Recipe:
    return at(module, name, make(name, *args, **kwargs), calls)


def windows(module: str, name: str, build: Build, calls: Calls | None = None) -> Recipe:
    masked = {
        "no mask": lambda: given(rand(4, 4, 16)),
        "mask": lambda: given(rand(4, 4, 16), mask=additive(2, 4, 4, low=-100.0)),
        "masked -inf": lambda: given(rand(4, 4, 16), mask=additive(2, 4, 4, low=float("-inf"))),
    }
    return at(module, name, build, calls or masked)


def with_conv(name: str, *args: Any, **kwargs: Any) -> Build:
    """LeViT names its activation as a class; the default of None cannot be called."""
    return make(name, *args, act_layer=torch.nn.Hardswish, **kwargs)


def rel_pos(module: types.ModuleType) -> Any:
    return partial(module.RelPosBias, window_size=(2, 2), prefix_tokens=0)


RECIPES = [
    plain("vision_transformer", "Attention", 16, num_heads=2, qkv_bias=True, **DROP),
    at(
        "beit",
        "Attention",
        make("Attention", 16, num_heads=2, qkv_bias=True, window_size=(2, 2), **DROP),
        {
            "own bias": lambda: given(rand(2, 5, 16)),
            "shared bias": lambda: given(rand(2, 5, 16), shared_rel_pos_bias=rand(2, 5, 5)),
        },
    ),
    plain("cait", "ClassAttn", 16, num_heads=2, **DROP),
    plain("cait", "TalkingHeadAttn", 16, num_heads=2, **DROP),
    plain("convit", "MHSA", 16, num_heads=2, **DROP),
    at(
        "convit",
        "GPSA",
        make("GPSA", 16, num_heads=2, **DROP),
        {"tokens": lambda: given(rand(2, 4, 16))},
        follows_default=True,
    ),
    plain("crossvit", "CrossAttention", 16, num_heads=2, **DROP),
    plain("edgenext", "CrossCovarianceAttn", 16, num_heads=2, **DROP),
    plain(
        "efficientformer",
        "Attention",
        16,
        key_dim=4,
        num_heads=2,
        resolution=2,
        calls={"tokens": lambda: given(rand(2, 4, 16))},
    ),
    at(
        "gcvit",
        "WindowAttentionGlobal",
        make("WindowAttentionGlobal", 16, num_heads=2, window_size=(2, 2), **DROP),
        {"global query": lambda: given(rand(4, 4, 16), rand(2, 4, 16))},
    ),
    at(
        "gcvit",
        "WindowAttentionGlobal (own query)",
        make("WindowAttentionGlobal", 16, num_heads=2, window_size=(2, 2), use_global=False, **DROP),
        {"own query": lambda: given(rand(4, 4, 16))},
    ),
    at(
        "levit",
        "Attention",
        with_conv("Attention", 16, key_dim=4, num_heads=2, attn_ratio=2, resolution=2),
        {"tokens": lambda: given(rand(2, 4, 16))},
    ),
    at(
        "levit",
        "Attention (convolution)",
        with_conv("Attention", 16, key_dim=4, num_heads=2, attn_ratio=2, resolution=2, use_conv=True),
        {"image": lambda: given(rand(2, 16, 2, 2))},
    ),
    at(
        "levit",
        "AttentionSubsample",
        with_conv("AttentionSubsample", 16, 24, key_dim=4, num_heads=2, resolution=4, resolution_out=2),
        {"tokens": lambda: given(rand(2, 16, 16))},
    ),
    at(
        "levit",
        "AttentionSubsample (convolution)",
        with_conv(
            "AttentionSubsample",
            16,
            24,
            key_dim=4,
            num_heads=2,
            stride=1,
            resolution=4,
            resolution_out=4,
            use_conv=True,
        ),
        {"image": lambda: given(rand(2, 16, 4, 4))},
    ),
    plain("maxxvit", "Attention2d", 16, dim_head=8, **DROP, calls=IMAGE),
    at(
        "maxxvit",
        "Attention2d (position bias)",
        lambda m: m.Attention2d(16, dim_head=8, rel_pos_cls=partial(m.RelPosBias, window_size=(4, 4)), **DROP),
        IMAGE,
    ),
    at(
        "maxxvit",
        "AttentionCl",
        make("AttentionCl", 16, dim_head=8, **DROP),
        {
            "image": lambda: given(rand(2, 4, 4, 16)),
            "shared bias": lambda: given(rand(2, 4, 4, 16), shared_rel_pos=rand(1, 2, 16, 16)),
        },
    ),
    at(
        "mvitv2",
        "MultiScaleAttention",
        make("MultiScaleAttention", 16, 16, (4, 4), num_heads=2, kernel_q=(3, 3), kernel_kv=(3, 3), stride_kv=(2, 2)),
        {"tokens": lambda: given(rand(2, 17, 16), [4, 4])},
    ),
    at(
        "mvitv2",
        "MultiScaleAttentionPoolFirst",
        make(
            "MultiScaleAttentionPoolFirst",
            16,
            16,
            (4, 4),
            num_heads=2,
            kernel_q=(3, 3),
            kernel_kv=(3, 3),
            stride_kv=(2, 2),
        ),
        {"tokens": lambda: given(rand(2, 17, 16), [4, 4])},
    ),
    plain("nest", "Attention", 16, num_heads=2, **DROP, calls={"blocks": lambda: given(rand(2, 3, 5, 16))}),
    *(
        at(
            "pvt_v2",
            f"Attention ({options})",
            make("Attention", 16, num_heads=2, **options, **DROP),
            {"tokens": lambda: given(rand(2, 64, 16), [8, 8])},
        )
        for options in ({}, {"sr_ratio": 2}, {"linear_attn": True, "sr_ratio": 1})
    ),
    windows(
        "swin_transformer", "WindowAttention", make("WindowAttention", 16, num_heads=2, window_size=(2, 2), **DROP)
    ),
    windows(
        "swin_transformer_v2", "WindowAttention", make("WindowAttention", 16, num_heads=2, window_size=(2, 2), **DROP)
    ),
    windows(
        "swin_transformer_v2_cr",
        "WindowMultiHeadAttention",
        make("WindowMultiHeadAttention", 16, num_heads=2, window_size=(2, 2), drop_attn=0.3),
    ),
    plain("tnt", "Attention", 16, 16, num_heads=2, **DROP),
    plain(
        "twins",
        "LocallyGroupedAttn",
        16,
        num_heads=2,
        ws=2,
        **DROP,
        calls={"odd size": lambda: given(rand(2, 15, 16), (3, 5))},
    ),
    plain(
        "twins",
        "GlobalSubSampleAttn",
        16,
        num_heads=2,
        sr_ratio=2,
        **DROP,
        calls={"tokens": lambda: given(rand(2, 16, 16), (4, 4))},
    ),
    plain("visformer", "Attention", 16, num_heads=2, **DROP, calls=IMAGE),
    at(
        "vision_transformer_relpos",
        "RelPosAttention",
        lambda m: m.RelPosAttention(16, num_heads=2, rel_pos_cls=rel_pos(m), **DROP),
        {"own bias": lambda: given(rand(2, 4, 16))},
    ),
    at(
        "vision_transformer_relpos",
        "RelPosAttention (shared)",
        make("RelPosAttention", 16, num_heads=2, **DROP),
        {
            "no bias": lambda: given(rand(2, 4, 16)),
            "shared bias": lambda: given(rand(2, 4, 16), shared_rel_pos=rand(1, 2, 4, 4)),
        },
    ),
    plain("volo", "Attention", 16, num_heads=2, **DROP, calls={"image": lambda: given(rand(2, 2, 3, 16))}),
    plain("volo", "ClassAttention", 16, num_heads=2, head_dim=8, **DROP),
    plain("xcit", "XCA", 16, num_heads=2, **DROP),
    plain("layers.attention_pool2d", "RotAttentionPool2d", 16, num_heads=2, calls=IMAGE),
    plain("layers.attention_pool2d", "AttentionPool2d", 16, (4, 4), num_heads=2, calls=IMAGE),
    *(
        at(
            "layers.bottleneck_attn",
            f"BottleneckAttn (bias scaled: {scaled})",
            make("BottleneckAttn", 16, feat_size=(4, 4), num_heads=2, scale_pos_embed=scaled),
            IMAGE,
        )
        for scaled in (False, True)
    ),
    *(
        at(
            "layers.halo_attn",
            f"HaloAttn (bias scaled: {scaled})",
            make("HaloAttn", 16, num_heads=2, block_size=2, halo_size=1, scale_pos_embed=scaled),
            IMAGE,
        )
        for scaled in (False, True)
    ),
    plain("layers.non_local_attn", "NonLocalAttn", 16, rd_channels=8, calls=IMAGE),
    at(
        "vision_transformer",
        "VisionTransformer",
        make(
            "VisionTransformer",
            img_size=8,
            patch_size=4,
            embed_dim=16,
            depth=2,
            num_heads=2,
            num_classes=3,
            attn_drop_rate=0.2,
        ),
        {"image": lambda: given(rand(2, 3, 8, 8))},
        whole=True,
    ),
    at(
        "beit",
        "Beit",
        make(
            "Beit",
            img_size=8,
            patch_size=4,
            embed_dim=16,
            depth=2,
            num_heads=2,
            num_classes=3,
            init_values=0.1,
            use_shared_rel_pos_bias=True,
        ),
        {"image": lambda: given(rand(2, 3, 8, 8))},
        whole=True,
    ),
    at(
        "swin_transformer",
        "SwinTransformer",
        make(
            "SwinTransformer",
            img_size=16,
            patch_size=2,
            embed_dim=8,
            depths=(2, 2),
            num_heads=(2, 2),
            window_size=4,
            num_classes=3,
            drop_path_rate=0.0,
        ),
        {"image": lambda: given(rand(2, 3, 16, 16))},
        whole=True,
    ),
    at(
        "xcit",
        "XCiT",
        make("XCiT", img_size=16, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=3, use_pos_embed=False),
        {"image": lambda: given(rand(2, 3, 16, 16))},
        whole=True,
    ),
]
