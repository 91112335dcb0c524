"""Jobs for the lab's tests: detections of a file as `check` finds them, or with a fix given by hand."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from attn_advisor.lab import targets
from attn_advisor.lab.job import Job
from attn_advisor.settings import Resolver

FIXTURES = Path(__file__).parents[2] / "fixtures"
SMALL = "B=2,H=3,S=32,D=8"

TUTORIAL = """\
import math

import torch
import torch.nn.functional as F
from torch import nn


class NaiveCausalAttention(nn.Module):
    def __init__(self, head_dim):
        super().__init__()
        self.scale = 1.0 / math.sqrt(head_dim)

    def forward(self, q, k, v, mask):
        scores = torch.matmul(q, k.transpose(-2, -1))
        scores = scores * self.scale
        scores = scores.masked_fill(mask, float("-inf"))
        attn = torch.softmax(scores, dim=-1)
        return torch.matmul(attn, v)
"""
RIGHT = "return F.scaled_dot_product_attention(q, k, v, attn_mask=~mask, scale=self.scale)"


def options(**changes: Any) -> dict[str, Any]:
    given = {
        "shapes": [SMALL],
        "dtypes": ["float32"],
        "modes": ["forward"],
        "device": "cpu",
        "level": "auto",
        "candidates": ["as_written", "inplace", "sdpa"],
        "budget": 0.2,
        "min_speedup": 1.1,
    }
    return given | changes


def found(path: Path | str, **changes: Any) -> list[targets.Target]:
    """Targets of a path, found by the real detection."""
    sites, problems = targets.find([str(path)], Resolver(), options(**changes))
    assert not problems, problems
    return sites


def by_hand(path: Path, replacement: str, **changes: Any) -> Job:
    """The tutorial's attention with a replacement of its statements as the fix, right or wrong."""
    path.write_text(TUTORIAL)
    start = TUTORIAL.index("scores = torch.matmul")
    end = TUTORIAL.index("return torch.matmul(attn, v)") + len("return torch.matmul(attn, v)")
    axes = {"query": "bhld", "key": "bhsd", "value": "bhsd", "output": "bhld"}
    mask = {"expression": "mask", "form": "masked_fill", "keep": "~mask", "kind": "bool", "fill": "-inf", "when": None}
    facts = {"query": "q", "key": "k", "value": "v", "axes": axes, "scale": "self.scale", "masks": [mask]}
    job = Job(
        path=str(path),
        root=None,
        text=TUTORIAL,
        start=start,
        end=end,
        function="NaiveCausalAttention.forward",
        facts=facts,
        blockers=[],
        fixed_text=TUTORIAL[:start] + replacement + TUTORIAL[end:],
        edits=[[start, end, replacement]],
        line=13,
    )
    return dataclasses.replace(job, **options(**changes))


def straight_line() -> ModuleType:
    """The benchmark script that uses nothing of attn_advisor."""
    path = Path(__file__).parents[2] / "benchmarks" / "straight_line.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
