"""Attention classes and whole models of the smaller packages: labml-nn, the first BERT ports, diffusers, open_clip, litgpt."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.realcode.recipe import Given, Recipe, additive, given, keep, make, rand, some_empty, tokens

Calls = dict[str, Callable[[], Given]]
TOKENS: Calls = {"tokens": lambda: given(rand(2, 5, 16))}
SEQUENCE_FIRST: Calls = {"tokens": lambda: given(rand(5, 2, 16))}


def at(module: str, name: str, build: Callable[[types.ModuleType], Any], calls: Calls, **options: Any) -> Recipe:
    return Recipe(module.partition(".")[0], module, name, build, calls, **options)


def bool_masks(shape: tuple[int, ...], make_given: Callable[[torch.Tensor | None], Given], empty: bool = True) -> Calls:
    """A keep mask: none, some keys hidden, and where `empty`, one row hidden altogether."""
    calls: Calls = {"no mask": lambda: make_given(None), "mask": lambda: make_given(keep(*shape))}
    return calls | ({"empty row": lambda: make_given(some_empty(keep(*shape)))} if empty else {})


# labml-nn: tensors are (sequence, batch, width), masks (query, key, batch)


def qkv(**kwargs: Any) -> Given:
    x = rand(5, 2, 16)
    return given(query=x, key=x, value=x, **kwargs)


def pair_masks(mask: torch.Tensor | None) -> Given:
    return qkv(mask=None if mask is None else mask.permute(1, 2, 0))


def causal() -> torch.Tensor:
    return torch.ones(5, 5, dtype=torch.bool).tril()[:, :, None]


class Reconstruction(nn.Module):
    """Calls `AttentionReconstructionLoss.attn`, which reads the layer it is given."""

    def __init__(self, module: types.ModuleType) -> None:
        super().__init__()
        self.layer = module.RelativeMultiHeadAttention(2, 16, 0.0)
        self.attn = module.AttentionReconstructionLoss.attn
        self.loss = module.AttentionReconstructionLoss(nn.ModuleList())

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return self.attn(self.loss, self.layer, query, key, value)


LABML = [
    at(
        "labml_nn.transformers.mha",
        "MultiHeadAttention",
        make("MultiHeadAttention", 2, 16, 0.3),
        bool_masks((2, 5, 5), pair_masks),
    ),
    at(
        "labml_nn.transformers.xl.relative_mha",
        "RelativeMultiHeadAttention",
        make("RelativeMultiHeadAttention", 2, 16, 0.3),
        bool_masks((2, 5, 5), pair_masks),
    ),
    at(
        "labml_nn.transformers.rope",
        "RotaryPEMultiHeadAttention",
        make("RotaryPEMultiHeadAttention", 2, 16, 0.5, 0.3),
        bool_masks((2, 5, 5), pair_masks),
        follows_default=True,
    ),
    at(
        "labml_nn.transformers.rope.value_pe",
        "RotaryValuePEMultiHeadAttention",
        make("RotaryValuePEMultiHeadAttention", 2, 16, 0.5, 0.5, 0.3),
        bool_masks((2, 5, 5), pair_masks),
        follows_default=True,
    ),
    at(
        "labml_nn.transformers.alibi",
        "AlibiMultiHeadAttention",
        make("AlibiMultiHeadAttention", 2, 16, 0.3),
        {"causal": lambda: qkv(mask=causal())},
    ),
    *(
        at(
            "labml_nn.transformers.retro.model",
            f"SelfAttention (causal: {is_causal})",
            make("SelfAttention", 16, 2, 8, is_causal),
            TOKENS,
            follows_default=True,
        )
        for is_causal in (False, True)
    ),
    at(
        "labml_nn.transformers.retro.model",
        "CrossAttention",
        make("CrossAttention", 16, 2, 8),
        {"neighbours": lambda: given(rand(2, 3, 2, 4, 16), rand(2, 3, 5, 16))},
    ),
    at(
        "labml_nn.transformers.retro.model",
        "ChunkedCrossAttention",
        make("ChunkedCrossAttention", 16, 2, 8, 3),
        {"neighbours": lambda: given(rand(2, 8, 16), rand(2, 2, 2, 4, 16))},
    ),
    at(
        "labml_nn.transformers.compressive",
        "AttentionReconstructionLoss",
        Reconstruction,
        {"three inputs": lambda: given(rand(5, 2, 16), rand(4, 2, 16), rand(4, 2, 16))},
    ),
    at(
        "labml_nn.transformers.feedback",
        "FeedbackAttention",
        make("FeedbackAttention", 2, 16, 0.3),
        {"one step": lambda: given(query=rand(2, 16), key=rand(5, 2, 16), value=rand(5, 2, 16))},
    ),
    at(
        "labml_nn.diffusion.ddpm.unet",
        "AttentionBlock",
        make("AttentionBlock", 32, n_heads=1, d_k=8),
        {"image": lambda: given(rand(2, 32, 2, 3))},
    ),
    at(
        "labml_nn.diffusion.stable_diffusion.model.autoencoder",
        "AttnBlock",
        make("AttnBlock", 32),
        {"image": lambda: given(rand(2, 32, 2, 3))},
    ),
    *(
        at(
            "labml_nn.diffusion.stable_diffusion.model.unet_attention",
            f"CrossAttention (in place: {inplace})",
            make("CrossAttention", 16, 12, 2, 8, is_inplace=inplace),
            {
                "condition": lambda: given(rand(2, 5, 16), rand(2, 3, 12)),
                "odd batch": lambda: given(rand(3, 5, 16), rand(3, 3, 12)),
            },
        )
        for inplace in (False, True)
    ),
    at("labml_nn.neox.model", "AttentionLayer", make("AttentionLayer", 16, 2, 0.5), TOKENS, follows_default=True),
]


# pytorch-pretrained-bert and bert-pytorch

PPB = "pytorch_pretrained_bert."
BERT = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 16,
}
GPT = {"n_positions": 16, "n_ctx": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}


def xl_masks(*inputs: Callable[[], torch.Tensor], memory: int = 3) -> Calls:
    """Transformer-XL drops where the mask is True; (key, batch) and (query, key, batch) masks, with and without memory."""

    def call(mask: Callable[[int], torch.Tensor] | None, memories: bool) -> Given:
        keys = 5 + (memory if memories else 0)
        rest = [make_input(keys) for make_input in inputs]  # type: ignore[call-arg]
        return given(
            rand(5, 2, 16), *rest, attn_mask=mask and mask(keys), mems=rand(memory, 2, 16) if memories else None
        )

    return {
        "no mask": lambda: call(None, False),
        "causal with memory": lambda: call(
            lambda s: torch.ones(5, s, dtype=torch.bool).triu(1 + s - 5)[:, :, None], True
        ),
        "pairs": lambda: call(lambda s: ~keep(2, 5, s).permute(1, 2, 0), False),
        "keys": lambda: call(lambda s: ~keep(2, s).t(), True),
        "empty row": lambda: call(lambda s: ~some_empty(keep(2, 5, s)).permute(1, 2, 0), False),
    }


PORTS = [
    at(
        PPB + "modeling",
        "BertSelfAttention",
        lambda m: m.BertSelfAttention(m.BertConfig(50, **BERT, attention_probs_dropout_prob=0.3)),
        {
            "mask": lambda: given(rand(2, 5, 16), additive(2, 1, 1, 5)),
            "empty row": lambda: given(rand(2, 5, 16), torch.full((2, 1, 1, 5), -1e4, dtype=torch.float64)),
        },
    ),
    at(
        PPB + "modeling",
        "BertModel",
        lambda m: m.BertModel(m.BertConfig(50, **BERT)),
        {
            "no mask": lambda: given(tokens(2, 5)),
            "mask": lambda: given(tokens(2, 5), torch.zeros(2, 5, dtype=torch.long), keep(2, 5).long()),
            "empty row": lambda: given(
                tokens(2, 5), torch.zeros(2, 5, dtype=torch.long), some_empty(keep(2, 5)).long()
            ),
        },
        whole=True,
    ),
    *(
        at(
            PPB + file,
            f"Attention (scaled: {scale})",
            lambda m, config=config, scale=scale: m.Attention(16, 16, getattr(m, config)(50, **GPT), scale=scale),
            TOKENS | ({"cache": lambda: given(rand(2, 2, 16), rand(2, 2, 2, 3, 8))} if config == "GPT2Config" else {}),
        )
        for file, config in (("modeling_gpt2", "GPT2Config"), ("modeling_openai", "OpenAIGPTConfig"))
        for scale in (False, True)
    ),
    at(
        PPB + "modeling_gpt2",
        "GPT2Model",
        lambda m: m.GPT2Model(m.GPT2Config(50, **GPT)),
        {"tokens": lambda: given(tokens(2, 5)), "cache": lambda: given(tokens(2, 2), past=[rand(2, 2, 2, 3, 8)] * 2)},
        whole=True,
    ),
    at(
        PPB + "modeling_openai",
        "OpenAIGPTModel",
        lambda m: m.OpenAIGPTModel(m.OpenAIGPTConfig(50, **GPT)),
        {"tokens": lambda: given(tokens(2, 5))},
        whole=True,
    ),
    at(PPB + "modeling_transfo_xl", "MultiHeadAttn", make("MultiHeadAttn", 2, 16, 8, 0.1, 0.3), xl_masks()),
    *(
        at(
            PPB + "modeling_transfo_xl",
            f"RelPartialLearnableMultiHeadAttn (norm first: {first})",
            make("RelPartialLearnableMultiHeadAttn", 2, 16, 8, 0.1, 0.3, pre_lnorm=first),
            xl_masks(lambda keys: rand(keys, 1, 16)),  # type: ignore[misc]
            single=True,
        )
        for first in (False, True)
    ),
    at(
        PPB + "modeling_transfo_xl",
        "RelLearnableMultiHeadAttn",
        make("RelLearnableMultiHeadAttn", 2, 16, 8, 0.1, 0.3),
        xl_masks(lambda keys: rand(keys, 2, 8), lambda keys: rand(2, 8), lambda keys: rand(keys, 2)),  # type: ignore[misc]
    ),
    at(
        "bert_pytorch.model.attention.single",
        "Attention",
        make("Attention"),
        bool_masks(
            (2, 1, 5, 5),
            lambda mask: given(
                rand(2, 2, 5, 8), rand(2, 2, 5, 8), rand(2, 2, 5, 8), mask=mask, dropout=nn.Dropout(0.0)
            ),
        ),
    ),
    at(
        "bert_pytorch.model.attention.multi_head",
        "MultiHeadedAttention",
        make("MultiHeadedAttention", 2, 16, 0.3),
        bool_masks((2, 1, 5, 5), lambda mask: given(rand(2, 5, 16), rand(2, 5, 16), rand(2, 5, 16), mask=mask)),
    ),
    at(
        "bert_pytorch.model.bert",
        "BERT",
        make("BERT", 50, hidden=16, n_layers=2, attn_heads=2),
        {"padded": lambda: given(tokens(2, 5).index_fill(1, torch.tensor([4]), 0), tokens(2, 5, high=3))},
        whole=True,
    ),
]


# diffusers


def sliced(module: types.ModuleType) -> Any:
    attention = module.CrossAttention(16, heads=2, dim_head=8)
    attention._slice_size = 1
    return attention


def cross_calls() -> Calls:
    return {
        "self": lambda: given(rand(2, 5, 16)),
        "context": lambda: given(rand(2, 5, 16), rand(2, 3, 16)),
        "mask": lambda: given(rand(2, 5, 16), attention_mask=additive(4, 5, 5)),
        "empty row": lambda: given(rand(2, 5, 16), attention_mask=torch.full((4, 1, 5), -1e4, dtype=torch.float64)),
    }


def bart_calls(mask: Callable[[int], torch.Tensor]) -> Calls:
    """The calls of attention classes copied from BART: masks, head masks, weights wanted, cross attention, cache."""
    return {
        "no mask": lambda: given(rand(2, 5, 16)),
        "mask": lambda: given(rand(2, 5, 16), attention_mask=mask(5)),
        "weights": lambda: given(rand(2, 5, 16), attention_mask=mask(5), output_attentions=True),
        "head mask": lambda: given(rand(2, 5, 16), layer_head_mask=rand(2)),
        "cross": lambda: given(rand(2, 5, 16), key_value_states=rand(2, 3, 16)),
        "cache": lambda: given(rand(2, 5, 16), past_key_value=(rand(2, 2, 3, 8), rand(2, 2, 3, 8))),
        "empty row": lambda: given(rand(2, 5, 16), attention_mask=torch.full((2, 1, 5, 5), -1e4, dtype=torch.float64)),
    }


UNET = {
    "sample_size": 8,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "block_out_channels": (32, 32),
    "layers_per_block": 1,
    "cross_attention_dim": 16,
    "attention_head_dim": 8,
}

DIFFUSERS = [
    *(
        at(
            "diffusers.models.attention",
            f"AttentionBlock (channels a head: {channels})",
            make("AttentionBlock", 16, num_head_channels=channels, norm_num_groups=4),
            {"image": lambda: given(rand(2, 16, 2, 3))},
            single=True,
        )
        for channels in (None, 8)
    ),
    at("diffusers.models.attention", "CrossAttention", make("CrossAttention", 16, heads=2, dim_head=8), cross_calls()),
    at(
        "diffusers.models.attention",
        "CrossAttention (upcast)",
        make("CrossAttention", 16, heads=2, dim_head=8, upcast_attention=True, upcast_softmax=True),
        cross_calls(),
        single=True,
    ),
    at("diffusers.models.attention", "CrossAttention (sliced)", sliced, cross_calls()),
    at(
        "diffusers.models.unet_1d_blocks",
        "SelfAttention1d",
        make("SelfAttention1d", 16, n_head=2, dropout_rate=0.3),
        {"signal": lambda: given(rand(2, 16, 5))},
    ),
    at(
        "diffusers.pipelines.latent_diffusion.pipeline_latent_diffusion",
        "LDMBertAttention",
        make("LDMBertAttention", 16, 2, 8, dropout=0.3),
        bart_calls(lambda keys: additive(2, 1, 5, keys)),
    ),
    at(
        "diffusers.models.unet_2d_condition",
        "UNet2DConditionModel",
        make("UNet2DConditionModel", **UNET),
        {"image": lambda: given(rand(1, 4, 8, 8), 3, rand(1, 4, 16))},
        whole=True,
    ),
]


# open_clip and litgpt

CLIP_CALLS: Calls = {
    "no mask": lambda: given(rand(5, 2, 16)),
    "added mask": lambda: given(rand(5, 2, 16), additive(5, 5)),
    "causal": lambda: given(rand(5, 2, 16), torch.full((5, 5), float("-inf"), dtype=torch.float64).triu(1)),
    "bool mask": lambda: given(rand(5, 2, 16), ~keep(5, 5)),
    "empty row": lambda: given(rand(5, 2, 16), ~some_empty(keep(5, 5))),
}
LITGPT = {
    "block_size": 16,
    "n_layer": 2,
    "n_embd": 16,
    "n_head": 2,
    "vocab_size": 50,
    "padding_multiple": 2,
    "intermediate_size": 16,
}


def lit(**options: Any) -> Recipe:
    return at(
        "litgpt.model",
        f"GPT ({options})",
        lambda m: m.GPT(m.Config(**{**LITGPT, **options})),
        {"tokens": lambda: given(tokens(2, 5))},
        whole=True,
        single=True,
        follows_default=True,
    )


OTHERS = [
    *(
        at(
            "open_clip.transformer",
            f"Attention ({options})",
            make("Attention", 16, attn_drop=0.3, **options),
            CLIP_CALLS,
        )
        for options in (
            {"num_heads": 2},
            {"num_heads": 2, "scaled_cosine": True},
            {"num_heads": 1, "scale_heads": True},
        )
    ),
    at(
        "open_clip.transformer",
        "CustomResidualAttentionBlock",
        make("CustomResidualAttentionBlock", 16, 2, scale_cosine_attn=True, scale_attn=True),
        CLIP_CALLS,
        whole=True,
    ),
    lit(),
    lit(attention_logit_softcapping=5.0, n_query_groups=1),
    lit(attention_logit_softcapping=5.0, sliding_window_size=3),
]

RECIPES = [*LABML, *PORTS, *DIFFUSERS, *OTHERS]
