"""Calls of SDPA whose mask only looks causal, or is so only for some lengths: nothing is reported and nothing changes."""

import torch
import torch.nn as nn
import torch.nn.functional as F


# none
def lengths_not_known(q, k, v):
    T = q.size(-2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(T, T, dtype=torch.bool).tril())


# none
def lengths_differ(q, k, v):
    L, S = q.size(-2), k.size(-2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(L, S, dtype=torch.bool).tril())


# none
def bottom_right(q, k, v):
    L, S = q.size(-2), k.size(-2)
    mask = torch.ones(L, S, dtype=torch.bool).tril(diagonal=S - L)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


# none
def with_cache(qkv, past):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    if past is not None:
        k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
    mask = torch.ones(T, k.size(2), dtype=torch.bool).tril(k.size(2) - T)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


# none
# inputs: dict(dims=({"B": 2, "H": 3, "D": 4, "L": 1, "P": 5}, {"B": 2, "H": 3, "D": 4, "L": 4, "P": 0}))
def one_new_token(qkv, past):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    if past is not None:
        k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(T, T, dtype=torch.bool).tril())


# none
def padded_keys(qkv):
    q, k, v = qkv.unbind(0)
    k, v = F.pad(k, (0, 0, 1, 0)), F.pad(v, (0, 0, 1, 0))
    mask = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


# none
def every_other_key(qkv):
    q, k, v = qkv.unbind(0)
    k, v = k[:, :, ::2], v[:, :, ::2]
    mask = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


# none
def window(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    keep = torch.ones(T, T, dtype=torch.bool).tril() & torch.ones(T, T, dtype=torch.bool).triu(-2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


# none
def prefix(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    keep = torch.ones(T, T, dtype=torch.bool).tril()
    keep[:, :2] = True
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


# none
def next_key_too(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(T, T, dtype=torch.bool).tril(1))


# none
def not_itself(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(T, T, dtype=torch.bool).tril(-1))


# none
def upper_triangle(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(T, T, dtype=torch.bool).triu())


# none
def drop_mask_as_keep(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=hidden)


# none
def numbers_that_hide_nothing(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.tril(torch.ones(T, T, dtype=q.dtype)))


# none
def weak_fill(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    bias = torch.zeros(T, T, dtype=q.dtype).masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -100.0)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


# none
def offset_everywhere(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    bias = torch.full((T, T), float("-inf"), dtype=q.dtype).triu(1) + 1.0 / (1 + torch.arange(T))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


# none
# inputs: dict(keep=Mask(("B", 1, 1, "L"), sense="keep"))
def and_padding(qkv, keep):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    mask = torch.ones(T, T, dtype=torch.bool).tril() & keep
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


# none
# inputs: dict(keep=optional(Mask(("L", "L"), sense="keep")))
def or_the_callers(qkv, keep=None):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    if keep is None:
        keep = torch.ones(T, T, dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


# none
def changed_behind_a_view(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    keep = torch.ones(T, T, dtype=torch.bool).tril()
    first = keep[0]
    first.fill_(True)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


# none
# inputs: dict(steps=Value(3))
def triangle_of_another_length(qkv, steps):
    q, k, v = qkv.unbind(0)
    q, k, v = q[:, :, :steps], k[:, :, : steps - 1], v[:, :, : steps - 1]
    keep = torch.ones(8, 8, dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:steps, : steps - 1])


# none
def blocks(qkv):
    q, k, v = qkv.unbind(0)
    at = torch.arange(q.size(-2))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=at[None, :] // 2 <= at[:, None] // 2)


# none
def both_given_elsewhere(qkv):
    q, k, v = qkv.unbind(0)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


# none
# inputs: dict(qkv=Tensor((3, "B", 4, "L", "D")))
def grouped_heads(qkv):
    q, k, v = qkv.unbind(0)
    T = q.size(-2)
    k, v = k[:, :2], v[:, :2]
    mask = torch.ones(T, T, dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


# none
class PatchedBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("keep", torch.ones(8, 8, dtype=torch.bool).tril())
        self.patch()

    def patch(self):
        self.keep = self.keep | torch.eye(8, dtype=torch.bool).flip(0)

    def forward(self, qkv):
        q, k, v = qkv.unbind(0)
        T = q.size(-2)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.keep[:T, :T])


# none
class LearnedTriangle(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(8, 8).masked_fill(torch.ones(8, 8, dtype=torch.bool).triu(1), -1e9))

    def forward(self, qkv):
        q, k, v = qkv.unbind(0)
        T = q.size(-2)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias[:T, :T])


# none
class LastRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("keep", torch.ones(8, 8, dtype=torch.bool).tril())

    def forward(self, q, k, v):
        L, S = q.size(-2), k.size(-2)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.keep[S - L : S, :S])


# none
# inputs: dict(x=Tensor(("B", 1, 5, "D")), flat=Value(False))
def length_of_another_axis(x, flat=False):
    """Not flat, the second axis are the heads, and with a single one the mask hides nothing."""
    if flat:
        B, L, D = x.shape
        assert B * L * D
    T = x.size(1)
    mask = torch.ones(T, T, dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)
