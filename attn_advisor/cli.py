"""The command line: options in, exit status out, nothing else.

What a command needs is imported when it runs, so that `attn-advisor --version` is immediate and `check` never loads torch.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from typing import Any

import click

from attn_advisor import __version__

# Commands of other parts: their module is imported when they are called or when help lists them.
ELSEWHERE = {
    "profile": "attn_advisor.lab.commands:profile",
    "run": "attn_advisor.lab.run_command:run",
    "backends": "attn_advisor.lab.commands:backends",
    "doctor": "attn_advisor.lab.commands:doctor",
}


class Commands(click.Group):
    """A group whose commands may live in modules that are not loaded yet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *(name for name, where in ELSEWHERE.items() if _exists(where))]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        where = ELSEWHERE.get(name)
        if where is None or not _exists(where):
            return super().get_command(ctx, name)
        module, _, function = where.partition(":")
        return getattr(importlib.import_module(module), function)


def _exists(where: str) -> bool:
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.util.find_spec(where.partition(":")[0]) is not None
    return False


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, "-V", "--version", prog_name="attn-advisor", message="%(prog)s %(version)s")
def cli() -> None:
    """Finds hand-written attention in PyTorch code, rewrites what is provably equal to scaled_dot_product_attention, and measures the rest."""


def _split(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Comma-separated lists, repeatable."""
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


def _ignores(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> Any:
    """`PATTERN:CODE` pairs as ((pattern, (code,)), ...)."""
    pairs = []
    for pair in _split(ctx, parameter, values):
        pattern, colon, code = pair.rpartition(":")
        if not colon or not pattern or not code:
            raise click.BadParameter(f"{pair!r} is not of the form PATTERN:CODE")
        pairs.append((pattern, (code,)))
    return tuple(pairs) or None


def switch(name: str, help: str) -> Any:
    """An option with its `--no-` form; None where neither is given, so that the configuration decides."""
    return click.option(f"--{name}/--no-{name}", default=None, help=help)


def codes(name: str, help: str) -> Any:
    return click.option(f"--{name}", multiple=True, callback=_split, metavar="CODES", help=help)


@cli.command()
@click.argument("paths", nargs=-1, metavar="[PATHS]...")
@switch("fix", "Make the safe fixes.")
@switch("unsafe-fixes", "Count unsafe fixes as available; with --fix, make them too.")
@click.option(
    "--diff", is_flag=True, help="Show what --fix would change, write nothing; status 1 if there is a difference."
)
@switch("fix-only", "Make fixes, do not report what is left.")
@switch("show-fixes", "List the findings that were fixed.")
@codes("select", "Rules to use, by code or prefix; ALL for all.")
@codes("ignore", "Rules not to use.")
@codes("extend-select", "Rules to use besides the selected ones.")
@click.option(
    "--per-file-ignores",
    multiple=True,
    callback=_ignores,
    metavar="PATTERN:CODE",
    help="Rules to ignore in some files.",
)
@click.option(
    "--exclude",
    multiple=True,
    callback=_split,
    metavar="PATTERNS",
    help="Paths to leave out, in place of the default ones.",
)
@click.option("--extend-exclude", multiple=True, callback=_split, metavar="PATTERNS", help="More paths to leave out.")
@switch("respect-gitignore", "Leave out what git ignores (default: yes).")
@switch("force-exclude", "Leave out excluded paths even if they are given by name.")
@switch("preview", "Use the rules whose precision is not settled yet.")
@click.option("--output-format", metavar="FORMAT", envvar="ATTN_ADVISOR_OUTPUT_FORMAT",
              help="full, concise, grouped, json, json-lines, sarif, github, gitlab or junit.")  # fmt: skip
@click.option("-o", "--output-file", type=click.Path(dir_okay=False), help="Write the report there.")
@click.option("-e", "--exit-zero", is_flag=True, help="Status 0 even with findings.")
@click.option("--exit-non-zero-on-fix", is_flag=True, help="Status 1 if a file was changed.")
@click.option("--statistics", is_flag=True, help="Count findings by rule.")
@click.option("--add-noqa", is_flag=True, help="Add `# noqa: CODE` to every line with a finding.")
@click.option("--ignore-noqa", is_flag=True, help="Report findings in spite of comments that silence them.")
@click.option(
    "--config", multiple=True, metavar="FILE|KEY=VALUE", help="A configuration file to use, or one TOML setting."
)
@click.option("--isolated", is_flag=True, help="Ignore all configuration files.")
@click.option(
    "-n", "--no-cache", is_flag=True, envvar="ATTN_ADVISOR_NO_CACHE", help="Neither read nor write the cache."
)
@click.option(
    "--cache-dir", type=click.Path(file_okay=False), envvar="ATTN_ADVISOR_CACHE_DIR", help="Where the cache is."
)
@click.option("--stdin-filename", metavar="PATH", help="The name of what comes on standard input.")
@click.option("-w", "--watch", is_flag=True, help="Check again whenever a file changes.")
@click.option("-q", "--quiet", is_flag=True, help="Print the findings and nothing else.")
@click.option("-v", "--verbose", is_flag=True, help="Say on standard error what is done and how long it takes.")
@click.option(
    "--target-torch", metavar="VERSION", help="The oldest torch that fixed code must run on (default: the project's)."
)
@click.option(
    "-j", "--jobs", type=click.IntRange(0), default=0, metavar="N", help="Processes to use (default: one a processor)."
)
@click.option("--baseline", type=click.Path(dir_okay=False), help="Leave out the findings in this file.")
@click.option("--write-baseline", type=click.Path(dir_okay=False), help="Save all findings to this file.")
@click.option("--verify", is_flag=True, help="Run each rewritten function against its original first (needs torch).")
def check(**options: Any) -> None:
    """Find attention written out by hand, and more, in files, folders or (`-`) standard input. Never runs the code it reads."""
    from attn_advisor.check import check

    raise SystemExit(check(options))


@cli.command()
@click.argument("code", required=False)
@click.option("--output-format", type=click.Choice(["text", "json"]), default="text")
@click.option(
    "--new", "name", metavar="NAME", help="Write the page of a new rule with this code, e.g. --new my-rule XYZ101."
)
@click.option(
    "--folder", type=click.Path(file_okay=False), default="rules", show_default=True, help="Where --new writes."
)
def rule(code: str | None, output_format: str, name: str | None, folder: str) -> None:
    """Explain a rule, or list all."""
    from attn_advisor.explain import explain, new_rule

    raise SystemExit(new_rule(code, name, folder) if name else explain(code, output_format))


def main() -> None:
    """The console script. Faults of use and of the tool end with status 2, never with a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        cli.main(prog_name="attn-advisor")
    except Exception as error:
        if os.environ.get("ATTN_ADVISOR_TRACEBACK"):
            raise
        click.echo(f"error: internal error: {type(error).__name__}: {error}", err=True)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
