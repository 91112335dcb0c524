"""Masks that look causal and are not, or are not for every length: the causal flag would change what is computed."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class SelfAttention(nn.Module):
    """Query, key and value of one sequence, three heads of four channels."""

    def __init__(self, width=12, heads=3, block=8):
        super().__init__()
        self.heads = heads
        self.block = block
        self.qkv = nn.Linear(width, 3 * width)

    def split(self, x):
        B, T, C = x.shape
        return self.qkv(x).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4).unbind(0)


# exact, safe: attn_mask=
# never: is_causal
class CacheWithLastRows(SelfAttention):
    def __init__(self):
        super().__init__(block=16)
        self.register_buffer("bias", torch.tril(torch.ones(16, 16, dtype=torch.bool)))

    def forward(self, x, past=None):
        q, k, v = self.split(x)
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)
        L, S = q.size(2), k.size(2)
        scores = q @ k.mT / math.sqrt(q.size(-1))
        scores = scores.masked_fill(~self.bias[S - L : S, :S], float("-inf"))
        return scores.softmax(-1) @ v


# exact, safe: attn_mask=
# never: is_causal
# inputs: dict(dims=({"B": 2, "H": 3, "D": 4, "L": 1, "P": 5}, {"B": 2, "H": 3, "D": 4, "L": 4, "P": 0}), past=Many((Tensor(("B", "H", "P", "D")),) * 2))
class CacheWithFirstRows(SelfAttention):
    """With one new token the mask is a single True: it sees all keys."""

    def __init__(self):
        super().__init__()
        self.register_buffer("bias", torch.tril(torch.ones(8, 8)))

    def forward(self, x, past):
        q, k, v = self.split(x)
        T = x.size(1)
        k = torch.cat([past[0], k], dim=2)
        v = torch.cat([past[1], v], dim=2)
        att = (q @ k.mT).masked_fill(self.bias[:T, :T] == 0, float("-inf"))
        return att.softmax(-1) @ v


# exact, safe: attn_mask=
# never: is_causal
def diagonal_one_kept(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    keep = torch.tril(torch.ones(T, T, dtype=torch.bool), diagonal=1)
    return (q @ k.mT).masked_fill(~keep, float("-inf")).softmax(-1) @ v


# exact, safe: attn_mask=
# never: is_causal
def own_position_hidden(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    keep = torch.tril(torch.ones(T, T), diagonal=-1)
    return (q @ k.mT).masked_fill(keep == 0, float("-inf")).softmax(-1) @ v


# exact, safe: .any(dim=-1, keepdim=True)
# never: is_causal
def triu_from_zero_finite(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    hidden = torch.triu(torch.ones(T, T, dtype=torch.bool))
    return (q @ k.mT).masked_fill(hidden, -1e9).softmax(-1) @ v


# exact, safe: attn_mask=
# never: is_causal
# inputs: dict(diagonal=Value(2))
def diagonal_is_an_argument(qkv, diagonal):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    hidden = torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=diagonal)
    return (q @ k.mT).masked_fill(hidden, float("-inf")).softmax(-1) @ v


# exact, safe: attn_mask=
# never: is_causal
def sliding_window(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    ones = torch.ones(T, T, dtype=torch.bool)
    keep = torch.tril(ones) & torch.triu(ones, diagonal=-2)
    return (q @ k.mT).masked_fill(~keep, float("-inf")).softmax(-1) @ v


# exact, safe: attn_mask=
# never: is_causal
def window_of_positions(qkv):
    q, k, v = qkv.unbind(0)
    at = torch.arange(q.size(-2))
    distance = at[:, None] - at[None, :]
    keep = (distance >= 0) & (distance < 3)
    return torch.where(keep, q @ k.mT, float("-inf")).softmax(-1) @ v


# exact, safe: attn_mask=
# never: is_causal
def prefix_seen_by_all(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    keep = torch.tril(torch.ones(T, T, dtype=torch.bool))
    keep[:, :2] = True
    return (q @ k.mT).masked_fill(~keep, float("-inf")).softmax(-1) @ v


# exact, safe: attn_mask=
# never: is_causal
class ClassTokenSeesAll(SelfAttention):
    def forward(self, x):
        q, k, v = self.split(x)
        T = x.size(1)
        hidden = torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
        hidden[0] = False
        return (q @ k.mT).masked_fill(hidden, float("-inf")).softmax(-1) @ v


# exact, safe: attn_mask=
# never: is_causal
class BandedBuffer(SelfAttention):
    def __init__(self):
        super().__init__()
        bias = torch.tril(torch.ones(8, 8, dtype=torch.bool))
        bias = torch.bitwise_xor(bias, torch.tril(bias, -3))
        self.register_buffer("bias", bias)

    def forward(self, x):
        q, k, v = self.split(x)
        T = x.size(1)
        scores = torch.where(self.bias[:T, :T], q @ k.mT, torch.finfo(x.dtype).min)
        return scores.softmax(-1) @ v


# exact, safe: attn_mask=
# never: is_causal
# inputs: dict(dims=({"B": 2, "H": 3, "D": 4, "L": 6}, {"B": 1, "H": 2, "D": 4, "L": 4}))
def pooled_keys(qkv):
    q, k, v = qkv.unbind(0)
    k = k.unflatten(2, (-1, 2)).mean(3)
    v = v.unflatten(2, (-1, 2)).mean(3)
    keep = torch.ones(q.size(2), k.size(2), dtype=torch.bool).tril()
    return (q @ k.mT).masked_fill(~keep, float("-inf")).softmax(-1) @ v


# exact, safe: attn_mask=
# never: is_causal
def every_second_key(qkv):
    q, k, v = qkv.unbind(0)
    k, v = k[:, :, ::2], v[:, :, ::2]
    L, S = q.size(2), k.size(2)
    keep = torch.arange(L)[:, None] >= 2 * torch.arange(S)[None, :]
    return (q @ k.mT).masked_fill(~keep, float("-inf")).softmax(-1) @ v


# exact, safe: attn_mask=
# never: is_causal
def other_sequence(q, k, v):
    L, S = q.size(-2), k.size(-2)
    keep = torch.ones(L, S, dtype=torch.bool).tril(diagonal=S - L)
    return (q @ k.mT).masked_fill(~keep, float("-inf")).softmax(-1) @ v


# exact, safe: attn_mask=
# never: is_causal
# inputs: dict(dims=({"B": 2, "H": 3, "D": 4, "L": 4, "S": 6}, {"B": 2, "H": 3, "D": 4, "L": 5, "S": 5}))
def last_rows(q, k, v):
    L, S = q.size(-2), k.size(-2)
    hidden = torch.triu(torch.ones(S, S, dtype=torch.bool), 1)[-L:]
    return (q @ k.mT).masked_fill(hidden, float("-inf")).softmax(-1) @ v


# any, any
# never: is_causal
class PatchedBuffer(SelfAttention):
    def __init__(self):
        super().__init__()
        self.register_buffer("bias", torch.tril(torch.ones(8, 8)))

    def open_prefix(self, length):
        self.bias[:, :length] = 1

    def forward(self, x):
        q, k, v = self.split(x)
        T = x.size(1)
        return (q @ k.mT).masked_fill(self.bias[:T, :T] == 0, float("-inf")).softmax(-1) @ v


# any, any
# never: is_causal
class ReassignedBuffer(SelfAttention):
    def __init__(self):
        super().__init__()
        self.register_buffer("bias", torch.tril(torch.ones(8, 8)))

    def set_mask(self, mask):
        self.bias = mask

    def forward(self, x):
        q, k, v = self.split(x)
        T = x.size(1)
        return (q @ k.mT).masked_fill(self.bias[:T, :T] == 0, float("-inf")).softmax(-1) @ v


# any, any
# never: is_causal
class Windowed(SelfAttention):
    def __init__(self):
        super().__init__()
        self.register_buffer("bias", torch.tril(torch.ones(8, 8)))

    def forward(self, x):
        q, k, v = self.split(x)
        T = x.size(1)
        return (q @ k.mT).masked_fill(self.bias[:T, :T] == 0, float("-inf")).softmax(-1) @ v


class BufferReplacedInSubclass(Windowed):
    def __init__(self):
        super().__init__()
        self.register_buffer("bias", torch.ones(8, 8).tril().triu(-2))


# any, any
# never: is_causal
class LateFill(SelfAttention):
    def __init__(self):
        super().__init__()
        self.register_buffer("bias", torch.tril(torch.ones(8, 8)))
        self.bias[4:, :4] = 0

    def forward(self, x):
        q, k, v = self.split(x)
        T = x.size(1)
        return (q @ k.mT).masked_fill(self.bias[:T, :T] == 0, float("-inf")).softmax(-1) @ v


# any, any
# never: is_causal
# init: dict(mask=lambda: __import__("torch").ones(8, 8).tril(1))
class BufferFromArgument(SelfAttention):
    def __init__(self, mask):
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, x):
        q, k, v = self.split(x)
        T = x.size(1)
        return (q @ k.mT).masked_fill(self.mask[:T, :T] == 0, float("-inf")).softmax(-1) @ v


# any, any
# never: is_causal
class LearnedMask(SelfAttention):
    def __init__(self):
        super().__init__()
        self.mask = nn.Parameter(torch.tril(torch.ones(8, 8)))

    def forward(self, x):
        q, k, v = self.split(x)
        T = x.size(1)
        return (q @ k.mT).masked_fill(self.mask[:T, :T] == 0, float("-inf")).softmax(-1) @ v


# exact, safe: attn_mask=
# never: is_causal
def blocks(qkv):
    q, k, v = qkv.unbind(0)
    block = torch.arange(q.size(-2)) // 2
    keep = block[:, None] >= block[None, :]
    return (q @ k.mT).masked_fill(~keep, float("-inf")).softmax(-1) @ v


# exact, safe: attn_mask=
# never: is_causal
# inputs: dict(dims=({"B": 2, "H": 3, "D": 4, "L": 5, "S": 5},))
def causal_and_padding(qkv, key_padding_mask):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    hidden = torch.triu(torch.ones(T, T, dtype=torch.bool), 1) | key_padding_mask[:, None, None, :]
    return (q @ k.mT).masked_fill(hidden, float("-inf")).softmax(-1) @ v


# exact, safe: .any(dim=-1, keepdim=True)
# never: is_causal
# inputs: dict(dims=({"B": 2, "H": 3, "D": 4, "L": 5, "S": 5},))
def causal_then_padding(qkv, key_padding_mask):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    scores = (q @ k.mT).masked_fill(torch.triu(torch.ones(T, T, dtype=torch.bool), 1), -1e9)
    scores = scores.masked_fill(key_padding_mask[:, None, None, :], -1e9)
    return scores.softmax(-1) @ v


# exact, safe: attn_mask=
# never: is_causal
# inputs: dict(segments=Ids(("B", "L"), 2))
def documents(qkv, segments):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    keep = (segments[:, None, :, None] == segments[:, None, None, :]) & torch.ones(T, T, dtype=torch.bool).tril()
    return (q @ k.mT).masked_fill(~keep, float("-inf")).softmax(-1) @ v


# exact, safe: attn_mask=
# never: is_causal
def upper_triangle_kept(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    keep = torch.triu(torch.ones(T, T, dtype=torch.bool))
    return (q @ k.mT).masked_fill(~keep, float("-inf")).softmax(-1) @ v


# exact, safe: attn_mask=
# never: is_causal
def lower_triangle_hidden(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    hidden = torch.tril(torch.ones(T, T, dtype=torch.bool), diagonal=-1)
    return (q @ k.mT).masked_fill(hidden, float("-inf")).softmax(-1) @ v


# exact, safe: attn_mask=
# never: is_causal
def transposed_triangle(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    keep = torch.tril(torch.ones(T, T, dtype=torch.bool)).T
    return (q @ k.mT).masked_fill(~keep, float("-inf")).softmax(-1) @ v


# exact, safe: attn_mask=
# never: is_causal
def flipped_triangle(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    keep = torch.tril(torch.ones(T, T, dtype=torch.bool)).flip(-1)
    return (q @ k.mT).masked_fill(~keep, float("-inf")).softmax(-1) @ v


# exact, safe: attn_mask=
# never: is_causal
def half_of_the_heads(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    keep = torch.tril(torch.ones(T, T, dtype=torch.bool)).repeat(q.size(1), 1, 1)
    keep[0] = True
    return (q @ k.mT).masked_fill(~keep, float("-inf")).softmax(-1) @ v


# any, any
# never: is_causal=True
class OnlyInTraining(SelfAttention):
    def forward(self, x):
        q, k, v = self.split(x)
        T = x.size(1)
        scores = q @ k.mT
        if self.training:
            scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), float("-inf"))
        return scores.softmax(-1) @ v


# exact, safe: attn_mask=
# never: is_causal
def with_distance_bias(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    at = torch.arange(T, dtype=q.dtype)
    scores = q @ k.mT - 0.5 * (at[:, None] - at[None, :])
    scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), float("-inf"))
    return scores.softmax(-1) @ v


# exact, safe
# never: is_causal
def last_query(qkv):
    q, k, v = qkv.unbind(0)
    q = q[:, :, -1:]
    return (q @ k.mT / 2.0).softmax(-1) @ v


# exact, safe: attn_mask=
# never: is_causal
def key_in_front(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    k = F.pad(k, (0, 0, 1, 0))
    v = F.pad(v, (0, 0, 1, 0))
    keep = torch.ones(T, T + 1, dtype=torch.bool).tril(1)
    return (q @ k.mT).masked_fill(~keep, float("-inf")).softmax(-1) @ v


# any, not safe
# never: is_causal
def weak_fill(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
    return (q @ k.mT).masked_fill(hidden, -1.0).softmax(-1) @ v


# refuse, none
# never: is_causal
def after_the_softmax(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    probs = (q @ k.mT).softmax(-1) * torch.ones(T, T, dtype=q.dtype).tril()
    return probs @ v


# exact, safe: attn_mask=
# never: is_causal
class ShiftedRows(SelfAttention):
    def __init__(self):
        super().__init__()
        self.register_buffer("tril", torch.tril(torch.ones(9, 9, dtype=torch.bool)))

    def forward(self, x):
        q, k, v = self.split(x)
        T = x.size(1)
        scores = (q @ k.mT).masked_fill(~self.tril[1 : T + 1, :T], float("-inf"))
        return scores.softmax(-1) @ v


# exact, safe
# never: is_causal
def softmax_over_rows_of_keys(qkv):
    """Key times query: the triangle is that of the other axis."""
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    keep = torch.ones(T, T, dtype=torch.bool).tril()
    scores = (k @ q.mT).masked_fill(~keep, float("-inf"))
    return scores.softmax(-2).mT @ v


# any, any
# never: is_causal
class BufferFilledByOwner(SelfAttention):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.tril(torch.ones(16, 16)))

    def forward(self, x):
        q, k, v = self.split(x)
        n = q.size(-2)
        return (q @ k.mT).masked_fill(self.mask[:n, :n] == 0, float("-inf")).softmax(-1) @ v


class Owner(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = BufferFilledByOwner()
        self.attn.mask.fill_(1)

    def forward(self, x):
        return self.attn(x)


# any, any
# never: is_causal
class BufferFilledByFunction(SelfAttention):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.tril(torch.ones(8, 8)))
        nn.init.ones_(self.mask)

    def forward(self, x):
        q, k, v = self.split(x)
        n = q.size(-2)
        return (q @ k.mT).masked_fill(self.mask[:n, :n] == 0, float("-inf")).softmax(-1) @ v


# any, any
# never: is_causal
class BufferChangedThroughItsName(SelfAttention):
    def __init__(self):
        super().__init__()
        mask = torch.tril(torch.ones(8, 8))
        self.register_buffer("mask", mask)
        mask[:, :3] = 1

    def forward(self, x):
        q, k, v = self.split(x)
        n = q.size(-2)
        return (q @ k.mT).masked_fill(self.mask[:n, :n] == 0, float("-inf")).softmax(-1) @ v


# any, any
# never: is_causal
class BufferChangedAmongAll(SelfAttention):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.tril(torch.ones(8, 8)))
        for buffer in self.buffers():
            buffer.fill_(1)

    def forward(self, x):
        q, k, v = self.split(x)
        n = q.size(-2)
        return (q @ k.mT).masked_fill(self.mask[:n, :n] == 0, float("-inf")).softmax(-1) @ v
