"""Prescriptions: each looks at one measured result and, if its alternative was measured to be worth it, speaks.

The pages of the measured rules name these functions as their detectors. Each takes the JSON object of a result and the least speed-up
worth mentioning, and gives the page's `{placeholders}` with gain, speed-up and evidence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from attn_advisor.lab.job import FLASH_ATTN
from attn_advisor.rules.page import fill
from attn_advisor.rules.registry import detector, registry

Result = dict[str, Any]
SMALL_SHARE = 0.3
FEW_RUNS = 3
UNCOMPILED = ("as_written", "inplace", "sdpa", "sdpa_flash", "sdpa_efficient", "sdpa_cudnn", "sdpa_math", *FLASH_ATTN)
HOW_COMPILED = {
    "compile": "Compile the module that holds this attention with `torch.compile`.",
    "compile_max_autotune": 'Compile the module that holds this attention with `torch.compile(mode="max-autotune")`.',
    "flex": "Call `torch.nn.attention.flex_attention.flex_attention`, compiled with `torch.compile`, in its place.",
}
UNKNOWN_SPREAD = 0.2
"""Of fewer runs than FEW_RUNS the spread is not known; it is then taken for this share of the median."""


@dataclass
class Advice:
    """What a measured rule found: time saved (ms) and speed-up over `baseline`, with the rows it rests on."""

    values: dict[str, str]
    gain_ms: float
    speedup: float
    evidence: dict[str, Any]


def prescriptions(result: Result, min_speedup: float) -> list[dict[str, Any]]:
    """The JSON's `prescriptions`, by time saved."""
    found: list[dict[str, Any]] = []
    for rule in registry().rules.values():
        if rule.stage != "measured":
            continue
        advices: Iterable[Any] = detector(rule.detector)((result, min_speedup))
        for advice in advices:
            found.append(
                {
                    "code": rule.code,
                    "name": rule.name,
                    "message": fill(rule.message, advice.values),
                    "prescription": fill(rule.prescription, advice.values),
                    "gain_ms": advice.gain_ms,
                    "speedup": advice.speedup,
                    "evidence": advice.evidence,
                }
            )
    return sorted(found, key=lambda p: -p["gain_ms"])


def price(result: Result, hour: float | None) -> None:
    """Add to each prescription what its gain is worth: device hours saved per million calls, and their price at `hour` an hour."""
    for found in result["prescriptions"] if hour is not None else ():
        hours = found["gain_ms"] / 1000 / 3600 * 1e6
        found |= {"hours_per_million_calls": hours, "price_per_million_calls": hours * hour}


def row(result: Result, name: str) -> dict[str, Any] | None:
    """A measured candidate or what-if by name, if it ran and agreed (what-ifs of lower precision need not agree)."""
    rows = {c["name"]: c for c in result["candidates"]} | result.get("what_ifs", {})
    found = rows.get(name)
    return found if found and found["ok"] and found["median_ms"] else None


def fastest(result: Result, names: Iterable[str]) -> dict[str, Any] | None:
    """The fastest of the named candidates that agreed."""
    rows = [r for name in names if (r := row(result, name))]
    return min(rows, key=lambda r: r["median_ms"], default=None)


def compare(
    better: dict[str, Any] | None, baseline: dict[str, Any] | None, min_speedup: float, **values: str
) -> list[Advice]:
    """The advice that `better` replaces `baseline`, if it is faster by the factor asked for and by more than the spread of both."""
    if not better or not baseline or not clearly_faster(better, baseline, min_speedup):
        return []
    ratio = baseline["median_ms"] / better["median_ms"]
    evidence = {
        "candidate": better["name"],
        "median_ms": better["median_ms"],
        "baseline": baseline["name"],
        "baseline_ms": baseline["median_ms"],
        "peak_bytes": better["peak_bytes"],
        "baseline_peak_bytes": baseline["peak_bytes"],
        "max_abs_error": better["max_abs_error"],
        "max_grad_error": better["max_grad_error"],
        "backend": better["backend"],
    }
    texts = {
        "before": milliseconds(baseline["median_ms"]),
        "after": milliseconds(better["median_ms"]),
        "speedup": f"{ratio:.3g}",
        "error": f"{better['max_abs_error']:.1e}" if better["max_abs_error"] is not None else "unknown",
        "backend": better["backend"] or "none",
        "candidate": better["name"],
        "memory": _memory(better, baseline),
    }
    return [Advice(texts | values, baseline["median_ms"] - better["median_ms"], ratio, evidence)]


def improve(better: dict[str, Any] | None, result: Result, min_speedup: float, **values: str) -> list[Advice]:
    """The advice that `better` replaces the rewrite to SDPA; none if the code as written is as fast as `better`."""
    written = row(result, "as_written")
    if better and written and written["median_ms"] <= better["median_ms"]:
        return []
    return compare(better, row(result, "sdpa"), min_speedup, **values)


def clearly_faster(better: dict[str, Any], baseline: dict[str, Any], factor: float) -> bool:
    """Whether the medians differ by the factor and by more than half of both interquartile ranges."""
    gap = baseline["median_ms"] - better["median_ms"]
    spread = (_spread(baseline) + _spread(better)) / 2
    return bool(baseline["median_ms"] >= factor * better["median_ms"] and gap > spread)


def _spread(row: dict[str, Any]) -> float:
    return float(row["iqr_ms"] if row["runs"] >= FEW_RUNS else max(row["iqr_ms"], UNKNOWN_SPREAD * row["median_ms"]))


def milliseconds(value: float) -> str:
    """A time with three significant digits."""
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def size(value: float) -> str:
    """Bytes in a unit that keeps the number small."""
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def _memory(better: dict[str, Any], baseline: dict[str, Any]) -> str:
    if better["peak_bytes"] is None or baseline["peak_bytes"] is None:
        return "peak memory unknown"
    return f"peak memory {size(baseline['peak_bytes'])} to {size(better['peak_bytes'])}"


Measured = tuple[Result, float]


def replace_by_sdpa(measured: Measured) -> list[Advice]:
    """ATN901: the rewrite to scaled_dot_product_attention."""
    result, least = measured
    how = "Rewrite it: `attn-advisor check --fix`, or `profile --fix`."
    if result.get("blockers"):
        how = (
            f"Rewrite it, once these hold: {'; '.join(result['blockers'])} (`attn-advisor check --fix --unsafe-fixes`)."
        )
    return compare(row(result, "sdpa"), row(result, "as_written"), least, how=how)


def causal_flag(measured: Measured) -> list[Advice]:
    """ATN902: is_causal=True in place of a mask that was the causal one."""
    result, least = measured
    names = [f"`{i['name']}`" for i in result["inputs"] if i["role"] == "mask"]
    dense, it = (f"the dense mask {', '.join(names)}", ", ".join(names)) if names else ("the dense mask", "the mask")
    return improve(row(result, "causal_flag"), result, least, dense=dense, mask=it)


def lower_precision(measured: Measured) -> list[Advice]:
    """ATN903: bfloat16, casts included, in place of float32."""
    result, least = measured
    low = result.get("what_ifs", {}).get("bfloat16")
    return improve(low, result, least)


def faster_backend(measured: Measured) -> list[Advice]:
    """ATN908: a backend or flash-attn kernel other than the one the default takes."""
    result, least = measured
    default = row(result, "sdpa")
    others = fastest(result, ("sdpa_flash", "sdpa_efficient", "sdpa_cudnn", "sdpa_math", *FLASH_ATTN))
    if default and others and others["backend"] == default["backend"]:
        return []
    return improve(others, result, least, default=(default or {}).get("backend") or "default")


def compiled(measured: Measured) -> list[Advice]:
    """ATN910: torch.compile or flex_attention where nothing else is as fast."""
    result, least = measured
    best = fastest(result, HOW_COMPILED)
    return compare(best, fastest(result, UNCOMPILED), least, how=HOW_COMPILED[best["name"]] if best else "")


def in_place(measured: Measured) -> list[Advice]:
    """ATN911: score changes in place where nothing else helps."""
    result, least = measured
    if fastest(
        result, (c["name"] for c in result["candidates"] if c["name"] not in ("as_written", "inplace", "sdpa_math"))
    ):
        return []
    return compare(row(result, "inplace"), row(result, "as_written"), least)


def not_the_bottleneck(measured: Measured) -> list[Advice]:
    """ATN913: attention takes a small share of the module's time."""
    result, _ = measured
    share = result.get("attention_share")
    if result["level"] != "module" or share is None or share >= SMALL_SHARE:
        return []
    rest = sorted((b for b in result["breakdown"]), key=lambda b: -b["time_share"])
    most = next((b for b in rest if b["line"] and not _inside(result, b["line"])), None)
    values = {
        "share": f"{100 * share:.0f}",
        "bound": f"{1 / max(1 - share, 1e-9):.2f}",
        "most": f"line {most['line']} ({most['op']}, {100 * most['time_share']:.0f} %)"
        if most
        else "what the module calls in other files",
    }
    return [Advice(values, 0.0, 1.0, {"attention_share": share})]


def _inside(result: Result, line: int) -> bool:
    first, last = result["rows"]
    return bool(first <= line <= last)
