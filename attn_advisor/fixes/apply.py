"""Applying fixes to a text: conflicts are left for the next pass, passes repeat until nothing changes."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from attn_advisor.findings import Edit, Finding, Fix

MAX_PASSES = 50


class BadFix(Exception):
    """A fix that would break the file; the text from before it is kept."""


@dataclass
class Fixed:
    """What repeated fixing came to. `error` is set where a fix had to be taken back."""

    text: str
    fixed: list[Finding] = field(default_factory=list)
    remaining: list[Finding] = field(default_factory=list)
    error: str = ""


def apply(text: str, fixes: Sequence[Fix]) -> tuple[str, list[Fix]]:
    """The text with the fixes made that do not touch one another, and those fixes.

    The fix that starts first goes first. An edit that several fixes share, such as an import, is made once.
    """
    made: set[Edit] = set()
    applied: list[Fix] = []
    for fix in sorted(fixes, key=lambda fix: (min(fix.edits), len(fix.edits)) if fix.edits else (Edit(0, 0, ""), 0)):
        new = [edit for edit in fix.edits if edit not in made]
        if not new or any(_conflict(edit, other) for edit in new for other in made):
            continue
        for number, edit in enumerate(new):
            if any(_conflict(edit, other) for other in new[:number]) or not 0 <= edit.start <= edit.end <= len(text):
                raise BadFix(f"edits of the fix {fix.message!r} overlap or lie outside the file")
        made.update(new)
        applied.append(fix)
    pieces, at = [], 0
    for edit in sorted(made):
        pieces += [text[at : edit.start], edit.content]
        at = edit.end
    return "".join([*pieces, text[at:]]), applied


def _conflict(one: Edit, other: Edit) -> bool:
    """Whether two different edits touch the same text, or insert at one place, where the order would be a guess.

    Text inserted where a replaced piece starts goes in front of it.
    """
    if one.start == other.start:
        return (one.start == one.end) == (other.start == other.end)
    first, second = (one, other) if one.start < other.start else (other, one)
    return second.start < first.end


def wanted(finding: Finding, unsafe: bool) -> bool:
    return finding.fix is not None and (unsafe or finding.fix.applicability == "safe")


def until_stable(text: str, find: Callable[[str], list[Finding]], unsafe: bool) -> Fixed:
    """Fix, look again, and so on until no wanted fix is left. Every step must leave a text that parses."""
    result = Fixed(text)
    for _ in range(MAX_PASSES):
        result.remaining = find(result.text)
        todo = [finding for finding in result.remaining if wanted(finding, unsafe)]
        if not todo:
            return result
        try:
            new, applied = apply(result.text, [finding.fix for finding in todo if finding.fix])
            if new == result.text:
                return result
            _check(new, applied)
        except BadFix as error:
            result.error = str(error)
            return result
        made = {id(fix) for fix in applied}
        result.fixed += [finding for finding in todo if id(finding.fix) in made]
        result.text = new
    result.remaining = find(result.text)
    result.error = f"fixes still change the file after {MAX_PASSES} passes"
    return result


def _check(text: str, applied: Sequence[Fix]) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        messages = "; ".join(dict.fromkeys(fix.message for fix in applied))
        raise BadFix(f"a fix makes code that does not parse ({error}) and was not made: {messages}") from error
