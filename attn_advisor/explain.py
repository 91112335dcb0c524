"""The command `rule`: a rule's page on the terminal, the list of all, the scaffold of a new one."""

from __future__ import annotations

import difflib
import json
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from attn_advisor.rules.page import CODE, Rule, Way
from attn_advisor.rules.registry import registry

SCAFFOLD = '''code = "{code}"
name = "{name}"
group = "custom"
severity = "warning"
detector = "{package}:{function}"  # a function from a Module to Detections
search = ["softmax"]                # one of these strings stands in every file that has a finding
message = "What is wrong, with `{{placeholders}}` from Detection.values"
prescription = "What to do."
what = """
What the rule looks for, and what it leaves alone.
"""
why = """
Why that matters, with a figure.
"""
fix_safety = "None: say why, or say when a fix is safe."

[[case]]
bad = \'\'\'
from torch import softmax
\'\'\'

[[case]]
ok = \'\'\'
import torch
\'\'\'
'''


def explain(code: str | None, form: str) -> int:
    """Print one rule, or the list of all; gives the exit status."""
    rules = registry().rules
    if code is None:
        click.echo(json.dumps([_object(rule) for rule in rules.values()], indent=2) if form == "json" else _list(rules))
        return 0
    wanted = code.upper()
    by_name = {rule.name: rule for rule in rules.values()}
    rule = rules.get(wanted) or by_name.get(code.lower())
    if rule is None:
        near = difflib.get_close_matches(wanted, rules, 1, 0.5) or difflib.get_close_matches(
            code.lower(), by_name, 1, 0.5
        )
        hint = f"; did you mean {near[0]}?" if near else ""
        click.echo(f"error: There is no rule {code}{hint}", err=True)
        return 2
    click.echo(json.dumps(_object(rule), indent=2) if form == "json" else _page(rule))
    return 0


def _object(rule: Rule) -> dict[str, Any]:
    return {**asdict(rule), "fix": rule.fix}


def _list(rules: dict[str, Rule]) -> str:
    width = max((len(rule.name) for rule in rules.values()), default=0)
    lines = []
    for rule in rules.values():
        marks = [word for word, on in (("preview", rule.preview), ("measured", rule.stage == "measured")) if on]
        line = f"{rule.code}  {rule.name:<{width}}  {rule.severity:<7}  fix: {rule.fix:<6}  {' '.join(marks)}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def _page(rule: Rule) -> str:
    """The page as Markdown, wrapped."""
    parts = [f"# {rule.code} {rule.name}", f"Severity: {rule.severity}. Fix: {rule.fix}."]
    if rule.preview:
        parts.append("This rule is in preview: it is used only with --preview.")
    for title, text in (
        ("What it does", rule.what),
        ("Why", rule.why),
        ("What to do", rule.prescription),
        ("Fix safety", rule.fix_safety),
    ):
        if text:
            parts += [f"## {title}", _wrap(text)]
        if title == "What to do":
            parts += [_way(way) for way in rule.ways]
    for case in rule.cases:
        if case.bad:
            parts += ["## Example" + (f": {case.note}" if case.note else ""), _code(case.bad)]
            if case.fixed:
                parts += ["Use instead:", _code(case.fixed)]
    for case in rule.cases:
        if case.ok:
            parts += ["## Not reported" + (f": {case.note}" if case.note else ""), _code(case.ok)]
    if rule.references:
        parts += ["## References", "\n".join(f"- {reference}" for reference in rule.references)]
    return "\n\n".join(parts)


def _way(way: Way) -> str:
    """What to do in one kind of case, with the code that shows it."""
    text = f"### {way.key.replace('-', ' ').capitalize()}\n\n{_wrap(way.text)}"
    return f"{text}\n\n{_code(way.code)}" if way.code else text


def _code(text: str) -> str:
    return f"```python\n{text.strip()}\n```"


def _wrap(text: str) -> str:
    paragraphs = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    return "\n\n".join(textwrap.fill(p, 100, break_long_words=False, break_on_hyphens=False) for p in paragraphs)


def new_rule(code: str | None, name: str, folder: str) -> int:
    """Write the scaffold of a page; an existing file is never overwritten. Gives the exit status."""
    if not code or not CODE.match(code):
        click.echo(
            "error: --new needs a code of capital letters and at least three digits, e.g. --new my-rule XYZ101",
            err=True,
        )
        return 2
    if code in registry().rules:
        click.echo(f"error: the code {code} is taken by {registry().rules[code].name}", err=True)
        return 2
    path = Path(folder, f"{code}-{name}.toml")
    text = SCAFFOLD.format(code=code, name=name, package="my_package.detectors", function=name.replace("-", "_"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        click.echo(f"error: {path}: {error.strerror}", err=True)
        return 2
    click.echo(f"Wrote {path}. Its package announces it under the entry point group `attn_advisor.rules`.")
    return 0
