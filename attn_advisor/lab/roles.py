"""What a name usually means in attention code, and the values to try for it.

One table for constructor parameters, config attributes, free variables and forward arguments: each name gives an ordered list of
`Spec`s, the likeliest first; `solve` tries them by running the code at a tiny size.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attn_advisor.lab.job import Sizes


@dataclass(frozen=True)
class Spec:
    """How one argument is made for given sizes.

    axes: one letter an axis (`Sizes.of`; y and x are the sides of an image of l positions), empty for plain values.
    memory: the order of the axes in memory, where it differs (heads split from a projection).
    kind: of a mask: bool, int, additive; of a bias: call, if it is what a call gives; pattern: causal, padding, full, of ids first (all 0); drop: whether True hides.
    """

    name: str
    role: str
    axes: str = ""
    memory: str = ""
    kind: str = ""
    pattern: str = ""
    drop: bool = False
    grad: bool = False
    value: Any = None

    def shape(self, sizes: Sizes) -> tuple[int, ...]:
        """Lengths of the axes."""
        return tuple(side(letter, sizes) for letter in self.axes)


def side(letter: str, sizes: Sizes) -> int:
    """Length of an axis, with y * x = L for images and m the part of the keys before the queries."""
    if letter == "m":
        return max(sizes.S - sizes.L, 0)
    if letter in "yx":
        height = math.isqrt(sizes.L)
        while sizes.L % height:
            height -= 1
        return height if letter == "y" else sizes.L // height
    return sizes.of(letter)


# Each pattern is matched against the whole name in lower case, without leading underscores.
WIDTH = r"(embed|model|hidden|emb|embedding|query|context|cross|kv|in|out|input|output|token|feature|qkv|key_value|q|inner|attn|n)?_?(dim|dims|size|embd|embed|width|channels|features|planes|state|model|feat|units)s?|d_?model|hidden_size|n_embd|emb|nx|c|dim_(in|out|model|embed|q|k|v)|d_(in|out|embed|hidden)|embed_?dims?|vdim|kdim|cross_attention_dim|n_state|encoder_dim|all_head_size"
HEADS = r"(n|num|nb|number_of|attention|attn|transformer)?_?(of_)?(attention_|attn_|query_|q_)?(head|heads)|nhead|nheads|h|head_num|heads_num|(encoder|decoder)_attention_heads|head_count|n_heads?_q"
KV_HEADS = r"(n|num)_(kv|key_value|local)_?(heads|head)|kv_heads|n_query_groups|num_key_value_heads|num_kv|multi_query_group_num"
HEAD_DIM = r"(attention_|attn_)?(head|heads)_(dim|size|width|features|channels)|(dim|size|d|channels)_(per_)?(head|heads)|dim_heads?|d_head|d_k|d_v|d_kv|d_q|key_dim|value_dim|(key|value|qk|kv|k|v)_(channels|size|depth)|attention_head_size|rotary_dim|dh|hs|dk|depth_per_head|head_d|per_head_dim"
CONTEXT = r"(block|context|ctx|window|max|n|max_seq|seq|sequence|source|target|max_sequence)_?(size|length|len|ctx|positions|tokens|seq_len|seq_length|position|sequence_length|seqlen)|block_size|context_length|max_position_embeddings|n_positions|n_ctx|seq_?len|max_len|num_patches|num_tokens|sequence_length|seq_length|t|n|length|tgt_len|q_len|query_length|query_len|lq|l|maxlen|max_target_positions|max_span|attn_span"
KEY_LENGTH = r"(src|key|kv|k|mem|memory|kv_seq|key_seq|source)_?(len|length|seq_len)|s|tk|lk"
BATCH = r"b|bs|bsz|batch|batch_?size|n_batch|nbatches|bz"
DROPOUT = r".*drop.*|p|rate|.*_pdrop"
SCALE = r".*(scale|scaling|norm_factor|temperature|temp|inv_sqrt|softmax_scale|sqrt|factor|divisor).*"
WINDOW = r".*window.*|side|grid|input_resolution|(img|image|feat|grid|patch)_?size|resolution|fmap_size"
FLAG = r"(use|is|has|add|do|with|output|return|enable|need|needs|apply|store)_.*|.*bias|causal|masked|bidirectional|training|.*_only|flash|batch_first|fused.*|rotary.*|layer_head_mask|head_mask|past_.*|.*cache.*|save_.*|decoder|scale_attn.*|reorder.*|upcast.*|gradient_checkpointing|pruned.*|cross_attention|xpos|talking_heads|gated|multi_query"

HIDDEN = r"x|xs|w|h|hidden|hiddens|hidden_states?|input|inputs|input_?(tensor|feats|x|q)?|inp|feats?|features|tokens|embeddings?|emb|src|tgt|query|queries|q|key|keys|k|value|values|v|q_?(in|input|x|src)|k_?(in|input|x|src)|v_?(in|input|x|src)|target|seq|sequence|xq|xk|xv|images?|img|states?|text|layer_input|patches|decoder_hidden"
OTHER = r"(context|cond|memory|mem|encoder_(hidden_states|output|out|outputs)|enc|enc_output|y|kv|source|src_seq|key_value_states|cross|conditioning|media|latents?|z|attend_to|encoder)"
MEMORY = r"mems?|past|cache|prefix|memories"
POSITIONS = r"r|rel|r_emb|pos_?emb\w*|positional\w*|rel_pos\w*"
MASK = r".*(mask|tril|causal_bias|attn_bias|attention_bias).*|pad|padding|valid|bias"
BIAS = r".*(bias|alibi|rel_?pos|relative|position_bias|pos_emb|rpe).*"


def means(pattern: str, name: str) -> bool:
    """Whether the whole name, in lower case and without leading underscores, fits."""
    return re.fullmatch(pattern, name.lower().lstrip("_")) is not None


def number(name: str, sizes: Sizes) -> int | float | tuple[int, int] | bool | None:
    """The usual value of a size, rate or flag of that name; None for names that mean nothing here. Rates are 0.1 where a name speaks of dropout."""
    if means(DROPOUT, name):
        return 0.1
    if means(KV_HEADS, name) or means(HEADS, name):
        return sizes.H
    if means(HEAD_DIM, name):
        return sizes.D
    if means(WINDOW, name):
        return side("y", sizes), side("x", sizes)
    if means(BATCH, name):
        return sizes.B
    if means(KEY_LENGTH, name):
        return sizes.S
    if means(CONTEXT, name):
        return max(sizes.L, sizes.S)
    if means(WIDTH, name):
        return sizes.width
    if means(FLAG, name):
        return False
    if means(SCALE, name):
        return sizes.D**-0.5
    if re.search(r"eps", name.lower()):
        return 1e-5
    if re.search(r"(layer|depth|blocks?)(_?i(d|dx|ndex))?$|^i$|idx|index", name.lower()):
        return 0 if re.search(r"i(d|dx|ndex)$|^i$", name.lower()) else 1
    return None


def mask_specs(name: str, *, kind: str = "bool", pattern: str = "", drop: bool = True) -> list[Spec]:
    """A mask in every rank people pass it in. Names decide whether causal or padding comes first, unless `pattern` says."""
    lower = name.lower()
    if not pattern:
        pattern = "padding" if re.search(r"pad|valid|attention_mask|src_mask|key_mask|length", lower) else "causal"
    square = ["ls", "11ls", "b1ls", "bls", "1ls", "nls"]
    row = ["b11s", "bs", "b1s", "s"]
    first, second = (row, square) if pattern == "padding" else (square, row)
    base = Spec(name, "mask", kind=kind, drop=drop)
    made = [replace(base, axes=axes, pattern=pattern) for axes in first]
    return (
        made
        + [replace(base, axes=axes, pattern="padding") for axes in second if pattern != "padding"]
        + [replace(base, axes=axes, pattern=pattern) for axes in second if pattern == "padding"]
    )


def hidden_specs(name: str, role: str = "hidden", *, keys: bool = False) -> list[Spec]:
    """A module's input: a sequence of embeddings, heads already split, an image, or sequence first."""
    sequence = "s" if keys else "l"
    axes = [
        f"b{sequence}c",
        f"bh{sequence}d",
        "bcyx",
        f"{sequence}bc",
        f"{sequence}c",
        f"bc{sequence}",
        f"b{sequence}hd",
        f"n{sequence}d",
        "byxc",
        f"b{sequence}d",
    ]
    return [Spec(name, role, a, grad=True) for a in axes]


def solve(
    options: Sequence[Sequence[Spec]], attempt: Callable[[tuple[Spec, ...]], bool], limit: int = 240
) -> tuple[Spec, ...] | None:
    """The first combination for which `attempt` succeeds, the likeliest (smallest sum of places in the lists) first."""
    for combination in itertools.islice(_by_likelihood(options), limit):
        if attempt(combination):
            return combination
    return None


def _by_likelihood(options: Sequence[Sequence[Spec]]) -> Iterable[tuple[Spec, ...]]:
    if not options:
        yield ()
        return
    longest = sum(len(o) - 1 for o in options)
    for total in range(longest + 1):
        for places in _places([len(o) for o in options], total):
            yield tuple(o[p] for o, p in zip(options, places))


def _places(lengths: list[int], total: int) -> Iterable[tuple[int, ...]]:
    if len(lengths) == 1:
        if total < lengths[0]:
            yield (total,)
        return
    for first in range(min(total, lengths[0] - 1) + 1):
        for rest in _places(lengths[1:], total - first):
            yield (first, *rest)
