"""Timing: candidates interleaved, caches flushed, medians over device events; peak memory above the inputs."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from attn_advisor.lab import slices
from attn_advisor.lab.candidates import Candidate
from attn_advisor.lab.programs import Setup

MAX_ROUNDS = 200
MIN_ROUNDS = 5
"""Rounds before medians may count as stable; the budget can end them after any round."""
MAX_FLUSHES = 60
BURST_MS = 50.0
MAX_BURST = 40
LONG_MS = 20.0
"""A run that takes this long on the CPU needs no further warm-up: it ran when it was checked."""
STABLE = 0.004
"""Rounds end when the standard error of every median is below this share of it."""


@dataclass(frozen=True)
class Timing:
    """Median and interquartile range in milliseconds over `runs` measurements."""

    median_ms: float
    iqr_ms: float
    runs: int


def step_of(candidate: Candidate, setup: Setup, train: bool) -> Callable[[], object]:
    """What is timed: one forward without gradients, or in train mode a forward and the backward pass to every leaf."""
    run = candidate.bind(setup)
    if not train:

        def forward() -> object:
            with torch.no_grad():
                return run()

        return forward
    wanted = list(slices.leaves(setup, candidate.version).values())
    with torch.enable_grad(), candidate.context():
        gradient = slices.gradient_of(run())

    def forward_backward() -> object:
        return torch.autograd.grad(run(), wanted, gradient, allow_unused=True)

    return forward_backward


class Clock:
    """Times single runs on a device. On CUDA each run finds a flushed L2 cache, and a step's launches wait in the queue while the cache is
    flushed, often enough that the device never waits for Python: what is timed is the device's work."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cuda = device.type == "cuda"
        self._pending: list[tuple[torch.cuda.Event, torch.cuda.Event, list[float]]] = []
        if self.cuda:
            l2 = torch.cuda.get_device_properties(device).L2_cache_size
            self._flush = torch.empty(max(256 << 20, 4 * l2) // 4, dtype=torch.int32, device=device)
            self._flush_ms = self._timed_flush()

    def _timed_flush(self) -> float:
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._flush.zero_()
        first.record()
        self._flush.zero_()
        last.record()
        torch.cuda.synchronize(self.device)
        return max(first.elapsed_time(last), 1e-3)

    def repeats(self, step: Callable[[], object], into: list[float]) -> int:
        """How many measured runs make one sample on the CPU (a millisecond), and how many flushes cover the launches on CUDA.

        A long run on the CPU is a sample already.
        """
        launch = []
        for _ in range(3):
            if self.cuda:
                torch.cuda.synchronize(self.device)
            start = time.perf_counter()
            step()
            launch.append((time.perf_counter() - start) * 1000)
            if not self.cuda and launch[-1] >= LONG_MS:
                into.append(launch[-1])
                break
        if self.cuda:
            torch.cuda.synchronize(self.device)
            return max(1, min(MAX_FLUSHES, math.ceil(2.0 * launch[-1] / self._flush_ms)))
        return max(1, min(1000, math.ceil(1.0 / max(launch[-1], 1e-4))))

    def burst(self, step: Callable[[], object], number: int) -> int:
        """How many samples of a step fill BURST_MS on CUDA; one on the CPU."""
        if not self.cuda:
            return 1
        warm: list[float] = []
        for _ in range(2):
            self.sample(step, warm, number)
            self.collect()
        return max(1, min(MAX_BURST, math.ceil(BURST_MS / (warm[-1] + number * self._flush_ms))))

    def sample(self, step: Callable[[], object], into: list[float], number: int = 1) -> None:
        """One measurement in ms; `number` is what `repeats` gave. On CUDA it is there after `collect`."""
        if not self.cuda:
            start = time.perf_counter()
            for _ in range(number):
                step()
            into.append((time.perf_counter() - start) * 1000 / number)
            return
        for _ in range(number):
            self._flush.zero_()
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        step()
        last.record()
        self._pending.append((first, last, into))

    def collect(self) -> None:
        """Wait for the device and put its times into the lists."""
        if not self.cuda:
            return
        torch.cuda.synchronize(self.device)
        for first, last, into in self._pending:
            into.append(first.elapsed_time(last))
        self._pending.clear()


def times(
    candidates: list[Candidate],
    setup: Setup,
    train: bool,
    device: torch.device,
    budget: float,
    progress: Callable[[str], None],
) -> dict[str, Timing]:
    """Median times of all candidates within `budget` seconds, warm-up included; at least one round is run.

    Each round runs every candidate, starting with another one. Short ones run several times in a row, so that the device's clocks are those of steady use.
    """
    started = time.perf_counter()
    clock = Clock(device)
    steps = {c.name: step_of(c, setup, train) for c in candidates}
    samples: dict[str, list[float]] = {c.name: [] for c in candidates}
    numbers: dict[str, int] = {}
    bursts: dict[str, int] = {}
    for candidate in candidates:
        progress(candidate.name)
        with candidate.context():
            numbers[candidate.name] = clock.repeats(steps[candidate.name], samples[candidate.name])
            bursts[candidate.name] = clock.burst(steps[candidate.name], numbers[candidate.name])
    gc.collect()
    gc.disable()
    try:
        looping, rounds = time.perf_counter(), 0
        while rounds < MAX_ROUNDS:
            for at in range(len(candidates)):
                candidate = candidates[(at + rounds) % len(candidates)]
                with candidate.context():
                    for _ in range(bursts[candidate.name]):
                        clock.sample(steps[candidate.name], samples[candidate.name], numbers[candidate.name])
                clock.collect()
            rounds += 1
            progress("")
            now = time.perf_counter()
            if now - started + (now - looping) / rounds > budget:
                break  # another round would not fit
            if rounds >= MIN_ROUNDS and all(_error(s) < STABLE for s in samples.values()):
                break
    finally:
        gc.enable()
    return {name: timing(values) for name, values in samples.items()}


def timing(samples: list[float]) -> Timing:
    """Median and interquartile range of measurements in ms."""
    low, high = _quartiles(samples)
    return Timing(statistics.median(samples), high - low, len(samples))


def _quartiles(samples: list[float]) -> tuple[float, float]:
    if len(samples) < 2:
        return samples[0], samples[0]
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, high


def _error(samples: list[float]) -> float:
    """Standard error of the median as a share of it, from the quartiles (normal: sigma = IQR / 1.349, 1.253 for the median)."""
    low, high = _quartiles(samples)
    return 1.253 * (high - low) / 1.349 / math.sqrt(len(samples)) / max(statistics.median(samples), 1e-9)


def peak_bytes(candidate: Candidate, setup: Setup, train: bool, device: torch.device) -> int:
    """Most memory of the CUDA allocator above what was allocated before the run."""
    step = step_of(candidate, setup, train)
    with candidate.context():
        step()
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
