"""Calls of SDPA with 2, 3 or 5 axes: with four it computes the same, in a fast kernel."""

# ruff: noqa: RUF059

import torch
import torch.nn as nn
import torch.nn.functional as F
from einops import rearrange


# any, safe: q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0) ; .squeeze(0)
# inputs: dict(q=Tensor(("B", "L", "D")), k=Tensor(("B", "S", "D")), v=Tensor(("B", "S", "D")))
def unpacked(q, k, v):
    B, L, D = q.shape
    _, S, _ = k.shape
    _, _, E = v.shape
    return F.scaled_dot_product_attention(q, k, v)


# any, safe: .squeeze(0) ; merged.reshape(B, H, L, D)
# never: merged.view
def heads_in_the_batch(q, k, v):
    B, H, L, D = q.shape
    S = k.size(2)
    q, k, v = q.reshape(B * H, L, D), k.reshape(B * H, S, D), v.reshape(B * H, S, D)
    merged = torch.nn.functional.scaled_dot_product_attention(query=q, key=k, value=v, scale=0.7)
    return merged.view(B, H, L, D)


# any, safe: q.unsqueeze(0) ; is_causal=True
class SingleHead(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.proj = nn.Linear(width, 3 * width)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.proj(x).chunk(3, dim=-1)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.0, is_causal=True)


# any, safe: (q * 2.0).unsqueeze(0) ; (k + 1.0).unsqueeze(0)
class Expressions(nn.Module):
    def forward(self, qkv):
        q, k, v = rearrange(qkv, "three b h n d -> three (b h) n d")
        return F.scaled_dot_product_attention(q * 2.0, (k + 1.0), v, scale=0.5)


# any, unsafe: None if mask is None else mask.unsqueeze(0)
# inputs: dict(x=Tensor(("B", "L", "D")), mask=optional(Mask(("L", "L"), ("bool", "additive"), "keep", empty=False)))
def mask_of_the_caller(x, mask=None):
    B, L, D = x.shape
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


# any, unsafe: None if mask is None else mask.unsqueeze(0)
# inputs: dict(x=Tensor(("B", "L", "D")), mask=optional(Mask(("L",), sense="keep", empty=False)))
def mask_with_one_axis(x, mask=None):
    B, L, D = x.shape
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


# any, unsafe: None if mask is None else mask.unsqueeze(0)
# inputs: dict(x=Tensor(("B", "L", "D")), mask=optional(Mask(("B", "L", "L"), sense="keep", empty=False)))
def mask_for_each(x, mask=None):
    B, L, D = x.shape
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


# any, safe: attn_mask=bias.unsqueeze(0)
# inputs: dict(x=Tensor(("B", "L", "D")))
class Bias(nn.Module):
    def __init__(self, length=8):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(1, length, length))

    def forward(self, x):
        B, L, D = x.shape
        bias = self.table[:, :L, :L]
        return F.scaled_dot_product_attention(x, x, x, attn_mask=bias)


# any, safe: is_causal=True).squeeze(0)
# never: tril
# inputs: dict(x=Tensor(("B", "L", "D")))
def causal_too(x):
    B, T, C = x.shape
    mask = torch.ones(1, T, T, dtype=torch.bool, device=x.device).tril()
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


# any, safe: q[None, None], k[None, None], v[None, None] ; [0, 0]
# inputs: dict(q=Tensor(("L", "D")), k=Tensor(("S", "D")), v=Tensor(("S", "D")))
def no_batch(q, k, v):
    L, D = q.shape
    S, D = k.shape
    S, D = v.shape
    return F.scaled_dot_product_attention(q, k, v)


# any, safe: q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), scale=0.5 ; ).unflatten(0, q.shape[:2])
# inputs: dict(x=Tensor(("B", 3, 4, "L", "D")))
def five(x):
    B, W, H, L, D = x.shape
    q, k, v = x * 2.0, x, x
    return F.scaled_dot_product_attention(q, k, v, scale=0.5)


# any, safe: attn_mask=bias, scale=0.5 ; ).unflatten(0, x.shape[:2])
# inputs: dict(x=Tensor(("B", 3, 4, "L", "D")))
class FiveWithBias(nn.Module):
    def __init__(self, length=8):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(4, length, length))

    def forward(self, x):
        B, W, H, L, D = x.shape
        bias = self.table[:, :L, :L]
        return F.scaled_dot_product_attention(x, x, x, attn_mask=bias, scale=0.5)


# any, safe: attn_mask=bias.flatten(0, 1)
# inputs: dict(x=Tensor(("B", 3, 4, "L", "D")))
def five_with_five(x):
    B, W, H, L, D = x.shape
    bias = torch.zeros(B, W, 1, L, L, device=x.device, dtype=x.dtype)
    return F.scaled_dot_product_attention(x, x, x, attn_mask=bias)
