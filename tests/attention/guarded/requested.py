"""Weights on request: the old lines stay under the condition, everything else goes through SDPA."""

import math

import torch
import torch.nn.functional as F
from torch import nn


# guarded, unsafe: if output_attentions or head_mask is not None: ; attention_probs = None ; attn_mask=attention_mask
# inputs: dict(hidden_states=Tensor(("B", "L", 12)), attention_mask=optional(Mask(("B", 1, 1, "L"), ("additive",))), head_mask=optional(Tensor((1, 3, 1, 1))), output_attentions=Choice((Value(False), Value(True))))
class BertStyle(nn.Module):
    def __init__(self, hidden_size=12, num_heads=3):
        super().__init__()
        self.num_heads, self.head_size = num_heads, hidden_size // num_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(0.1)

    def split(self, x):
        return x.view(x.size(0), x.size(1), self.num_heads, self.head_size).permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask=None, head_mask=None, output_attentions=False):
        query_layer = self.split(self.query(hidden_states))
        key_layer = self.split(self.key(hidden_states))
        value_layer = self.split(self.value(hidden_states))

        # The raw scores.
        attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        attention_scores = attention_scores / math.sqrt(self.head_size)
        if attention_mask is not None:
            # made once for all layers
            attention_scores = attention_scores + attention_mask

        attention_probs = nn.functional.softmax(attention_scores, dim=-1)
        attention_probs = self.dropout(attention_probs)  # drops whole tokens
        if head_mask is not None:
            attention_probs = attention_probs * head_mask

        context_layer = torch.matmul(attention_probs, value_layer)
        context_layer = context_layer.permute(0, 2, 1, 3).contiguous().view(hidden_states.size())
        outputs = (context_layer, attention_probs) if output_attentions else (context_layer,)
        return outputs


# guarded, unsafe: attn_mask = torch.einsum("bhld,lrd->bhlr", query, positions) / math.sqrt(self.head_size) ; attn_mask = attn_mask + torch.einsum
# never: is not None else attn_mask + torch.einsum
# inputs: dict(query=Tensor(("B", "H", "L", "D")), key=Tensor(("B", "H", "L", "D")), value=Tensor(("B", "H", "L", "D")), attention_mask=optional(Mask(("B", 1, 1, "L"), ("additive",))), output_attentions=Choice((Value(False), Value(True))))
# init: dict(kind="relative_key_query")
class BertRelative(nn.Module):
    def __init__(self, kind="absolute"):
        super().__init__()
        self.head_size, self.kind = 4, kind
        self.distances = nn.Embedding(31, 4)

    def forward(self, query, key, value, attention_mask=None, output_attentions=False):
        scores = torch.matmul(query, key.transpose(-1, -2))
        if self.kind == "relative_key" or self.kind == "relative_key_query":
            length = query.size(2)
            left = torch.arange(length).view(-1, 1)
            right = torch.arange(length).view(1, -1)
            distance = left - right
            positions = self.distances(distance + 15)
            positions = positions.to(dtype=query.dtype)  # for half precision
            if self.kind == "relative_key":
                by_query = torch.einsum("bhld,lrd->bhlr", query, positions)
                scores = scores + by_query
            elif self.kind == "relative_key_query":
                by_query = torch.einsum("bhld,lrd->bhlr", query, positions)
                by_key = torch.einsum("bhrd,lrd->bhlr", key, positions)
                scores = scores + by_query + by_key
        scores = scores / math.sqrt(self.head_size)
        if attention_mask is not None:
            scores = scores + attention_mask
        probs = scores.softmax(-1)
        context = probs @ value
        return (context, probs) if output_attentions else (context,)


# guarded, unsafe: if output_attentions or layer_head_mask is not None: ; .unflatten(0, (bsz, self.num_heads)) ; attn_output.reshape(bsz
# inputs: dict(hidden_states=Tensor(("B", "L", 12)), attention_mask=optional(Mask(("B", 1, "L", "L"), ("additive",))), layer_head_mask=optional(Tensor((3,))), output_attentions=Choice((Value(False), Value(True))))
class BartStyle(nn.Module):
    def __init__(self, embed_dim=12, num_heads=3, dropout=0.0):
        super().__init__()
        self.num_heads, self.head_dim, self.dropout = num_heads, embed_dim // num_heads, dropout
        self.scaling = self.head_dim**-0.5
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)

    def _shape(self, tensor, seq_len, bsz):
        return tensor.view(bsz, seq_len, self.num_heads, self.head_dim).transpose(1, 2).contiguous()

    def forward(self, hidden_states, attention_mask=None, layer_head_mask=None, output_attentions=False):
        bsz, tgt_len, embed_dim = hidden_states.size()
        query_states = self.q_proj(hidden_states) * self.scaling
        proj_shape = (bsz * self.num_heads, -1, self.head_dim)
        query_states = self._shape(query_states, tgt_len, bsz).view(*proj_shape)
        key_states = self._shape(self.k_proj(hidden_states), -1, bsz).reshape(*proj_shape)
        value_states = self._shape(self.v_proj(hidden_states), -1, bsz).reshape(*proj_shape)

        src_len = key_states.size(1)
        attn_weights = torch.bmm(query_states, key_states.transpose(1, 2))

        if attn_weights.size() != (bsz * self.num_heads, tgt_len, src_len):
            raise ValueError(
                f"Attention weights should be of size {(bsz * self.num_heads, tgt_len, src_len)}, but is"
                f" {attn_weights.size()}"
            )

        if attention_mask is not None:
            if attention_mask.size() != (bsz, 1, tgt_len, src_len):
                raise ValueError(f"Attention mask should be of size {(bsz, 1, tgt_len, src_len)}")
            attn_weights = attn_weights.view(bsz, self.num_heads, tgt_len, src_len) + attention_mask
            attn_weights = attn_weights.view(bsz * self.num_heads, tgt_len, src_len)

        attn_weights = nn.functional.softmax(attn_weights, dim=-1)

        if layer_head_mask is not None:
            if layer_head_mask.size() != (self.num_heads,):
                raise ValueError(f"Head mask for a single layer should be of size {(self.num_heads,)}")
            attn_weights = layer_head_mask.view(1, -1, 1, 1) * attn_weights.view(bsz, self.num_heads, tgt_len, src_len)
            attn_weights = attn_weights.view(bsz * self.num_heads, tgt_len, src_len)

        if output_attentions:
            # reshaped twice to keep its gradient
            attn_weights_reshaped = attn_weights.view(bsz, self.num_heads, tgt_len, src_len)
            attn_weights = attn_weights_reshaped.view(bsz * self.num_heads, tgt_len, src_len)
        else:
            attn_weights_reshaped = None

        attn_probs = nn.functional.dropout(attn_weights, p=self.dropout, training=self.training)
        attn_output = torch.bmm(attn_probs, value_states)
        if attn_output.size() != (bsz * self.num_heads, tgt_len, self.head_dim):
            raise ValueError("wrong size")
        attn_output = attn_output.view(bsz, self.num_heads, tgt_len, self.head_dim)
        attn_output = attn_output.transpose(1, 2).reshape(bsz, tgt_len, embed_dim)
        return attn_output, attn_weights_reshaped


# guarded, unsafe: if output_attentions or layer_head_mask is not None: ; device=q.device ; attn_weights = None
# inputs: dict(hidden_states=Tensor(("B", "L", 12)), mask=optional(Mask(("B", 1, 1, "L"), ("additive",))), position_bias=optional(Tensor((1, 3, "L", "L"))), layer_head_mask=optional(Tensor((1, 3, 1, 1))), output_attentions=Choice((Value(False), Value(True))))
class T5Style(nn.Module):
    def __init__(self, d_model=12, n_heads=3, has_relative_attention_bias=True):
        super().__init__()
        self.n_heads, self.width = n_heads, d_model // n_heads
        self.has_relative_attention_bias = has_relative_attention_bias
        self.q = nn.Linear(d_model, d_model, bias=False)
        self.k = nn.Linear(d_model, d_model, bias=False)
        self.v = nn.Linear(d_model, d_model, bias=False)
        self.o = nn.Linear(d_model, d_model, bias=False)
        self.table = nn.Embedding(64, n_heads)

    def compute_bias(self, length, device):
        places = torch.arange(length, device=device)
        return self.table(places[None, :] - places[:, None] + 32).permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states, mask=None, position_bias=None, layer_head_mask=None, output_attentions=False):
        batch_size, seq_length = hidden_states.shape[:2]

        def shape(states):
            return states.view(batch_size, -1, self.n_heads, self.width).transpose(1, 2)

        def unshape(states):
            return states.transpose(1, 2).contiguous().view(batch_size, -1, self.n_heads * self.width)

        q, k, v = shape(self.q(hidden_states)), shape(self.k(hidden_states)), shape(self.v(hidden_states))

        scores = torch.matmul(
            q, k.transpose(3, 2)
        )  # no scale

        if position_bias is None:
            if not self.has_relative_attention_bias:
                position_bias = torch.zeros((1, self.n_heads, seq_length, seq_length), device=scores.device, dtype=scores.dtype)
            else:
                position_bias = self.compute_bias(seq_length, device=scores.device)
            if mask is not None:
                position_bias = position_bias + mask  # once for all layers

        scores += position_bias
        attn_weights = nn.functional.softmax(scores.float(), dim=-1).type_as(
            scores
        )
        attn_weights = nn.functional.dropout(attn_weights, p=0.1, training=self.training)
        if layer_head_mask is not None:
            attn_weights = attn_weights * layer_head_mask

        attn_output = unshape(torch.matmul(attn_weights, v))
        attn_output = self.o(attn_output)
        outputs = (attn_output,) + (position_bias,)
        if output_attentions:
            outputs = outputs + (attn_weights,)
        return outputs


# guarded, unsafe: if output_attentions: ; attn_weights_reshaped = None ; dropout_p=self.dropout if self.training else 0.0
# never: attn_weights = None
# inputs: dict(query=Tensor(("N", "L", "D")), key=Tensor(("N", "S", "D")), value=Tensor(("N", "S", "D")), batch=Value(2), attention_mask=optional(Mask((2, 1, "L", "S"), ("additive",))), output_attentions=Choice((Value(False), Value(True))), dims=({"N": 6, "L": 4, "S": 5, "D": 4},))
class DetrStyle(nn.Module):
    def __init__(self, num_heads=3, dropout=0.1):
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout

    def forward(self, query, key, value, batch, attention_mask=None, output_attentions=False):
        target_len, source_len = query.size(1), key.size(1)
        attn_weights = torch.bmm(query, key.transpose(1, 2))
        if attn_weights.size() != (batch * self.num_heads, target_len, source_len):
            raise ValueError(f"is {attn_weights.size()}")
        if attention_mask is not None:
            attn_weights = attn_weights.view(batch, self.num_heads, target_len, source_len) + attention_mask
            attn_weights = attn_weights.view(batch * self.num_heads, target_len, source_len)
        attn_weights = nn.functional.softmax(attn_weights, dim=-1)
        if output_attentions:
            attn_weights_reshaped = attn_weights.view(batch, self.num_heads, target_len, source_len)
            attn_weights = attn_weights_reshaped.view(batch * self.num_heads, target_len, source_len)
        else:
            attn_weights_reshaped = None
        attn_probs = nn.functional.dropout(attn_weights, p=self.dropout, training=self.training)
        attn_output = torch.bmm(attn_probs, value)
        return attn_output, attn_weights_reshaped


# guarded, unsafe: if self.keep_weights: ; self.weights = probs
# never: probs = None
# init: dict(keep_weights=True)
class StoredOnRequest(nn.Module):
    def __init__(self, keep_weights=False):
        super().__init__()
        self.keep_weights = keep_weights

    def forward(self, q, k, v):
        probs = (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).softmax(dim=-1)
        if self.keep_weights:
            self.weights = probs.detach()
        return probs @ v


# guarded, unsafe: if need_weights: ; w = None
# inputs: dict(need_weights=Choice((Value(True), Value(False))))
def early_return(q, k, v, mask, need_weights=True):
    w = (q @ k.transpose(-2, -1)).masked_fill(mask, float("-inf")).softmax(-1)
    out = w @ v
    if not need_weights:
        return out
    return out, w


# guarded, unsafe: if need_weights:
# inputs: dict(need_weights=Choice((Value(True), Value(False))), average=Choice((Value(True), Value(False))))
def averaged(q, k, v, need_weights=True, average=True):
    w = torch.softmax(q @ k.transpose(-2, -1), -1)
    out = torch.matmul(w, v)
    if need_weights:
        if average:
            w = w.mean(dim=1)
        return out, w
    return out, None


# guarded, unsafe: if store is not None:
# inputs: dict(store=Choice((Value(None),)))
def appended(q, k, v, store=None):
    w = torch.softmax(q @ k.transpose(-2, -1), -1)
    if store is not None:
        store.append(w)
    return w @ v


# guarded, unsafe: if want or log is not None: ; weights = None
# inputs: dict(want=Choice((Value(False), Value(True))), log=optional(Value({})))
def two_wishes(q, k, v, want=False, log=None):
    weights = torch.softmax(q @ k.transpose(-2, -1), -1)
    out = weights @ v
    if log is not None:
        log["weights"] = weights
    return (out, weights) if want else (out, None)


# guarded, unsafe: if return_weights: ; else:
# inputs: dict(return_weights=Choice((Value(False), Value(True))))
def only_the_old_path_has_a_bias(q, k, v, bias, return_weights=False):
    scores = q @ k.transpose(-2, -1)
    if return_weights:
        scores = scores + bias
    else:
        scores = scores * 0.5
    p = scores.softmax(-1)
    y = p @ v
    if return_weights:
        return y, p
    return y


# guarded, unsafe: if full: ; lengths = k.size(-2)
# inputs: dict(full=Choice((Value(False), Value(True))))
def what_is_needed_later_is_repeated(q, k, v, full=False):
    s = q @ k.transpose(-2, -1)
    lengths = k.size(-2)
    scale = q.size(-1) ** -0.5
    p = F.softmax(s * scale, dim=-1)
    y = p @ v
    return (y, lengths, p) if full else (y, lengths, None)


# guarded, unsafe: if full: ; q.size(-2)
# inputs: dict(full=Choice((Value(False), Value(True))))
def size_of_the_scores_later(q, k, v, full=False):
    scores = q @ k.transpose(-2, -1)
    p = F.softmax(scores, dim=-1)
    y = p @ v
    y = y / scores.size(-2)
    return (y, p) if full else (y, None)


# guarded, unsafe: if not plain:
# inputs: dict(plain=Choice((Value(False), Value(True))))
def by_the_opposite(q, k, v, plain=True):
    p = F.softmax(q @ k.transpose(-2, -1), dim=-1)
    y = p @ v
    return y if plain else (y, p)


# guarded, unsafe: if mode == "weights":
# inputs: dict(mode=Choice((Value("weights"), Value("out"))))
def by_comparison(q, k, v, mode="out"):
    p = F.softmax(q @ k.transpose(-2, -1), dim=-1)
    y = p @ v
    outputs = {"out": y}
    if mode == "weights":
        outputs["weights"] = p
        return outputs["weights"], y
    return y


# guarded, unsafe: if full: ; p = None
# inputs: dict(full=Choice((Value(False), Value(True))))
def bound_inside_the_product(q, k, v, full=False):
    y = (p := torch.softmax(q @ k.transpose(-2, -1), -1)) @ v
    both = (y, p)
    return both if full else (both[0], None)


# guarded, unsafe: if not full:
# inputs: dict(full=Choice((Value(False), Value(True))))
def asked_again_under_another_name(q, k, v, full=False):
    s = q @ k.transpose(-2, -1)
    unused = s * 2 + 1
    full = not full
    p = torch.softmax(s, -1)
    y = p @ v
    if full:
        return y, p
    return y
