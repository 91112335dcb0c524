"""One target measured at one shape, dtype and mode: agreement, times, memory, backends, breakdown."""

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch

from attn_advisor.lab import backends, candidates, equivalence, measure, memory, sdpa, slices
from attn_advisor.lab import trace as tracing
from attn_advisor.lab.candidates import Candidate, Unavailable
from attn_advisor.lab.inputs import describe
from attn_advisor.lab.job import FLASH_ATTN, Job, Sizes
from attn_advisor.lab.programs import Program, Setup, no_dropout

Progress = Callable[[str, str], None]

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def run(
    job: Job, program: Program, sizes: Sizes, dtype: str, mode: str, device: torch.device, progress: Progress
) -> dict[str, Any]:
    """The JSON object of one measurement, without the prescriptions. Raises what the program itself raises."""
    train = mode == "train"
    _fits(sizes, DTYPES[dtype], device)
    torch.manual_seed(job.seed)
    progress("inputs", "")
    setup = program.setup(sizes, DTYPES[dtype], device, mode, job.seed)
    progress("inputs", "sdpa")  # the first run of the rewrite: if it crashes, this is whose fault it was
    calls, problem = ([], job.skip["sdpa"]) if "sdpa" in job.skip else _sdpa_calls(program, setup)
    progress("slices", "")
    how = slices.plan(program, program.tiny, train)
    progress("reference", "")
    reference = equivalence.reference(program, setup, how, train, device)
    rows: dict[str, dict[str, Any]] = {}
    runnable: list[Candidate] = []
    names = [*job.candidates, *(w for w in candidates.WHAT_IFS if "sdpa" in job.candidates)]
    if "as_written" not in names:
        names.insert(0, "as_written")
    for name in names:
        row = rows[name] = empty(name)
        if name in job.skip:
            row["reason"] = job.skip[name]
            continue
        progress("check", name)
        candidate = _checked(name, program, setup, calls, problem, reference, train, row, how, device)
        if candidate is not None:
            runnable.append(candidate)
    _profile(runnable, rows, setup, train, device, progress)
    runnable = [c for c in runnable if rows[c.name]["ok"] or c.loose]
    timings = (
        measure.times(runnable, setup, train, device, job.budget / job.parts, lambda name: progress("time", name))
        if runnable
        else {}
    )
    for name, timing in timings.items():
        rows[name] |= {"median_ms": timing.median_ms, "iqr_ms": timing.iqr_ms, "runs": timing.runs}
    written = rows["as_written"]["median_ms"]
    for row in rows.values():
        row["speedup"] = written / row["median_ms"] if written and row["median_ms"] else None
    result = {
        "target": job.target,
        "file": job.path,
        "line": job.line,
        "function": job.function,
        "level": program.level,
        "device": _device_name(device),
        "torch": torch.__version__,
        "shape": str(sizes),
        "dtype": dtype,
        "mode": mode,
        "blockers": job.blockers,
        "inputs": describe(setup.specs, setup.values),
        "candidates": [
            rows[n] for n in names if n not in candidates.WHAT_IFS and (n in job.candidates or n == "as_written")
        ],
        "what_ifs": {n: rows[n] for n in candidates.WHAT_IFS if n in rows and rows[n]["median_ms"]},
        **({"calls": job.recorded["calls"]} if job.recorded else {}),
        "rows": list(program.rows),
        "notes": [*program.notes, *([reference.note] if reference.note else [])],
    }
    progress("breakdown", "")
    result |= _breakdown(job, program, setup, train, device)
    result["backend"] = {"chosen": rows.get("sdpa", {}).get("backend"), "rejected": _rejected(calls, device)}
    result["memory_forecast"] = memory.forecast(program, setup, rows, DTYPES[dtype], mode, device)
    return result


class TooLarge(Exception):
    """The scores alone would not fit into the machine's memory."""


def _fits(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> None:
    """On the CPU, too large a size would end processes instead of raising: refuse it. Raises TooLarge."""
    scores = 3 * sizes.B * sizes.H * sizes.L * sizes.S * dtype.itemsize  # two in use and one being made
    free = memory.free_bytes(device)
    if device.type == "cpu" and 0 < free < scores:
        raise TooLarge(
            f"{sizes}: the scores take {scores / 2**30:.1f} GiB, of which {free / 2**30:.1f} are free; give a smaller --shape"
        )


def empty(name: str) -> dict[str, Any]:
    """A candidate's row with nothing measured."""
    row: dict[str, Any] = {"name": name, "ok": False, "reason": ""}
    keys = (
        "median_ms",
        "iqr_ms",
        "runs",
        "peak_bytes",
        "kernels",
        "backend",
        "max_abs_error",
        "max_grad_error",
        "speedup",
    )
    return row | dict.fromkeys(keys)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _sdpa_calls(program: Program, setup: Setup) -> tuple[list[sdpa.Call], str]:
    """The SDPA calls of the rewritten version, and why it does not run, if so."""
    if "rewritten" not in program.versions:
        return [], ""
    try:
        with no_dropout(setup):
            return sdpa.seen(lambda: setup.run("rewritten")), ""
    except (Exception, SystemExit) as error:
        return [], reason_of(error)


def _checked(
    name: str,
    program: Program,
    setup: Setup,
    calls: list[sdpa.Call],
    problem: str,
    reference: equivalence.Reference,
    train: bool,
    row: dict[str, Any],
    how: slices.Plan,
    device: torch.device,
) -> Candidate | None:
    """The candidate, if it runs; its row gets errors and verdict."""
    try:
        candidate = candidates.make(name, program, setup, calls)
        if problem and candidate.version == "rewritten":
            raise Unavailable(problem)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = _results(candidate, setup, train)
        except RuntimeError as error:
            refusal = (
                _rejected(calls, device).get(name.removeprefix("sdpa_")) if "No available kernel" in str(error) else ""
            )
            if refusal:
                raise Unavailable(refusal) from error
            raise
        errors = equivalence.errors(found, reference.results, train)
        del found
    except Unavailable as error:
        row["reason"] = str(error)
        return None
    except torch.OutOfMemoryError as error:
        row["reason"] = f"out of memory: {str(error).splitlines()[0][:160]}"
        if name == "as_written":
            _written_by_slices(program, setup, how, train, reference, device)
        return None
    except (Exception, SystemExit) as error:
        if fatal(error):
            raise
        row["reason"] = reason_of(error)
        return None
    finally:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    row["max_abs_error"], row["max_grad_error"] = _finite(errors.output), _finite(errors.gradient)
    if name == "as_written":
        reference.written = errors
    if reference.written is None:
        _written_by_slices(program, setup, how, train, reference, device)
    assert reference.written is not None
    row["reason"] = "" if candidate.loose else equivalence.verdict(errors, reference.written)
    row["ok"] = not row["reason"]
    return candidate


def _results(candidate: Candidate, setup: Setup, train: bool) -> slices.Results:
    """One checked run of a candidate, dropout off."""
    run = candidate.bind(setup)
    with no_dropout(setup), candidate.context(), torch.set_grad_enabled(train):
        output = run()
        if candidate.compiled is not None:
            output = output.clone()
        wanted = slices.leaves(setup, candidate.version)
        grads = slices.backward(output, wanted, slices.gradient_of(output)) if train else {}
    return slices.Results(output.detach(), grads)


def _written_by_slices(
    program: Program,
    setup: Setup,
    how: slices.Plan,
    train: bool,
    reference: equivalence.Reference,
    device: torch.device,
) -> None:
    """Errors of the code as written where it does not fit as a whole."""
    dtype = next(v.dtype for v in setup.values.values() if isinstance(v, torch.Tensor) and v.is_floating_point())
    found = slices.run(program, setup, how, dtype, train, equivalence.heads_that_fit(setup, device))
    reference.written = equivalence.errors(found, reference.results, train)


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None


def fatal(error: BaseException) -> bool:
    """Errors after which the CUDA context is lost: the worker must end."""
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "CUDA error" in text or "device-side assert" in text or "illegal memory access" in text
    )


def reason_of(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:240]}" if lines else type(error).__name__


def _profile(
    runnable: list[Candidate],
    rows: dict[str, dict[str, Any]],
    setup: Setup,
    train: bool,
    device: torch.device,
    progress: Progress,
) -> None:
    """Kernels, backend and peak memory of each candidate."""
    for candidate in runnable:
        row = rows[candidate.name]
        if not row["ok"] and not candidate.loose:
            continue
        progress("profile", candidate.name)
        step = measure.step_of(candidate, setup, train)
        with candidate.context():
            found = tracing.trace(step, device)
        row["kernels"] = found.kernels
        row["backend"] = _named_backend(candidate, found)
        row["peak_bytes"] = (
            measure.peak_bytes(candidate, setup, train, device) if device.type == "cuda" else found.peak_bytes
        )


def _named_backend(candidate: Candidate, found: tracing.Trace) -> str | None:
    """The kernel's name; candidates that are a kernel of their own bear it where the trace does not tell it apart."""
    name = backends.of(found)
    return candidate.name if candidate.name in (*FLASH_ATTN, "flex") and name in (None, "flash") else name


def _breakdown(job: Job, program: Program, setup: Setup, train: bool, device: torch.device) -> dict[str, Any]:
    """Shares of time and bytes by line of the code as written, and where its memory peaks."""
    marked = Candidate("marked", "marked")
    lines = job.text.splitlines()
    try:
        step = measure.step_of(marked, setup, train)
        step()
        found = tracing.trace(step, device, program.rows)
    except (Exception, SystemExit) as error:
        if fatal(error):
            raise
        return {"breakdown": [], "peak": None, "attention_share": None, "breakdown_reason": reason_of(error)}
    total = sum(r.ms for r in found.rows) or 1.0
    rows = [
        {
            "line": r.line,
            "source": lines[r.line - 1].strip() if 0 < r.line <= len(lines) else "",
            "op": r.op,
            "time_share": r.ms / total,
            "bytes": r.bytes,
        }
        for r in found.rows
        if r.ms / total >= 0.0005 or r.bytes
    ]
    peak_source = lines[found.peak_line - 1].strip() if 0 < found.peak_line <= len(lines) else ""
    return {
        "breakdown": rows,
        "peak": {"line": found.peak_line, "source": peak_source, "bytes": found.peak_bytes},
        "attention_share": sum(r.ms for r in found.rows if r.attention) / total,
    }


def _rejected(calls: list[sdpa.Call], device: torch.device) -> dict[str, str]:
    return backends.rejections(calls[0], device) if calls else {}
