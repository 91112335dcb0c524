"""Attention classes of the encoders, vision and protein models of transformers 4.30.2."""

from __future__ import annotations

import types

import torch

from tests.realcode.recipe import additive, given, keep, make, rand, some_empty
from tests.realcode.recipes.transformers_calls import (
    DROPS,
    LOW,
    SMALL,
    SWIN,
    VIT,
    WINDOWS,
    at,
    bert,
    bert_calls,
    configured,
    hidden,
)

RECIPES = [
    bert("bert", "Bert"),
    bert("bert", "Bert", position_embedding_type="relative_key", max_position_embeddings=16),
    bert("bert", "Bert", position_embedding_type="relative_key_query", max_position_embeddings=16),
    bert("roberta", "Roberta"),
    bert("electra", "Electra"),
    bert("esm", "Esm", max_position_embeddings=16),
    bert("esm", "Esm", bert_calls(cross=False), position_embedding_type="rotary"),
    bert("mpnet", "MPNet", bert_calls(cross=False) | {"bias": lambda: given(hidden(), position_bias=rand(1, 2, 5, 5))}),
    bert(
        "layoutlmv3",
        "LayoutLMv3",
        bert_calls(cross=False),
        has_relative_attention_bias=False,
        has_spatial_attention_bias=False,
    ),
    bert(
        "layoutlmv3",
        "LayoutLMv3",
        {"bias": lambda: given(hidden(), additive(2, 1, 1, 5), rel_pos=rand(1, 2, 5, 5), rel_2d_pos=rand(1, 2, 5, 5))},
        has_relative_attention_bias=True,
        has_spatial_attention_bias=True,
    ),
    at(
        "albert",
        "AlbertAttention",
        configured("AlbertAttention", "AlbertConfig", **SMALL, **DROPS),
        bert_calls(cross=False),
    ),
    at(
        "vit", "ViTSelfAttention", configured("ViTSelfAttention", "ViTConfig", **VIT, **DROPS), bert_calls(False, False)
    ),
    at(
        "beit",
        "BeitSelfAttention",
        configured("BeitSelfAttention", "BeitConfig", **VIT, **DROPS, options={"window_size": (2, 2)}),
        bert_calls(False, False),
    ),
    at("swin", "SwinSelfAttention", configured("SwinSelfAttention", "SwinConfig", 16, 2, 2, **SWIN, **DROPS), WINDOWS),
    at(
        "swinv2",
        "Swinv2SelfAttention",
        configured("Swinv2SelfAttention", "Swinv2Config", 16, 2, (2, 2), **SWIN, **DROPS),
        WINDOWS,
    ),
    *(
        at(
            "segformer",
            f"SegformerEfficientSelfAttention (reduction {ratio})",
            configured("SegformerEfficientSelfAttention", "SegformerConfig", 16, 2, ratio, **DROPS),
            {
                "image": lambda: given(rand(2, 16, 16), 4, 4),
                "weights": lambda: given(rand(2, 16, 16), 4, 4, output_attentions=True),
            },
        )
        for ratio in (1, 2)
    ),
    *(
        at(
            model,
            "DisentangledSelfAttention",
            configured("DisentangledSelfAttention", config, **SMALL, **DROPS),
            {
                "mask": lambda: given(hidden(), keep(2, 1, 5, 5)),
                "weights": lambda: given(hidden(), keep(2, 1, 5, 5), output_attentions=True),
                "empty row": lambda: given(hidden(), some_empty(keep(2, 1, 5, 5))),
            },
        )
        for model, config in (("deberta", "DebertaConfig"), ("deberta_v2", "DebertaV2Config"))
    ),
    at(
        "perceiver",
        "PerceiverSelfAttention",
        configured(
            "PerceiverSelfAttention",
            "PerceiverConfig",
            options={
                "is_cross_attention": True,
                "qk_channels": 16,
                "v_channels": 8,
                "num_heads": 2,
                "q_dim": 16,
                "kv_dim": 12,
            },
            attention_probs_dropout_prob=0.3,
        ),
        {
            "no mask": lambda: given(hidden(), inputs=rand(2, 3, 12)),
            "mask": lambda: given(hidden(), inputs=rand(2, 3, 12), inputs_mask=additive(2, 1, 1, 3, low=LOW)),
            "head mask": lambda: given(hidden(), inputs=rand(2, 3, 12), head_mask=rand(1, 2, 1, 1)),
            "weights": lambda: given(hidden(), inputs=rand(2, 3, 12), output_attentions=True),
        },
    ),
    at(
        "xlm",
        "MultiHeadAttention",
        lambda m: m.MultiHeadAttention(2, 16, types.SimpleNamespace(attention_dropout=0.3)),
        {
            "keys": lambda: given(hidden(), keep(2, 5)),
            "pairs": lambda: given(hidden(), keep(2, 5, 5)),
            "cross": lambda: given(hidden(), keep(2, 3), kv=rand(2, 3, 16)),
            "head mask": lambda: given(hidden(), keep(2, 5), head_mask=rand(1, 2, 1, 1)),
            "weights": lambda: given(hidden(), keep(2, 5), output_attentions=True),
            "empty row": lambda: given(hidden(), some_empty(keep(2, 5))),
        },
        single=True,
    ),
    at(
        "esm",
        "EsmFoldAttention",
        make("EsmFoldAttention", 16, 12, 12, 8, 2),
        {
            "no bias": lambda: given(hidden(), rand(2, 3, 12)),
            "biases": lambda: given(hidden(), rand(2, 3, 12), biases=[additive(2, 1, 1, 3), rand(2, 2, 5, 3)]),
        },
        file="esmfold",
    ),
    at(
        "esm",
        "EsmFoldSelfAttention",
        make("EsmFoldSelfAttention", 16, 2, 8, gated=True),
        {
            "no mask": lambda: given(hidden()),
            "mask": lambda: given(hidden(), mask=keep(2, 5)),
            "bias": lambda: given(hidden(), bias=rand(2, 5, 5, 2)),
            "empty row": lambda: given(hidden(), mask=some_empty(keep(2, 5))),
        },
        file="esmfold",
    ),
    at(
        "blip_2",
        "Blip2Attention",
        configured("Blip2Attention", "Blip2VisionConfig", hidden_size=16, num_attention_heads=2, attention_dropout=0.3),
        {
            "no mask": lambda: given(hidden()),
            "head mask": lambda: given(hidden(), head_mask=rand(1, 2, 1, 1)),
            "weights": lambda: given(hidden(), output_attentions=True),
        },
    ),
    at(
        "blip_2",
        "Blip2QFormerMultiHeadAttention",
        configured("Blip2QFormerMultiHeadAttention", "Blip2QFormerConfig", **SMALL, **DROPS),
        bert_calls(),
    ),
    at(
        "sam",
        "SamAttention",
        lambda m: m.SamAttention(
            types.SimpleNamespace(hidden_size=16, num_attention_heads=2, attention_downsample_rate=1)
        ),
        {
            "plain": lambda: given(rand(2, 3, 5, 16), rand(2, 3, 4, 16), rand(2, 3, 4, 16)),
            "similarity": lambda: given(rand(2, 3, 5, 16), rand(2, 3, 4, 16), rand(2, 3, 4, 16), rand(6, 2, 5, 4)),
        },
    ),
    at(
        "sam",
        "SamVisionAttention",
        lambda m: m.SamVisionAttention(
            types.SimpleNamespace(
                image_size=8,
                patch_size=2,
                num_attention_heads=2,
                hidden_size=16,
                attention_dropout=0.3,
                qkv_bias=True,
                use_rel_pos=True,
            ),
            3,
        ),
        {
            "windows": lambda: given(rand(2, 3, 3, 16)),
            "weights": lambda: given(rand(2, 3, 3, 16), output_attentions=True),
        },
        single=True,
    ),
    at(
        "xlnet",
        "XLNetRelativeAttention",
        lambda m: m.XLNetRelativeAttention(
            types.SimpleNamespace(d_model=16, n_head=2, d_head=8, layer_norm_eps=1e-5, dropout=0.3)
        ),
        {
            "no mask": lambda: given(rand(5, 2, 16), None, None, None, rand(10, 2, 16), None),
            "mask": lambda: given(
                rand(5, 2, 16), None, (~keep(2, 5, 5)).double().permute(1, 2, 0)[..., None], None, rand(10, 2, 16), None
            ),
            "weights": lambda: given(rand(5, 2, 16), None, None, None, rand(10, 2, 16), None, output_attentions=True),
        },
    ),
    at(
        "longformer",
        "LongformerSelfAttention",
        configured("LongformerSelfAttention", "LongformerConfig", 0, **SMALL, **DROPS, attention_window=[4, 4]),
        {
            "local": lambda: given(
                rand(2, 8, 16),
                attention_mask=torch.zeros(2, 8, dtype=torch.float64),
                is_index_masked=torch.zeros(2, 8, dtype=torch.bool),
                is_index_global_attn=torch.zeros(2, 8, dtype=torch.bool),
                is_global_attn=False,
            ),
            "global": lambda: given(
                rand(2, 8, 16),
                attention_mask=torch.zeros(2, 8, dtype=torch.float64).index_fill(1, torch.tensor([0]), 10000.0),
                is_index_masked=torch.zeros(2, 8, dtype=torch.bool),
                is_index_global_attn=torch.zeros(2, 8, dtype=torch.bool).index_fill(1, torch.tensor([0]), True),
                is_global_attn=True,
            ),
        },
        single=True,
    ),
    at(
        "cvt",
        "CvtSelfAttention",
        make("CvtSelfAttention", 2, 16, 3, 1, 1, 1, 2, "dw_bn", True, 0.3),
        {"image and class": lambda: given(rand(2, 17, 16), 4, 4)},
    ),
    at(
        "mobilevit",
        "MobileViTSelfAttention",
        configured("MobileViTSelfAttention", "MobileViTConfig", 16, num_attention_heads=2, **DROPS),
        {"patches": lambda: given(hidden())},
    ),
    at(
        "oneformer",
        "OneFormerTextMapperAttention",
        make("OneFormerTextMapperAttention", 16, 2, attn_drop=0.3),
        {"three inputs": lambda: given(hidden(), rand(2, 3, 16), rand(2, 3, 16))},
    ),
    at(
        "x_clip",
        "XCLIPCrossAttention",
        configured(
            "XCLIPCrossAttention",
            "XCLIPConfig",
            projection_dim=16,
            prompt_num_attention_heads=2,
            prompt_attention_dropout=0.3,
        ),
        {"three inputs": lambda: given(hidden(), rand(2, 3, 16), rand(2, 3, 16))},
    ),
    at("levit", "LevitAttention", make("LevitAttention", 16, 4, 2, 2, 4), {"tokens": lambda: given(rand(2, 16, 16))}),
    at(
        "levit",
        "LevitAttentionSubsample",
        make("LevitAttentionSubsample", 16, 24, 4, 2, 2, 2, 4, 2),
        {"tokens": lambda: given(rand(2, 16, 16))},
    ),
    at(
        "nystromformer",
        "NystromformerSelfAttention",
        configured(
            "NystromformerSelfAttention",
            "NystromformerConfig",
            **SMALL,
            **DROPS,
            num_landmarks=2,
            segment_means_seq_len=8,
        ),
        {
            "no mask": lambda: given(rand(2, 8, 16)),
            "mask": lambda: given(rand(2, 8, 16), attention_mask=additive(2, 1, 1, 8, low=-1e4)),
            "weights": lambda: given(rand(2, 8, 16), output_attentions=True),
        },
        follows_default=True,
    ),
    at(
        "reformer",
        "LocalSelfAttention",
        configured(
            "LocalSelfAttention",
            "ReformerConfig",
            hidden_size=16,
            num_attention_heads=2,
            attention_head_size=8,
            local_attn_chunk_length=4,
            local_attention_probs_dropout_prob=0.3,
        ),
        {"chunks": lambda: given(rand(2, 8, 16)), "one chunk": lambda: given(rand(2, 3, 16))},
    ),
]
