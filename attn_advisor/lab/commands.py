"""The commands `profile`, `backends` and `doctor`. The command line imports this module only when one of them is called."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from attn_advisor.lab.job import ALL_CANDIDATES, CANDIDATES, COMPILED, CPU_SIZES, DTYPES, FLASH_ATTN, parse_sizes

FORMAT = click.option("--output-format", type=click.Choice(["full", "json"]), default="full", show_default=True)
NO_TORCH = "torch is not installed here; measuring needs it: pip install 'attn-advisor[profile]'"


class Device(click.ParamType):
    """Where to measure, by torch's names."""

    name = "auto|cuda[:N]|cpu"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
            self.fail(f"{value!r} is none of auto, cuda, cuda:N and cpu", param, ctx)
        return value


class NewFile(click.Path):
    """A file to be written when all is done; that it can be is asked before anything is measured."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(str(super().convert(value, param, ctx)))
        if not path.exists() and not os.access(path.parent, os.W_OK):
            problem = "cannot be written to" if path.parent.is_dir() else "does not exist"
            self.fail(f"{path}: the directory {path.parent} {problem}", param, ctx)
        return path


DEVICE = Device()
NEW_FILE = NewFile(dir_okay=False, writable=True)

MEASURING = (
    click.option("--candidates", metavar="LIST", help=f"Comma-separated, of: {', '.join(ALL_CANDIDATES)}."),
    click.option(
        "--compile",
        "compiled",
        is_flag=True,
        help="Also torch.compile and flex_attention, which take minutes to compile.",
    ),
    click.option(
        "--budget",
        type=click.FloatRange(min=0.1),
        default=6.0,
        show_default=True,
        metavar="SECONDS",
        help="Time for the timed runs of a target; checking and profiling come on top.",
    ),
    click.option(
        "--min-speedup",
        type=click.FloatRange(min=1.0),
        default=1.1,
        show_default=True,
        metavar="X",
        help="Least gain that is prescribed or, with --fix, applied.",
    ),
    click.option("--fix", is_flag=True, help="Apply the safe rewrites that agreed and gained at least --min-speedup."),
    click.option("--save", type=NEW_FILE, metavar="FILE", help="Write the JSON to a file too."),
    click.option(
        "--gpu-hour-price",
        type=click.FloatRange(min=0.0),
        metavar="P",
        help="What an hour of the device costs: also says what the time saved is worth, per million calls.",
    ),
    click.option("--html", type=NEW_FILE, metavar="FILE", help="Write the report as HTML."),
    FORMAT,
)
"""Options of every command that measures."""


def measuring_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of every command that measures."""
    for option in reversed(MEASURING):
        command = option(command)
    return command


@click.command()
@click.argument("targets", nargs=-1, metavar="[TARGETS]...")
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="B=4,H=16,S=4096,D=64",
    help="Sizes to measure at; repeat it for a sweep. L defaults to S.",
)
@click.option(
    "--dtype", "dtypes", multiple=True, type=click.Choice(DTYPES), help="Default: bfloat16 on CUDA, float32 on the CPU."
)
@click.option("--device", type=DEVICE, default="auto", show_default=True, help="Where to measure.")
@click.option(
    "--mode",
    type=click.Choice(["forward", "train", "both"]),
    default="forward",
    show_default=True,
    help="train: forward and backward.",
)
@click.option(
    "--level",
    type=click.Choice(["auto", "attention", "module"]),
    default="auto",
    show_default=True,
    help="auto: the module where it can be built.",
)
@click.option(
    "--evidence",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Show what an earlier run saved; nothing is run.",
)
@measuring_options
def profile(**options: Any) -> None:
    """Run detected attention against its rewrites: times, memory, errors, and what to do.

    TARGETS are files, directories, FILE:LINE or FILE::Class; the current directory if none is given.
    """
    sys.exit(run_profile(options))


def run_profile(options: dict[str, Any]) -> int:
    """The command `profile`; its exit status."""
    from attn_advisor.lab import targets
    from attn_advisor.settings import Resolver, SettingsError

    if options["evidence"]:
        return show_evidence(options)
    measuring = settled(options)
    for shape in options["shapes"]:
        try:
            parse_sizes(shape, CPU_SIZES)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--shape") from error
    if torch_is_missing():
        return 2
    wanted = measuring | {
        "shapes": list(options["shapes"]),
        "dtypes": list(options["dtypes"]),
        "modes": ["forward", "train"] if options["mode"] == "both" else [options["mode"]],
        "device": options["device"],
        "level": options["level"],
    }
    try:
        found, problems = targets.find(options["targets"] or (".",), Resolver(), wanted)
    except SettingsError as error:
        click.echo(f"error: {error}", err=True)
        return 2
    for problem in problems:
        click.echo(f"error: {problem}", err=True)
    return finish(found, options)


def settled(options: dict[str, Any]) -> dict[str, Any]:
    """What a job is told of how to measure."""
    candidates = chosen_candidates(options["candidates"], options["compiled"])
    return {"candidates": candidates, "budget": options["budget"], "min_speedup": options["min_speedup"]}


def torch_is_missing() -> bool:
    """Whether torch is not installed, which is then said."""
    missing = importlib.util.find_spec("torch") is None
    if missing:
        click.echo(f"error: {NO_TORCH}", err=True)
    return missing


def finish(found: list[Any], options: dict[str, Any]) -> int:
    """Measure the targets, show and save the results; the exit status."""
    try:
        results = measure_all(found, options)
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        return 130
    if options["output_format"] == "json":
        click.echo(json.dumps(results, indent=2))
    if options["save"]:
        options["save"].write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 0 if any(r["candidates"] for r in results) else 2


def show_evidence(options: dict[str, Any]) -> int:
    """`profile --evidence FILE`: the results of an earlier run, shown like those of this one; the exit status is that run's. Needs no torch."""
    from attn_advisor.lab import advice, console

    if options["targets"] or options["fix"] or options["save"]:
        raise click.UsageError("--evidence shows a saved run; it takes no TARGETS, --fix or --save")
    try:
        results = json.loads(options["evidence"].read_text(encoding="utf-8"))
        for result in results:
            advice.price(result, options["gpu_hour_price"])
        out, _ = report(options)
        for result in results:
            console.show(out, result)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise click.BadParameter(
            f"{options['evidence']} holds no saved profile ({reason})", param_hint="--evidence"
        ) from error
    if options["output_format"] == "json":
        click.echo(json.dumps(results, indent=2))
    if options["html"]:
        out.save_html(str(options["html"]))
    return 0 if any(r["candidates"] for r in results) else 2


def report(options: dict[str, Any]) -> tuple[Any, bool]:
    """The console that results are shown on, recording them if a page is wanted, and whether it is standard output."""
    from rich.console import Console

    full = options["output_format"] == "full"
    page = options["html"] is not None
    shown = sys.stdout if full else io.StringIO()
    return Console(file=shown, record=page, quiet=not (full or page), width=None if shown.isatty() else 120), full


def chosen_candidates(given: str | None, compiled: bool) -> list[str]:
    """Candidate names in their usual order. Raises click.BadParameter for unknown ones."""
    if given:
        names = [n.strip() for n in given.split(",") if n.strip()]
        unknown = [n for n in names if n not in ALL_CANDIDATES]
        if unknown:
            raise click.BadParameter(
                f"{unknown[0]!r} is none of {', '.join(ALL_CANDIDATES)}", param_hint="--candidates"
            )
    else:
        names = [*CANDIDATES, *installed_flash_attn()]
    names += [n for n in COMPILED if compiled and n not in names]
    return [n for n in ALL_CANDIDATES if n in names]


def installed_flash_attn() -> list[str]:
    """FlashAttention candidates whose package is there (found by name, without importing it)."""
    found = [] if importlib.util.find_spec("flash_attn_interface") is None else ["flash_attn_3"]
    package = importlib.util.find_spec("flash_attn")
    for folder in (package.submodule_search_locations or []) if package else []:
        found += ["flash_attn_2"] if Path(folder, "flash_attn_interface.py").exists() else []
        found += ["flash_attn_4"] if Path(folder, "cute").is_dir() else []
    return [n for n in FLASH_ATTN if n in found]


def measure_all(found: list[Any], options: dict[str, Any]) -> list[dict[str, Any]]:
    """Measure each target in its own worker, show each result as it comes, and apply fixes."""
    from attn_advisor.lab import advice, console, session

    out, full = report(options)
    results: list[dict[str, Any]] = []
    applicable: list[tuple[Any, list[dict[str, Any]]]] = []
    with _progress(len(found)) as listen:
        for number, target in enumerate(found):
            mine = session.measure(target.job, listen(number, target))
            for result in mine:
                result.setdefault(
                    "prescriptions",
                    advice.prescriptions(result, options["min_speedup"]) if result["candidates"] else [],
                )
                advice.price(result, options["gpu_hour_price"])
                console.show(out, result)
            results += mine
            applicable.append((target, mine))
    if options["fix"]:
        from attn_advisor.lab.applying import apply_measured

        for line in apply_measured(applicable, options["min_speedup"]):
            click.echo(line, err=not full)
    if options["html"]:
        out.save_html(str(options["html"]))
    return results


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int, Any], Callable[[dict[str, Any]], None]]]:
    """A bar on standard error with the target and the candidate being run; nothing where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=max(total, 1))

        def for_target(number: int, target: Any) -> Callable[[dict[str, Any]], None]:
            where = f"{Path(target.job.path).name}:{target.job.line}"
            bar.update(task, completed=number, description=f"{where} starting")

            def listen(event: dict[str, Any]) -> None:
                if event["event"] == "progress":
                    doing = " ".join(filter(None, [event["stage"], event["candidate"]]))
                    bar.update(task, description=f"{where} {doing}")

            return listen

        yield for_target


@click.command()
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    metavar="NAME",
    help="Answer from the table for another GPU (A100, L4, H100, ...); ALL for all.",
)
@click.option("--shape", default="", metavar="B=4,H=16,S=4096,D=64", help="Sizes of the call.")
@click.option("--dtype", type=click.Choice(DTYPES), default="bfloat16", show_default=True)
@click.option(
    "--mask", type=click.Choice(["none", "causal", "bool", "float", "float-grad"]), default="none", show_default=True
)
@click.option("--dropout", type=float, default=0.0)
@click.option("--device", type=DEVICE, default="auto", show_default=True)
@FORMAT
def backends(**options: Any) -> None:
    """Which SDPA backend a call gets, and why not the faster ones."""
    from attn_advisor.lab.machine import run_backends

    sys.exit(run_backends(options))


@click.command()
@FORMAT
def doctor(output_format: str) -> None:
    """What is installed and usable for measuring, and what each missing part costs."""
    from attn_advisor.lab.machine import run_doctor

    sys.exit(run_doctor(output_format))
