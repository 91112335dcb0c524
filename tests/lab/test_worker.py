"""User code in workers: whatever it does becomes a result with a reason, and nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from attn_advisor.lab import session
from tests.lab.jobs import RIGHT, TUTORIAL, by_hand

ROOT = Path(__file__).parents[2]
CLASS = "class NaiveCausalAttention"
FIRST = "        scores = torch.matmul(q, k.transpose(-2, -1))\n"


def measured(tmp_path, before_class: str = "", replacement: str = RIGHT, silence: float = 60.0, **changes):
    """Results and events of the tutorial's job with something put in front of its class."""
    job = by_hand(tmp_path / "module.py", replacement, **changes)
    at = job.text.index(CLASS)
    shift = len(before_class)
    job.text = job.text[:at] + before_class + job.text[at:]
    job.fixed_text = job.fixed_text[:at] + before_class + job.fixed_text[at:]
    job.start, job.end = job.start + shift, job.end + shift
    job.edits = [[s + shift, e + shift, c] for s, e, c in job.edits]
    Path(job.path).write_text(job.text)
    events: list[dict] = []
    return session.measure(job, events.append, silence), events


def rows(result) -> dict[str, dict]:
    return {c["name"]: c for c in result["candidates"]}


def test_a_module_that_prints(tmp_path):
    (result,), _ = measured(tmp_path, 'print("hello", flush=True)\n')
    assert rows(result)["sdpa"]["ok"]


def test_a_module_that_exits(tmp_path):
    (result,), _ = measured(tmp_path, "raise SystemExit(3)\n")
    assert rows(result)["sdpa"]["ok"], "what follows the exit is still defined"


def test_a_module_that_imports_what_is_missing(tmp_path):
    (result,), _ = measured(tmp_path, "import no_such_package_here\nfrom no_such_package_here.x import y\n\n@y\n")
    assert rows(result)["sdpa"]["ok"]
    assert any("no_such_package_here" in note for note in result["notes"])


def test_a_module_that_ends_the_process(tmp_path):
    (result,), _ = measured(tmp_path, "import os\nos._exit(5)\n")
    assert result["candidates"] == [] and "ended with status 5" in result["reason"]


def test_a_module_that_hangs(tmp_path):
    started = time.monotonic()
    (result,), _ = measured(tmp_path, "import time\ntime.sleep(600)\n", silence=15.0)
    assert "did not finish within 15 s" in result["reason"]
    assert time.monotonic() - started < 60


def test_a_candidate_that_crashes(tmp_path):
    """The rewrite dies of a signal: it has a reason, the others are measured by a second worker."""
    crash = f"__import__('os').kill(__import__('os').getpid(), 11) if q.shape[2] > 30 else None; {RIGHT}"
    crash = crash.replace("; ", "\n        ")
    (result,), _ = measured(tmp_path, replacement=crash, level="attention")
    found = rows(result)
    assert found["as_written"]["ok"] and found["inplace"]["ok"]
    assert not found["sdpa"]["ok"] and "SIGSEGV" in found["sdpa"]["reason"]


def test_a_worker_that_dies_again_and_again_is_given_up(tmp_path, monkeypatch):
    def die_at_another_candidate(job, silence, state):
        state["candidate"] = f"candidate {len(job.skip)}"
        yield {"event": "progress"}
        raise session._Dead("crashed")

    monkeypatch.setattr(session, "_events", die_at_another_candidate)
    (result,), _ = measured(tmp_path)
    assert result["candidates"] == [] and f"died {session.MAX_RESTARTS} times" in result["reason"]


def test_a_candidate_that_raises(tmp_path):
    (result,), _ = measured(
        tmp_path,
        replacement=f"if q.shape[2] > 30:\n            raise ValueError('not today')\n        {RIGHT}",
        level="attention",
    )
    assert rows(result)["sdpa"]["reason"] == "ValueError: not today"
    assert rows(result)["as_written"]["ok"]


def test_too_large_a_shape(tmp_path):
    shapes = ["B=64,H=64,S=1048576,D=64", "B=2,H=3,S=32,D=8"]
    (large, small), _ = measured(tmp_path, shapes=shapes)
    assert large["candidates"] == [] and "smaller --shape" in large["reason"]
    assert rows(small)["sdpa"]["ok"]


def test_a_class_that_cannot_be_built(tmp_path):
    """It is measured at the attention level; asked for the module, it says what is missing and how to give it."""
    class_line = "        self.scale = 1.0 / math.sqrt(head_dim)\n"
    changed = TUTORIAL.replace(class_line, class_line + "        self.table = head_dim['table'].shape\n")
    for level, builds in (("auto", True), ("module", False)):
        job = by_hand(tmp_path / "module.py", RIGHT, level=level)
        shift = len(changed) - len(TUTORIAL)
        job.text, job.start, job.end = changed, job.start + shift, job.end + shift
        job.edits = [[s + shift, e + shift, c] for s, e, c in job.edits]
        job.fixed_text = changed[: job.start] + RIGHT + changed[job.end :]
        (result,) = session.measure(job, lambda event: None)
        if builds:
            assert result["level"] == "attention" and rows(result)["sdpa"]["ok"]
            assert any("could not be built" in note for note in result["notes"])
        else:
            assert "NaiveCausalAttention(head_dim) could not be built" in result["reason"]
            assert "[tool.attn-advisor.profile.NaiveCausalAttention.init]" in result["reason"]


def test_no_cuda(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    (result,), _ = measured(tmp_path, device="cuda")
    assert "no CUDA device" in result["reason"] and "--device cpu" in result["reason"]


def children(name: str) -> list[int]:
    """Processes whose command line holds the name."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if name in (entry / "cmdline").read_bytes().decode("utf-8", "replace"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_orphan_is_left(tmp_path, how):
    """The command is interrupted, or killed, while user code hangs that has a child of its own."""
    marker = f"orphan_{how}_{os.getpid()}"
    hanging = f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)  # {marker}'])\ntime.sleep(300)\n"
    path = tmp_path / "hangs.py"
    path.write_text(TUTORIAL.replace(CLASS, hanging + CLASS))
    command = [sys.executable, "-c", "from attn_advisor.cli import cli; cli()", "profile", str(path), "--device", "cpu"]
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 90
    while not children(marker) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert children(marker), "the user's code never ran"
    process.send_signal(how)
    process.wait(timeout=30)
    deadline = time.monotonic() + 10
    while children(marker) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not children(marker)
