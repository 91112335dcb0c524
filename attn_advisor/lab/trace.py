"""One run under torch's profiler: the kernels launched, memory over time, and time by source line."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

LINE = re.compile(r"attn_advisor:(\d+)$")

OPERATIONS = (
    ("matmul", r"matmul|^mm$|bmm|addmm|einsum|linear|tensordot"),
    ("softmax", r"softmax|logsumexp|^exp$"),
    ("dropout", r"dropout|bernoulli"),
    ("attention", r"scaled_dot_product|flash|efficient_attention|cudnn"),
    ("mask", r"masked_fill|^where$|tril|triu|^eq$|^ne$|bitwise_not|logical|^add_?$|^sub_?$|^rsub$|index_put|^lt$|^gt$"),
    ("scale", r"^mul_?$|^div_?$|true_divide|^sqrt$|^rsqrt$|^pow$"),
    ("copy", r"copy_|clone|contiguous|^to$|_to_copy|^cat$|repeat|^reshape$|fill_|zeros|empty|^stack$"),
)


@dataclass
class Row:
    """Time (ms, of the device where there is one) and bytes allocated by one kind of operation on one source line; line 0 is elsewhere."""

    line: int
    op: str
    ms: float = 0.0
    bytes: int = 0
    attention: bool = False


@dataclass
class Trace:
    """What one run did. Memory is above what was allocated before the run; kernels is None on the CPU."""

    kernels: int | None
    names: list[str]
    ops: list[str]
    peak_bytes: int
    peak_line: int
    rows: list[Row] = field(default_factory=list)


def trace(run: Callable[[], Any], device: torch.device, rows: tuple[int, int] = (0, 0)) -> Trace:
    """Profile one call of `run`. `rows` is the attention's range of lines, to tell its share."""
    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    gc.collect()
    if cuda:
        torch.cuda.synchronize(device)
    with profile(activities=activities, profile_memory=True, acc_events=True) as prof:
        result = run()
        if cuda:
            torch.cuda.synchronize(device)
    del result
    raw = prof.profiler.kineto_results.events()
    kernels = [e.name() for e in raw if e.device_type() == DeviceType.CUDA and _is_kernel(e.name())] if cuda else []
    events = [e for e in prof.events() if e.device_type == DeviceType.CPU]
    wanted = DeviceType.CUDA if cuda else DeviceType.CPU
    memory = sorted((e.start_ns(), e.nbytes()) for e in raw if e.name() == "[memory]" and e.device_type() == wanted)
    spans = _line_spans(events)
    peak, at = _peak(memory)
    start = prof.profiler.kineto_results.trace_start_ns()
    found = _rows(events, memory, start, cuda, rows)
    peak_line = _line_at((at - start) / 1000, spans) or _line_of_backward((at - start) / 1000, events)
    return Trace(len(kernels) if cuda else None, kernels, [e.name for e in events], peak, peak_line, found)


def _is_kernel(name: str) -> bool:
    return not name.startswith(
        ("Memcpy", "Memset", "attn_advisor:", "[memory]", "## ", "ProfilerStep", "Torch-Compiled", "CompiledFx")
    )


def _peak(memory: list[tuple[int, int]]) -> tuple[int, int]:
    """Highest sum of allocations and its time (ns)."""
    now = peak = at = 0
    for time, size in memory:
        now += size
        if now > peak:
            peak, at = now, time
    return peak, at


def _line_spans(events: list[Any]) -> list[tuple[float, float, int]]:
    """(start, end, row) in microseconds of the marked lines."""
    spans = []
    for event in events:
        if match := LINE.match(event.name):
            spans.append((event.time_range.start, event.time_range.end, int(match[1])))
    return spans


def _line_at(time: float, spans: list[tuple[float, float, int]]) -> int:
    """The innermost marked line running at a time; 0 if none."""
    inside = [(end - start, row) for start, end, row in spans if start <= time <= end]
    return min(inside)[1] if inside else 0


def _line_of_backward(time: float, events: list[Any]) -> int:
    """The line whose backward operation runs at a time; 0 if none."""
    forward = _lines_by_sequence(events)
    for event in events:
        if event.time_range.start <= time <= event.time_range.end and event.sequence_nr in forward:
            return forward[event.sequence_nr][0]
    return 0


def _lines_by_sequence(events: list[Any]) -> dict[int, list[int]]:
    """Marked lines around the forward operation of each autograd sequence number."""
    found: dict[int, list[int]] = {}
    for event in events:
        if event.sequence_nr >= 0 and not event.name.startswith("autograd::") and (lines := _lines_above(event)):
            found.setdefault(event.sequence_nr, lines)
    return found


def _lines_above(event: Any) -> list[int]:
    rows: list[int] = []
    while event is not None:
        if match := LINE.match(event.name):
            rows.append(int(match[1]))
        event = event.cpu_parent
    return rows


def _rows(events: list[Any], memory: list[tuple[int, int]], start: int, cuda: bool, span: tuple[int, int]) -> list[Row]:
    """Time and bytes by line and operation. Backward operations are charged to the line of the forward operation they belong to."""
    table: dict[tuple[int, str], Row] = {}
    by_sequence = _lines_by_sequence(events)
    tops = [e for e in events if not LINE.match(e.name) and (e.cpu_parent is None or LINE.match(e.cpu_parent.name))]
    allocations = [((t - start) / 1000, size) for t, size in memory if size > 0]
    for event in tops:
        if event.name.startswith(("cuda", "cu", "[memory]", "ProfilerStep")) and "::" not in event.name:
            continue
        lines = _lines_above(event) or by_sequence.get(event.sequence_nr, [])
        inside = any(span[0] <= line <= span[1] for line in lines)
        line = next((n for n in lines if span[0] <= n <= span[1]), lines[0] if lines else 0)
        op = operation(event.name)
        row = table.setdefault((line, op), Row(line, op, attention=inside))
        row.ms += (_device_time(event) if cuda else event.cpu_time_total) / 1000
        low, high = event.time_range.start, event.time_range.end
        row.bytes += sum(size for t, size in allocations if low <= t <= high)
    return sorted(table.values(), key=lambda r: (r.line, -r.ms))


def _device_time(event: Any) -> float:
    """Microseconds of kernels launched by the event and everything below it."""
    return sum(k.duration for k in event.kernels) + sum(_device_time(child) for child in event.cpu_children)


def operation(name: str) -> str:
    """The kind of an operation, by torch's name for it."""
    if name.startswith("autograd::"):
        name = re.sub(r"^.*: ", "", name)
    bare = re.sub(r"^(aten|torch|prims)::|Backward\d*$", "", name)
    bare = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", bare).lower().lstrip("_")
    for kind, pattern in OPERATIONS:
        if re.search(pattern, bare):
            return kind
    return bare
