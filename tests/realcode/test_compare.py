"""The comparison itself: right rewrites pass, planted wrong ones are told apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from tests.realcode.compare import Version, equal
from tests.realcode.recipe import Given, Recipe, additive, given, keep, make, rand, some_empty
from tests.realcode.trees import Tree

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 0.3
        self.drop = nn.Dropout(0.4)

    def forward(self, q, k, v, mask=None, bias=None):
"""
NAIVE = """
        scores = q @ k.transpose(-2, -1) * self.scale
        if bias is not None:
            scores = scores + bias
        if mask is not None:
            scores = scores.masked_fill(~mask, {fill})
        return self.drop(scores.softmax(-1)) @ v
"""
FUSED = """
        p = self.drop.p if self.drop.training else 0.0
        some = None if mask is None else mask.any(-1, keepdim=True)
        if bias is not None:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=p, scale=self.scale)
        if mask is not None:
            return F.scaled_dot_product_attention(q * some, k, v, attn_mask=mask | ~some, dropout_p=p, scale=self.scale)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=p, scale=self.scale)
"""
WRONG = {
    "default scale": (", scale=self.scale", ""),
    "inverted mask": ("attn_mask=mask | ~some", "attn_mask=~mask"),
    "mask ignored": ("attn_mask=mask | ~some, ", ""),
    "empty rows": ("(q * some, k, v, attn_mask=mask | ~some", "(q, k, v, attn_mask=mask"),
    "bias scaled": ("attn_mask=bias", "attn_mask=bias * self.scale"),
    "dropout in eval too": ("self.drop.p if self.drop.training else 0.0", "0.4"),
    "dropout lost": ("self.drop.p if self.drop.training else 0.0", "0.0"),
    "causal": ("(q, k, v, dropout_p=p", "(q, k, v, is_causal=True, dropout_p=p"),
    "axes": ("return F.scaled_dot_product_attention(q, k, v, dropout_p=p, scale=self.scale)", "return (v)"),
    "no gradient": ("(q, k, v, dropout_p=p", "(q, k.detach(), v, dropout_p=p"),
    "raises": ("attn_mask=bias", "attn_mask=bias.int()"),
}


def heads() -> tuple[torch.Tensor, ...]:
    return rand(2, 2, 4, 8), rand(2, 2, 4, 8), rand(2, 2, 4, 8)


CALLS: dict[str, Callable[[], Given]] = {
    "no mask": lambda: given(*heads()),
    "mask": lambda: given(*heads(), mask=keep(2, 1, 4, 4)),
    "empty row": lambda: given(*heads(), mask=some_empty(keep(2, 1, 4, 4))),
    "bias": lambda: given(*heads(), bias=additive(1, 2, 4, 4, low=-2.0)),
}
RECIPE = Recipe("planted", "planted", "Attention", make("Attention"), CALLS)


def version(folder: Path, body: str, state: dict[str, torch.Tensor] | None = None) -> Version:
    folder.mkdir()
    (folder / "planted.py").write_text(HEAD + body)
    return Version(Tree(folder, own=frozenset({"planted"})), RECIPE, state)


def differences(tmp_path: Path, rewrite: str, fill: str = "-1e9") -> list[str]:
    original = version(tmp_path / "before", NAIVE.format(fill=fill))
    return equal(original, version(tmp_path / "after", rewrite, original.state), CALLS)


def test_right_rewrite_is_equal(tmp_path: Path) -> None:
    assert differences(tmp_path, FUSED) == []


def test_rows_that_were_nan_are_free(tmp_path: Path) -> None:
    assert differences(tmp_path, FUSED, fill="float('-inf')") == []


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rewrite_is_told_apart(name: str, tmp_path: Path) -> None:
    right, wrong = WRONG[name]
    assert right in FUSED
    assert differences(tmp_path, FUSED.replace(right, wrong))
