"""One construct of real attention code in each example: how names, helpers, modules, layouts and masks are written."""

import math
from functools import partial

import einops
import torch
import torch.nn as nn
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import einsum
from torch.nn.functional import softmax as sm


class Heads(nn.Module):
    """Three heads of four channels."""

    def __init__(self, width=12, heads=3):
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.to_q = nn.Linear(width, width)
        self.to_k = nn.Linear(width, width)
        self.to_v = nn.Linear(width, width)


# exact, safe
def one_expression(q, k, v):
    return (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).softmax(dim=-1) @ v


# exact, safe: scale=1.0
def name_rebound(query, key, value):
    x = torch.matmul(query, key.mT)
    x = F.softmax(x, dim=-1)
    x = torch.matmul(x, value)
    return x


# exact, safe
def imported_names(q, k, v):
    return einsum("bhij,bhjd->bhid", sm(einsum("bhid,bhjd->bhij", q, k) * 0.5, -1), v)


# exact, safe: self.scale
class ScaleAttribute(Heads):
    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        attn = q @ k.transpose(-2, -1)
        attn = attn * self.scale
        return attn.softmax(-1) @ v


# exact, safe: self.drop.p if self.drop.training else 0.0
class DropoutAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.2)

    def forward(self, q, k, v):
        attn = (q @ k.mT / 2.0).softmax(-1)
        return self.drop(attn) @ v


# exact, safe: 0.1 if self.training else 0.0
class FunctionalDropout(nn.Module):
    def forward(self, q, k, v):
        attn = F.softmax(q @ k.mT, -1)
        attn = F.dropout(attn, 0.1, self.training)
        return attn @ v


# exact, safe: dropout_p=0.1
class DropoutAlways(nn.Module):
    def forward(self, q, k, v):
        return F.dropout(F.softmax(q @ k.mT, -1), p=0.1) @ v


# exact, not safe
class DropoutOrIdentity(nn.Module):
    def __init__(self, p=0.0):
        super().__init__()
        self.drop = nn.Dropout(p) if p > 0 else nn.Identity()

    def forward(self, q, k, v):
        return self.drop((q @ k.mT).softmax(-1)) @ v


# refuse, none
class ChannelDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout2d(0.1)

    def forward(self, q, k, v):
        return self.drop((q @ k.mT).softmax(-1)) @ v


# exact, safe
class SoftmaxAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.Softmax(dim=-1)

    def forward(self, q, k, v):
        return torch.matmul(self.attend(torch.matmul(q, k.transpose(-1, -2)) * 0.125), v)


# exact, safe: dropout_p=self.attend[1].p
class SoftmaxAndDropoutInSequential(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.Sequential(nn.Softmax(dim=-1), nn.Dropout(0.1))

    def forward(self, q, k, v):
        return self.attend(q @ k.mT * 0.5) @ v


# exact, safe
def softmax_module_inline(q, k, v):
    return nn.Softmax(dim=-1)(q @ k.mT) @ v


# exact, safe
def softmax_of_torch_special(q, k, v):
    scores = (q @ k.mT).div(math.sqrt(k.shape[-1]))
    return torch.softmax(scores, dim=3).matmul(v)


# exact, safe
def mapped_lambda(x, context):
    q, k, v = x, context, context
    q, k, v = map(lambda t: rearrange(t, "b n (h d) -> b h n d", h=3), (q, k, v))
    sim = einsum("b h i d, b h j d -> b h i j", q, k) * 4**-0.5
    out = einsum("b h i j, b h j d -> b h i d", sim.softmax(dim=-1), v)
    return rearrange(out, "b h n d -> b n (h d)")


# exact, safe
def comprehension(x, context):
    q, k, v = [rearrange(t, "b n (h d) -> b h n d", h=3) for t in (x, context, context)]
    return rearrange((q @ k.transpose(-1, -2)).softmax(-1) @ v, "b h n d -> b n (h d)")


# exact, safe
# inputs: dict(kv=Tensor((2, "B", "H", "S", "D")))
def star_unpacking(q, kv):
    q, k, v = (q, *kv.unbind(0))
    return (q @ k.mT).softmax(-1) @ v


# exact, safe
def fused_indexing(qkv):
    q, k, v = qkv[0], qkv[1], qkv[2]
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


# exact, safe
def fused_projection_unbound(x):
    b, n, c = x.shape
    q, k, v = x.reshape(b, n, 1, 3, 4).permute(2, 0, 3, 1, 4).expand(3, -1, -1, -1, -1).unbind(0)
    return (q @ k.transpose(-2, -1)).softmax(-1) @ v


# exact, safe
def einsum_other_letters(query, key, value):
    energy = torch.einsum("nhqd,nhkd->nhqk", [query, key])
    attention = torch.softmax(energy / (query.shape[-1] ** (1 / 2)), dim=3)
    return torch.einsum("nhqk,nhkd->nhqd", [attention, value])


# exact, safe
# inputs: dict(q=Tensor(("B", "L", "H", "D")), k=Tensor(("B", "S", "H", "D")), v=Tensor(("B", "S", "H", "D")))
def einsum_heads_third(q, k, v):
    scores = torch.einsum("blhe,bshe->bhls", q, k)
    A = torch.softmax(scores / math.sqrt(q.shape[-1]), dim=-1)
    return torch.einsum("bhls,bshd->blhd", A, v)


# exact, safe
# inputs: dict(q=Tensor(("L", "B", "H", "D")), k=Tensor(("S", "B", "H", "D")), v=Tensor(("S", "B", "H", "D")))
def einsum_length_first_key_axis_one(q, k, v):
    scores = torch.einsum("ibhd,jbhd->ijbh", q, k) / math.sqrt(4)
    return torch.einsum("ijbh,jbhd->ibhd", scores.softmax(dim=1), v)


# exact, safe
def einsum_tuple_operands(q, k, v):
    scores = torch.einsum("bhid,bhjd->bhij", (q, k))
    return torch.einsum("bhij,bhjd->bhid", (scores.softmax(-1), v))


# exact, safe
def einops_einsum_pattern_last(q, k, v):
    sim = einops.einsum(q, k, "b h i d, b h j d -> b h i j") * 0.5
    return einops.einsum(sim.softmax(dim=-1), v, "b h i j, b h j d -> b h i d")


# exact, safe
def einsum_values_first(q, k, v):
    probs = torch.einsum("...id,...jd->...ij", q, k).softmax(-1)
    return torch.einsum("...jd,...ij->...id", v, probs)


# exact, safe
class OwnSplitMethod(Heads):
    def split_heads(self, x):
        return x.view(x.size(0), -1, self.heads, x.size(-1) // self.heads).transpose(1, 2)

    def forward(self, x, context):
        q, k, v = (
            self.split_heads(self.to_q(x)),
            self.split_heads(self.to_k(context)),
            self.split_heads(self.to_v(context)),
        )
        out = torch.softmax(q @ k.transpose(2, 3) * self.scale, dim=-1) @ v
        return out.transpose(1, 2).contiguous().view(x.size(0), -1, x.size(-1))


# exact, safe
def dot_product(q, k):
    return torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(k.size(-1))


def free_helper_for_scores(q, k, v):
    scores = dot_product(q, k)
    return scores.softmax(-1) @ v


# exact, safe: attn_mask=
class HelperAddsBias(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(16, 16))

    def add_bias(self, scores):
        L, S = scores.shape[-2:]
        return scores + self.table[:L, :S]

    def forward(self, q, k, v):
        scores = self.add_bias(q @ k.mT / 2.0)
        return scores.softmax(dim=-1) @ v


# exact, safe: attn_mask=
class BiasModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(16, 16))

    def forward(self, scores):
        return scores + self.table[: scores.size(-2), : scores.size(-1)]


class HelperModuleAddsBias(nn.Module):
    def __init__(self):
        super().__init__()
        self.rel_pos = BiasModule()

    def forward(self, q, k, v):
        scores = q @ k.mT / 2.0
        scores = self.rel_pos(scores)
        return scores.softmax(dim=-1) @ v


# exact, any
class ScoresInOneMethodUsedInAnother(nn.Module):
    def weights(self, q, k):
        return (q @ k.mT * 0.5).softmax(-1)

    def forward(self, q, k, v):
        return self.weights(q, k) @ v


# exact, safe: self.scale
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 0.3

    def project(self, x):
        return x * 2.0


class InheritedAttributeAndMethod(Scaled):
    def forward(self, q, k, v):
        q = self.project(q)
        return (q @ k.mT * self.scale).softmax(-1) @ v


# exact, safe
def nested_function(q, k, v):
    def attend(query, key, value):
        weights = F.softmax(query @ key.mT, dim=-1)
        return weights @ value

    return attend(q, k, v)


# exact, safe
def closure_over_scale(q, k, v):
    scale = q.size(-1) ** -0.5

    def score(a, b):
        return a @ b.mT * scale

    return score(q, k).softmax(-1) @ v


# exact, safe
def cache_concatenated(q, k, v, past=None):
    if past is not None:
        k = torch.cat([past[0], k], dim=-2)
        v = torch.cat([past[1], v], dim=-2)
    present = (k, v)
    return (q @ k.mT / 2.0).softmax(-1) @ v, present


# exact, safe
def two_softmax_calls_for_one_product(q, k, v):
    scores = q @ k.mT
    if scores.dtype == torch.float16:
        probs = F.softmax(scores, dim=-1, dtype=torch.float32).to(torch.float16)
    else:
        probs = F.softmax(scores, dim=-1)
    return probs @ v


# exact, safe
def softmax_by_hand(q, k, v):
    scores = q @ k.mT / 2.0
    scores = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
    probs = scores / scores.sum(dim=-1, keepdim=True)
    return probs @ v


# exact, safe
def softmax_by_logsumexp(q, k, v):
    scores = q @ k.mT
    return torch.exp(scores - torch.logsumexp(scores, dim=-1, keepdim=True)) @ v


# refuse, none
def loop_over_chunks(q, k, v):
    out = torch.zeros_like(q[..., :1]) * v[..., :1, :1]
    out = out.repeat(1, 1, 1, v.size(-1))
    for start in range(0, q.size(-2), 2):
        scores = q[..., start : start + 2, :] @ k.mT
        out[..., start : start + 2, :] = scores.softmax(-1) @ v
    return out


# exact, safe
# inputs: dict(q=Tensor(("B", "L", "D")), k=Tensor(("B", "S", "D")), v=Tensor(("B", "S", "D")))
def three_axes(q, k, v):
    attn = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.size(2))
    return torch.bmm(F.softmax(attn, dim=2), v)


# exact, safe
# inputs: dict(q=Tensor((2, 3, "B", "L", "D")), k=Tensor((2, 3, "B", "S", "D")), v=Tensor((2, 3, "B", "S", "D")))
def five_axes(q, k, v):
    attn = torch.einsum("b w h i d, b w h j d -> b w h i j", q, k) * 0.5
    return torch.einsum("b w h i j, b w h j d -> b w h i d", attn.softmax(dim=-1), v)


# exact, safe
# inputs: dict(q=Tensor(("B", "D", "L")), k=Tensor(("B", "D", "S")), v=Tensor(("B", "D", "S")))
def channels_first(q, k, v):
    weight = torch.einsum("bct,bcs->bts", q * 0.5, k * 0.5)
    weight = torch.softmax(weight, dim=-1)
    return torch.einsum("bts,bcs->bct", weight, v)


# exact, safe
# inputs: dict(v=Tensor(("B", "H", "D", "S")))
def values_times_transposed_weights(q, k, v):
    attn = (q @ k.mT).softmax(-1)
    return v @ attn.transpose(-2, -1)


# exact, unsafe
# inputs: dict(k=Tensor(("B", "H", "D", "S")))
def key_already_transposed(q, k, v):
    return torch.softmax(q @ k / math.sqrt(q.size(-1)), -1) @ v


# exact, unsafe: scale=
# never: k.mT.size(-1) ** -0.5
# inputs: dict(k=Tensor(("B", "H", "D", "S")))
def scale_of_transposed_key_is_its_length(q, k, v):
    return torch.softmax(q @ k / math.sqrt(k.size(-1)), -1) @ v


# exact, safe
# inputs: dict(k=Tensor(("B", "H", "L", "D")), v=Tensor(("B", "H", "L", "D")))
def keys_times_queries(q, k, v):
    scores = k @ q.mT
    return scores.softmax(dim=-2).mT @ v


# exact, safe
def baddbmm_with_beta_zero(x, context):
    scores = torch.baddbmm(x.new_empty(x.size(0), x.size(1), context.size(1)), x, context.mT, beta=0, alpha=0.5)
    return torch.bmm(scores.softmax(-1), context)


# exact, any: scale=0.5
# inputs: dict(bias=Mask(("B", "L", "S"), ("bias",)))
def baddbmm_onto_bias(x, context, bias):
    scores = torch.baddbmm(bias, x, context.mT, alpha=0.5)
    return torch.bmm(scores.softmax(-1), context)


# exact, safe
def float32_and_back(q, k, v):
    probs = F.softmax((q @ k.mT / 2.0).float(), dim=-1).type_as(q)
    return probs @ v


# exact, safe
def float32_by_dtype(q, k, v):
    return F.softmax(q @ k.mT, dim=-1, dtype=torch.float32).to(v.dtype) @ v


# exact, safe
def in_place_steps(q, k, v, drop):
    scores = q @ k.mT
    scores *= 0.5
    scores.masked_fill_(drop, float("-inf"))
    return scores.softmax(-1) @ v


# exact, safe
def query_scaled_in_front(q, k, v):
    q = q * q.size(-1) ** -0.5
    return (q @ k.mT).softmax(-1) @ v


# exact, safe
def both_scaled(q, k, v):
    s = q.size(-1) ** -0.25
    return ((q * s) @ (k * s).mT).softmax(-1) @ v


# exact, safe: attn_mask=~mask
def bool_mask_filled(q, k, v, mask):
    return (q @ k.mT).masked_fill(mask, float("-inf")).softmax(-1) @ v


# exact, safe: attn_mask=mask != 0
# inputs: dict(mask=Mask(("L", "S"), ("bool", "int", "uint8", "float01"), sense="keep"))
def filled_where_zero(q, k, v, mask):
    scores = q @ k.mT / math.sqrt(q.size(-1))
    scores = scores.masked_fill(mask == 0, float("-inf"))
    return scores.softmax(-1) @ v


# exact, safe: attn_mask=mask
def optional_bool_mask(q, k, v, mask=None):
    scores = q @ k.mT
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1) @ v


# exact, safe: .any(dim=-1, keepdim=True)
# inputs: dict(mask=Mask(("L", "S"), ("bool", "int", "float01"), sense="keep"))
def finite_fill_with_empty_rows(q, k, v, mask):
    scores = (q @ k.mT).masked_fill(mask == 0, -1e9)
    return scores.softmax(-1) @ v


# exact, safe: .any(dim=-1, keepdim=True)
# inputs: dict(mask=optional(Mask(("L", "S"), sense="keep")))
def finite_fill_optional(q, k, v, mask):
    scores = q @ k.mT
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(-1) @ v


# exact, unsafe: attn_mask=attention_mask
# inputs: dict(attention_mask=optional(Mask(("L", "S"), ("additive", "bias"), empty=False)))
def optional_added_mask(q, k, v, attention_mask=None):
    scores = q @ k.mT / math.sqrt(q.size(-1))
    if attention_mask is not None:
        scores = scores + attention_mask
    return F.softmax(scores, dim=-1) @ v


# exact, safe
def where_bool(q, k, v, keep):
    scores = torch.where(keep, q @ k.mT, float("-inf"))
    return scores.softmax(-1) @ v


# exact, safe
def written_by_index(q, k, v, drop):
    scores = q @ k.mT
    scores[:, :, drop] = -math.inf
    return scores.softmax(-1) @ v


# exact, safe: key_padding_mask
def padding_of_keys(q, k, v, key_padding_mask):
    scores = q @ k.mT
    scores = scores.masked_fill(key_padding_mask[:, None, None, :], float("-inf"))
    return scores.softmax(-1) @ v


# exact, safe: None if key_padding_mask is None else
def padding_rearranged(q, k, v, key_padding_mask=None):
    sim = einsum("b h i d, b h j d -> b h i j", q, k)
    if key_padding_mask is not None:
        sim = sim.masked_fill(rearrange(key_padding_mask, "b j -> b 1 1 j"), float("-inf"))
    return einsum("b h i j, b h j d -> b h i d", sim.softmax(-1), v)


# exact, safe: attn_mask=
class LearnedBias(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(3, 8, 8))

    def forward(self, qkv):
        q, k, v = qkv.unbind(0)
        n = q.size(-2)
        attn = q @ k.mT * 0.5 + self.bias[: q.size(1), :n, :n]
        return attn.softmax(-1) @ v


# exact, safe
def grouped_keys(q, k, v):
    q = torch.cat([q, q], dim=1)
    k = k.repeat_interleave(2, dim=1)
    v = v.repeat_interleave(2, dim=1)
    return (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1) @ v


# exact, safe
def weights_given_up(q, k, v):
    attn = (q @ k.mT).softmax(-1)
    return attn @ v, None


# guarded
def weights_returned(q, k, v):
    attn = (q @ k.mT).softmax(-1)
    return attn @ v, attn


# guarded, unsafe: need_weights
# inputs: dict(need_weights=Choice((Value(False), Value(True))))
def weights_on_request(q, k, v, need_weights=False):
    attn = (q @ k.mT).softmax(-1)
    out = attn @ v
    if need_weights:
        return out, attn
    return out, None


# guarded
class WeightsStored(nn.Module):
    def forward(self, q, k, v):
        self.weights = (q @ k.mT).softmax(-1)
        return self.weights @ v


# guarded, unsafe
# inputs: dict(head_mask=optional(Tensor(("H", 1, 1))))
def head_mask_optional(q, k, v, head_mask=None):
    probs = (q @ k.mT).softmax(-1)
    if head_mask is not None:
        probs = probs * head_mask
    return probs @ v


# exact, safe: .reshape(
def view_after_the_product(q, k, v):
    out = (q @ k.mT).softmax(-1) @ v
    return out.view(out.size(0), out.size(1), -1)


# exact, safe
# inputs: dict(scaled=Choice((Value(True), Value(False))))
def configured_by_branch(q, k, v, scaled=True):
    scores = q @ k.mT
    if scaled:
        scores = scores / math.sqrt(q.size(-1))
    return scores.softmax(-1) @ v


# any, any
def partial_softmax(q, k, v):
    soft = partial(F.softmax, dim=-1)
    return soft(q @ k.mT) @ v


# none
class FallbackBesideFused(nn.Module):
    fused = hasattr(F, "scaled_dot_product_attention")

    def forward(self, q, k, v):
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v, scale=1.0)
        return (q @ k.mT).softmax(-1) @ v


# none
def router(x):
    weights = x.softmax(-1)
    top = weights.topk(2, dim=-1).indices
    return weights.gather(-1, top)


# none
# inputs: dict(w=Tensor((12,)))
def pooling(x, w):
    weights = torch.softmax(x @ w, dim=-1)
    return torch.einsum("bl,bld->bd", weights, x)


# none
def matching_scores(x, context):
    return (x @ context.mT).softmax(dim=-1)


# none
# inputs: dict(w=Tensor((12, 5)), experts=Tensor((5, 12)))
def mixture_by_classifier(x, w, experts):
    return torch.softmax(x @ w, dim=-1).sum(1) @ experts


# none
# inputs: dict(ids=Ids(("B", "L"), 12))
def cross_entropy_by_hand(x, ids):
    return -torch.log(torch.softmax(x, -1)).gather(-1, ids.unsqueeze(-1)).mean()
