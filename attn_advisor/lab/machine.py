"""The commands `backends` and `doctor`: what this machine, or another GPU, does with an SDPA call."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import shutil
import sys
import warnings
from typing import Any

import click

from attn_advisor.lab.gpus import GPUS, Ask, serve
from attn_advisor.lab.job import CPU_SIZES, CUDA_SIZES, Sizes, parse_sizes


def run_backends(options: dict[str, Any]) -> int:
    """The command `backends`; its exit status."""
    try:
        sizes = parse_sizes(options["shape"], CUDA_SIZES)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--shape") from error
    rows: list[dict[str, Any]] = []
    if options["gpus"]:
        names = list(GPUS) if "ALL" in options["gpus"] else list(options["gpus"])
        for name in names:
            match = next((known for known in GPUS if known.lower() == name.lower()), None)
            if match is None:
                raise click.BadParameter(
                    f"{name!r} is not in the table, which has {', '.join(GPUS)}", param_hint="--gpu"
                )
            ask = Ask(sizes, options["dtype"], options["mask"], options["dropout"])
            rows.append({"device": match, "source": "table", **serve(GPUS[match], ask)})
    else:
        if importlib.util.find_spec("torch") is None:
            click.echo("error: torch is not installed here; --gpu NAME answers from a table without it", err=True)
            return 2
        row = _asked_of_torch(options, sizes)
        if "error" in row:
            click.echo(f"error: {row['error']}", err=True)
            return 2
        rows.append(row)
    if options["output_format"] == "json":
        click.echo(json.dumps(rows, indent=2))
    else:
        _show_backends(rows, sizes, options)
    return 0


def _asked_of_torch(options: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
    """Make the call here: what torch would choose, what the kernels say ran, and why the others cannot serve."""
    import torch

    from attn_advisor.lab import backends, trace
    from attn_advisor.lab.sdpa import Call

    name = options["device"]
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        return {"error": f"no CUDA device is available; torch {torch.__version__} sees none"}
    if device.type == "cpu" and not options["shape"]:
        sizes = CPU_SIZES
    dtype = getattr(torch, options["dtype"])
    q, k, v = (
        torch.randn(sizes.B, sizes.H, n, sizes.D, dtype=dtype, device=device) for n in (sizes.L, sizes.S, sizes.S)
    )
    call = Call(q, k, v, dropout_p=options["dropout"], is_causal=options["mask"] == "causal")
    if options["mask"] in ("bool", "float", "float-grad"):
        keep = torch.ones(sizes.L, sizes.S, dtype=torch.bool, device=device).tril()
        call.attn_mask = (
            keep if options["mask"] == "bool" else torch.zeros(sizes.L, sizes.S, dtype=dtype, device=device)
        )
        if options["mask"] == "float-grad":
            call.attn_mask.requires_grad_()
    call.run()
    ran = backends.of(trace.trace(call.run, device))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        forecast = backends.chosen_by_torch(call)
    rejected = backends.rejections(call, device)
    label = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {
        "device": label,
        "source": f"torch {torch.__version__}",
        "shape": str(sizes),
        "chosen": ran or forecast,
        "forecast": forecast,
        "rejected": rejected,
    }


def _show_backends(rows: list[dict[str, Any]], sizes: Sizes, options: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"SDPA at {rows[0].get('shape', sizes)}, {options['dtype']}, mask {options['mask']}",
        title_justify="left",
        box=None,
        padding=(0, 1),
    )
    for column in ("device", "gets", "not", "because", "source"):
        table.add_column(column)
    for row in rows:
        reasons = list(row["rejected"].items()) or [("", "every backend can serve this call")]
        for number, (name, reason) in enumerate(reasons):
            head = number == 0
            table.add_row(
                row["device"] if head else "",
                row["chosen"] if head else "",
                name,
                reason,
                row["source"] if head else "",
            )
    Console().print(table)


def run_doctor(output_format: str) -> int:
    """The command `doctor`; its exit status: 0, or 2 if nothing can be measured."""
    rows = _examine()
    if output_format == "json":
        click.echo(json.dumps(rows, indent=2))
    else:
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        table = Table(box=None, padding=(0, 1))
        for column in ("part", "state", "without it"):
            table.add_column(column)
        for row in rows:
            mark = "[green]ok[/]" if row["ok"] else "[yellow]missing[/]"
            table.add_row(f"{mark} {row['part']}", escape(row["state"]), "" if row["ok"] else escape(row["cost"]))
        Console().print(table)
    return 0 if next(r["ok"] for r in rows if r["part"] == "torch") else 2


def _examine() -> list[dict[str, Any]]:
    """Every part with its state and what its absence costs."""
    rows: list[dict[str, Any]] = []

    def add(part: str, ok: bool, state: str, cost: str) -> None:
        rows.append({"part": part, "ok": ok, "state": state, "cost": cost})

    add("python", True, f"{platform.python_version()} ({sys.executable})", "")
    if importlib.util.find_spec("torch") is None:
        add(
            "torch",
            False,
            "not installed",
            "profile, check --verify and this list's other rows: pip install 'attn-advisor[profile]'",
        )
        return rows
    try:
        import torch
    except Exception as error:
        add("torch", False, f"cannot be imported: {error}", "nothing can be measured")
        return rows
    add("torch", True, torch.__version__, "")
    cuda = torch.cuda.is_available()
    state = (
        f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
        if cuda
        else f"none seen (torch is built for {_built_for(torch)})"
    )
    add(
        "GPU",
        cuda,
        state,
        "profile measures on the CPU: times and kernels of GPUs are not seen, flash, cuDNN and efficient kernels neither",
    )
    for name in ("flash", "efficient", "cudnn", "math"):
        ok, why = _works(name, "cuda" if cuda else "cpu")
        add(f"SDPA {name}", ok, why, "that backend is not measured" if cuda else "only on CUDA")
    for number, package in ((2, "flash-attn"), (3, "flash-attn-3"), (4, "flash-attn-4")):
        ok, state = _flash_attn(number, package)
        add(
            f"FlashAttention {number}",
            ok,
            state,
            f"the candidate flash_attn_{number}: pip install {package}" + (" (from source)" if number == 3 else ""),
        )
    flex = importlib.util.find_spec("torch.nn.attention.flex_attention") is not None
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    triton = importlib.util.find_spec("triton") is not None
    add("flex_attention", flex, "in this torch" if flex else "needs torch 2.5", "the candidate flex")
    ready = triton if cuda else compiler is not None
    state = ("triton" if triton else "no triton") + f", C++ compiler {compiler or 'not found'}"
    add("torch.compile", ready, state, "the candidates compile, compile_max_autotune and flex (--compile)")
    return rows


def _built_for(torch: Any) -> str:
    return (
        f"CUDA {torch.version.cuda}"
        if torch.version.cuda
        else f"ROCm {torch.version.hip}"
        if torch.version.hip
        else "the CPU"
    )


def _works(name: str, device: str) -> tuple[bool, str]:
    """Whether a small call through one backend runs."""
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from attn_advisor.lab.backends import MEMBERS, first_reason

    if device == "cpu" and name in ("efficient", "cudnn"):
        return False, "needs CUDA"
    q = torch.randn(1, 2, 128, 64, device=device, dtype=torch.float16 if device == "cuda" else torch.float32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with sdpa_kernel([getattr(SDPBackend, MEMBERS[name])]):
                F.scaled_dot_product_attention(q, q, q)
        except RuntimeError as error:
            return False, first_reason([str(w.message) for w in caught]) or str(error).splitlines()[0]
    return True, "runs"


def _flash_attn(number: int, package: str) -> tuple[bool, str]:
    from attn_advisor.lab.sdpa import flash_attn

    try:
        flash_attn(number)
    except ModuleNotFoundError:
        return False, "not installed"
    except Exception as error:
        return False, f"installed but does not import: {type(error).__name__}: {error}"[:160]
    try:
        return True, importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return True, "installed"
