"""Attention classes of the decoders and encoder-decoders of transformers 4.30.2, and whole models."""

from __future__ import annotations

import torch

from tests.realcode.recipe import additive, given, keep, rand, some_empty, tokens
from tests.realcode.recipes.transformers_calls import (
    BART,
    GPT2,
    LOW,
    MASKED_MODEL,
    NEO,
    NEO_TYPES,
    SMALL,
    SWIN,
    T5,
    VIT,
    at,
    bart,
    bart_calls,
    cached,
    causal_and,
    configured,
    everything_hidden,
    gpt_calls,
    hidden,
    positions,
)

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

RECIPES = [*DECODERS, *MODELS]
