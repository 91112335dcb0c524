"""Workers from the outside: starting them, hearing their events, ending those that hang or crash, leaving no orphans."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attn_advisor.lab.job import COMPILED, Job

SILENCE = 180.0
"""Seconds a worker may take for one step."""
SILENCE_COMPILED = 600.0
MAX_RESTARTS = 8

Listener = Callable[[dict[str, Any]], None]


class _Dead(Exception):
    """A worker ended or was ended before it was done; the message says how."""


def measure(job: Job, listen: Listener, silence: float = SILENCE) -> list[dict[str, Any]]:
    """All results of a job, in order; what failed has a `reason` and no candidates.

    A candidate during which the worker dies is left out, with that reason, and a new worker takes over.
    """
    results: list[dict[str, Any]] = []
    for _ in range(MAX_RESTARTS):
        state: dict[str, Any] = {"stage": "starting", "candidate": "", "run": {}}
        try:
            for event in _events(job, silence, state):
                listen(event)
                kind = event["event"]
                if kind == "result":
                    results.append(event["result"])
                elif kind == "failed":
                    results.append(_failure(job, event))
                elif kind == "fatal":
                    return [*results, _failure(job, event)]
                elif kind == "run":
                    state["run"] = event
                elif kind == "end":
                    return results
            raise _Dead("the worker ended without a word")
        except _Dead as death:
            candidate = state["candidate"]
            if candidate and candidate not in job.skip:
                job = dataclasses.replace(job, skip={**job.skip, candidate: str(death)}, done=len(results))
            elif state["run"]:
                results.append(_failure(job, {**state["run"], "reason": f"{death} during {state['stage']}"}))
                job = dataclasses.replace(job, done=len(results))
            else:
                return [*results, _failure(job, {"reason": f"{death} while {state['stage']}"})]
    return [*results, _failure(job, {"reason": f"given up: the worker died {MAX_RESTARTS} times"})]


def _failure(job: Job, event: dict[str, Any]) -> dict[str, Any]:
    keep = {k: event.get(k) for k in ("level", "shape", "dtype", "mode")}
    return {
        "target": job.target,
        "file": job.path,
        "line": job.line,
        "function": job.function,
        **keep,
        "reason": event["reason"],
        "inputs": [],
        "candidates": [],
        "breakdown": [],
        "prescriptions": [],
    }


def _events(job: Job, silence: float, state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Events of one worker. Raises _Dead if it crashes or says nothing for too long; never leaves it running."""
    with tempfile.TemporaryFile() as errors:
        process = _start(errors)
        try:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write((json.dumps(dataclasses.asdict(job)) + "\n").encode())
                process.stdin.flush()
            lines: queue.Queue[str | None] = queue.Queue()
            threading.Thread(target=_pump, args=(process.stdout, lines), daemon=True).start()
            while True:
                compiled = state["candidate"] in COMPILED
                limit = max(silence, SILENCE_COMPILED) if compiled and silence >= SILENCE else silence
                try:
                    line = lines.get(timeout=limit)
                except queue.Empty:
                    raise _Dead(f"did not finish within {limit:g} s") from None
                if line is None:
                    raise _Dead(_epitaph(process.wait(), errors))
                event = json.loads(line)
                if event["event"] == "progress":
                    state["stage"], state["candidate"] = event["stage"], event["candidate"]
                elif event["event"] == "broken":
                    raise _Dead(event["reason"])
                yield event
                if event["event"] in ("end", "fatal"):
                    return
        finally:
            _end(process)


def _start(errors: Any) -> subprocess.Popen[bytes]:
    package = str(Path(__file__).parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONIOENCODING": "utf-8",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "attn_advisor.lab.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=environment,
        start_new_session=True,
    )


def _pump(stream: Any, lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line.decode("utf-8", "replace"))
    lines.put(None)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the worker with everything it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)  # the worker leads its own process group
        else:
            process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def _epitaph(status: int, errors: Any) -> str:
    errors.seek(0)
    lines = [t for t in errors.read().decode("utf-8", "replace").splitlines() if t.strip() and not t.startswith("USDT")]
    last = f": {lines[-1].strip()[:200]}" if lines else ""
    if status < 0:
        name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
        return f"crashed ({name}){last if status != -signal.SIGKILL else ', perhaps out of memory'}"
    return f"ended with status {status}{last}"
