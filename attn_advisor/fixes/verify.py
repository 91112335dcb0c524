"""`--verify`: runs each rewrite against its original in a time-limited worker process. No torch in this process."""

from __future__ import annotations

import atexit
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from attn_advisor.findings import Finding
from attn_advisor.fixes.apply import BadFix, apply
from attn_advisor.lab.job import Job
from attn_advisor.source.project import Project
from attn_advisor.source.text import SourceText

Verdict = Literal["equal", "differs", "could not run"]
SECONDS = 60.0  # one fix; a module with all its inputs takes about 5 s
START_SECONDS = 60.0  # importing torch, on a machine that is busy
VERIFIED = ("ATN1", "ATN401", "ATN402")  # rules whose fixes promise to compute the same


def verify(
    path: str, text: str, findings: Sequence[Finding], seconds: float = SECONDS
) -> dict[int, tuple[Verdict, str]]:
    """For each finding (by its place in the list) whose fix promises the same results: whether it keeps the promise, and why not.

    "could not run" says what was missing; such a fix is neither proved nor disproved.
    """
    verdicts: dict[int, tuple[Verdict, str]] = {}
    source = SourceText(text, path)
    root = None
    for number, finding in enumerate(findings):
        if finding.fix is None or not finding.code.startswith(VERIFIED):
            continue
        try:
            fixed, _ = apply(text, [finding.fix])
        except BadFix as error:
            verdicts[number] = ("differs", str(error))
            continue
        if root is None:
            root = str(Project.find_root(Path(path).resolve()) or "")
        job = Job(
            path=os.path.abspath(path),
            root=root or None,
            text=text,
            start=finding.start,
            end=finding.end,
            function=finding.function,
            facts=finding.facts,
            blockers=finding.blockers,
            fixed_text=fixed,
            edits=[[edit.start, edit.end, edit.content] for edit in finding.fix.edits],
            line=source.position(finding.start)[0],
        )
        verdicts[number] = _worker().ask(asdict(job), seconds)
    return verdicts


class _Worker:
    """A worker process, started on the first question and again after one that it did not survive."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.answers: queue.Queue[str] = queue.Queue()
        self.ready = False

    def ask(self, job: Mapping[str, Any], seconds: float) -> tuple[Verdict, str]:
        process = self._started()
        assert process.stdin is not None
        try:
            if not self.ready:
                self.ready = bool(self.answers.get(timeout=START_SECONDS))
            process.stdin.write(json.dumps([seconds, job], default=str) + "\n")
            process.stdin.flush()
            answer = self.answers.get(timeout=seconds)
        except queue.Empty:
            self.stop()
            return "could not run", f"it took longer than {seconds:g} s"
        except OSError as error:
            self.stop()
            return "could not run", f"the worker process ended ({error})"
        if not answer:
            self.stop()
            return "could not run", "the worker process ended; is torch installed?"
        verdict, reason = json.loads(answer)
        return verdict, reason

    def _started(self) -> subprocess.Popen[str]:
        if self.process is not None and self.process.poll() is None:
            return self.process
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        answers: queue.Queue[str] = queue.Queue()
        self.answers, self.ready = answers, False
        self.process = process = subprocess.Popen(
            [sys.executable, "-m", "attn_advisor.fixes.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            start_new_session=True,
        )

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                answers.put(line)
            answers.put("")

        threading.Thread(target=read, daemon=True).start()
        return process

    def stop(self) -> None:
        """End the worker and what it started."""
        if self.process is None:
            return
        if hasattr(os, "killpg") and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        else:
            self.process.kill()
        self.process.wait()
        self.process = None


_current: dict[int, _Worker] = {}


def _worker() -> _Worker:
    """This process's worker: a forked process does not share its parent's."""
    if os.getpid() not in _current:
        _current.clear()
        _current[os.getpid()] = worker = _Worker()
        atexit.register(worker.stop)
    return _current[os.getpid()]
