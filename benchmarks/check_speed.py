"""Speed of `attn-advisor check`: CPU seconds and peak memory, beside `ast.parse` over the same files.

usage: check_speed.py [PATHS]...      (default: the packages installed beside this interpreter)
"""

from __future__ import annotations

import ast
import contextlib
import gc
import os
import resource
import subprocess
import sys
import sysconfig
import time
import warnings
from pathlib import Path

from attn_advisor import files
from attn_advisor.settings import Overrides, Resolver

LIMIT = 4.0  # times the CPU seconds of ast.parse


def parse_seconds(paths: list[str]) -> tuple[float, int]:
    """CPU seconds of reading and `ast.parse` over the files, trees thrown away, and their bytes."""
    warnings.simplefilter("ignore")
    gc.disable()
    size, started = 0, time.process_time()
    for path in paths:
        data = Path(path).read_bytes()
        size += len(data)
        with contextlib.suppress(SyntaxError, ValueError):
            ast.parse(data)
    seconds = time.process_time() - started
    gc.enable()
    return seconds, size


def check_seconds(arguments: list[str]) -> tuple[float, float, float]:
    """CPU seconds (all processes), wall seconds and the largest process's peak memory in MiB of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    command = [sys.executable, "-m", "attn_advisor.cli", "check", "--isolated", "-q", "--output-format", "json"]
    run = subprocess.run([*command, *arguments], stdout=subprocess.DEVNULL, check=False)
    if run.returncode not in (0, 1):
        sys.exit(f"check failed with status {run.returncode}")
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, wall, after.ru_maxrss / 1024


def main() -> None:
    given = sys.argv[1:] or [sysconfig.get_paths()["purelib"]]
    given = [os.path.abspath(path) for path in given]
    resolver = Resolver(Overrides(isolated=True))
    paths = [path for path, _ in files.discover(given, resolver)]
    parsed, size = parse_seconds(paths)
    print(f"{len(paths)} files, {size / 1e6:.1f} MB; ast.parse {parsed:.2f} s CPU")
    worst = 0.0
    for name, extra in (("one process", ["-j", "1"]), ("a process a processor", [])):
        cpu, wall, peak = check_seconds(["--no-cache", *extra, *given])
        worst = max(worst, cpu / parsed)
        print(
            f"check, {name}: {cpu:.2f} s CPU ({cpu / parsed:.2f} x ast.parse), {wall:.2f} s wall, peak {peak:.0f} MiB"
        )
    if worst > LIMIT:
        sys.exit(f"more than {LIMIT} times ast.parse")


if __name__ == "__main__":
    main()
