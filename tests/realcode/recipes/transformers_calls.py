"""What the recipes for transformers 4.30.2 share: configurations at a small size, and the calls of the usual attention classes."""

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
