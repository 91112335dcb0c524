"""Calls of SDPA whose mask is the causal one of equal lengths: `is_causal` computes the same."""

# ruff: noqa: C417

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from einops import rearrange
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.functional import scaled_dot_product_attention as attention


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


# any, safe: q, k, v, is_causal=True)
# never: ones ; T =
def tril_of_bool(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    mask = torch.tril(torch.ones(T, T, dtype=torch.bool, device=q.device))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


# any, safe: is_causal=True, ; scale=0.3
# never: ones
def inline_mask(qkv):
    q, k, v = qkv.unbind(0)
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=torch.ones(q.size(-2), k.size(-2), dtype=torch.bool, device=q.device).tril(diagonal=0),
        scale=0.3,
    )


# any, safe: q, k, v, is_causal=True, dropout_p=0.0)
def by_position(qkv):
    q, k, v = qkv.unbind(0)
    T = q.shape[-2]
    hidden = torch.triu(torch.ones(T, T), diagonal=1).bool()
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, ~hidden, 0.0)


# any, safe: q, k, v, is_causal=True, dropout_p=0.0, scale=2.0)
def flag_given_as_false(qkv):
    q, k, v = qkv.unbind(0)
    T = q.shape[-2]
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
    return attention(q, k, v, ~hidden, 0.0, False, scale=2.0)


# any, safe: q, k, v, is_causal=True, scale=2.0)
def flag_named_false(qkv):
    q, k, v = qkv.unbind(0)
    T = q.shape[-2]
    return scaled_dot_product_attention(q, k, v, is_causal=False, attn_mask=torch.ones(T, T).tril() != 0, scale=2.0)


# any, safe: is_causal=True
def added_infinity(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    mask = torch.full((T, T), float("-inf"), device=q.device, dtype=q.dtype).triu(1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


# any, safe: is_causal=True
def added_lowest(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    mask = torch.full((T, T), torch.finfo(q.dtype).min, device=q.device, dtype=q.dtype)
    mask = torch.triu(mask, diagonal=1).unsqueeze(0).unsqueeze(0)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


# any, safe: is_causal=True
def zeros_filled(qkv):
    q, k, v = qkv.unbind(0)
    L, S = q.size(-2), k.size(-2)
    keep = torch.ones(L, S, dtype=torch.bool, device=q.device).tril(diagonal=0)
    bias = torch.zeros(L, S, dtype=q.dtype, device=q.device)
    bias = bias.masked_fill(keep.logical_not(), float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


# any, safe: is_causal=True
def zeros_filled_in_place(qkv):
    q, k, v = qkv.unbind(0)
    L, S = q.size(-2), k.size(-2)
    bias = torch.zeros(L, S, dtype=q.dtype, device=q.device)
    bias.masked_fill_(torch.ones(L, S, dtype=torch.bool, device=q.device).triu(1), torch.finfo(q.dtype).min)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


# any, safe: is_causal=True
def where_of_numbers(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    keep = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
    bias = torch.where(keep, 0.0, float("-inf")).to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


# any, safe: is_causal=True
def arithmetic(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    bias = (1.0 - torch.tril(torch.ones(T, T, device=q.device, dtype=q.dtype))) * -10000.0
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None, None])


# any, safe: is_causal=True
def positions(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    at = torch.arange(T, device=q.device)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=at.view(-1, 1) >= at.view(1, -1))


# any, safe: is_causal=True
def expanded(qkv):
    q, k, v = qkv.unbind(0)
    B, H, T = q.size(0), q.size(1), q.size(-2)
    mask = torch.ones(1, 1, T, T, dtype=torch.bool, device=q.device).tril().expand(B, H, T, T)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


# any, safe: is_causal=bool(T > 1)
# never: triu
def only_for_several(x):
    B, T, C = x.shape
    q = x.view(B, T, 3, C // 3).transpose(1, 2)
    mask = None
    if T > 1:
        mask = torch.full((T, T), float("-inf"), device=x.device, dtype=x.dtype)
        mask = torch.triu(mask, diagonal=1)
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


# any, safe: is_causal=not whole
# inputs: dict(whole=Choice((Value(False), Value(True))))
def unless(x, whole=False):
    B, T, C = x.shape
    q = x.view(B, T, 3, C // 3).transpose(1, 2)
    mask = None if whole else torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


# any, safe: is_causal=bool(steps)
# inputs: dict(steps=Choice((Value(3), Value(0), Value(None))))
def what_counts_as_true(x, steps=None):
    B, T, C = x.shape
    q = x.view(B, T, 3, C // 3).transpose(1, 2)
    mask = torch.ones(T, T, dtype=torch.bool, device=x.device).tril() if steps else None
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


# any, safe: is_causal=True ; # past keys only ; # of this sequence
# never: tril
def comments_stay(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)  # of this sequence
    # a triangle
    mask = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()  # past keys only
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


# any, safe: is_causal=True ; mask.sum()
def mask_used_elsewhere(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    mask = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return out, mask.sum()


# any, safe: is_causal=True ; T * 2
# never: tril
def length_used_elsewhere(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    mask = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return out, T * 2


# any, safe: is_causal=True
# never: attn_mask=
class Buffer(SelfAttention):
    def __init__(self):
        super().__init__()
        mask = torch.tril(torch.ones(self.block, self.block, dtype=torch.bool)).view(1, 1, self.block, self.block)
        self.register_buffer("bias", mask)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.split(x)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias[:, :, :T, :T])
        return y.transpose(1, 2).contiguous().view(B, T, C)


# any, safe: is_causal=True
class HelperMethod(SelfAttention):
    def mask(self, length, device):
        return torch.ones(length, length, device=device).tril().bool()

    def forward(self, x):
        q, k, v = self.split(x)
        mask = self.mask(x.size(1), x.device)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


# any, safe: is_causal=True ; self.mask(x.size(1))
class HelperThatRemembers(SelfAttention):
    """The helper does more than make the mask, so its call stays."""

    def mask(self, length):
        self.longest = length
        return torch.ones(length, length).tril().bool()

    def forward(self, x):
        q, k, v = self.split(x)
        mask = self.mask(x.size(1))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return out + self.longest


# any, safe: is_causal=True
class Rearranged(SelfAttention):
    def forward(self, x):
        n = x.shape[1]
        q, k, v = map(lambda t: rearrange(t, "b n (h d) -> b h n d", h=self.heads), self.qkv(x).chunk(3, dim=-1))
        keep = torch.ones((n, n), dtype=torch.bool, device=x.device).triu(1).logical_not()
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=keep, scale=1 / math.sqrt(4))
        return rearrange(out, "b h n d -> b n (h d)")
