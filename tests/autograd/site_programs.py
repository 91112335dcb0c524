"""Small programs, each the shape of in-place sites found in public packages, with the verdict that running them shows.

x, y: floating (2, 4, 4), with a gradient; mask: bool (4, 4). Everything a program returns is summed and differentiated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

PROGRAMS: dict[str, tuple[str, Callable[..., Any]]] = {}


def program(verdict: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[function.__name__] = verdict, function
        return function

    return register


def inputs() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    x, y = (torch.randn(2, 4, 4, generator=generator, requires_grad=True) for _ in range(2))
    return {"x": x * 1.0, "y": y * 1.0, "mask": torch.eye(4, dtype=torch.bool)}


# Scores before the softmax


@program("safe")
def scale_scores(x, y, mask):
    scores = torch.einsum("bid,bjd->bij", x, y)
    scores *= 0.5
    return scores.softmax(-1) @ y


@program("safe")
def scale_scores_by_method(x, y, mask):
    scores = x @ y.transpose(-1, -2) + x
    scores.mul_(0.5)
    return scores.softmax(-1) @ y


@program("safe")
def add_bias_to_scores(x, y, mask):
    bias = nn.Parameter(torch.ones(4, 4))
    scores = (x @ y.transpose(-1, -2)) / 2.0
    scores += bias
    return scores.softmax(-1) @ y


@program("safe")
def add_mask_to_scores(x, y, mask):
    scores = torch.bmm(x, y.transpose(1, 2))
    scores += torch.zeros(4, 4).masked_fill_(mask, float("-inf"))
    return scores.softmax(-1) @ y


@program("safe")
def fill_scores(x, y, mask):
    scores = torch.einsum("bid,bjd->bij", x, y) * 0.5
    scores.masked_fill_(mask, -1e9)
    return scores.softmax(-1) @ y


@program("safe")
def fill_product_with_parameter(x, y, mask):
    bias = nn.Parameter(torch.ones(4, 4)) * torch.ones(4, 4)
    bias = bias.unsqueeze(-1)
    bias.masked_fill_(mask.unsqueeze(-1), float("-inf"))
    return x + torch.exp(bias[..., 0])


@program("safe")
def relative_scores_into_a_slice(x, y, mask):
    attn = x @ y.transpose(-1, -2)
    attn[:, 1:, 1:] = attn[:, 1:, 1:] + x[:, 1:, 1:]
    return attn.softmax(-1)


@program("safe")
def softmax_back_into_a_half(x, y, mask):
    attn = torch.einsum("bid,bjd->bij", x, y) * 0.5
    attn[1:] = attn[1:].softmax(-1)
    attn[:1] = attn[:1].softmax(-1)
    return attn @ y


# Results that nobody keeps


@program("safe")
def add_to_linear(x, y, mask):
    hidden = F.linear(x, nn.Parameter(torch.ones(4, 4)))
    hidden += y
    return hidden


@program("safe")
def add_residual_after_dropout(x, y, mask):
    hidden = F.linear(x, nn.Parameter(torch.ones(4, 4)))
    hidden = F.dropout(hidden, 0.1, training=True)
    hidden += y
    return hidden


@program("safe")
def add_position_to_embedding(x, y, mask):
    table = nn.Parameter(torch.ones(6, 4))
    embeddings = F.embedding(torch.tensor([[0, 1, 2, 3]]), table) * 2.0
    embeddings += F.embedding(torch.tensor([[3, 2, 1, 0]]), table)
    return embeddings


@program("safe")
def add_to_a_clone(x, y, mask):
    total = torch.clone(x)
    total += y
    total /= 2
    return total


@program("safe")
def add_position_to_concatenation(x, y, mask):
    position = nn.Parameter(torch.ones(1, 8, 4))
    tokens = torch.cat((x, y), dim=1)
    tokens += position[:, :8]
    return tokens


@program("safe")
def add_to_product(x, y, mask):
    context = x @ y
    context += F.linear(y, nn.Parameter(torch.ones(4, 4)))
    return context


@program("safe")
def divide_a_product(x, y, mask):
    average = x.sum(-1, keepdim=True) * x.sum(-2, keepdim=True)
    average.div_(x.sum((-1, -2), keepdim=True))
    return x - average


@program("safe")
def normalise_gathered_weights(x, y, mask):
    scores = x.sigmoid()
    weights = scores.gather(-1, scores.argmax(-1, keepdim=True))
    weights /= weights.sum(dim=-1, keepdim=True) + 1e-20
    return weights


@program("safe")
def gate_a_linear(x, y, mask):
    gate = F.linear(x, nn.Parameter(torch.ones(4, 4)))
    gate.sigmoid_()
    return gate * y


@program("safe")
def multiply_by_a_gain(x, y, mask):
    out = F.conv1d(x, nn.Parameter(torch.ones(4, 4, 1)))
    out.mul_(nn.Parameter(torch.tensor(0.5)))
    return out * 2 + y


@program("safe")
def multiply_stacked(x, y, mask):
    stacked = torch.stack((x.softmax(-1), y.softmax(-1)), dim=1)
    stacked *= (~mask).float()
    return stacked


@program("safe")
def add_to_the_first_columns(x, y, mask):
    delta = F.linear(x, nn.Parameter(torch.ones(4, 4)))
    delta[..., :2] += y[..., :2]
    return delta


@program("safe")
def zero_after_copy(x, y, mask):
    probabilities = F.dropout(x.softmax(-1), 0.1, training=True)
    out = probabilities @ y
    probabilities = probabilities + 0.0
    probabilities[:, 0] = 0
    return out, probabilities


# New tensors that are filled


@program("safe")
def fill_a_new_mask(x, y, mask):
    made = torch.ones(4, 4)
    made[:, :2] = 0
    return x * made


@program("safe")
def triangle_in_a_new_mask(x, y, mask):
    made = torch.full((4, 4), float("-inf"))
    made.triu_(1)
    return x + torch.nan_to_num(made, neginf=0.0)


@program("safe")
def scatter_into_zeros(x, y, mask):
    out = torch.zeros_like(x)
    for index in range(2):
        out[index] = y[index] * 2
    return out


@program("safe")
def accumulate_experts(x, y, mask):
    out = torch.zeros_like(x)
    where = torch.tensor([0, 1])
    out[where] += x[where] * y[where]
    return out


@program("safe")
def sine_table(x, y, mask):
    table = torch.zeros(4, 4)
    table[:, 0::2] = torch.sin(torch.arange(4.0)[:, None] * torch.ones(2))
    return x + table


@program("safe")
def change_a_clone(x, y, mask):
    logits = x.clone()
    logits[logits < 0] = -10.0
    return logits.softmax(-1)


@program("safe")
def coordinates_of_a_clone(x, y, mask):
    size = (3, 5)
    coordinates = x.clone()
    coordinates[:, :, 0] = coordinates[:, :, 0] / size[1]
    return coordinates


@program("safe")
def scale_a_cast_comparison(x, y, mask):
    attention_mask = (torch.arange(4) == 2).to(torch.float32)
    attention_mask *= -1e4
    return x + attention_mask


@program("safe")
def write_slices_of_scores(x, y, mask):
    chunks = x @ y.transpose(-1, -2)
    out = chunks.new_zeros((2, 5, 4))
    out[:, :-1] = chunks
    out[:, 4, 1:] = chunks[:, 3, :3]
    return out.softmax(-1)


@program("safe")
def add_losses(x, y, mask):
    loss = (x * y).sum()
    loss += 0.5 * x.pow(2).sum()
    loss *= 2.0
    return loss


@program("safe")
def count_and_collect(x, y, mask):
    count, states = 0, ()
    for item in (x, y):
        count += 1  # noqa: SIM113
        states += (item * count,)
    return states


@program("safe")
def multiply_an_embedding_by_a_mask(x, y, mask):
    positions = F.embedding(torch.tensor([[0, 1, 2, 3]]), nn.Parameter(torch.ones(6, 4)))
    positions *= (~mask).float()
    return positions


# Backward raises


@program("breaks_backward")
def divide_by_own_norm(x, y, mask):
    embeds = F.linear(x, nn.Parameter(torch.ones(4, 4)))
    embeds /= torch.linalg.norm(embeds, dim=-1, keepdim=True) + 1e-6
    return embeds


@program("breaks_backward")
def divide_an_argument_by_its_norm(x, y, mask):
    y /= torch.linalg.norm(y, dim=-1, keepdim=True) + 1e-6
    return x @ y


@program("breaks_backward")
def smooth_targets_that_were_factors(x, y, mask):
    targets = torch.zeros_like(x).scatter_(-1, torch.zeros(2, 4, 1, dtype=torch.long), 1.0)
    weighted = torch.exp(x) * targets
    targets.mul_(0.9).add_(0.1)
    return weighted * 2, x * targets


@program("breaks_backward")
def write_the_state_that_was_mixed(x, y, mask):
    mix = nn.Parameter(torch.ones(4))
    mixed = x[:, 0] * mix + y[:, 0] * (1 - mix)
    y[:, 0] = x[:, 1]
    return mixed


# The caller's tensor changes


@program("mutates_argument")
def add_position_to_argument(x, y, mask):
    x += nn.Parameter(torch.ones(1, 4, 4))
    return x


@program("mutates_argument")
def add_position_to_given_embeddings(x, y, mask):
    embeddings = x if y is not None else y * 2
    embeddings += torch.ones(4)
    return F.layer_norm(embeddings, (4,))


@program("mutates_argument")
def clamp_positions(x, y, mask):
    positions = y.squeeze(0)
    positions.clamp_(0, 1)
    return x * positions


@program("mutates_argument")
def fill_entries_of_argument(x, y, mask):
    x[:, 0] = -10.0
    return x.softmax(-1)


@program("mutates_argument")
def fill_rows_of_hidden_states(x, y, mask):
    x[:, ~mask] = 0
    return F.layer_norm(x, (4,))


@program("mutates_argument")
def scatter_penalty_into_argument(x, y, mask):
    index = torch.zeros(2, 4, 1, dtype=torch.long)
    penalty = y.detach().gather(-1, index) * 2
    x.scatter_(-1, index, penalty)
    return x


@program("mutates_argument")
def add_to_a_member_of_a_list(x, y, mask):
    memories = [x, y]
    first = memories[0]
    first += torch.ones(4)
    return first * 2


@program("mutates_argument")
def fill_argument_by_method(x, y, mask):
    x.masked_fill_(mask, -10.0)
    return x


@program("mutates_argument")
def add_to_queries(x, y, mask):
    queries = x
    for _ in range(2):
        queries += y
    return queries * 2


@program("mutates_argument")
def change_a_mask_argument(x, y, mask):
    mask[:, 0] = True
    return x.masked_fill(mask, 0.0)


@program("mutates_argument")
def add_to_the_first_rows_of_argument(x, y, mask):
    nodes = x
    nodes[:, 1:, :] += y[:, 1:, :]
    return nodes


@program("mutates_argument")
def scale_a_cast_argument(x, y, mask):
    hidden = x.to(torch.float32)
    hidden *= torch.ones(4) * 0.5
    return hidden


@program("mutates_argument")
def scale_a_batch(x, y, mask):
    flipped = x.flip(0).mul_(0.5)
    x.mul_(0.5).add_(flipped)
    return x


# Only right because nothing is recorded


@program("no_grad_only")
@torch.no_grad()
def shift_indices_of_topk(x, y, mask):
    values, index = torch.topk(x.flatten(1), 3, dim=1)
    index += 1
    return values * 2, index


@program("no_grad_only")
@torch.no_grad()
def shift_a_norm(x, y, mask):
    length = x.norm(dim=-1).add_(1e-6)
    return x / length[..., None]


@program("no_grad_only")
@torch.no_grad()
def write_next_token(x, y, mask):
    tokens = x.exp()
    tokens[:, 0] = y[:, 0]
    return tokens


# Parameters and buffers outside of any graph


@program("parameter_init")
def scale_weights(x, y, mask):
    layer = nn.Linear(4, 4)
    layer.weight.data.mul_(0.5)
    layer.bias.data.zero_()
    return layer(x)


@program("parameter_init")
def copy_weights(x, y, mask):
    layer = nn.Linear(4, 4)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(4))
    return layer(x)


@program("parameter_init")
def call_init(x, y, mask):
    layer = nn.Linear(4, 4)
    nn.init.trunc_normal_(layer.weight, std=0.02)
    nn.init.zeros_(layer.bias)
    return layer(x)


@program("parameter_init")
def fill_padding_row(x, y, mask):
    layer = nn.Embedding(4, 4)
    layer.weight.data.normal_(0.0, 0.02)
    layer.weight.data[0].zero_()
    return layer(torch.tensor([0, 1])).sum() * x


def observed(name: str) -> str:
    """The verdict that running the program shows. A program under no_grad is also run with gradients, where it must go wrong."""
    registered, function = PROGRAMS[name]
    if registered == "no_grad_only":
        function(**inputs())
        wrong = outcome(function.__wrapped__)
        return "no_grad_only" if wrong != "safe" else "safe"
    found = outcome(function)
    # a parameter's own change is judged by what it changes: nothing of the caller's, and training goes on
    return "parameter_init" if registered == "parameter_init" and found == "safe" else found


def outcome(function: Callable[..., Any]) -> str:
    given, before = inputs(), inputs()
    try:
        results = function(**given)
        results = results if isinstance(results, tuple) else (results,)
        sum(t.sum() for t in results if t.requires_grad).backward()
    except RuntimeError as error:
        text = str(error)
        if "modified by an inplace operation" in text:
            return "breaks_backward"
        assert "view" in text or "leaf" in text, text
        return "view_hazard"
    changed = any(not torch.equal(given[key], before[key]) for key in given)
    return "mutates_argument" if changed else "safe"
