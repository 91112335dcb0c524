"""`--verify` proves or disproves each fix in a worker, whatever the code does there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from attn_advisor.findings import Edit, Finding, Fix
from attn_advisor.fixes.verify import verify

TEXT = """import math
import torch
import torch.nn as nn
import torch.nn.functional as F

print("a module that prints")


class Attention(nn.Module):
    def __init__(self, dim, num_heads=8, attn_drop=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = (q @ k.transpose(-2, -1)) * self.scale
        if mask is not None:
            attn = attn.masked_fill(mask == 0, -1e9)
        attn = attn.softmax(dim=-1)
        attn = self.attn_drop(attn)
        x = attn @ v
        x = x.transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


def attention(query, key, value, mask=None):
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    p = F.softmax(scores, dim=-1)
    out = torch.matmul(p, value)
    return out
"""
DROPOUT = "dropout_p=self.attn_drop.p if self.attn_drop.training else 0.0"
MASKS = [{"expression": "mask", "form": "masked_fill", "keep": "mask != 0", "kind": "bool"}]
CLASS = ("attn = (q @", "x = attn @ v", "Attention.forward", {"query": "q", "key": "k", "value": "v", "masks": MASKS})
FUNCTION = ("scores = torch", "out = torch.matmul(p, value)", "attention", {"query": "query", "key": "key", "value": "value", "masks": MASKS})  # fmt: skip


def finding(where: tuple[str, str, str, dict[str, Any]], new: str, text: str = TEXT, code: str = "ATN101") -> Finding:
    start = text.index(where[0])
    end = text.index(where[1], start) + len(where[1])
    fix = Fix("safe", "use SDPA", (Edit(start, end, new),))
    return Finding(code, "naive-attention", "warning", "", start, end, where[2], where[3], fix=fix)


SOME = f"""keep = None if mask is None else mask != 0
        some = 1 if mask is None else keep.any(dim=-1, keepdim=True)
        mask = None if mask is None else keep | ~some
        x = F.scaled_dot_product_attention(q * some, k, v, attn_mask=mask, scale=self.scale, {DROPOUT})"""
PLAIN = f"""mask = None if mask is None else mask != 0
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scale, {DROPOUT})"""
CASES = [
    (CLASS, SOME, "equal", "module level"),
    (CLASS, PLAIN, "differs", "with empty rows"),
    (CLASS, SOME.replace(" if self.attn_drop.training else 0.0", ""), "differs", "eval"),
    (FUNCTION, "out = F.scaled_dot_product_attention(query, key, value, attn_mask=None if mask is None else mask != 0)", "equal", "function level"),
    (FUNCTION, "out = F.scaled_dot_product_attention(query, key, value, attn_mask=None if mask is None else mask == 0)", "differs", "differs by"),
    (FUNCTION, "import os\n    os._exit(3)\n    out = 1", "could not run", "exit status 3"),
    (FUNCTION, "out = 1", "differs", "output"),
]  # fmt: skip


def test_each_fix_is_proved_or_disproved(tmp_path: Path) -> None:
    findings = [finding(where, new) for where, new, _, _ in CASES]
    findings.append(finding(FUNCTION, "out = 1", code="ATN202"))  # promises another result: not run
    verdicts = verify(str(tmp_path / "file.py"), TEXT, findings)
    assert sorted(verdicts) == list(range(len(CASES)))
    for number, (_, _, verdict, reason) in enumerate(CASES):
        assert verdicts[number][0] == verdict, (number, verdicts[number])
        assert reason in verdicts[number][1], (number, verdicts[number])


def test_code_that_hangs_is_ended(tmp_path: Path) -> None:
    hanging = finding(FUNCTION, "while True:\n        out = 1")
    assert verify(str(tmp_path / "file.py"), TEXT, [hanging], seconds=3)[0] == (
        "could not run",
        "it took longer than 3 s",
    )


def test_what_cannot_be_imported_is_said(tmp_path: Path) -> None:
    text = TEXT.replace(
        "import math\n", "import math\nimport no_such_package\n\nno_such_package.setup(1 + no_such_package.x)\n"
    )
    text = text.replace("dim, num_heads=8", "dim, thing, num_heads=8").replace(
        "super().__init__()", "super().__init__(); thing.go(no_such_package.y + 1)"
    )
    verdict, reason = verify(str(tmp_path / "file.py"), text, [finding(CLASS, SOME, text)])[0]
    assert verdict in ("could not run", "equal")
    assert reason


def test_without_fixes_nothing_is_started(tmp_path: Path) -> None:
    assert verify(str(tmp_path / "file.py"), TEXT, []) == {}
    code = "import sys, attn_advisor.fixes.verify; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
