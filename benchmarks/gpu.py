"""Measures on one CUDA GPU what the README claims, with the product itself, and writes the tables into `results` beside this file.

    python benchmarks/gpu.py [--out DIR] [--only tutorial,sweep,fixtures,agreement]

tutorial: the tutorial's module at two shapes, forward and train. sweep: over S = 256..16384. fixtures: every fixture at the module
level. agreement: the same calls by straight-line code (straight_line.py), and how far `profile` is from it; this one runs on a CPU too.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
TUTORIAL = "fixtures/tutorial.py"
CAUSAL = "fixtures/gpt.py"
MAIN_SHAPES = (("B=32,H=8,S=4096,D=64", "float16"), ("B=4,H=16,S=4096,D=64", "bfloat16"))
SWEEP = tuple(f"B=4,H=16,S={2**n},D=64" for n in range(8, 15))
COLUMNS = ("as_written", "inplace", "sdpa", "causal_flag", "sdpa_flash", "sdpa_efficient", "sdpa_cudnn", "sdpa_math")


def profile(*arguments: str) -> tuple[list[dict[str, Any]], float]:
    """Results of `attn-advisor profile` and its wall time in seconds."""
    command = [
        sys.executable,
        "-c",
        "from attn_advisor.cli import cli; cli()",
        "profile",
        "--output-format",
        "json",
        *arguments,
    ]
    started = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    wall = time.perf_counter() - started
    print(" ".join(arguments), f"{wall:.1f} s, status {done.returncode}", done.stderr.strip()[-300:], flush=True)
    results = json.loads(done.stdout) if done.stdout.strip() else []
    for result in results:
        result["file"] = str(Path(result["file"]).relative_to(ROOT))
        result["target"] = f"{result['file']}:{result['line']}"
    return results, wall


def driver() -> str:
    """The version of the GPU's driver."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def measured(result: dict[str, Any], name: str) -> dict[str, Any] | None:
    rows = {c["name"]: c for c in result["candidates"]} | result.get("what_ifs", {})
    found = rows.get(name)
    return found if found and found["median_ms"] else None


def times_table(results: list[dict[str, Any]], label: str) -> list[str]:
    """One row a result: median ms of each candidate, the default's backend, peak memory as written and rewritten."""
    heads = [label, "mode", *COLUMNS, "x SDPA", "backend", "peak as written", "peak SDPA"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for result in results:
        name = (
            f"{Path(result['file']).name}:{result['line']} `{result['function']}`"
            if label == "fixture"
            else f"{result['shape']} {result['dtype']}"
        )
        if not result["candidates"]:
            lines.append(
                f"| {name} | {result['mode']} | not measured: {result['reason'][:120]} |" + " |" * (len(heads) - 3)
            )
            continue
        rows = [measured(result, c) for c in COLUMNS]
        sdpa, written = measured(result, "sdpa"), measured(result, "as_written")
        cells = [f"{r['median_ms']:.3g}" if r else "" for r in rows]
        cells.append(f"{sdpa['speedup']:.1f}" if sdpa and sdpa["speedup"] else "")
        cells += [(sdpa or {}).get("backend") or "", _mib(written), _mib(sdpa)]
        lines.append("| " + " | ".join([name, result["mode"], *cells]) + " |")
    return lines


def _mib(row: dict[str, Any] | None) -> str:
    return f"{row['peak_bytes'] / 2**20:.0f} MiB" if row and row["peak_bytes"] is not None else ""


def agreement() -> tuple[list[dict[str, Any]], list[str]]:
    """`profile` against straight-line code: each pair of medians in ms, and whether they agree within 5 % or 10 microseconds."""
    done = subprocess.run([sys.executable, str(HERE / "straight_line.py")], cwd=ROOT, capture_output=True, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    lines = [
        "| shape | mode | call | straight-line ms | profile ms | difference | agrees |",
        "|---|---|---|---|---|---|---|",
    ]
    found: list[dict[str, Any]] = []
    runs: dict[str, list[list[dict[str, Any]]]] = {}
    for row in rows:
        b, h, s, d = row["shape"]
        shape, dtype = f"B={b},H={h},S={s},D={d}", row["dtype"].removeprefix("torch.")
        mode = "train" if row["train"] else "forward"
        if shape not in runs:
            options = ("--shape", shape, "--dtype", dtype, "--mode", "both", "--level", "attention", "--budget", "12")
            targets = (f"{TUTORIAL}::NaiveCausalAttention", f"{CAUSAL}::CausalSelfAttention")
            runs[shape] = [profile(target, *options)[0] for target in targets]
        masked, flagged = ([r for r in results if r["mode"] == mode] for results in runs[shape])
        pairs = [
            ("naive", masked, "as_written"),
            ("in_place", masked, "inplace"),
            ("sdpa_mask", masked, "sdpa"),
            ("sdpa_causal", flagged, "sdpa"),
        ]
        for long in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"):
            candidate = f"sdpa_{long.split('_')[0].lower()}"
            pairs += [(f"{long}_mask", masked, candidate), (f"{long}_causal", flagged, candidate)]
        for key, results, candidate in pairs:
            ours = measured(results[0], candidate) if results else None
            if row.get(key) is None and ours is None:
                continue
            entry = compared(row.get(key), ours)
            found.append({"shape": shape, "dtype": dtype, "mode": mode, "call": key, **entry})
            percent = f"{100 * entry['difference']:.1f} %" if entry["difference"] is not None else ""
            verdict = "yes" if entry["agrees"] else "NO"
            lines.append(
                f"| {shape} {dtype} | {mode} | {key} | {_ms(entry['reference_ms'])} | {_ms(entry['profile_ms'])} | {percent} | {verdict} |"
            )
    return found, lines


def compared(reference: float | None, ours: dict[str, Any] | None) -> dict[str, Any]:
    """Both medians in ms, their difference as a share of the reference, and whether it is below 5 % or 10 microseconds."""
    entry = {"reference_ms": reference, "profile_ms": ours and ours["median_ms"], "backend": ours and ours["backend"]}
    gap = abs(ours["median_ms"] - reference) if ours and reference else None
    entry["difference"] = gap / reference if gap is not None and reference else None
    entry["agrees"] = gap is not None and reference is not None and gap <= max(0.05 * reference, 0.010)
    return entry


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--only", default="tutorial,sweep,fixtures,agreement")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    import torch

    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
        title = f"{name}, torch {torch.__version__}, driver {driver()}, {datetime.date.today()}"
    else:
        name = "cpu"
        title = f"CPU with {torch.get_num_threads()} threads, torch {torch.__version__}, {datetime.date.today()}"
    for section in options.only.split(","):
        lines = [
            f"# {section}: {title}",
            "",
            "Median ms; empty where a candidate does not apply. Made by benchmarks/gpu.py.",
            "",
        ]
        if section == "agreement":
            data, table = agreement()
        elif section == "tutorial":
            runs = [
                profile(f"{TUTORIAL}::NaiveCausalAttention", "--shape", s, "--dtype", d, "--mode", "both")
                for s, d in MAIN_SHAPES
            ]
            default, wall = profile(
                f"{TUTORIAL}::NaiveCausalAttention", "--shape", MAIN_SHAPES[1][0], "--dtype", "bfloat16"
            )
            lines[2] += f" The last row is one target with default options, {wall:.1f} s wall."
            data = [r for results, _ in runs for r in results] + default
            table = times_table(data, "shape")
        elif section == "sweep":
            shapes = [part for s in SWEEP for part in ("--shape", s)]
            data, _ = profile(f"{TUTORIAL}::NaiveCausalAttention", *shapes, "--dtype", "bfloat16", "--budget", "20")
            more, _ = profile(
                f"{CAUSAL}::CausalSelfAttention",
                *shapes,
                "--dtype",
                "bfloat16",
                "--level",
                "attention",
                "--budget",
                "20",
            )
            table = [
                *times_table(data, "shape"),
                "",
                "The same with a mask that the source proves to be causal, so that the rewrite sets the flag:",
                "",
                *times_table(more, "shape"),
            ]
            data = data + more
        else:
            data, _ = profile(
                "fixtures",
                "--level",
                "module",
                "--shape",
                "B=4,H=16,S=1024,D=64",
                "--dtype",
                "bfloat16",
                "--budget",
                "1.5",
            )
            table = times_table(data, "fixture")
        slug = f"{section}-{name.split()[-1].lower()}"
        (options.out / f"{slug}.json").write_text(json.dumps(data, indent=1) + "\n")
        (options.out / f"{slug}.md").write_text("\n".join([*lines, *table]) + "\n")
        print("\n".join(table), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
