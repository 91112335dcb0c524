"""Attention classes and whole models of transformers 4.30.2."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from tests.realcode.recipe import Given, Recipe, additive, given, keep, make, rand, some_empty, tokens

Calls = dict[str, Callable[[], Given]]
LOW = torch.finfo(torch.float64).min
SMALL = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 16, "vocab_size": 50}
DROPS = {"attention_probs_dropout_prob": 0.3, "hidden_dropout_prob": 0.1}


def at(
    model: str, name: str, build: Callable[[types.ModuleType], Any], calls: Calls, file: str = "", **options: Any
) -> Recipe:
    return Recipe(
        "transformers", f"transformers.models.{model}.modeling_{file or model}", name, build, calls, **options
    )


def configured(
    name: str, config: str, *args: Any, options: dict[str, Any] | None = None, **settings: Any
) -> Callable[[types.ModuleType], Any]:
    """Builds `name(config, *args)`, the configuration class being found in the model's own package."""

    def build(module: types.ModuleType) -> Any:
        found = getattr(module, config)(**settings)
        return getattr(module, name)(found, *args, **(options or {}))

    return build


def hidden() -> torch.Tensor:
    return rand(2, 5, 16)


def everything_hidden(*shape: int) -> torch.Tensor:
    """An added mask that hides every key of the first sample with the lowest finite number."""
    mask = torch.zeros(*shape, dtype=torch.float64)
    mask[0] = LOW
    return mask


def bert_calls(cross: bool = True, mask: bool = True) -> Calls:
    """The calls of self-attention copied from BERT."""
    calls: Calls = {
        "no mask": lambda: given(hidden()),
        "head mask": lambda: given(hidden(), head_mask=rand(1, 2, 1, 1)),
        "weights": lambda: given(hidden(), output_attentions=True),
    }
    if mask:
        calls |= {
            "mask": lambda: given(hidden(), attention_mask=additive(2, 1, 1, 5, low=LOW)),
            "empty row": lambda: given(hidden(), attention_mask=everything_hidden(2, 1, 1, 5)),
        }
    if cross:
        calls |= {
            "cross": lambda: given(
                hidden(), encoder_hidden_states=rand(2, 3, 16), encoder_attention_mask=additive(2, 1, 1, 3, low=LOW)
            ),
            "cache": lambda: given(hidden(), past_key_value=(rand(2, 2, 3, 8), rand(2, 2, 3, 8))),
        }
    return calls


def bert(model: str, prefix: str, calls: Calls | None = None, **settings: Any) -> Recipe:
    build = configured(f"{prefix}SelfAttention", f"{prefix}Config", **SMALL, **DROPS, **settings)
    return at(model, f"{prefix}SelfAttention {settings or ''}".strip(), build, calls or bert_calls())


def bart_calls(cache: bool = True, head_mask: bool = True, cross: bool = True) -> Calls:
    """The calls of attention copied from BART."""
    calls: Calls = {
        "no mask": lambda: given(hidden()),
        "mask": lambda: given(hidden(), attention_mask=additive(2, 1, 5, 5, low=LOW)),
        "weights": lambda: given(hidden(), attention_mask=additive(2, 1, 5, 5), output_attentions=True),
        "empty row": lambda: given(hidden(), attention_mask=everything_hidden(2, 1, 5, 5)),
    }
    if cross:
        calls["cross"] = lambda: given(hidden(), key_value_states=rand(2, 3, 16))
    if head_mask:
        calls["head mask"] = lambda: given(hidden(), layer_head_mask=rand(2))
    if cache:
        calls["cache"] = lambda: given(hidden(), past_key_value=(rand(2, 2, 3, 8), rand(2, 2, 3, 8)))
    return calls


def bart(model: str, name: str, calls: Calls | None = None, **options: Any) -> Recipe:
    return at(model, name, make(name, 16, 2, dropout=0.3), calls or bart_calls(), **options)


def heads(keys: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return rand(2, 2, 5, 8), rand(2, 2, keys, 8), rand(2, 2, keys, 8)


def gpt_calls(pad: Callable[[], dict[str, Any]] = dict) -> Calls:
    """The calls of decoder attention that holds its own causal mask."""
    return {
        "no mask": lambda: given(hidden(), **pad()),
        "mask": lambda: given(hidden(), attention_mask=additive(2, 1, 1, 5, low=LOW), **pad()),
        "head mask": lambda: given(hidden(), head_mask=rand(1, 2, 1, 1), **pad()),
        "weights": lambda: given(hidden(), output_attentions=True, **pad()),
        "empty row": lambda: given(hidden(), attention_mask=everything_hidden(2, 1, 1, 5), **pad()),
    }


def cached(
    calls: Calls, new: int, pad: Callable[[int], dict[str, Any]] = lambda count: {}, flat: bool = False
) -> Calls:
    past = (
        (lambda: (rand(2, 2, 3, 8), rand(2, 2, 3, 8))) if not flat else (lambda: (rand(2, 3, 2, 8), rand(2, 3, 2, 8)))
    )
    return calls | {f"cache, {new} new": lambda: given(rand(2, new, 16), layer_past=past(), **pad(new))}


def positions(count: int = 5, first: int = 0) -> dict[str, Any]:
    return {"position_ids": torch.arange(first, first + count)[None]}


def causal_and(mask: torch.Tensor) -> torch.Tensor:
    """An added (batch, 1, query, key) mask: causal, together with a (batch, key) keep mask."""
    size = mask.shape[-1]
    kept = torch.ones(size, size, dtype=torch.bool).tril() & mask[:, None, None, :]
    return torch.zeros(kept.shape, dtype=torch.float64).masked_fill(~kept, LOW)


GPT2 = {"vocab_size": 50, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2, "attn_pdrop": 0.3}
NEO = {
    "vocab_size": 50,
    "max_position_embeddings": 16,
    "hidden_size": 16,
    "num_layers": 2,
    "num_heads": 2,
    "window_size": 2,
}
NEO_TYPES = [[["global", "local"], 1]]
T5 = {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.3}
BART = {
    "vocab_size": 50,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
}
SWIN = {
    "image_size": 16,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": [2, 2],
    "num_heads": [2, 2],
    "window_size": 4,
    "drop_path_rate": 0.0,
}
VIT = {**SMALL, "image_size": 8, "patch_size": 4}
MASKED_MODEL: Calls = {
    "no mask": lambda: given(tokens(2, 5)),
    "mask": lambda: given(tokens(2, 5), attention_mask=keep(2, 5).long()),
    "weights": lambda: given(tokens(2, 5), output_attentions=True),
    "empty row": lambda: given(tokens(2, 5), attention_mask=some_empty(keep(2, 5)).long()),
}
WINDOWS: Calls = {
    "no mask": lambda: given(rand(4, 4, 16)),
    "mask": lambda: given(rand(4, 4, 16), attention_mask=additive(2, 4, 4, low=-100.0)),
    "head mask": lambda: given(rand(4, 4, 16), head_mask=rand(1, 2, 1, 1)),
    "weights": lambda: given(rand(4, 4, 16), output_attentions=True),
}


ENCODERS = [
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

DECODERS = [
    *(
        at(
            "gpt2",
            f"GPT2Attention ({settings})",
            configured("GPT2Attention", "GPT2Config", options={"layer_idx": 1}, **GPT2, **settings),
            cached(cached(gpt_calls(), 1), 2),
        )
        for settings in ({}, {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True})
    ),
    at(
        "gpt2",
        "GPT2Attention (upcast)",
        configured("GPT2Attention", "GPT2Config", options={"layer_idx": 1}, **GPT2, reorder_and_upcast_attn=True),
        {
            name: call for name, call in cached(gpt_calls(), 2).items() if name not in ("mask", "empty row")
        },  # needs float32
        single=True,
    ),
    at(
        "gpt2",
        "GPT2Attention (cross)",
        configured("GPT2Attention", "GPT2Config", options={"layer_idx": 0, "is_cross_attention": True}, **GPT2),
        {
            "cross": lambda: given(
                hidden(), encoder_hidden_states=rand(2, 3, 16), encoder_attention_mask=additive(2, 1, 1, 3, low=LOW)
            )
        },
    ),
    *(
        at(
            "gpt_neo",
            f"GPTNeoSelfAttention ({kind})",
            configured(
                "GPTNeoSelfAttention", "GPTNeoConfig", kind, **NEO, attention_types=NEO_TYPES, attention_dropout=0.3
            ),
            cached(gpt_calls(), 2),
            single=True,
        )
        for kind in ("global", "local")
    ),
    at(
        "gpt_neox",
        "GPTNeoXAttention",
        configured(
            "GPTNeoXAttention",
            "GPTNeoXConfig",
            hidden_size=16,
            num_attention_heads=2,
            rotary_pct=0.5,
            max_position_embeddings=16,
        ),
        {
            "no mask": lambda: given(hidden(), None, **positions()),
            "mask": lambda: given(hidden(), additive(2, 1, 1, 5, low=LOW), **positions()),
            "head mask": lambda: given(hidden(), None, head_mask=rand(1, 2, 1, 1), **positions()),
            "weights": lambda: given(hidden(), None, output_attentions=True, **positions()),
            "cache": lambda: given(
                rand(2, 2, 16), None, layer_past=(rand(2, 2, 3, 8), rand(2, 2, 3, 8)), **positions(2, 3)
            ),
            "empty row": lambda: given(hidden(), everything_hidden(2, 1, 1, 5), **positions()),
        },
        single=True,
    ),
    at(
        "gptj",
        "GPTJAttention",
        configured("GPTJAttention", "GPTJConfig", n_embd=16, n_head=2, rotary_dim=4, n_positions=16, attn_pdrop=0.3),
        cached(gpt_calls(positions), 2, lambda new: positions(new, 3)),
        single=True,
    ),
    at(
        "codegen",
        "CodeGenAttention",
        configured(
            "CodeGenAttention",
            "CodeGenConfig",
            n_embd=32,
            n_head=4,
            n_ctx=16,
            rotary_dim=4,
            n_positions=16,
            attn_pdrop=0.3,
        ),
        {
            "no mask": lambda: given(rand(2, 5, 32), **positions()),
            "mask": lambda: given(rand(2, 5, 32), attention_mask=additive(2, 1, 1, 5, low=LOW), **positions()),
            "weights": lambda: given(rand(2, 5, 32), output_attentions=True, **positions()),
            "empty row": lambda: given(rand(2, 5, 32), attention_mask=everything_hidden(2, 1, 1, 5), **positions()),
        },
        single=True,
    ),
    at(
        "llama",
        "LlamaAttention",
        configured("LlamaAttention", "LlamaConfig", **SMALL, max_position_embeddings=16),
        {
            "no mask": lambda: given(hidden(), **positions()),
            "causal": lambda: given(
                hidden(), attention_mask=causal_and(torch.ones(2, 5, dtype=torch.bool)), **positions()
            ),
            "mask": lambda: given(hidden(), attention_mask=causal_and(keep(2, 5)), **positions()),
            "weights": lambda: given(hidden(), output_attentions=True, **positions()),
            "cache": lambda: given(
                rand(2, 1, 16), past_key_value=(rand(2, 2, 3, 8), rand(2, 2, 3, 8)), use_cache=True, **positions(1, 3)
            ),
            "empty row": lambda: given(hidden(), attention_mask=causal_and(some_empty(keep(2, 5))), **positions()),
        },
        single=True,
    ),
    at(
        "bloom",
        "BloomAttention",
        configured("BloomAttention", "BloomConfig", hidden_size=16, n_head=2, n_layer=2, attention_dropout=0.3),
        {
            "mask": lambda: given(hidden(), hidden(), rand(4, 1, 5), ~keep(2, 1, 5, 5)),
            "head mask": lambda: given(
                hidden(), hidden(), rand(4, 1, 5), ~keep(2, 1, 5, 5), head_mask=rand(1, 2, 1, 1)
            ),
            "weights": lambda: given(hidden(), hidden(), rand(4, 1, 5), ~keep(2, 1, 5, 5), output_attentions=True),
            "empty row": lambda: given(hidden(), hidden(), rand(4, 1, 5), ~some_empty(keep(2, 1, 5, 5))),
        },
        single=True,
    ),
    *(
        at(
            "t5",
            f"T5Attention (relative bias: {bias})",
            configured("T5Attention", "T5Config", options={"has_relative_attention_bias": bias}, **T5),
            {
                "no mask": lambda: given(hidden()),
                "mask": lambda: given(hidden(), mask=additive(2, 1, 1, 5, low=LOW)),
                "bias": lambda: given(hidden(), position_bias=rand(1, 2, 5, 5)),
                "head mask": lambda: given(hidden(), layer_head_mask=rand(1, 2, 1, 1)),
                "weights": lambda: given(hidden(), output_attentions=True),
                "cross": lambda: given(hidden(), key_value_states=rand(2, 3, 16)),
                "empty row": lambda: given(hidden(), mask=everything_hidden(2, 1, 1, 5)),
            },
            single=True,
        )
        for bias in (False, True)
    ),
    bart("bart", "BartAttention"),
    bart("whisper", "WhisperAttention"),
    bart("wav2vec2", "Wav2Vec2Attention"),
    bart("biogpt", "BioGptAttention"),
    bart("time_series_transformer", "TimeSeriesTransformerAttention"),
    bart("opt", "OPTAttention", single=True),
    bart(
        "speecht5",
        "SpeechT5Attention",
        bart_calls() | {"bias": lambda: given(hidden(), position_bias=rand(5, 5, 8))},
    ),
    bart(
        "detr",
        "DetrAttention",
        {
            "self": lambda: given(hidden(), position_embeddings=hidden()),
            "mask": lambda: given(hidden(), additive(2, 1, 5, 5, low=LOW), position_embeddings=hidden()),
            "cross": lambda: given(
                hidden(), None, hidden(), key_value_states=rand(2, 3, 16), key_value_position_embeddings=rand(2, 3, 16)
            ),
            "weights": lambda: given(hidden(), position_embeddings=hidden(), output_attentions=True),
            "empty row": lambda: given(hidden(), everything_hidden(2, 1, 5, 5), position_embeddings=hidden()),
        },
    ),
    at(
        "clip",
        "CLIPAttention",
        configured("CLIPAttention", "CLIPTextConfig", hidden_size=16, num_attention_heads=2, attention_dropout=0.3),
        {
            "no mask": lambda: given(hidden()),
            "mask": lambda: given(hidden(), attention_mask=additive(2, 1, 5, 5, low=LOW)),
            "causal": lambda: given(hidden(), causal_attention_mask=causal_and(torch.ones(2, 5, dtype=torch.bool))),
            "both": lambda: given(
                hidden(), additive(2, 1, 5, 5), causal_attention_mask=causal_and(torch.ones(2, 5, dtype=torch.bool))
            ),
            "weights": lambda: given(hidden(), output_attentions=True),
            "empty row": lambda: given(hidden(), attention_mask=everything_hidden(2, 1, 5, 5)),
        },
    ),
]

MODELS = [
    at("bert", "BertModel", configured("BertModel", "BertConfig", **SMALL), MASKED_MODEL, whole=True),
    at("roberta", "RobertaModel", configured("RobertaModel", "RobertaConfig", **SMALL), MASKED_MODEL, whole=True),
    at(
        "gpt2",
        "GPT2Model",
        configured("GPT2Model", "GPT2Config", **GPT2),
        MASKED_MODEL
        | {"cache": lambda: given(tokens(2, 2), past_key_values=[(rand(2, 2, 3, 8), rand(2, 2, 3, 8))] * 2)},
        whole=True,
    ),
    at(
        "gpt_neo",
        "GPTNeoModel",
        configured("GPTNeoModel", "GPTNeoConfig", **NEO, attention_types=NEO_TYPES),
        MASKED_MODEL,
        whole=True,
        single=True,
    ),
    at("llama", "LlamaModel", configured("LlamaModel", "LlamaConfig", **SMALL), MASKED_MODEL, whole=True, single=True),
    at(
        "opt",
        "OPTModel",
        configured(
            "OPTModel",
            "OPTConfig",
            hidden_size=16,
            num_attention_heads=2,
            num_hidden_layers=2,
            ffn_dim=16,
            vocab_size=50,
            word_embed_proj_dim=16,
            max_position_embeddings=16,
        ),
        MASKED_MODEL,
        whole=True,
        single=True,
    ),
    at(
        "bloom",
        "BloomModel",
        configured("BloomModel", "BloomConfig", hidden_size=16, n_head=2, n_layer=2, vocab_size=50),
        MASKED_MODEL,
        whole=True,
        single=True,
    ),
    at(
        "t5",
        "T5Model",
        configured("T5Model", "T5Config", **T5),
        {
            "tokens": lambda: given(tokens(2, 5), decoder_input_ids=tokens(2, 4)),
            "mask": lambda: given(tokens(2, 5), attention_mask=keep(2, 5).long(), decoder_input_ids=tokens(2, 4)),
        },
        whole=True,
        single=True,
    ),
    at(
        "bart",
        "BartModel",
        configured("BartModel", "BartConfig", **BART),
        {
            "tokens": lambda: given(tokens(2, 5), decoder_input_ids=tokens(2, 4)),
            "mask": lambda: given(tokens(2, 5), attention_mask=keep(2, 5).long(), decoder_input_ids=tokens(2, 4)),
        },
        whole=True,
    ),
    at(
        "albert",
        "AlbertModel",
        configured("AlbertModel", "AlbertConfig", **SMALL, embedding_size=8),
        MASKED_MODEL,
        whole=True,
    ),
    at(
        "vit",
        "ViTModel",
        configured("ViTModel", "ViTConfig", **VIT),
        {"image": lambda: given(rand(2, 3, 8, 8))},
        whole=True,
    ),
    at(
        "swin",
        "SwinModel",
        configured("SwinModel", "SwinConfig", **SWIN),
        {"image": lambda: given(rand(2, 3, 16, 16))},
        whole=True,
    ),
]

RECIPES = [*ENCODERS, *DECODERS, *MODELS]
