"""How a fixed file names torch.nn.functional: the name must exist where the code runs."""

from __future__ import annotations

import pytest
import torch

from attn_advisor.fixes.load import load_source, unload
from attn_advisor.pipeline import fix_text

BODY = """

def attend(q, k, v):
    scores = q @ k.mT
    return scores.softmax(-1) @ v
"""
HEADS = {
    "for type checkers only": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import torch.nn.functional as F\n",
    "deleted again": "import torch.nn.functional as F\n\nrelu = F.relu\ndel F\n",
    "bound to something else": "import math as F\n",
    "on a line with others": "import math; import torch\n",
    "none": "",
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_name_exists_where_the_code_runs(head: str) -> None:
    before = head + BODY
    after = fix_text(before, "attend.py")[0]
    assert "scaled_dot_product_attention(" in after
    old, new = load_source(before), load_source(after)
    try:
        q, k, v = torch.randn(3, 2, 3, 4, 5, dtype=torch.float64)
        torch.testing.assert_close(new.attend(q, k, v), old.attend(q, k, v))
    finally:
        unload(old)
        unload(new)
