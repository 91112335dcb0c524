"""Causal masks over one sequence: `is_causal=True` computes the same, and three times faster than the mask on an H200."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from einops import rearrange


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


# exact, safe: is_causal=True
def tril_built_in_place(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    mask = torch.tril(torch.ones(T, T))
    att = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    att = att.masked_fill(mask == 0, float("-inf"))
    return F.softmax(att, dim=-1) @ v


# exact, safe: is_causal=True
def triu_of_bool(qkv):
    q, k, v = qkv.unbind(0)
    T = q.shape[-2]
    hidden = torch.triu(torch.ones(T, T, dtype=torch.bool, device=q.device), diagonal=1)
    scores = torch.matmul(q, k.transpose(-1, -2)) * q.size(-1) ** -0.5
    scores = scores.masked_fill(hidden, -torch.inf)
    return torch.matmul(scores.softmax(-1), v)


# exact, safe: is_causal=True
def inverted_tril(qkv):
    q, k, v = qkv[0], qkv[1], qkv[2]
    T = q.size(-2)
    keep = torch.ones(T, T, dtype=torch.bool).tril()
    scores = (q @ k.mT).masked_fill(~keep, float("-inf"))
    return scores.softmax(dim=-1) @ v


# exact, safe: is_causal=True
def where_over_tril(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    keep = torch.tril(torch.ones(T, T, dtype=torch.bool))
    scores = torch.where(keep, q @ k.mT, float("-inf"))
    return scores.softmax(dim=-1) @ v


# exact, safe: is_causal=True
def added_triu_of_full(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    mask = torch.full((T, T), float("-inf"), device=q.device, dtype=q.dtype).triu(1)
    return (q @ k.mT + mask).softmax(dim=-1) @ v


# exact, safe: is_causal=True
def added_triu_function(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    mask = torch.triu(torch.full((T, T), float("-inf"), dtype=q.dtype), diagonal=1)
    scores = q @ k.mT * 0.5 + mask
    return torch.softmax(scores, -1) @ v


# exact, safe: is_causal=True
class BufferEqualsZero(SelfAttention):
    def __init__(self):
        super().__init__()
        self.register_buffer("bias", torch.tril(torch.ones(8, 8)).view(1, 1, 8, 8))

    def forward(self, x):
        q, k, v = self.split(x)
        T = x.size(1)
        att = q @ k.transpose(-2, -1)
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        return att.softmax(-1) @ v


# exact, safe: is_causal=True
class BufferOfBoolInverted(SelfAttention):
    def __init__(self):
        super().__init__()
        self.register_buffer("keep", torch.ones(self.block, self.block, dtype=torch.bool).tril(), persistent=False)

    def forward(self, x):
        q, k, v = self.split(x)
        T = q.size(2)
        att = (q @ k.mT).masked_fill(~self.keep[:T, :T], float("-inf"))
        return att.softmax(-1) @ v


# exact, safe: is_causal=True
class BufferOfHidden(SelfAttention):
    def __init__(self):
        super().__init__()
        self.register_buffer("hidden", torch.triu(torch.ones(8, 8), diagonal=1).bool())

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.split(x)
        scores = q @ k.mT / math.sqrt(C // self.heads)
        scores.masked_fill_(self.hidden[:T, :T], -torch.inf)
        return torch.softmax(scores, dim=-1) @ v


# exact, safe: is_causal=True
class BufferAdded(SelfAttention):
    def __init__(self):
        super().__init__()
        mask = torch.full((8, 8), float("-inf"))
        self.register_buffer("mask", torch.triu(mask, diagonal=1), persistent=False)

    def forward(self, x):
        q, k, v = self.split(x)
        T = x.shape[1]
        scores = q @ k.mT + self.mask[:T, :T]
        return F.softmax(scores, dim=-1) @ v


# exact, safe: is_causal=True
def positions_compared(qkv):
    q, k, v = qkv.unbind(0)
    at = torch.arange(q.size(-2), device=q.device)
    keep = at[:, None] >= at[None, :]
    scores = (q @ k.mT).masked_fill(~keep, float("-inf"))
    return scores.softmax(-1) @ v


# exact, safe: is_causal=True
def later_positions_hidden(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    i = torch.arange(T).unsqueeze(1)
    j = torch.arange(T).unsqueeze(0)
    scores = (q @ k.mT / 2).masked_fill(j > i, -1e9)
    return scores.softmax(-1) @ v


# exact, safe: is_causal=True
def finite_fill(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    mask = torch.tril(torch.ones(T, T, device=q.device))
    scores = (q @ k.mT).masked_fill(mask == 0, -1e9)
    return scores.softmax(-1) @ v


# exact, safe: is_causal=True
def lowest_fill(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
    scores = q @ k.mT
    scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    return scores.softmax(-1) @ v


# exact, safe: is_causal=True
def negated_highest_fill(qkv):
    q, k, v = qkv.unbind(0)
    sim = torch.einsum("b h i d, b h j d -> b h i j", q, k)
    i, j = sim.shape[-2:]
    hidden = torch.ones((i, j), dtype=torch.bool, device=q.device).triu(j - i + 1)
    sim = sim.masked_fill(hidden, -torch.finfo(sim.dtype).max)
    return torch.einsum("b h i j, b h j d -> b h i d", sim.softmax(dim=-1), v)


# exact, safe: is_causal=True
def ones_like_scores(qkv):
    q, k, v = qkv.unbind(0)
    scores = q @ k.mT
    keep = torch.ones_like(scores, dtype=torch.bool).tril()
    return scores.masked_fill(keep.logical_not(), float("-inf")).softmax(-1) @ v


# exact, safe: is_causal=True
def new_ones(qkv):
    q, k, v = qkv.unbind(0)
    n = q.size(2)
    scores = q @ k.mT
    keep = scores.new_ones(n, n).tril() > 0
    return scores.masked_fill(~keep, float("-inf")).softmax(-1) @ v


# exact, safe: is_causal=True
def subsequent(size):
    return torch.triu(torch.ones(1, size, size), diagonal=1).type(torch.uint8) == 0


def helper_function(qkv):
    q, k, v = qkv.unbind(0)
    scores = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(subsequent(q.size(-2)) == 0, float("-inf"))
    return scores.softmax(-1) @ v


# exact, safe: is_causal=True
class HelperMethod(SelfAttention):
    def hidden(self, n):
        return torch.ones(n, n, dtype=torch.bool).triu_(1)

    def forward(self, x):
        q, k, v = self.split(x)
        scores = (q @ k.mT).masked_fill(self.hidden(x.size(1)), float("-inf"))
        return scores.softmax(-1) @ v


# exact, safe: is_causal=True
class SequenceBeforeHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(12, 36)

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = self.proj(x).view(B, T, 3, 3, 4).unbind(2)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / 2
        hidden = torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
        scores = scores.masked_fill(hidden, float("-inf"))
        return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)


# exact, safe: is_causal=True
class HeadsInBatch(nn.Module):
    def __init__(self):
        super().__init__()
        self.to_q = nn.Linear(12, 12)
        self.to_k = nn.Linear(12, 12)
        self.to_v = nn.Linear(12, 12)

    def forward(self, x):
        n = x.shape[1]
        q, k, v = map(lambda t: rearrange(t, "b n (h d) -> (b h) n d", h=3), (self.to_q(x), self.to_k(x), self.to_v(x)))
        hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
        sim = torch.bmm(q, k.transpose(1, 2)).masked_fill(hidden, float("-inf"))
        return rearrange(torch.bmm(sim.softmax(-1), v), "(b h) n d -> b n (h d)", h=3)


# exact, safe: is_causal=True
def written_by_index(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    scores = q @ k.mT
    scores[..., torch.ones(T, T, dtype=torch.bool).triu(1)] = float("-inf")
    return scores.softmax(-1) @ v


# exact, safe: is_causal=True
def float32_softmax(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    hidden = torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)
    scores = (q @ k.mT / 2.0).masked_fill(hidden, float("-inf"))
    return F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype) @ v


# exact, safe: is_causal=True
def diagonal_zero_named(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    mask = torch.tril(torch.ones((T, T)), diagonal=0)
    scores = (q @ k.mT).masked_fill(mask < 0.5, float("-inf"))
    return scores.softmax(-1) @ v


# exact, safe: is_causal=True
def one_minus_tril(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    hidden = (1 - torch.tril(torch.ones(T, T))).bool()
    scores = (q @ k.mT).masked_fill(hidden, float("-inf"))
    return scores.softmax(-1) @ v


# exact, safe: is_causal=True
def one_minus_tril_added(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    keep = torch.tril(torch.ones(T, T, dtype=q.dtype, device=q.device))
    scores = q @ k.mT / 2.0 + (1.0 - keep) * -1e9
    return scores.softmax(-1) @ v


# exact, safe: is_causal=True
class ArithmeticMask(SelfAttention):
    def __init__(self):
        super().__init__()
        self.register_buffer("bias", torch.tril(torch.ones(8, 8)).view(1, 1, 8, 8))

    def forward(self, x):
        q, k, v = self.split(x)
        w = q @ k.mT / math.sqrt(v.size(-1))
        b = self.bias[:, :, : w.size(-2), : w.size(-1)]
        w = w * b - 1e4 * (1 - b)
        return w.softmax(-1) @ v


# exact, safe: is_causal=True ; dropout_p=self.drop.p if self.drop.training else 0.0
class WithDropout(SelfAttention):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.1)
        self.register_buffer("tril", torch.tril(torch.ones(8, 8)))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.split(x)
        wei = q @ k.transpose(-2, -1) * C**-0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = self.drop(F.softmax(wei, dim=-1))
        return wei @ v


# exact, safe: is_causal=True
class OneHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.key = nn.Linear(12, 4, bias=False)
        self.query = nn.Linear(12, 4, bias=False)
        self.value = nn.Linear(12, 4, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(8, 8)))

    def forward(self, x):
        B, T, C = x.shape
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * C**-0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return F.softmax(wei, dim=-1) @ self.value(x)


# exact, safe: is_causal=True
class LowestWhere(SelfAttention):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.tril(torch.ones(8, 8, dtype=torch.bool)))

    def forward(self, x):
        q, k, v = self.split(x)
        T = x.size(1)
        scores = torch.where(self.mask[:T, :T], q @ k.mT, torch.finfo(x.dtype).min)
        return scores.softmax(-1) @ v


# exact, safe: is_causal=True
class Masked(SelfAttention):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.tril(torch.ones(8, 8, dtype=torch.bool)))


class BufferOfBaseClass(Masked):
    def forward(self, x):
        q, k, v = self.split(x)
        T = x.size(1)
        scores = (q @ k.mT).masked_fill(self.mask[:T, :T].logical_not(), float("-inf"))
        return scores.softmax(-1) @ v


# exact, safe: is_causal=True
def broadcast_axes(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    mask = torch.tril(torch.ones(T, T, dtype=torch.bool))[None, None, :, :]
    scores = (q @ k.mT).masked_fill(mask == False, float("-inf"))  # noqa: E712
    return scores.softmax(-1) @ v


# exact, safe: is_causal=True
def library_mask(qkv):
    q, k, v = qkv.unbind(0)
    mask = nn.Transformer.generate_square_subsequent_mask(q.size(-2), dtype=q.dtype)
    return (q @ k.mT / 2.0 + mask).softmax(-1) @ v


# exact, safe: is_causal=True
def masked_twice_the_same(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    hidden = torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
    scores = (q @ k.mT).masked_fill(hidden, -1e4)
    scores = scores.masked_fill(hidden, float("-inf"))
    return scores.softmax(-1) @ v


# exact, safe: is_causal=True
def keys_transposed(qkv):
    q, k, v = qkv.unbind(0)
    kt = k.transpose(-2, -1)
    T = kt.size(-1)
    keep = torch.ones(T, T, dtype=torch.bool).tril()
    return (q @ kt).masked_fill(~keep, float("-inf")).softmax(-1) @ v


# exact, safe: is_causal=True ; * self.scale
class ScaleBelowZero(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = -0.5

    def forward(self, qkv):
        q, k, v = qkv.unbind(0)
        hidden = torch.ones(q.size(-2), q.size(-2), dtype=torch.bool).triu(1)
        return (q @ k.mT * self.scale).masked_fill(hidden, float("-inf")).softmax(-1) @ v


# exact, safe: is_causal=True ; q * scale
# inputs: dict(scale=Choice((Value(-0.5), Value(0.0), Value(2.0))))
def scale_of_any_sign(qkv, scale: float = 1.0):
    q, k, v = qkv.unbind(0)
    hidden = torch.ones(q.size(-2), q.size(-2), dtype=torch.bool).triu(1)
    return (q @ k.mT * scale).masked_fill(hidden, float("-inf")).softmax(-1) @ v
