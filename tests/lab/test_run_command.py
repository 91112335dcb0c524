"""`attn-advisor run`: a script runs as it always does, and its attention is measured with the inputs that reached it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from attn_advisor.cli import cli; cli()", "run"]
QUICK = ["--budget", "0.1", "--candidates", "as_written,sdpa", "--output-format", "json"]

LAYER = """\
import math
import torch
from torch import nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.drop = nn.Dropout(config.dropout)
        self.register_buffer("mask", torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.qkv(x).split(C, dim=2)
        q = q.view(B, T, self.config.heads, -1).transpose(1, 2)
        k = k.view(B, T, self.config.heads, -1).transpose(1, 2)
        v = v.view(B, T, self.config.heads, -1).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        att = self.drop(F.softmax(att, dim=-1))
        return (att @ v).transpose(1, 2).reshape(B, T, C)
"""
SCRIPT = """\
import dataclasses
import sys
import torch
from layer import Attention


@dataclasses.dataclass
class Config:
    width: int = 32
    heads: int = 4
    dropout: float = 0.5


def cross(q, k, v, keep):
    scores = torch.einsum("bhld,bhsd->bhls", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("bhls,bhsd->bhld", scores.masked_fill(~keep, -torch.inf).softmax(-1), v)


def unused(q, k, v):
    return (q @ k.mT).softmax(-1) @ v


print("arguments", sys.argv[1:])
layers = torch.nn.ModuleList(Attention(Config()) for _ in range(2))
for step in range(int(sys.argv[1])):
    x = torch.randn(3, 16, 32)
    for layer in layers:
        x = layer(x)
    x.sum().backward()
layers.eval()
with torch.no_grad():
    layers[0](torch.randn(1, 8, 32))
    q = torch.randn(2, 3, 5, 4)
    cross(q, torch.randn(2, 3, 7, 4), torch.randn(2, 3, 7, 4), torch.rand(2, 1, 1, 7) > 0.3)
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\ndependencies = ["torch>=2.5"]\n')
    (tmp_path / "layer.py").write_text(LAYER)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def run(folder: Path, *arguments: str, status: int = 0) -> tuple[list[dict], str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    done = subprocess.run([*COMMAND, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout or "[]"), done.stderr


def test_what_reached_the_attention_is_measured(project):
    results, errors = run(project, *QUICK, "train.py", "2", "--lr", "0.1")
    assert "arguments ['2', '--lr', '0.1']" in errors, "the script's output goes to standard error beside JSON"
    assert "train.py:20 unused was not reached" in errors
    found = {(Path(r["file"]).name, r["shape"], r["mode"]): r for r in results}
    assert set(found) == {
        ("layer.py", "B=3,H=4,L=16,S=16,D=8", "train"),
        ("layer.py", "B=1,H=4,L=8,S=8,D=8", "forward"),
        ("train.py", "B=2,H=3,L=5,S=7,D=4", "forward"),
    }
    for result in results:
        assert result["level"] == "captured" and not result.get("reason")
        sdpa = next(c for c in result["candidates"] if c["name"] == "sdpa")
        assert sdpa["ok"] and sdpa["median_ms"] > 0 and sdpa["max_abs_error"] < 1e-5, sdpa["reason"]
    training = found["layer.py", "B=3,H=4,L=16,S=16,D=8", "train"]
    assert training["calls"] == 4, "two layers, two steps"
    query = next(i for i in training["inputs"] if i["name"] == "q")
    assert query["stride"] == [16 * 96, 8, 96, 1], "a view of the packed projection, as in the script"
    assert query["requires_grad"] and query["role"] == "query"
    keep = next(i for i in found["train.py", "B=2,H=3,L=5,S=7,D=4", "forward"]["inputs"] if i["name"] == "keep")
    assert keep["shape"] == [2, 1, 1, 7] and keep["role"] == "mask"


def test_a_module_of_a_package(project):
    package = project / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(SCRIPT.replace("from layer", "from .layer"))
    (project / "layer.py").rename(package / "layer.py")
    (project / "train.py").unlink()
    results, errors = run(project, *QUICK, "-m", "package", "1")
    assert len(results) == 3 and all(r["candidates"] for r in results), [r.get("reason") for r in results]
    assert "arguments ['1']" in errors


def test_a_script_that_fails_is_measured_as_far_as_it_came(project):
    script = project / "train.py"
    script.write_text(SCRIPT.replace("layers.eval()", "raise ValueError('no data')"))
    results, errors = run(project, *QUICK, "train.py", "1")
    assert [Path(r["file"]).name for r in results] == ["layer.py"] and results[0]["candidates"]
    assert "ValueError: no data" in errors and "ended with status 1" in errors
    assert "recorder.py" not in errors, "the traceback is the script's own"


def test_a_script_that_never_ends(project):
    script = project / "train.py"
    script.write_text(SCRIPT + "\nimport time\nwhile True:\n    time.sleep(0.1)\n")
    results, errors = run(project, *QUICK, "--time-limit", "8", "train.py", "1")
    assert len(results) == 3 and "was ended after 8 s" in errors


def test_interrupting_the_script_goes_on_to_the_measurement(project):
    script = project / "train.py"
    script.write_text(SCRIPT + "\nimport time\nprint('waiting', flush=True)\nwhile True:\n    time.sleep(0.1)\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([*COMMAND, *QUICK, "train.py", "1"], cwd=project, env=environment, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)  # fmt: skip
    assert process.stderr is not None
    while "waiting" not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0 and len(json.loads(output)) == 3 and "was interrupted" in errors


def test_the_script_is_not_run_again_to_measure_it(project):
    script = project / "train.py"
    script.write_text(SCRIPT + "\nwith open('runs.txt', 'a') as f:\n    f.write('run\\n')\n")
    results, _ = run(project, *QUICK, "train.py", "1")
    assert any(Path(r["file"]).name == "train.py" and r["candidates"] for r in results)
    assert (project / "runs.txt").read_text() == "run\n"


def test_nothing_to_find(project):
    (project / "plain.py").write_text("print('hello')\n")
    _, errors = run(project, *QUICK, "--source", "plain.py", "plain.py", status=2)
    assert "no hand-written attention was found" in errors and "hello" not in errors
    _, errors = run(project, *QUICK, "no_such.py", status=2)
    assert "no_such.py: no such file" in errors
    _, errors = run(project, *QUICK, "-m", "no_such_module", status=2)
    assert "no module named no_such_module" in errors


def test_nothing_reached(project):
    (project / "plain.py").write_text("print('hello')\n")
    results, errors = run(project, *QUICK, "plain.py", status=2)
    assert results == [] and "hello" in errors and "layer.py:21 Attention.forward was not reached" in errors


def test_fix_asks_every_kind_of_call(project):
    _, errors = run(project, *QUICK, "--fix", "--min-speedup", "1000", "train.py", "1")
    assert errors.count("layer.py:21: not applied, its speed-up") == 1
    assert (project / "layer.py").read_text() == LAYER
