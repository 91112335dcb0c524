"""Runs code before and after a rewrite on the same inputs and compares what comes out.

Two programs are equal if, on every input the original accepts, outputs and gradients have the same shape and dtype and agree wherever the
original's are finite: within 1e-9 in float64, 1e-5 where the original itself computes in float32. Where the original is NaN or infinite, or
raises, the rewrite is free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from attn_advisor.fixes.inputs import Case, Recipe, cases
from attn_advisor.fixes.load import load_source, lookup, unload
from attn_advisor.fixes.running import CROSSED, HALF, MODES, PLAIN, Outcome, make, run, shake

NOT_EMPTY = ("random", "full", "causal")
ALL_ROWS = (*NOT_EMPTY, "empty")
Verdict = Literal["equal", "differs", "could not run"]
EXACT, IN_FLOAT32, IN_HALF = 1e-9, 1e-5, 3e-2  # float64 runs, by the lowest precision the original computes in
LOOSE_FLOAT32, LOOSE_HALF = 1e-3, 0.15  # rounding stays below them, mistakes in masks and scales do not
SETTINGS: tuple[tuple[torch.dtype, str, torch.dtype | None, float | None], ...] = (
    (torch.float32, "cpu", None, LOOSE_FLOAT32),
    (torch.float32, "cpu", torch.bfloat16, LOOSE_HALF),
    (torch.bfloat16, "cpu", None, LOOSE_HALF),
    (torch.float16, "cpu", None, LOOSE_HALF),
    (torch.float32, "meta", None, None),
)  # dtype, device, autocast to, tolerance of the values


@dataclass(frozen=True)
class Source:
    """A definition by its text: `name` is dotted for what is inside a class."""

    text: str
    name: str


@dataclass
class Report:
    """What the comparison found.

    `compared` counts the runs that the original accepted; `largest` is the largest difference over them, where the original is finite;
    `case` describes the failing input and mode.
    """

    verdict: Verdict
    reason: str = ""
    case: str = ""
    largest: float = 0.0
    compared: int = 0

    @property
    def equal(self) -> bool:
        return self.verdict == "equal"

    def __str__(self) -> str:
        if self.verdict == "equal":
            return f"equal over {self.compared} runs (largest difference {self.largest:.1e})"
        return f"{self.verdict}: {self.reason}" + (f" [{self.case}]" if self.case else "")


def difference(before: Outcome, after: Outcome, tolerance: float | None) -> tuple[str, float]:
    """(what differs, "" for nothing; the largest difference). Without a tolerance only shapes, dtypes and errors count."""
    if before.error:
        return "", 0.0
    if after.error:
        return f"the rewrite raises {after.error}", math.inf
    largest = 0.0
    for name, was in before.values.items():
        if name not in after.values:
            return f"{name} is missing", math.inf
        now = after.values[name]
        room = tolerance
        if tolerance is not None and tolerance > EXACT and name.startswith("gradient"):
            room = 10 * tolerance  # a sum of many rounded terms
        text, size = _compare(name, was, now, room)
        if text:
            return text, size
        largest = max(largest, size)
    for name in after.values:
        if name not in before.values:
            return f"{name} is new", math.inf
    return "", largest


def _compare(name: str, was: Any, now: Any, tolerance: float | None) -> tuple[str, float]:
    if not isinstance(was, torch.Tensor) or not isinstance(now, torch.Tensor):
        if type(was) is not type(now) or (isinstance(was, (int, float, str, bool)) and was != now and was == was):
            return f"{name} is {_short(now)}, was {_short(was)}", math.inf
        return "", 0.0
    if was.shape != now.shape:
        return f"{name} has shape {tuple(now.shape)}, had {tuple(was.shape)}", math.inf
    if was.dtype != now.dtype:
        return f"{name} has dtype {now.dtype}, had {was.dtype}", math.inf
    if tolerance is None or was.device.type == "meta" or not was.numel():
        return "", 0.0
    if not was.dtype.is_floating_point:
        return ("", 0.0) if torch.equal(was, now) else (f"{name} differs", math.inf)
    was, now = was.detach().double(), now.detach().double()
    finite = was.isfinite()
    if not finite.any():
        return "", 0.0
    gap = (was - now)[finite].abs()
    if not gap.isfinite().all():
        return f"{name} is {'NaN' if gap.isnan().any() else 'infinite'} where the original is finite", math.inf
    largest = float(gap.max())
    if largest > tolerance * max(1.0, float(was[finite].abs().max())):
        return f"{name} differs by {largest:.2g}", largest
    return "", largest


def _short(value: Any) -> str:
    return "a tensor" if isinstance(value, torch.Tensor) else repr(value)[:60]


def compare(
    before: Any,
    after: Any,
    recipe: Recipe,
    *,
    rows: tuple[str, ...] = ALL_ROWS,
    signatures: bool = True,
    meta: bool = True,
) -> Report:
    """Run both on the recipe's inputs. `before` and `after` are `Source`s, functions, module classes or two modules.

    `rows` limits which masks are tried. `signatures` adds runs in float32, bfloat16, float16 and under autocast, and `meta` those on meta
    tensors, in which shapes, dtypes and errors must agree (and values roughly).
    """
    loaded = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # these tensors are far too small to share out
    try:
        sides: list[Any] = []
        for side in (before, after):
            if isinstance(side, Source):
                try:
                    loaded.append(load_source(side.text))
                    side = lookup(loaded[-1], side.name)
                except Exception as error:
                    text = f"{'the original' if not sides else 'the rewrite'} does not load: {type(error).__name__}: {error}"
                    return Report("could not run" if not sides else "differs", text)
            sides.append(side)
        return _compare_loaded(sides[0], sides[1], recipe, rows, signatures, meta)
    finally:
        torch.set_num_threads(threads)
        for module in loaded:
            unload(module)


def _compare_loaded(
    before: Any, after: Any, recipe: Recipe, rows: tuple[str, ...], signatures: bool, meta: bool
) -> Report:
    try:
        old = make(before, recipe)
    except Exception as error:
        return Report("could not run", f"cannot be built: {type(error).__name__}: {error}")
    try:
        new = make(after, recipe)
        if isinstance(old, nn.Module):
            shake(old)
            new.load_state_dict(old.state_dict(), strict=True)
            old.double(), new.double()
    except Exception as error:
        return Report("differs", f"the rewrite cannot be built: {type(error).__name__}: {error}")
    report = Report("equal")
    todo = [case for case in cases(recipe) if case.rows in rows]
    accepted, errors, dropped = 0, [], False
    for case in todo:
        first = run(old, recipe, case, watch=True)
        if first.error:
            errors.append(first.error)
            continue
        accepted += 1
        tolerance = EXACT if first.low is None else IN_FLOAT32 if first.low is torch.float32 else IN_HALF
        for mode in MODES if accepted <= 4 else (PLAIN,):
            if mode in CROSSED and not dropped:
                continue
            was = first if mode is PLAIN else run(old, recipe, case, mode=mode)
            dropped = dropped or was.dropped
            if _judge(report, was, run(new, recipe, case, mode=mode), tolerance, f"{case}; {mode}"):
                return report
    if not accepted:
        return Report("could not run", errors[0] if errors else "no inputs")
    if signatures:
        _signatures(report, old, new, recipe, todo, meta)
    return report


def _judge(report: Report, was: Outcome, now: Outcome, tolerance: float | None, where: str) -> bool:
    if was.error:
        return False
    report.compared += 1
    text, size = difference(was, now, tolerance)
    if text or (tolerance is not None and tolerance < LOOSE_FLOAT32):
        report.largest = max(report.largest, size)
    if text:
        report.verdict, report.reason, report.case = "differs", text, where
    return bool(text)


def _signatures(report: Report, old: Any, new: Any, recipe: Recipe, todo: list[Case], meta: bool) -> None:
    """Every case in other dtypes, under autocast and on meta tensors."""
    for dtype, device, autocast, tolerance in SETTINGS if meta else SETTINGS[:-1]:
        _cast(old, dtype, device)
        _cast(new, dtype, device)
        where = f"autocast to {autocast}" if autocast else f"{dtype}" if device == "cpu" else "meta tensors"
        for case in todo:
            if (autocast or dtype in HALF) and 1 in case.dims.values():
                continue  # einsum over an axis of size 1 multiplies: it promotes dtypes and is left out by autocast
            options: dict[str, Any] = {"dtype": dtype, "device": device, "autocast": autocast}
            was = run(old, recipe, case, **options)
            if was.error:
                continue  # fused kernels read out of bounds on sizes that the original rejects
            now = run(new, recipe, case, **options)
            if _judge(report, was, now, tolerance if case.rows != "empty" else None, f"{case}; {where}"):
                return


def _cast(made: Any, dtype: torch.dtype, device: str = "cpu") -> None:
    if isinstance(made, nn.Module):
        made.to(device=device, dtype=dtype)
