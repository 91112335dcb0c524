"""Calls of SDPA that have four axes, may have, or need another number: nothing is reported; and calls that cannot be changed."""

# ruff: noqa: RUF059

import torch.nn as nn
import torch.nn.functional as F


# none
def four(x):
    B, L, C = x.shape
    q = x.view(B, L, 3, C // 3).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q)


# none
def unknown(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


# none
# inputs: dict(q=Tensor(("B", "L", "D")), k=Tensor(("B", "S", "D")), v=Tensor(("B", "S", "D")))
def only_the_query_is_known(q, k, v):
    B, L, D = q.shape
    return F.scaled_dot_product_attention(q, k, v)


# none
# inputs: dict(x=Tensor(("B", "L", "D")))
def asked_for(x):
    if x.dim() == 4:
        x = x.flatten(0, 1)
    B, L, D = x.shape
    return F.scaled_dot_product_attention(x, x, x)


# none
# inputs: dict(x=Tensor(("B", "L", "D")))
def length_of_the_shape(x):
    if len(x.shape) == 4:
        B, H, L, D = x.shape
    else:
        B, L, D = x.shape
    return F.scaled_dot_product_attention(x, x, x)


# none
# inputs: dict(x=Tensor(("L", "D")), batched=Value(False))
def unpacked_under_a_flag(x, batched=False):
    if batched:
        B, L, D = x.shape
        x.add(B)
    return F.scaled_dot_product_attention(x, x, x)


# none
# inputs: dict(x=Tensor(("B", "L", 12)), split=Choice((Value(True), Value(False))))
def split_by_a_flag(x, split=False):
    B, L, D = x.shape
    if split:
        x = x.view(B, L, 3, D // 3).transpose(1, 2)
    return F.scaled_dot_product_attention(x, x, x)


# none
# inputs: dict(x=Tensor(("B", "L", "D")), memory=Tensor((1, "S", "D")))
def shared_keys(x, memory):
    B, L, D = x.shape
    memory = memory.view(1, -1, D)
    return F.scaled_dot_product_attention(x, memory, memory)


# none
# inputs: dict(x=Tensor(("B", 3, 4, "L", "D")), y=Tensor(("B", 1, 4, "L", "D")))
def five_with_shared_windows(x, y):
    B, W, H, L, D = x.shape
    _, one, _, S, _ = y.shape
    return F.scaled_dot_product_attention(x, y, y)


# none
# inputs: dict(x=Tensor((4, "L", "D")))
def grouped_heads(x):
    H, L, D = x.shape
    return F.scaled_dot_product_attention(x, x[:2], x[:2], enable_gqa=True)


# any, none: scaled_dot_product_attention(x, x, x)
# inputs: dict(x=Tensor(("B", "L", "D")))
def result_changed_in_place(x):
    B, L, D = x.shape
    out = F.scaled_dot_product_attention(x, x, x)
    out *= 2.0
    return out


# any, none: scaled_dot_product_attention(q, k, v)
class QueryChangedInPlace(nn.Module):
    """The math kernel keeps a scaled copy of the query; fused ones keep the query."""

    def __init__(self, width=12):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        B, L, D = x.shape
        q, k, v = self.q(x), self.k(x), self.v(x)
        out = F.scaled_dot_product_attention(q, k, v)
        q += out
        return q


# any, none: attn_mask=masks[0]
# inputs: dict(x=Tensor(("B", "L", "D")), masks=Many((Value(None),)))
def may_be_none(x, masks):
    B, L, D = x.shape
    return F.scaled_dot_product_attention(x, x, x, attn_mask=masks[0])


# any, none: attn_mask=mask)
# inputs: dict(x=Tensor(("B", 3, 4, "L", "D")), mask=optional(Mask(("L", "L"), sense="keep")))
def five_with_an_unknown_mask(x, mask=None):
    B, W, H, L, D = x.shape
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


# none
# inputs: dict(x=Tensor(("B", "L", "D")), backend=Value(type("Backend", (), {"scaled_dot_product_attention": lambda self, q, k, v: q + k + v})()))
def method_of_that_name(x, backend):
    B, L, D = x.shape
    return backend.scaled_dot_product_attention(x, x, x)
