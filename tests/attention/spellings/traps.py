"""One trap of real attention code in each example: where the obvious rewrite computes something else."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from einops import rearrange, repeat


# exact, any
def bias_inside_the_scaling(q, k, v, bias):
    scores = q @ k.mT + bias
    scores = scores / math.sqrt(q.size(-1))
    return scores.softmax(-1) @ v


# exact, any
def bias_divided_by_the_scale(q, k, v, bias):
    scores = q @ k.mT * 0.25 + bias / 0.25
    return scores.softmax(-1) @ v


# exact, safe: scale=1.0
def no_scaling(q, k, v):
    return torch.softmax(q @ k.mT, dim=-1) @ v


# exact, safe
class ScaleIsADivisor(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = math.sqrt(4)

    def forward(self, q, k, v):
        return (q @ k.mT / self.scale).softmax(-1) @ v


# exact, safe: self.scale
class ScaleOfTheEmbeddingWidth(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.scale = width**-0.5

    def forward(self, q, k, v):
        return (q @ k.mT * self.scale).softmax(-1) @ v


# exact, safe: self.scale
class ScaleGivenOrDefault(nn.Module):
    def __init__(self, head_dim=4, qk_scale=None):
        super().__init__()
        self.scale = qk_scale or head_dim**-0.5

    def forward(self, q, k, v):
        attn = (q * self.scale) @ k.transpose(-2, -1)
        return attn.softmax(-1) @ v


# exact, safe
# never: scale=temperature ; scale=self.temperature
class LearnedTemperature(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(1))

    def forward(self, q, k, v):
        return (q @ k.mT * self.temperature).softmax(-1) @ v


# exact, safe: scale=1.0
class TemperatureOfEachHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.rand(3, 1, 1))

    def forward(self, x):
        q = k = v = x.unflatten(-1, (3, 4)).transpose(1, 2)
        return (q @ k.mT * self.temperature.exp()).softmax(-1) @ v


# exact, safe
def factor_of_each_key(q, k, v):
    weight = k.mean(-1).unsqueeze(-2)
    return (q @ k.mT * weight).softmax(-1) @ v


# refuse, none
# inputs: dict(gate=Tensor(("L", "S")))
def scores_times_a_full_factor(q, k, v, gate):
    return (q @ k.mT * gate).softmax(-1) @ v


# exact, safe
def negated_scores(q, k, v):
    energy = q @ k.mT
    energy = energy.max(-1, keepdim=True)[0].expand_as(energy) - energy
    return energy.softmax(-1) @ v


# exact, safe
def distance_sign(q, k, v):
    return F.softmax(-(q @ k.mT), dim=-1) @ v


# any, not safe
# inputs: dict(mask=Mask(("L", "S"), sense="drop"))
def later_fill_overrides(q, k, v, mask):
    scores = (q @ k.mT).masked_fill(mask, float("-inf"))
    scores = scores.masked_fill(mask, -2.0)
    return scores.softmax(-1) @ v


# any, not safe
def weak_fill(q, k, v, mask):
    return (q @ k.mT).masked_fill(mask, -5.0).softmax(-1) @ v


# any, not safe
def tiny_positive_fill(q, k, v, mask):
    return (q @ k.mT).masked_fill(mask, 1e-9).softmax(-1) @ v


# exact, safe: .masked_fill(
# inputs: dict(keep=Mask(("L", "S"), sense="keep"))
def rows_zeroed_after_the_softmax(q, k, v, keep):
    scores = (q @ k.mT).masked_fill(~keep, -1e4)
    probs = scores.softmax(-1).masked_fill(~keep, 0.0)
    return probs @ v


# exact, safe: attn_mask=
# inputs: dict(drop=Mask(("L", "S"), sense="drop"))
def nan_rows_replaced(q, k, v, drop):
    probs = (q @ k.mT).masked_fill(drop, float("-inf")).softmax(-1)
    return torch.nan_to_num(probs) @ v


# refuse, none
# inputs: dict(keep=Mask(("L", "S"), ("float01",), sense="keep"))
def masked_only_after_the_softmax(q, k, v, keep):
    probs = (q @ k.mT).softmax(-1) * keep
    return probs @ v


# exact, unsafe
# inputs: dict(attention_mask=Mask(("L", "S"), ("additive", "bias"), empty=False))
def same_mask_added_twice(q, k, v, attention_mask):
    scores = q @ k.mT + attention_mask
    scores = scores + attention_mask
    return scores.softmax(-1) @ v


# exact, not safe
# inputs: dict(a=Mask(("L", "S"), ("bias",)), b=optional(Mask(("B", 1, 1, "S"), ("additive", "bias"), empty=False)))
def two_masks_added(q, k, v, a, b=None):
    scores = q @ k.mT + a
    if b is not None:
        scores = scores + b
    return scores.softmax(-1) @ v


# exact, not safe
# inputs: dict(attention_mask=Mask(("L", "S"), ("bias",)))
def clamped_after_the_mask(q, k, v, attention_mask):
    """With a mask of ordinary size the clamp does nothing."""
    scores = q @ k.mT + attention_mask
    scores = torch.max(scores, torch.tensor(torch.finfo(scores.dtype).min))
    return scores.softmax(-1) @ v


# refuse, none
def clamped_scores(q, k, v):
    return (q @ k.mT).clamp(-1.0, 1.0).softmax(-1) @ v


# exact, safe: .any(dim=-1, keepdim=True)
# inputs: dict(drop=Mask(("L", "S"), sense="drop"), key_padding_mask=PADDING)
def union_empties_a_row(q, k, v, drop, key_padding_mask):
    scores = (q @ k.mT).masked_fill(drop, -1e9)
    scores = scores.masked_fill(key_padding_mask[:, None, None, :], -1e9)
    return scores.softmax(-1) @ v


# any, any
# inputs: dict(drop=Mask(("L", "S"), sense="drop"), key_padding_mask=PADDING)
def strong_fill_over_weaker(q, k, v, drop, key_padding_mask):
    scores = (q @ k.mT).masked_fill(drop, -1e4)
    scores = scores.masked_fill(key_padding_mask[:, None, None, :], float("-inf"))
    return scores.softmax(-1) @ v


# exact, unsafe
# inputs: dict(keep=Mask(("L", "S"), ("float01",), sense="keep"))
def arithmetic_mask(q, k, v, keep):
    w = q @ k.mT / 2.0
    w = w * keep + -1e9 * (1 - keep)
    return w.softmax(-1) @ v


# any, not safe
# inputs: dict(mask=Mask(("L", "S"), ("float01",), sense="keep"))
def numeric_mask_added(q, k, v, mask):
    return (q @ k.mT + mask).softmax(-1) @ v


# exact, safe: mask != 0
# inputs: dict(mask=Mask(("L", "S"), ("int", "uint8"), sense="keep"))
def whole_numbers_are_not_inverted(q, k, v, mask):
    return torch.where(mask != 0, q @ k.mT, float("-inf")).softmax(-1) @ v


# exact, safe
# inputs: dict(q=Tensor((6, "L", "D")), k=Tensor((6, "S", "D")), v=Tensor((6, "S", "D")), mask=Mask((6, 1, "S")))
def three_axes_with_a_mask(q, k, v, mask):
    return torch.bmm(torch.bmm(q, k.mT).masked_fill(mask, float("-inf")).softmax(-1), v)


# exact, safe
# inputs: dict(q=Tensor((6, "L", "D")), k=Tensor((6, "S", "D")), v=Tensor((6, "S", "D")))
def three_axes_with_a_flat_mask(q, k, v, mask):
    return torch.bmm(torch.bmm(q, k.mT).masked_fill(mask, float("-inf")).softmax(-1), v)


# exact, safe
def mask_of_one_axis(q, k, v):
    hidden = torch.arange(k.size(-2), device=k.device) % 3 == 1
    return (q @ k.mT).masked_fill(hidden, float("-inf")).softmax(-1) @ v


# exact, safe
def padding_repeated_for_heads(x, context, key_padding_mask):
    q, k, v = (rearrange(t, "b n (h d) -> (b h) n d", h=3) for t in (x, context, context))
    sim = torch.einsum("bid,bjd->bij", q, k) * 0.5
    sim.masked_fill_(repeat(key_padding_mask, "b j -> (b h) () j", h=3), -torch.finfo(sim.dtype).max)
    return torch.einsum("bij,bjd->bid", sim.softmax(dim=-1), v)


# exact, not safe
# inputs: dict(x=Tensor((6, "L", 12)), mask=Mask((2, "L", "L"), ("finite", "bias"), empty=False))
def window_is_the_fastest_axis(x, mask):
    q = k = v = x.unflatten(-1, (3, 4)).transpose(1, 2)
    n = x.size(1)
    attn = q @ k.mT
    attn = attn.view(3, 2, 3, n, n) + mask.unsqueeze(1).unsqueeze(0)
    attn = attn.view(-1, 3, n, n).softmax(-1)
    return attn @ v


# any, any
# inputs: dict(mask=Mask(("B", "L", "L"), sense="drop"))
def positive_index_of_the_key_axis(x, mask):
    scores = (x @ x.mT).masked_fill(mask, float("-inf"))
    return torch.bmm(scores.softmax(dim=2), x)


# any, none
# inputs: dict(q=Tensor(("B", "H", "L", "D")), k=Tensor(("B", "H", "L", "D")), v=Tensor(("B", "H", "L", "D")))
def softmax_over_the_queries(q, k, v):
    return (q @ k.mT).softmax(dim=-2) @ v


# any, none
def softmax_of_both_axes(q, k, v):
    scores = q @ k.mT
    return scores.flatten(-2).softmax(-1).view_as(scores) @ v


# exact, safe
def values_of_another_width(q, k, v):
    v = torch.cat([v, v], dim=-1)
    return (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1) @ v


# exact, safe
def names_that_mislead(value, query, key):
    """The parameter named key holds the values."""
    return (value @ query.mT).softmax(-1) @ key


# exact, safe
# never: dropout_p
class ModuleDropoutOnTheOutput(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.2)

    def forward(self, q, k, v):
        return self.dropout((q @ k.mT).softmax(-1) @ v)


# refuse, none
class DropoutOnTheScores(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.2)

    def forward(self, q, k, v):
        return self.dropout(q @ k.mT).softmax(-1) @ v


# exact, safe: self.attn_drop.p if self.attn_drop.training else 0.0
class DropoutInPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn_drop = nn.Dropout(0.1, inplace=True)

    def forward(self, q, k, v):
        attn = (q @ k.mT).softmax(-1)
        attn = self.attn_drop(attn)
        return attn @ v


# exact, any
# inputs: dict(dropout=Value(__import__("torch").nn.Dropout(0.1)))
class DropoutAsArgument(nn.Module):
    def forward(self, q, k, v, dropout: nn.Dropout):
        return dropout((q @ k.mT).softmax(-1)) @ v


# exact, safe
# inputs: dict(dims=({"B": 2, "H": 3, "L": 4, "S": 6, "D": 4},))
class WeightsScaledByHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(3, 1, 1))

    def forward(self, q, k, v):
        return ((q @ k.mT).softmax(-1) * self.gain) @ v


# exact, safe
def weights_scaled_by_key(q, k, v):
    gain = v.mean(-1).sigmoid().unsqueeze(-2)
    return ((q @ k.mT).softmax(-1) * gain) @ v


# refuse, none
# inputs: dict(gate=Tensor(("L", "S")))
def weights_gated(q, k, v, gate):
    return ((q @ k.mT).softmax(-1) * gate.sigmoid()) @ v


# refuse, none
def second_softmax(q, k, v):
    return (q @ k.mT).softmax(-1).softmax(-1) @ v


# refuse, none
def softcap(q, k, v):
    scores = 30.0 * torch.tanh(q @ k.mT / 30.0)
    return scores.softmax(-1) @ v


# refuse, none
def top_keys_only(q, k, v):
    scores = q @ k.mT
    least = scores.topk(2, dim=-1).values[..., -1:]
    return scores.masked_fill(scores < least, float("-inf")).softmax(-1) @ v


# refuse, none
# inputs: dict(mix=Tensor((3, 3)), dims=({"B": 2, "H": 3, "L": 4, "S": 6, "D": 4},))
def talking_heads(q, k, v, mix):
    scores = torch.einsum("bhij,hg->bgij", q @ k.mT, mix)
    return scores.softmax(-1) @ v


# refuse, none
def gumbel(q, k, v):
    return F.gumbel_softmax(q @ k.mT, dim=-1) @ v


# any, none
def normalised_with_epsilon(q, k, v):
    probs = torch.exp(q @ k.mT)
    return probs / (probs.sum(-1, keepdim=True) + 1e-6) @ v


# any, none
def denominator_of_other_scores(q, k, v, drop):
    scores = q @ k.mT
    weights = torch.exp(scores).masked_fill(drop, 0.0)
    return weights / torch.exp(scores).sum(-1, keepdim=True) @ v


# any, not safe
def scores_used_again(q, k, v):
    scores = q @ k.mT
    return scores.softmax(-1) @ v + scores.mean(-1, keepdim=True)


# guarded
def weights_in_a_loss(q, k, v):
    probs = (q @ k.mT).softmax(-1)
    entropy = -(probs * torch.log(probs + 1e-9)).sum(-1).mean()
    return probs @ v, entropy


# any, not safe
def values_changed_by_weights(q, k, v):
    probs = (q @ k.mT).softmax(-1)
    v = v * probs.sum(-2).unsqueeze(-1)
    return probs @ v


# exact, any
def output_changed_in_place(q, k, v):
    out = (q @ k.mT).softmax(-1) @ v
    out *= 2.0
    return out


# exact, any
# inputs: dict(mask=Mask(("L", "S"), ("bias",)))
def mask_changed_in_place_later(q, k, v, mask):
    mask = mask * 1.0
    out = (q @ k.mT + mask).softmax(-1) @ v
    mask += 1.0
    return out, mask


# exact, safe
# never: enable_gqa
def repeated_not_interleaved(q, k, v):
    k = k.repeat(1, 2, 1, 1)
    v = v.repeat(1, 2, 1, 1)
    q = torch.cat([q, q], dim=1)
    return (q @ k.mT).softmax(-1) @ v


# any, none
def linear_attention(q, k, v):
    q, k = q.softmax(-1), k.softmax(-2)
    return q @ (k.mT @ v)


# any, none
def query_independent_weights(q, k, v):
    """Softmax of the query alone: no score of a query and a key."""
    return q.softmax(-1) @ k.mT @ v


# exact, safe
class ChannelsAsTokens(nn.Module):
    """Attention across channels on purpose: tokens play the part of the head dimension."""

    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(3, 1, 1))

    def forward(self, x):
        qkv = x.unflatten(-1, (3, 4)).permute(0, 2, 3, 1)
        q, k = F.normalize(qkv, dim=-1), F.normalize(qkv, dim=-1)
        attn = (q @ k.transpose(-2, -1)) * self.temperature
        return (attn.softmax(dim=-1) @ qkv).permute(0, 3, 1, 2).flatten(2)


# exact, safe
def result_name_reused(hidden_states, context):
    scores = hidden_states @ context.mT
    probs = scores.softmax(-1)
    hidden_states = torch.bmm(probs, context)
    return hidden_states * 2.0


# exact, safe
def one_name_for_everything(q, k, v):
    # scores, probabilities and output in turn
    a = q @ k.mT
    a = a / 2.0
    a = a.softmax(-1)
    a = a @ v  # the output
    return a


# exact, safe
def diagonal_removed(x):
    """Locality attention: a token does not see itself (one token alone sees nothing: all keys hidden)."""
    n = x.size(1)
    dots = x @ x.mT * 0.5
    mask = torch.eye(n, device=dots.device, dtype=torch.bool)
    dots = dots.masked_fill(mask, -torch.finfo(dots.dtype).max)
    return dots.softmax(-1) @ x


# exact, safe
def half_written_back(q, k, v):
    scores = q @ k.mT
    probs = torch.softmax(scores - scores.amax(-1, keepdim=True).detach(), dim=-1)
    return probs @ v


# any, none
def column_of_ones_in_the_sum(q, k, v):
    """Softmax off by one: a key of score zero and value zero."""
    scores = q @ k.mT
    top = scores.amax(-1, keepdim=True).clamp(min=0.0)
    weights = torch.exp(scores - top)
    return weights / (weights.sum(-1, keepdim=True) + torch.exp(-top)) @ v


# exact, none
def weights_without_gradient(q, k, v):
    scores = q @ k.mT
    with torch.no_grad():
        probs = scores.softmax(-1)
    return probs @ v


# any, none
def names_read_by_text(q, k, v):
    probs = (q @ k.mT).softmax(-1)
    out = probs @ v
    return out, locals()["probs"]


# exact, none
class DropoutOfItsOwn(nn.Module):
    def drop(self, probs):
        return F.dropout(probs, 0.3, self.training)

    def forward(self, q, k, v):
        return self.drop((q @ k.mT).softmax(-1)) @ v


class MethodReplacedInSubclass(DropoutOfItsOwn):
    def drop(self, probs):
        return probs * 2.0


# exact, none
class NormalisesBySoftmax(nn.Module):
    def norm(self, scores):
        return scores.softmax(-1)

    def forward(self, q, k, v):
        return self.norm(q @ k.mT) @ v


class NormalisesBySigmoid:
    def norm(self, scores):
        return scores.sigmoid()


class MethodReplacedByMixin(NormalisesBySigmoid, NormalisesBySoftmax):
    pass


# exact, safe
# never: attn_mask
def subtracted_from_one(q, k, v):
    return (1.0 - q @ k.mT).softmax(-1) @ v


# exact, none
def negated_after_the_fill(q, k, v, mask):
    scores = (q @ k.mT).masked_fill(mask, -1e9)
    scores = scores * -1
    return scores.softmax(-1) @ v


# any, not safe
def fill_scaled_away(q, k, v, mask):
    scores = (q @ k.mT).masked_fill(mask, -1e4) / 1e4
    return scores.softmax(-1) @ v


# exact, unsafe
class DropoutSetFromOutside(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.1)

    def forward(self, q, k, v):
        return self.drop((q @ k.mT).softmax(-1)) @ v


class DropoutReplacedByOwner(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = DropoutSetFromOutside()
        self.attn.drop = nn.Identity()

    def forward(self, q, k, v):
        return self.attn(q, k, v)


# refuse, none
def nan_rows_get_another_number(q, k, v, drop):
    probs = (q @ k.mT).masked_fill(drop, float("-inf")).softmax(-1)
    return torch.nan_to_num(probs, nan=1.0) @ v


# exact, none
def query_changed_in_place_later(q, k, v):
    q = q.detach() + 1.0
    out = (q @ k.detach().mT).softmax(-1) @ v
    q += 1.0
    return out, q


# exact, none
class OutputOverwrittenByLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.ReLU(inplace=True)

    def forward(self, q, k, v):
        return self.act((q @ k.mT).softmax(-1) @ v)


# exact, safe: .reshape(
class ViewedByCaller(nn.Module):
    def attend(self, q, k, v):
        return (q @ k.mT).softmax(-1) @ v

    def forward(self, q, k, v):
        out = self.attend(q, k, v)
        return out.view(out.size(0), -1)


# exact, none
class ChangedByCaller(nn.Module):
    def attend(self, q, k, v):
        return (q @ k.mT).softmax(-1) @ v

    def forward(self, q, k, v):
        out = self.attend(q, k, v)
        out += q.mean(-2, keepdim=True)
        return out


# refuse, none
def scores_without_gradient(q, k, v):
    return (q @ k.mT).data.softmax(-1) @ v


# exact, none
def whole_numbers_added(q, k, v):
    distance = (torch.arange(k.size(-2))[None] - torch.arange(q.size(-2))[:, None]).abs()
    return (q @ k.mT - distance).softmax(-1) @ v


# exact, none
def divided_by_the_length_of_each_key(q, k, v):
    return (q @ k.mT / k.norm(dim=-1).unsqueeze(-2)).softmax(-1) @ v


# exact, none
class ScoresUnderNoGrad(nn.Module):
    @torch.no_grad()
    def weights(self, q, k):
        return (q @ k.mT).softmax(-1)

    def forward(self, q, k, v):
        return self.weights(q, k) @ v


# exact, none
def expected_position(x, context):
    position = torch.arange(context.size(1), dtype=x.dtype)
    return (x @ context.mT).softmax(-1) @ position


# exact, none
def dtype_of_the_scores_elsewhere(q, k, v):
    scores = q @ k.mT
    nothing = torch.zeros(1, dtype=scores.dtype)
    return scores.softmax(-1) @ v + nothing


# any, not safe
# inputs: dict(query=Tensor(("D",)), keys=Tensor(("S", "D")), values=Tensor(("S", "D")))
def one_query_without_a_batch(query, keys, values):
    """Either operand may have a single axis."""
    return (keys @ query.unsqueeze(-1)).squeeze(-1).softmax(-1) @ values


# exact, not safe
def scaled_by_argument(q, k, v, scale: float = 1.0):
    return (q @ k.mT * scale).softmax(-1) @ v


def gives_a_tensor_as_scale(q, k, v):
    return scaled_by_argument(q, k, v, q.mean(-1, keepdim=True))


# exact, not safe
class ScaleGivenAtConstruction(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, q, k, v):
        return (q @ k.mT * self.scale).softmax(-1) @ v


class GivesAParameterAsScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = ScaleGivenAtConstruction(nn.Parameter(torch.ones(1, 1, 1)))

    def forward(self, q, k, v):
        return self.attn(q, k, v)
