"""Weights that are needed whatever is asked for, or whose condition comes too late: no fix."""

import torch
import torch.nn.functional as F
from torch import nn


# guarded, none
class Gpt2Style(nn.Module):
    def __init__(self, dim=12, heads=3):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.drop = nn.Dropout(0.1)
        self.register_buffer("bias", torch.tril(torch.ones(16, 16, dtype=torch.bool)).view(1, 1, 16, 16))

    def _attn(self, query, key, value, attention_mask=None, head_mask=None):
        attn_weights = torch.matmul(query, key.transpose(-1, -2)) / value.size(-1) ** 0.5
        query_length, key_length = query.size(-2), key.size(-2)
        causal_mask = self.bias[:, :, key_length - query_length : key_length, :key_length]
        mask_value = torch.finfo(attn_weights.dtype).min
        mask_value = torch.full([], mask_value, dtype=attn_weights.dtype).to(attn_weights.device)
        attn_weights = torch.where(causal_mask, attn_weights, mask_value)
        if attention_mask is not None:
            attn_weights = attn_weights + attention_mask
        attn_weights = nn.functional.softmax(attn_weights, dim=-1)
        attn_weights = self.drop(attn_weights)
        if head_mask is not None:
            attn_weights = attn_weights * head_mask
        attn_output = torch.matmul(attn_weights, value)
        return attn_output, attn_weights

    def forward(self, x):
        q, k, v = self.qkv(x).view(x.size(0), x.size(1), 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attn_output, attn_weights = self._attn(q, k, v)
        return attn_output, attn_weights


# guarded, none
# inputs: dict(train=Choice((Value(False), Value(True))))
def in_both_cases(q, k, v, train=False):
    p = torch.softmax(q @ k.transpose(-2, -1), -1)
    y = p @ v
    if train:
        return y, p, 1
    return y, p, 2


# guarded, none
# inputs: dict(full=Choice((Value(False), Value(True))))
def computed_without_asking(q, k, v, full=False):
    p = torch.softmax(q @ k.transpose(-2, -1), -1)
    y = p @ v
    mean = p.mean(dim=1)
    return (y, mean) if full else (y, None)


# guarded, none
def decided_by_the_weights(q, k, v):
    p = torch.softmax(q @ k.transpose(-2, -1), -1)
    y = p @ v
    if p.max() > 0.5:
        return y, p
    return y, None


# guarded, none
# inputs: dict(full=Choice((Value(False), Value(True))))
def string_of_several_lines(q, k, v, full=False):
    p = torch.softmax(q @ k.transpose(-2, -1), -1)
    note = """
    kept as it is"""
    y = p @ v
    return (y, p, note) if full else (y, None, note)


# guarded, none
# inputs: dict(full=Choice((Value(False), Value(True))), wide=Choice((Value(False), Value(True))))
def products_in_two_branches(q, k, v, full=False, wide=True):
    p = torch.softmax(q @ k.transpose(-2, -1), -1)
    if wide:
        y = p @ v
    else:
        y = v.sum() * q
    return (y, p) if full else (y, None)


# guarded, none
# inputs: dict(full=Choice((Value(False), Value(True))))
def read_by_a_nested_function(q, k, v, full=False):
    p = torch.softmax(q @ k.transpose(-2, -1), -1)
    y = p @ v

    def weights():
        return p.sum()

    return (y, p) if full else (y, weights())


# guarded, none
# inputs: dict(full=Choice((Value(False), Value(True))))
def checked_later(q, k, v, full=False):
    p = torch.softmax(q @ k.transpose(-2, -1), -1)
    y = p @ v
    assert p.sum() > 0
    return (y, p) if full else (y, None)


# guarded, none
# inputs: dict(full=Choice((Value(False), Value(True))))
def condition_made_of_the_output(q, k, v, full=False):
    p = F.softmax(q @ k.transpose(-2, -1), dim=-1)
    y = p @ v
    large = y.sum() > 0
    return (y, p) if large else (y, None)


# guarded, none
# inputs: dict(full=Choice((Value(False), Value(True))))
def loop_between(q, k, v, full=False):
    p = F.softmax(q @ k.transpose(-2, -1), dim=-1)
    for _ in range(2):
        v = v + 1
    y = p @ v
    return (y, p) if full else (y, None)


# guarded, none
# inputs: dict(full=Choice((Value(False), Value(True))), wide=Choice((Value(False), Value(True))))
def changed_in_place_behind_a_join(q, k, v, full=False, wide=True):
    if wide:
        p = torch.softmax(q @ k.transpose(-2, -1), -1)
        y = p @ v
    else:
        p, y = None, q * 2
    y += q.sum()
    return (y, p) if full else (y, None)
