"""The process that runs user code: one job in, events out. Started by `session` as `python -m attn_advisor.lab.worker`.

The job is one line of JSON on standard input, which stays open: when it closes, the parent is gone and so is the worker, with all
processes it started. Events are lines of JSON on what was standard output; the user's own prints go to standard error.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
from typing import Any


def main() -> int:
    """Measure everything the job asks for. Exit status 0 unless the process had to be given up."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    incoming = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    line = _read_line(incoming)
    _die_with_parent(incoming, channel.fileno())

    def send(event: str, **data: Any) -> None:
        channel.write(json.dumps({"event": event, **data}) + "\n")
        channel.flush()

    from attn_advisor.lab.job import Job

    job = Job(**json.loads(line))
    try:
        import torch  # noqa: F401
    except ImportError as error:
        send("fatal", reason=f"torch cannot be imported ({error}); install attn-advisor[profile]")
        return 0
    sys.argv = [job.path]
    _measure(job, send)
    send("end")
    channel.flush()
    os._exit(0)  # user code may have left threads behind


def _read_line(descriptor: int) -> str:
    data = bytearray()
    while not data.endswith(b"\n"):
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            break
        data += chunk
    return data.decode()


def _die_with_parent(descriptor: int, channel: int) -> None:
    """End this process group when standard input closes, whatever the user's code is doing then: a process of its own waits for it."""

    def watch() -> None:
        while os.read(descriptor, 4096):
            pass
        if hasattr(os, "killpg"):
            os.killpg(os.getpgid(0), signal.SIGKILL)
        os._exit(1)

    if not hasattr(os, "fork"):
        threading.Thread(target=watch, daemon=True).start()
    elif os.fork() == 0:
        os.close(channel)  # the session hears of the worker's end by the closing of this
        watch()


def _measure(job: Any, send: Any) -> None:
    """Send one `result` or `failed` event for each level, shape, dtype and mode, in order, after the first `job.done`."""
    import torch

    from attn_advisor.lab import experiment, programs
    from attn_advisor.lab.cut import CannotCut
    from attn_advisor.lab.job import CPU_SIZES, CUDA_SIZES, parse_sizes

    device, reason = _device(job.device)
    if device is None:
        send("fatal", reason=reason)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    send("progress", stage="loading", candidate="")
    try:
        program = _program(job)
    except (programs.CannotRun, CannotCut) as error:
        send("fatal", reason=str(error))
        return
    gc.collect()
    gc.freeze()  # what is loaded stays: collections between candidates then look at little
    cuda = device.type == "cuda"
    shapes = [parse_sizes(s, CUDA_SIZES if cuda else CPU_SIZES) for s in job.shapes or [""]]
    dtypes = job.dtypes or ["bfloat16" if cuda else "float32"]
    runs = [(s, d, m) for s in shapes for d in dtypes for m in job.modes]
    for number, (sizes, dtype, mode) in enumerate(runs):
        if number < job.done:
            continue
        label = {"shape": str(sizes), "dtype": dtype, "mode": mode, "level": program.level}
        send("run", total=len(runs), number=number, **label)
        try:
            found = experiment.run(
                job,
                program,
                sizes,
                dtype,
                mode,
                device,
                lambda stage, name: send("progress", stage=stage, candidate=name),
            )
        except torch.OutOfMemoryError as error:
            send("failed", reason=f"too large for this device: {str(error).splitlines()[0][:200]}", **label)
        except (Exception, SystemExit) as error:
            if experiment.fatal(error):
                send("broken", reason=experiment.reason_of(error))
                os._exit(70)  # after a CUDA error nothing in this process can be trusted; the session starts another
            send("failed", reason=experiment.reason_of(error), **label)
        else:
            send("result", result=found)
        if cuda:
            torch.cuda.empty_cache()


def _device(wanted: str) -> tuple[Any, str]:
    import torch

    if wanted == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu"), ""
    device = torch.device(wanted)
    if device.type == "cuda" and not torch.cuda.is_available():
        return (
            None,
            "no CUDA device is available (torch.cuda.is_available() is False); --device cpu measures on the CPU",
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        return None, f"there is no {wanted}: this machine has {torch.cuda.device_count()} CUDA device(s)"
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device, ""


def _program(job: Any) -> Any:
    """The program at the level asked for; `auto` is the module where it can be built, else the attention alone."""
    from attn_advisor.lab.attention_level import attention_program
    from attn_advisor.lab.module_level import module_program
    from attn_advisor.lab.programs import CannotRun, Source

    source = Source(job)
    if job.recorded:
        from attn_advisor.lab import replay

        return replay.program(source)
    if job.level == "attention":
        return attention_program(source)
    try:
        return module_program(source)
    except CannotRun as error:
        if job.level == "module":
            raise
        program = attention_program(source)
        program.notes.append(f"measured at the attention level: {error}")
        return program


if __name__ == "__main__":
    sys.exit(main())
