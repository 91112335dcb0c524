"""Draws check.svg, the picture in the README: a real run of `attn-advisor check` on a fixture.

usage: python docs/picture.py [FILE]        (default: fixtures/tutorial.py)
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from rich.console import Console

from attn_advisor import pipeline
from attn_advisor.report.entries import Options, entries, summary
from attn_advisor.report.full import show
from attn_advisor.settings import Overrides, Resolver

TOP = Path(__file__).parents[1]


def main() -> None:
    path = Path(sys.argv[1] if len(sys.argv) > 1 else TOP / "fixtures" / "tutorial.py").resolve()
    settings = Resolver(Overrides(isolated=True), path.parent).for_folder(path.parent)
    found = entries([pipeline.check_file(str(path), settings)], path.parent)
    console = Console(record=True, width=118, force_terminal=True, highlight=False, file=io.StringIO())
    console.print(f"[bold green]$[/] attn-advisor check {path.name}")
    for entry in found:
        show(entry, console, Options())
    for line in summary(found, Options()):
        console.print(line, markup=False)
    console.save_svg(str(Path(__file__).with_name("check.svg")), title="attn-advisor")


if __name__ == "__main__":
    main()
