"""The command `check`: settings from options, a run of the pipeline, the report, the exit status."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import click

from attn_advisor import baseline, files, pipeline, report
from attn_advisor.fixes.apply import wanted
from attn_advisor.pipeline import FileResult, Mode
from attn_advisor.report.entries import Options, entries, relative
from attn_advisor.rules.page import PageError
from attn_advisor.rules.registry import registry
from attn_advisor.settings import OUTPUT_FORMATS, Overrides, Resolver, Settings, SettingsError, tomllib
from attn_advisor.source import noqa
from attn_advisor.source.text import SourceText

FINDINGS, WRONG_USE = 1, 2
WATCH_SECONDS = 0.5
OWN_SETTINGS = (
    *("respect_gitignore", "force_exclude", "preview", "fix", "unsafe_fixes", "fix_only", "show_fixes"),
    *("output_format", "ignore_noqa", "verify"),
)


class UsageError(Exception):
    """Options that do not go together."""


@dataclass
class Run:
    """One run over all paths, before anything is reported."""

    settings: Settings
    results: list[FileResult] = field(default_factory=list)
    hidden: int = 0  # findings that the baseline knows

    @property
    def fixed(self) -> int:
        return sum(len(result.fixed) for result in self.results)


def check(options: dict[str, Any]) -> int:
    """Run the command; gives the exit status."""
    try:
        cwd = Path.cwd()
        resolver = Resolver(overrides(options, cwd), cwd)
        settings = resolver.top
        _check_options(options)
        if options["watch"]:
            return watch(options, resolver)
        return once(options, resolver, settings)
    except (SettingsError, PageError, UsageError, baseline.BaselineError) as error:
        click.echo(f"error: {error}", err=True)
        return WRONG_USE


def overrides(options: Mapping[str, Any], cwd: Path) -> Overrides:
    """The options that stand above the configuration. Raises SettingsError."""
    config_file, inline = None, {}
    for given in options["config"]:
        if (cwd / given).is_file():
            config_file = (cwd / given).resolve()
            continue
        try:
            inline.update(tomllib.loads(given))
        except tomllib.TOMLDecodeError as error:
            raise SettingsError(f"--config: {given!r} is neither a file nor a TOML `KEY = VALUE` pair") from error
    if config_file and options["isolated"]:
        raise SettingsError("--config FILE and --isolated exclude each other")
    if options["output_format"] not in (None, *OUTPUT_FORMATS):
        raise SettingsError(f"--output-format: {options['output_format']!r} is none of {', '.join(OUTPUT_FORMATS)}")
    values = {key: options[key] for key in OWN_SETTINGS if options[key] is not None}
    if options["cache_dir"]:
        values["cache_dir"] = cwd / options["cache_dir"]
    return Overrides(
        select=options["select"] or None,
        ignore=options["ignore"],
        extend_select=options["extend_select"],
        per_file_ignores=options["per_file_ignores"],
        exclude=options["exclude"] or None,
        extend_exclude=options["extend_exclude"],
        target_torch=options["target_torch"],
        values=values,
        config_file=config_file,
        inline=inline,
        isolated=options["isolated"],
    )


def _check_options(options: Mapping[str, Any]) -> None:
    standard_input = "-" in options["paths"]
    if standard_input and len(options["paths"]) > 1:
        raise UsageError("`-` (standard input) cannot be combined with other paths")
    if standard_input and (options["watch"] or options["add_noqa"] or options["write_baseline"]):
        raise UsageError("--watch, --add-noqa and --write-baseline need files, not standard input")
    if options["watch"] and options["output_file"]:
        raise UsageError("--watch and --output-file exclude each other")
    if options["add_noqa"] and (options["fix"] or options["diff"] or options["fix_only"]):
        raise UsageError("--add-noqa cannot be combined with --fix, --fix-only or --diff")


def once(options: Mapping[str, Any], resolver: Resolver, settings: Settings) -> int:
    """Check, report and judge, one time."""
    started = time.perf_counter()
    mode: Mode = "diff" if options["diff"] else "fix" if settings.fix or settings.fix_only else "check"
    if options["paths"] == ("-",):
        run = _standard_input(options, resolver, settings, mode)
    else:
        run = _files(options, resolver, settings, mode)
    for result in run.results:
        for error in result.errors:
            click.echo(f"error: {relative(result.path, resolver.cwd)}: {error}", err=True)
    if options["verbose"]:
        took = time.perf_counter() - started
        analysed = sum(result.analysed for result in run.results)
        click.echo(f"{len(run.results)} files, {analysed} analysed, {took:.2f} s", err=True)
    if options["write_baseline"]:
        return _write_baseline(options, run)
    if options["baseline"]:
        path = Path(options["baseline"]).absolute()
        run.hidden = baseline.subtract(run.results, baseline.read(path), path)
    if options["add_noqa"]:
        return _add_noqa(run, options)
    with _output(options) as out:
        if mode == "diff":
            _diff(run, resolver.cwd, out, options)
        elif not (settings.fix_only and mode == "fix"):
            _report(run, resolver.cwd, out, options)
    if settings.show_fixes or settings.fix_only:
        _list_fixes(run, resolver.cwd, settings, options)
    return status(run, mode, options)


def status(run: Run, mode: Mode, options: Mapping[str, Any]) -> int:
    """0 nothing (or info alone), 1 findings or differences, 2 something went wrong."""
    if any(result.errors for result in run.results):
        return WRONG_USE
    if mode == "diff":
        return FINDINGS if any(result.fixed_text is not None for result in run.results) else 0
    if options["exit_non_zero_on_fix"] and any(result.fixed_text is not None for result in run.results):
        return FINDINGS
    if options["exit_zero"] or run.settings.fix_only:
        return 0
    return FINDINGS if any(f.severity != "info" for result in run.results for f in result.findings) else 0


def _files(options: Mapping[str, Any], resolver: Resolver, settings: Settings, mode: Mode) -> Run:
    jobs = list(files.discover(options["paths"] or (".",), resolver))
    if not jobs and not options["quiet"]:
        click.echo("warning: No Python files found under the given path(s)", err=True)
    cached = not (options["no_cache"] or options["verify"])
    return Run(settings, list(pipeline.run(jobs, mode, options["jobs"], cached)))


def _standard_input(options: Mapping[str, Any], resolver: Resolver, settings: Settings, mode: Mode) -> Run:
    """Check what comes on standard input; with --fix the new text goes to standard output."""
    path = os.path.join(resolver.cwd, options["stdin_filename"] or "-")
    if options["stdin_filename"]:
        settings = resolver.for_folder(Path(path).parent)
    data = sys.stdin.buffer.read()
    result = pipeline.check_data(path, data, settings, mode)
    if mode == "fix":
        text = result.fixed_text
        sys.stdout.buffer.write(data if text is None else files.encode(text, files.decode(data).encoding))
        sys.stdout.buffer.flush()
    return Run(settings, [result])


@contextlib.contextmanager
def _output(options: Mapping[str, Any]) -> Iterator[TextIO]:
    """Where the report goes: a file, standard output, or standard error when the fixed text is on standard output."""
    if options["output_file"]:
        try:
            with open(options["output_file"], "w", encoding="utf-8") as file:
                yield file
        except OSError as error:
            raise UsageError(f"Cannot write {options['output_file']}: {error.strerror}") from error
    elif options["paths"] == ("-",) and (options["fix"] or options["fix_only"]) and not options["diff"]:
        yield sys.stderr
    else:
        yield sys.stdout


def _report(run: Run, cwd: Path, out: TextIO, options: Mapping[str, Any]) -> None:
    found = entries(run.results, cwd)
    form = run.settings.output_format
    if options["statistics"]:
        _statistics(run, out, form)
        return
    failed = sum(bool(result.errors) for result in run.results)
    show = Options(run.settings.unsafe_fixes, not options["quiet"], run.fixed, run.settings.fix, failed)
    report.write(form, found, out, show)
    if run.hidden and not options["quiet"]:
        click.echo(f"{run.hidden} known from the baseline left out.", err=True)


def _statistics(run: Run, out: TextIO, form: str) -> None:
    findings = [finding for result in run.results for finding in result.findings]
    counts = Counter(finding.code for finding in findings)
    fixable = Counter(finding.code for finding in findings if wanted(finding, run.settings.unsafe_fixes))
    rules = registry().rules
    rows = [
        (count, code, fixable[code], rules[code].name)
        for code, count in sorted(counts.items(), key=lambda c: (-c[1], c[0]))
    ]
    if form.startswith("json"):
        table = [{"code": code, "name": name, "count": count, "fixable": fixes} for count, code, fixes, name in rows]
        out.write(json.dumps(table, indent=2) + "\n")
        return
    for count, code, fixes, name in rows:
        mark = "[*]" if fixes == count else "[-]" if fixes else "[ ]"
        out.write(f"{count}\t{code}\t{mark} {name}\n")
    out.write(f"Found {len(findings)} finding{'' if len(findings) == 1 else 's'}.\n")


def _diff(run: Run, cwd: Path, out: TextIO, options: Mapping[str, Any]) -> None:
    for result in run.results:
        if result.fixed_text is not None:
            out.write(unified_diff(result.text or "", result.fixed_text, relative(result.path, cwd)))
    if not options["quiet"]:
        text = f"Would fix {run.fixed} finding{'' if run.fixed == 1 else 's'}." if run.fixed else "Nothing to fix."
        click.echo(text, err=True)


def unified_diff(old: str, new: str, name: str) -> str:
    """A diff that `patch` takes, a missing newline at the end of the file included."""
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    lines = []
    for line in difflib.unified_diff(before, after, name, name):
        lines.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
    return "".join(lines)


def _list_fixes(run: Run, cwd: Path, settings: Settings, options: Mapping[str, Any]) -> None:
    if options["quiet"] or not run.fixed:
        return
    lines = [f"{'Would fix' if options['diff'] else 'Fixed'} {run.fixed} finding{'' if run.fixed == 1 else 's'}"]
    if settings.show_fixes:
        lines[0] += ":"
        for result in run.results:
            if result.fixed:
                lines.append(f"- {relative(result.path, cwd)}:")
                counts = Counter((finding.code, finding.name) for finding in result.fixed)
                lines += [f"    {count} x {code} ({name})" for (code, name), count in sorted(counts.items())]
    else:
        lines[0] += "."
    click.echo("\n".join(lines), err=True)


def _write_baseline(options: Mapping[str, Any], run: Run) -> int:
    path = Path(options["write_baseline"]).absolute()
    try:
        count = baseline.write(path, run.results)
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}") from error
    if not options["quiet"]:
        click.echo(f"Wrote {count} finding{'' if count == 1 else 's'} to {options['write_baseline']}.", err=True)
    return WRONG_USE if any(result.errors for result in run.results) else 0


def _add_noqa(run: Run, options: Mapping[str, Any]) -> int:
    """Silence every finding where it stands; ATN000 cannot be."""
    added, failed = 0, any(result.errors for result in run.results)
    for result in run.results:
        findings = [finding for finding in result.findings if finding.code not in ("ATN000", "ATN001")]
        if not findings or result.text is None:
            continue
        text, count = noqa.add_noqa(SourceText(result.text, result.path), findings)
        try:
            before = files.read(result.path)
            if before.text != result.text:
                raise files.WriteError("changed on disk meanwhile")
            if count:
                files.write(result.path, text, before)
            added += count
        except (files.ReadError, files.WriteError) as error:
            failed = True
            click.echo(f"error: {result.path}: {error}", err=True)
    if not options["quiet"]:
        click.echo(f"Added {added} noqa directive{'' if added == 1 else 's'}.", err=True)
    return WRONG_USE if failed else 0


def watch(options: Mapping[str, Any], resolver: Resolver) -> int:
    """Check, then again after every change, until interrupted."""
    seen: object = None
    try:
        while True:
            fresh = Resolver(resolver.overrides, resolver.cwd)
            with contextlib.suppress(SettingsError):
                now = _stamps(options["paths"] or (".",), fresh)
                if now == seen:
                    time.sleep(WATCH_SECONDS)
                    continue
                seen = now
            click.clear()
            pipeline.forget_projects()
            try:
                once(options, fresh, fresh.top)
            except SettingsError as error:
                click.echo(f"error: {error}", err=True)
            if not options["quiet"]:
                click.echo("Watching for changes; Ctrl-C ends.", err=True)
            if fresh.top.fix:
                seen = _stamps(options["paths"] or (".",), fresh)  # our own writes are no change
            time.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        return 0


def _stamps(paths: Sequence[str], resolver: Resolver) -> dict[str, tuple[int, int]]:
    stamps = {}
    for path, _ in files.discover(paths, resolver):
        with contextlib.suppress(OSError):
            status = os.stat(path)
            stamps[path] = status.st_mtime_ns, status.st_size
    return stamps
