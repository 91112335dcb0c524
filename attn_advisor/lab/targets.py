"""From the command line's targets to jobs: what `check` detects in the files, lines and classes named."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attn_advisor import files
from attn_advisor.findings import Finding
from attn_advisor.fixes.apply import apply
from attn_advisor.lab.job import Job
from attn_advisor.pipeline import Checker
from attn_advisor.rules.selection import UNREADABLE
from attn_advisor.settings import Resolver, Settings
from attn_advisor.source.project import Project
from attn_advisor.source.text import SourceText

CODES = ("ATN101", "ATN102", "ATN103")


@dataclass
class Target:
    """One detected attention, with what is needed to fix its file."""

    job: Job
    finding: Finding
    content: files.Content


def parse(target: str) -> tuple[str, int | None, str | None]:
    """(path, line, class or function) of `PATH`, `PATH:LINE` or `PATH::NAME`."""
    if match := re.fullmatch(r"(.+)::([\w.]+)", target):
        return match[1], None, match[2]
    if match := re.fullmatch(r"(.+\.py):(\d+)", target):
        return match[1], int(match[2]), None
    return target, None, None


def find(targets: Sequence[str], resolver: Resolver, options: dict[str, Any]) -> tuple[list[Target], list[str]]:
    """All attentions of the targets, each once, and what went wrong (missing files, lines without attention), one message each."""
    found: dict[tuple[str, int], Target] = {}
    problems: list[str] = []
    for given in targets:
        path, line, name = parse(given)
        if not Path(resolver.cwd, path).exists():
            problems.append(f"{path}: no such file or directory")
            continue
        mine, troubles = 0, len(problems)
        for file, settings in files.discover([path], resolver):
            try:
                content = files.read(file)
                for target in _in_file(file, content, settings, line, name, options, problems):
                    found.setdefault((target.job.target, target.job.start), target)
                    mine += 1
            except files.ReadError as error:
                problems.append(f"{file}: {error.reason}")
        if not mine and len(problems) == troubles:
            problems.append(f"{given}: no hand-written attention was found")
    return list(found.values()), problems


def _in_file(
    file: str,
    content: files.Content,
    settings: Settings,
    line: int | None,
    name: str | None,
    options: dict[str, Any],
    problems: list[str],
) -> Iterator[Target]:
    enabled = frozenset((*CODES, UNREADABLE))
    settings = dataclasses.replace(settings, enabled=enabled, ignore_noqa=True, per_file_ignores=())
    source = SourceText(content.text, file)
    errors: list[str] = []
    findings = Checker(file, settings, errors).check(content.text)
    sites = [f for f in findings if f.code in CODES]
    problems += [f"{file}: {text}" for text in (*errors, *(f.message for f in findings if f.code == UNREADABLE))]
    if line is not None:
        sites = _at_line(sites, source, line)
    if name is not None:
        sites = [f for f in sites if f".{name}." in f".{f.function}."]
    for site in sites:
        yield Target(_job(file, content.text, source, site, settings, options), site, content)


def _at_line(sites: list[Finding], source: SourceText, line: int) -> list[Finding]:
    """The sites whose statements include the line; if none, the nearest within ten lines."""

    def gap(site: Finding) -> int:
        first, last = source.position(site.start)[0], source.position(max(site.start, site.end - 1))[0]
        return max(first - line, line - last, 0)

    nearest = min(map(gap, sites), default=0)
    return [site for site in sites if gap(site) == nearest and nearest <= 10]


def _job(file: str, text: str, source: SourceText, site: Finding, settings: Settings, options: dict[str, Any]) -> Job:
    edits = [[e.start, e.end, e.content] for e in site.fix.edits] if site.fix else []
    root = Project.find_root(Path(file))
    return Job(
        path=file,
        root=str(root) if root else None,
        text=text,
        start=site.start,
        end=site.end,
        function=site.function,
        facts=site.facts,
        blockers=site.blockers,
        fixed_text=apply(text, [site.fix])[0] if site.fix else None,
        edits=edits,
        line=source.position(site.start)[0],
        overrides=dict(settings.profile),
        **options,
    )
