"""One rule page: a TOML file that is a rule's documentation, its registration and its test cases."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from attn_advisor.findings import Detection, Finding, Severity

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CODE = re.compile(r"[A-Z]{2,}[0-9]{3,}\Z")
PLACEHOLDER = re.compile(r"\{(\w+)\}")
SEVERITIES = ("error", "warning", "info")
RELATIONS = ("equal", "differs", "bad-raises")
STAGES = ("static", "measured")


class PageError(Exception):
    """A page that cannot be used; the text says which and why."""


@dataclass(frozen=True)
class Case:
    """An example of a rule, executed by the tests: `bad` must be found, `ok` must not.

    `fixed` is what the fix makes of `bad`; `relation` says how the two compare when run: equal (same values and gradients),
    differs (the fix of a bug), bad-raises. `target_torch` is the torch the case is checked for, the newest when empty. `inputs` and `init` are
    what its last definition is run with, where the names of its parameters do not say it (rules/README.md).
    """

    bad: str = ""
    ok: str = ""
    fixed: str = ""
    relation: Literal["", "equal", "differs", "bad-raises"] = ""
    verdict: str = ""
    note: str = ""
    target_torch: str = ""
    inputs: str = ""
    init: str = ""


@dataclass(frozen=True)
class Way:
    """What to do in one kind of case: `text` in place of the rule's prescription where a detection names the key.

    `code` shows it working: it defines `by_hand` and `instead`, and asserts that both give the same. The tests run it.
    """

    key: str
    text: str
    code: str = ""


@dataclass(frozen=True)
class Rule:
    """A page, read. `search` holds the byte strings one of which a file must hold for the detector to find anything."""

    code: str
    name: str
    group: str
    severity: Severity
    message: str
    what: str
    why: str
    prescription: str = ""
    fix_safety: str = ""
    detector: str = ""
    search: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    preview: bool = False
    stage: Literal["static", "measured"] = "static"
    url: str = ""
    ways: tuple[Way, ...] = field(default=(), repr=False)
    cases: tuple[Case, ...] = field(default=(), repr=False)

    @property
    def fix(self) -> str:
        """What `--fix` may do, in a word, from the first word of the page's fix_safety."""
        word = self.fix_safety.split(maxsplit=1)[0].strip(".,:;").lower() if self.fix_safety else "none"
        return word if word in ("safe", "unsafe", "none") else "some"

    def advice(self, way: str) -> str:
        """What to do in the kind of case that a detection names, the rule's prescription in all others."""
        return next((known.text for known in self.ways if known.key == way), self.prescription)


def read_page(path: Path) -> Rule:
    """The rule on a page. Raises PageError with the file and the reason."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PageError(f"{path}: {error}") from error
    try:
        return _rule(table)
    except (TypeError, ValueError) as error:
        raise PageError(f"{path}: {error}") from error


def _rule(table: dict[str, Any]) -> Rule:
    values = dict(table)
    cases = tuple(_case(number, case) for number, case in enumerate(values.pop("case", []), 1))
    ways = tuple(_way(number, way) for number, way in enumerate(values.pop("way", []), 1))
    unknown = sorted(set(values) - set(Rule.__dataclass_fields__) | set(values) & {"ways", "cases"})
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}")
    missing = [key for key in ("code", "name", "group", "severity", "message", "what", "why") if not values.get(key)]
    if missing:
        raise ValueError(f"key {missing[0]!r} is missing")
    if not CODE.match(values["code"]):
        raise ValueError(f"code {values['code']!r} is not capital letters followed by at least three digits")
    if values["severity"] not in SEVERITIES:
        raise ValueError(f"severity {values['severity']!r} is none of {', '.join(SEVERITIES)}")
    if values.get("stage", "static") not in STAGES:
        raise ValueError(f"stage {values['stage']!r} is none of {', '.join(STAGES)}")
    for key in ("search", "references"):
        values[key] = tuple(values.get(key, ()))
    for key in ("what", "why", "fix_safety", "prescription", "message"):
        values[key] = values.get(key, "").strip()
    return Rule(**values, ways=ways, cases=cases)


def _way(number: int, table: dict[str, Any]) -> Way:
    unknown = sorted(set(table) - set(Way.__dataclass_fields__))
    if unknown:
        raise ValueError(f"way {number}: unknown key {unknown[0]!r}")
    missing = [key for key in ("key", "text") if not table.get(key)]
    if missing:
        raise ValueError(f"way {number}: key {missing[0]!r} is missing")
    return Way(table["key"], " ".join(table["text"].split()), table.get("code", ""))


def _case(number: int, table: dict[str, Any]) -> Case:
    unknown = sorted(set(table) - set(Case.__dataclass_fields__))
    if unknown:
        raise ValueError(f"case {number}: unknown key {unknown[0]!r}")
    case = Case(**table)
    if bool(case.bad) == bool(case.ok):
        raise ValueError(f"case {number}: needs either 'bad' or 'ok'")
    if case.relation not in ("", *RELATIONS):
        raise ValueError(f"case {number}: relation {case.relation!r} is none of {', '.join(RELATIONS)}")
    return case


def fill(template: str, values: dict[str, str]) -> str:
    """The template with its `{placeholders}` replaced; one without a value stays as it is."""
    return PLACEHOLDER.sub(lambda found: str(values.get(found[1], found[0])), template)


def finding(rule: Rule, detection: Detection) -> Finding:
    """The detection with its rule's texts."""
    values = {name: fact for name, fact in detection.facts.items() if isinstance(fact, str)} | detection.values
    return Finding(
        code=rule.code,
        name=rule.name,
        severity=detection.severity or rule.severity,
        message=fill(rule.message, values),
        start=detection.start,
        end=detection.end,
        function=detection.function,
        facts=detection.facts,
        blockers=detection.blockers,
        assumes=detection.assumes,
        prescription=fill(rule.advice(detection.way), values),
        fix=detection.fix,
        verdict=detection.verdict,
        url=rule.url,
    )
