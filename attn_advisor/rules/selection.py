"""Which rules are on: select and ignore by code or prefix, as ruff resolves them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attn_advisor.rules.page import Rule

ALL = "ALL"
UNREADABLE = "ATN000"
UNUSED_SUPPRESSION = "ATN001"


class SelectionError(ValueError):
    """A selector that names no rule."""


@dataclass(frozen=True)
class Layer:
    """Selectors from one source (a configuration file, or the command line).

    `select` replaces what earlier layers say; None leaves it.
    """

    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    source: str = ""


def check_selectors(selectors: Iterable[str], codes: Sequence[str], where: str) -> None:
    """Raises SelectionError for a selector that is no rule's code nor a prefix of one."""
    for selector in selectors:
        if selector == ALL or (selector and any(code.startswith(selector) for code in codes)):
            continue
        near = difflib.get_close_matches(selector.upper(), codes, 1, 0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise SelectionError(f"Unknown rule selector `{selector}` in {where}{hint}")


def enabled(rules: dict[str, Rule], layers: Sequence[Layer], preview: bool) -> frozenset[str]:
    """Codes that are on. In one layer the longer prefix wins; a later layer goes over an earlier one.

    ATN000 (a file that cannot be read) is on unless it is ignored by its full code, since silence there would look like health.
    """
    on = set(rules)
    for layer in layers:
        if layer.select is not None:
            on = set()
        choose = {
            **dict.fromkeys((*(layer.select or ()), *layer.extend_select), True),
            **dict.fromkeys(layer.ignore, False),
        }
        for selector in sorted(choose, key=_specificity):
            named = {code for code in rules if selector == ALL or code.startswith(selector)}
            on = on | named if choose[selector] else on - named
    if not any(UNREADABLE in layer.ignore for layer in layers):
        on.add(UNREADABLE)
    return frozenset(code for code in on if code in rules and (preview or not rules[code].preview))


def _specificity(selector: str) -> int:
    return -1 if selector == ALL else len(selector)
