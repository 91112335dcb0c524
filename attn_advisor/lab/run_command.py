"""The command `run`: the user's own script is run once, what reaches each detected attention is kept, and then measured."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.machinery
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from attn_advisor.lab import cut as cutting
from attn_advisor.lab import layouts
from attn_advisor.lab.commands import finish, measuring_options, settled, torch_is_missing
from attn_advisor.lab.recorder import INDEX
from attn_advisor.lab.targets import Target, find
from attn_advisor.settings import Resolver, SettingsError
from attn_advisor.source.project import Project

GRACE = 30.0
"""Seconds between asking a script to end and ending it."""


@click.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-m", "module", is_flag=True, help="SCRIPT is the name of a module, as for `python -m`.")
@click.option(
    "--source",
    "sources",
    multiple=True,
    type=click.Path(exists=True),
    metavar="PATH",
    help="Where to look for attention; the script's project if not given.",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=1.0),
    metavar="SECONDS",
    help="End the script after so long, and measure what was reached.",
)
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@measuring_options
def run(**options: Any) -> None:
    """Run SCRIPT as `python SCRIPT [ARGUMENTS]` would, keep what reaches each detected attention, and measure it with these inputs.

    torch.compile and torch.jit.script are off while the script runs. Ctrl-C ends the script, not the measurement.
    """
    sys.exit(run_script(options))


def run_script(options: dict[str, Any]) -> int:
    """The command `run`; its exit status."""
    if torch_is_missing():
        return 2
    path = _file_of(options["script"], options["module"])
    wanted = {**settled(options), "shapes": [], "dtypes": [], "modes": ["forward"], "device": "auto", "level": "auto"}
    root = Project.find_root(path)
    try:
        found, problems = find(options["sources"] or (str(root or path.parent),), Resolver(), wanted)
    except SettingsError as error:
        problems, found = [str(error)], []
    points, uncut = _points(found)
    for problem in (*problems, *uncut):
        click.echo(f"error: {problem}", err=True)
    if not points:
        return 2
    with tempfile.TemporaryDirectory(prefix="attn-advisor-") as folder:
        plan = Path(folder, "plan.json")
        plan.write_text(json.dumps({"folder": folder, "points": list(points.values())}), encoding="utf-8")
        ended = _run(plan, options)
        if ended:
            click.echo(f"note: {options['script']} {ended}", err=True)
        index = Path(folder, INDEX)
        noted = json.loads(index.read_text(encoding="utf-8")) if index.exists() else {"calls": {}, "problems": []}
        for problem in noted["problems"]:
            click.echo(f"note: {problem}", err=True)
        reached, kept = _reached(dict(zip(points, found)), noted["calls"], path)
        for target in found:
            if target.job.target not in reached:
                click.echo(f"note: {target.job.target} {target.job.function} was not reached", err=True)
        return finish(kept, options)


def _file_of(script: str, module: bool) -> Path:
    """The file of a script or of a module's `__main__`. Raises click.BadParameter."""
    if not module:
        if not Path(script).is_file():
            raise click.BadParameter(f"{script}: no such file", param_hint="SCRIPT")
        return Path(script).resolve()
    places: Any = [os.getcwd(), *sys.path]
    spec = None
    for part in script.split("."):
        spec = importlib.machinery.PathFinder.find_spec(part, places) if places is not None else None
        places = spec.submodule_search_locations if spec else None
    if spec and places is not None:
        spec = importlib.machinery.PathFinder.find_spec("__main__", places)
    if spec is None or not spec.origin:
        raise click.BadParameter(f"no module named {script} that can be run", param_hint="SCRIPT")
    return Path(spec.origin).resolve()


def _points(found: list[Target]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Where to take notes, by key and in the order of the targets; and what cannot be cut out of its file (dropped from `found`)."""
    points: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    for target in list(found):
        try:
            cuts = cutting.cuts(target.job)
        except cutting.CannotCut as error:
            problems.append(f"{target.job.target}: {error}")
            found.remove(target)
            continue
        both = [c for c in (cuts.found, cuts.fixed) if c is not None]
        first = cuts.found.statements[0]
        points[f"{len(points)}"] = {
            "key": f"{len(points)}",
            "target": target.job.target,
            "path": target.job.path,
            "digest": hashlib.sha256(Path(target.job.path).read_bytes()).hexdigest(),
            "line": first.lineno,
            "column": first.col_offset,
            "names": cutting.names_read(cuts.found, cuts.fixed),
            "self_name": cuts.found.self_name or (cuts.fixed.self_name if cuts.fixed else None),
            "attributes": sorted(cutting.attributes_read(cuts.tree, *both)),
        }
    return points, problems


def _run(plan: Path, options: dict[str, Any]) -> str:
    """Run the script to its end; how it ended, if not well. It has the terminal, but its output never mixes with JSON."""
    start = ["-m"] if options["module"] else []
    command = [sys.executable, "-m", "attn_advisor.lab.recorder", str(plan), *start, options["script"]]
    package = str(Path(__file__).parents[2])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PYTORCH_JIT": "0",
        "TORCHDYNAMO_DISABLE": "1",
    }
    output = None if options["output_format"] == "full" else sys.stderr.fileno()
    process = subprocess.Popen([*command, *options["arguments"]], env=environment, stdout=output)
    ends = time.monotonic() + options["time_limit"] if options["time_limit"] else None
    asked = ""
    while True:
        try:
            left = None if ends is None else max(0.0, ends - time.monotonic())
            status = process.wait(left)
            break
        except subprocess.TimeoutExpired:
            if asked:
                process.kill()
            else:
                process.send_signal(signal.SIGTERM)
            asked, ends = f"was ended after {options['time_limit']:g} s", time.monotonic() + GRACE
        except KeyboardInterrupt:  # the terminal told the script too; the second time it is ended
            if asked:
                process.kill()
            asked, ends = "was interrupted", None
    if asked or not status:
        return asked
    return f"ended with status {status}" if status > 0 else f"was ended by {signal.Signals(-status).name}"


def _reached(
    points: dict[str, Target], calls: dict[str, list[dict[str, Any]]], script: Path
) -> tuple[set[str], list[Target]]:
    """The targets that were reached, and those to measure: one a kind of call, the most frequent first."""
    kept: list[Target] = []
    for key, kinds in calls.items():
        target = points[key]
        for kind in sorted(kinds, key=lambda k: -k["calls"]):
            if kind["file"] is None:
                click.echo(f"note: {target.job.target}: {kind['calls']} more calls; {kind['problem']}", err=True)
                continue
            _, sizes = layouts.fit(target.job.facts, kind["shapes"])
            job = dataclasses.replace(
                target.job,
                shapes=[str(sizes)],
                dtypes=[kind["dtype"]],
                modes=["train" if kind["train"] else "forward"],
                device=kind["device"],
                recorded={"file": kind["file"], "script": str(script), "calls": kind["calls"]},
            )
            kept.append(dataclasses.replace(target, job=job))
    return {points[key].job.target for key in calls}, kept
