"""What `profile` shows: a table a target, the breakdown with source lines, prescriptions, one sentence of verdict."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from attn_advisor.lab.advice import milliseconds, row, size

LABELS = {
    "as_written": "as written",
    "inplace": "in place",
    "sdpa": "SDPA",
    "sdpa_flash": "SDPA, flash",
    "sdpa_efficient": "SDPA, efficient",
    "sdpa_cudnn": "SDPA, cuDNN",
    "sdpa_math": "SDPA, math",
    "compile": "torch.compile",
    "compile_max_autotune": "torch.compile, max-autotune",
    "flex": "flex_attention",
    "flash_attn_2": "FlashAttention 2",
    "flash_attn_3": "FlashAttention 3",
    "flash_attn_4": "FlashAttention 4",
    "causal_flag": "SDPA with is_causal",
    "bfloat16": "SDPA in bfloat16",
}


def show(console: Console, result: dict[str, Any]) -> None:
    """Print one result."""
    console.print()
    console.print(_title(result))
    if not result["candidates"]:
        console.print(Text(f"  not measured: {result['reason']}", style="yellow"))
        return
    console.print(_candidates(console, result))
    for left_out in (c for c in result["candidates"] if c["median_ms"] is None):
        console.print(Text(f"  {LABELS[left_out['name']]}: {left_out['reason']}", style="dim"))
    if result["breakdown"]:
        console.print(_breakdown(console, result))
    for advice in result["prescriptions"]:
        console.print(_prescription(advice, result.get("calls", 0)))
    for note in result["notes"]:
        console.print(Text(f"  note: {note}", style="dim"))
    console.print(Text.assemble(("  verdict: ", "bold"), verdict(result)))


def _title(result: dict[str, Any]) -> RenderableType:
    details = [result.get("shape"), result.get("dtype"), result.get("mode"), result.get("device")]
    level = f"{result['level']} level" if result.get("level") else None
    calls = f"{result['calls']} such calls" if result.get("calls") else None
    return Group(
        Text.assemble(
            (f"{os.path.relpath(result['file'])}:{result['line']}", "bold cyan"), "  ", (result["function"], "bold")
        ),
        Text("  " + "  ·  ".join(str(d) for d in [*details, level, calls] if d), style="dim"),
    )


def _candidates(console: Console, result: dict[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="bold dim")
    table.add_column("candidate", no_wrap=True)
    wide = console.width >= 90
    for name in ("ms", "± iqr", "speed-up") if wide else ("ms", "speed-up"):
        table.add_column(name, justify="right", no_wrap=True)
    bar = 18 if console.width >= 110 else 8
    table.add_column("", width=bar)
    for name in ("peak", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    train = result["mode"] == "train"
    if train:
        table.add_column("grad error", justify="right", no_wrap=True)
    table.add_column("backend", no_wrap=True)
    rows = [*result["candidates"], *result.get("what_ifs", {}).values()]
    most = max((r["speedup"] or 0 for r in rows), default=1) or 1
    best = min((r["median_ms"] for r in rows if r["ok"] and r["median_ms"]), default=None)
    for found in rows:
        label = LABELS.get(found["name"], found["name"])
        if found["median_ms"] is None:
            continue
        style = "bold green" if found["median_ms"] == best else ""
        speedup = found["speedup"]
        table.add_row(
            Text(label, style=style),
            Text(milliseconds(found["median_ms"]), style=style),
            *([milliseconds(found["iqr_ms"]) if found["runs"] > 1 else ""] if wide else []),
            f"x{speedup:.2f}" if speedup else "",
            ProgressBar(total=most, completed=speedup or 0, width=bar, complete_style="green", finished_style="green"),
            size(found["peak_bytes"]) if found["peak_bytes"] is not None else "",
            _number(found["max_abs_error"]),
            *([_number(found["max_grad_error"])] if train else []),
            found["backend"] or "",
        )
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _breakdown(console: Console, result: dict[str, Any]) -> Table:
    table = Table(
        box=None,
        padding=(0, 1),
        header_style="bold dim",
        title="where the time of the code as written goes",
        title_style="dim",
        title_justify="left",
    )
    table.add_column("line", justify="right")
    table.add_column("source", no_wrap=True, max_width=max(20, min(72, console.width - 50)))
    table.add_column("operation", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("", width=8)
    table.add_column("allocates", justify="right", no_wrap=True)
    peak = (result.get("peak") or {}).get("line")
    first, last = result["rows"]
    shown = [b for b in result["breakdown"] if b["time_share"] >= 0.01 or (b["bytes"] and first <= b["line"] <= last)]
    for part in shown:
        at_peak = part["line"] == peak and peak
        table.add_row(
            str(part["line"] or ""),
            part["source"] or "(elsewhere)",
            part["op"],
            f"{100 * part['time_share']:.0f} %",
            ProgressBar(total=1.0, completed=part["time_share"], width=8),
            Text.assemble(size(part["bytes"]) if part["bytes"] else "", (" ← peak", "red") if at_peak else ""),
        )
    return table


def _prescription(advice: dict[str, Any], calls: int) -> Text:
    """One line; `calls` is how often a recorded script made such a call."""
    gain = f"  saves {milliseconds(advice['gain_ms'])} ms, x{advice['speedup']:.2f}" if advice["gain_ms"] else ""
    if gain and calls:
        gain += f"; {calls} calls of the script: {calls * advice['gain_ms'] / 1000:.3g} s"
    if gain and "price_per_million_calls" in advice:
        hours, price = advice["hours_per_million_calls"], advice["price_per_million_calls"]
        gain += f"; per million calls {hours:.3g} device hours, worth {price:.2f}"
    return Text.assemble(
        "  ", (advice["code"], "bold yellow"), f" {advice['message']}. {advice['prescription']}", (gain, "green")
    )


def verdict(result: dict[str, Any]) -> str:
    """One sentence: what to do, and what it is worth."""
    written = row(result, "as_written")
    rows = [c for c in result["candidates"] if c["ok"] and c["median_ms"] and c["name"] != "as_written"]
    best = min(rows, key=lambda c: c["median_ms"], default=None)
    sdpa = row(result, "sdpa")
    if written is None:
        reason = next(c["reason"] for c in result["candidates"] if c["name"] == "as_written")
        return f"the code as written does not run here ({reason})" + (
            f"; SDPA does, in {milliseconds(sdpa['median_ms'])} ms." if sdpa else "."
        )
    if best is None or best["speedup"] < 1.02:
        reason = next((c["reason"] for c in result["candidates"] if c["name"] == "sdpa" and c["reason"]), "")
        return "nothing measured is faster than the code as written" + (f"; no SDPA: {reason}." if reason else ".")
    if sdpa and sdpa["speedup"] >= 1.02:
        text = f"SDPA ({sdpa['backend']}) takes {milliseconds(sdpa['median_ms'])} ms where the code as written takes {milliseconds(written['median_ms'])} ms: x{sdpa['speedup']:.1f}"
        if sdpa["peak_bytes"] and written["peak_bytes"] and written["peak_bytes"] > 1.5 * sdpa["peak_bytes"]:
            text += f", in {size(sdpa['peak_bytes'])} instead of {size(written['peak_bytes'])}"
        flag = row(result, "causal_flag")
        if flag and flag["median_ms"] < 0.9 * sdpa["median_ms"]:
            text += f"; with is_causal=True in place of the mask x{flag['speedup']:.1f}"
        return text + "."
    return f"{LABELS.get(best['name'], best['name'])} is the fastest that agrees: x{best['speedup']:.2f}."
