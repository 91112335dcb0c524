"""Every fixture, without any configuration, at both levels."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from attn_advisor.lab.attention_level import attention_program
from attn_advisor.lab.module_level import module_program
from attn_advisor.lab.programs import CannotRun, Source
from tests.lab.jobs import FIXTURES, found

SITES = [(t.job.target.rpartition("/")[2], t) for t in found(FIXTURES)]


def agree(program) -> None:
    """As written and rewritten on the same tiny inputs."""
    setup = program.setup(program.tiny, torch.float32, torch.device("cpu"), "forward")
    with torch.no_grad():
        written = setup.run("as_written")
        marked = setup.run("marked")
        assert torch.equal(written, marked)
        if "rewritten" in program.versions:
            rewritten = setup.run("rewritten")
            finite = torch.isfinite(written)
            assert torch.allclose(rewritten[finite], written[finite], atol=1e-4)


@pytest.mark.parametrize("target", [t for _, t in SITES], ids=[name for name, _ in SITES])
def test_attention_level(target):
    try:
        agree(attention_program(Source(target.job)))
    except CannotRun:
        assert target.finding.verdict != "exact", "every exact site runs at the attention level"


UNUSUAL = {
    "a guard reads what the cut does not": """
class A(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x, output_attentions=False):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1)
        probs = (scores / math.sqrt(q.size(-1))).softmax(-1)
        out = probs @ v
        return (out, probs) if output_attentions else (out,)
""",
    "a bias computed by a method, sizes of the module": """
class A(nn.Module):
    def __init__(self, width, unheard_of):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(unheard_of["rows"]))

    def bias(self, device):
        return self.table[self.index].to(device)

    def forward(self, q, k, v, x):
        B, N, H, W = x.shape
        scores = q @ k.transpose(-2, -1) + self.bias(x.device)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, H, W, self.out_dim)
""",
    "an axis more, heads last": """
def attention(query, key, value):
    scores = torch.einsum("bwihd,bwjhd->bwhij", query, key)
    return torch.einsum("bwhij,bwjhd->bwihd", scores.softmax(-1), value)
""",
    "the constructor of the base class": """
class Base(nn.Module):
    def __init__(self, n_head, d_model):
        super().__init__()
        self.n_head, self.proj = n_head, nn.Linear(d_model, d_model)

class A(Base):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)

    def forward(self, x):
        q = self.proj(x).unflatten(-1, (self.n_head, -1)).transpose(1, 2)
        return ((q @ q.transpose(-2, -1)) * 0.5).softmax(-1) @ q
""",
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_code_at_the_attention_level(name, tmp_path):
    path = tmp_path / "unusual.py"
    path.write_text("import math\n\nimport torch\nfrom torch import nn\n\n" + UNUSUAL[name])
    (target,) = found(path)
    program = attention_program(Source(target.job))
    assert target.job.fixed_text is None or "rewritten" in program.versions, program.unavailable
    agree(program)


def test_module_level():
    """At least four of five classes are built and called."""
    tried = built = 0
    for _, target in SITES:
        source = Source(target.job)
        if source.found.class_name is None:
            continue
        tried += 1
        try:
            agree(module_program(source))
        except CannotRun:
            continue
        built += 1
    assert tried >= 15 and built >= 0.8 * tried
