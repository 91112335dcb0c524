"""All rules there are: the pages shipped with the package and those of plug-ins."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from attn_advisor.findings import Detection
from attn_advisor.rules.page import PageError, Rule, read_page

ENTRY_POINTS = "attn_advisor.rules"
Detector = Callable[[Any], Iterable[Detection]]


@dataclass(frozen=True)
class Registry:
    """Rules by code, in the order of their codes."""

    rules: dict[str, Rule]

    @property
    def codes(self) -> list[str]:
        return list(self.rules)

    def detectors(self, codes: Iterable[str]) -> dict[str, tuple[bytes, ...]]:
        """Detectors that the static rules among `codes` need, each with the byte strings that lead to it.

        A detector that serves several rules runs once; a rule without `search` makes it run on every file.
        """
        found: dict[str, set[str]] = {}
        for code in codes:
            rule = self.rules[code]
            if rule.detector and rule.stage == "static":
                found.setdefault(rule.detector, set()).update(rule.search or ("",))
        return {name: tuple(sorted(text.encode() for text in search)) for name, search in found.items()}


def shipped_pages() -> Path:
    """Folder of the package's own pages: inside the wheel, or at the top of a checkout."""
    inside = Path(__file__).with_name("pages")
    return inside if inside.is_dir() else Path(__file__).parents[2] / "rules"


def load_pages(folders: Iterable[Path]) -> Registry:
    """The rules of all `*.toml` pages in these folders. Raises PageError."""
    rules: dict[str, Rule] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.toml")):
            rule = read_page(path)
            if rule.code in rules:
                raise PageError(f"{path}: the code {rule.code} is taken by the rule {rules[rule.code].name}")
            rules[rule.code] = rule
    return Registry(dict(sorted(rules.items())))


@lru_cache(maxsize=1)
def registry() -> Registry:
    """All rules: the shipped pages, then those of installed plug-ins. Raises PageError."""
    return load_pages([shipped_pages(), *plugin_folders()])


def plugin_folders() -> list[Path]:
    """Folders of pages that installed packages announce under the entry point group `attn_advisor.rules`.

    An entry point names a package that holds pages, or a function that returns the folder.
    """
    from importlib.metadata import entry_points

    folders = []
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            found = entry.load()
            folder = Path(_package_folder(found) if isinstance(found, ModuleType) else found())
        except Exception as error:
            raise PageError(f"plug-in {entry.name} ({entry.value}): {type(error).__name__}: {error}") from error
        if not folder.is_dir():
            raise PageError(f"plug-in {entry.name} ({entry.value}): {folder} is not a folder")
        folders.append(folder)
    return folders


def _package_folder(module: ModuleType) -> str:
    paths = getattr(module, "__path__", None)
    if not paths:
        raise TypeError("names a module, not a package with rule pages or a function")
    return next(iter(paths))


@cache
def detector(name: str) -> Detector:
    """The function behind `module:function`. Raises PageError."""
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise PageError(f"detector {name!r}: {error}") from error
