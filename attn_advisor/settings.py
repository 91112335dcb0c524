"""Settings: defaults, then the nearest configuration file, then the command line.

A file is governed by the nearest folder above it that holds attn-advisor.toml or a pyproject.toml with a
`[tool.attn-advisor]` table; settings of folders further up are not merged in (as ruff does it).
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attn_advisor.rules.registry import registry
from attn_advisor.rules.selection import Layer, SelectionError, check_selectors, enabled

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONFIG_NAME = "attn-advisor.toml"
CACHE_NAME = ".attn_advisor_cache"
OUTPUT_FORMATS = ("full", "concise", "grouped", "json", "json-lines", "sarif", "github", "gitlab", "junit")
DEFAULT_EXCLUDE = (
    ".bzr", ".direnv", ".eggs", ".git", ".git-rewrite", ".hg", ".ipynb_checkpoints", ".mypy_cache", ".nox",
    ".pants.d", ".pyenv", ".pytest_cache", ".pytype", ".ruff_cache", ".svn", ".tox", ".venv", ".vscode",
    "__pypackages__", "_build", "buck-out", "dist", "node_modules", "site-packages", "venv",
)  # fmt: skip


class SettingsError(Exception):
    """A configuration that cannot be used; the text names the file, the key and the reason."""


@dataclass(frozen=True)
class Settings:
    """What governs one file. `root` is the folder that relative patterns start from."""

    root: Path
    enabled: frozenset[str]
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    exclude: tuple[str, ...] = DEFAULT_EXCLUDE
    respect_gitignore: bool = True
    force_exclude: bool = False
    preview: bool = False
    ignore_noqa: bool = False
    verify: bool = False
    target_torch: tuple[int, int] | None = None  # (major, minor); None is the newest
    fix: bool = False
    unsafe_fixes: bool = False
    fix_only: bool = False
    show_fixes: bool = False
    output_format: str = "full"
    cache_dir: Path | None = None
    profile: Mapping[str, Any] = field(default_factory=dict, hash=False)  # read by the command `profile`

    def codes_for(self, path: str) -> frozenset[str]:
        """Codes that are on for a file, after per-file-ignores. A pattern that starts with `!` names the files it is not for."""
        codes = self.enabled
        for pattern, selectors in self.per_file_ignores:
            negated = pattern.startswith("!")
            if matches(path, pattern.lstrip("!"), self.root) != negated:
                codes = frozenset(c for c in codes if not any(s == "ALL" or c.startswith(s) for s in selectors))
        return codes


@dataclass(frozen=True)
class Overrides:
    """What the command line says; None where it is silent."""

    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] | None = None
    exclude: tuple[str, ...] | None = None
    extend_exclude: tuple[str, ...] = ()
    target_torch: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)  # other fields of Settings
    config_file: Path | None = None
    inline: Mapping[str, Any] = field(default_factory=dict)  # `--config "KEY = VALUE"`, by key of the file
    isolated: bool = False


def matches(path: str, pattern: str, root: Path) -> bool:
    """Whether a pattern names this absolute path: by its last part, or by the whole path below `root`."""
    import fnmatch
    import os.path

    absolute = os.path.normpath(os.path.join(root, pattern))
    return fnmatch.fnmatchcase(os.path.basename(path), pattern) or fnmatch.fnmatchcase(path, absolute)


def _strings(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TypeError("must be a list of strings")
    return tuple(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("must be true or false")
    return value


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("must be a string")
    return value


def _format(value: Any) -> str:
    if value not in OUTPUT_FORMATS:
        raise TypeError(f"must be one of {', '.join(OUTPUT_FORMATS)}")
    return value


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("must be a table")
    return value


def _ignores(value: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((pattern, _strings(codes)) for pattern, codes in _table(value).items())


KEYS: dict[str, Callable[[Any], Any]] = {
    "select": _strings,
    "ignore": _strings,
    "extend-select": _strings,
    "per-file-ignores": _ignores,
    "exclude": _strings,
    "extend-exclude": _strings,
    "respect-gitignore": _boolean,
    "force-exclude": _boolean,
    "preview": _boolean,
    "torch-version": _string,
    "fix": _boolean,
    "unsafe-fixes": _boolean,
    "fix-only": _boolean,
    "show-fixes": _boolean,
    "output-format": _format,
    "cache-dir": _string,
    "profile": _table,
}


def read_table(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The checked values of a configuration table. Raises SettingsError for an unknown key, naming the nearest."""
    values = {}
    for key, value in table.items():
        if key not in KEYS:
            near = difflib.get_close_matches(key.replace("_", "-"), KEYS, 1, 0.4)
            hint = f"; did you mean `{near[0]}`?" if near else f"; known keys are {', '.join(KEYS)}"
            raise SettingsError(f"{where}: unknown key `{key}`{hint}")
        try:
            values[key] = KEYS[key](value)
        except TypeError as error:
            raise SettingsError(f"{where}: `{key}` {error}") from error
    return values


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file. Raises SettingsError with the file, the place and the reason."""
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(f"Cannot read {path}: {reason}") from error


def parse_torch(text: str, where: str) -> tuple[int, int]:
    """`2.1` or `2.1.0` as (2, 1). Raises SettingsError."""
    found = re.fullmatch(r"\s*v?(\d+)\.(\d+)(?:\.\d+)?(?:\+\w+)?\s*", text)
    if not found:
        raise SettingsError(f"{where}: {text!r} is not a torch version such as 2.1")
    return int(found[1]), int(found[2])


def torch_requirement(dependencies: Any) -> tuple[int, int] | None:
    """The lowest torch (major, minor) that a project's `dependencies` admit; None where they set no lower bound."""
    lowest: list[tuple[int, int]] = []
    for requirement in dependencies if isinstance(dependencies, list) else []:
        found = re.match(r"\s*torch\s*(?:\[[^\]]*\])?\s*\(?([^;@]*)", str(requirement))
        if not found or re.match(r"\s*torch[\w.-]", str(requirement)):
            continue
        bounds = re.findall(r"(?:>=|===?|~=|>)\s*v?(\d+)(?:\.(\d+))?", found[1])
        if bounds:
            lowest.append(max((int(major), int(minor or 0)) for major, minor in bounds))
    return min(lowest, default=None)


class Resolver:
    """Finds the settings of each folder, once."""

    def __init__(self, overrides: Overrides | None = None, cwd: Path | None = None) -> None:
        self.overrides = overrides or Overrides()
        self.cwd = cwd or Path.cwd()
        self._by_folder: dict[Path, Settings] = {}
        self._by_source: dict[tuple[Path, Path | None, tuple[int, int] | None], Settings] = {}
        self._tables: dict[Path, dict[str, Any]] = {}

    @property
    def top(self) -> Settings:
        """The settings of the working folder: they govern the output."""
        return self.for_folder(self.cwd)

    def for_folder(self, folder: Path) -> Settings:
        """Settings for the files in a folder (absolute). Raises SettingsError."""
        settings = self._by_folder.get(folder)
        if settings is None:
            given = self.overrides
            table, source, root = self._nearest(folder)
            target = None if given.isolated else self._project_torch(folder)
            key = (root, source, target)
            if key not in self._by_source:
                self._by_source[key] = self._build(table, source, root, target)
            settings = self._by_folder[folder] = self._by_source[key]
        return settings

    def _nearest(self, folder: Path) -> tuple[dict[str, Any], Path | None, Path]:
        """The configuration table that governs a folder, the file it stands in and the root of its patterns."""
        given = self.overrides
        if given.isolated:
            return {}, None, self.cwd
        if given.config_file is not None:
            table = self._toml(given.config_file)
            if given.config_file.name == "pyproject.toml":
                table = table.get("tool", {}).get("attn-advisor", {})
            return table, given.config_file, self.cwd
        for above in (folder, *folder.parents):
            own = above / CONFIG_NAME
            if own.is_file():
                return self._toml(own), own, above
            shared = above / "pyproject.toml"
            if shared.is_file():
                table = self._toml(shared).get("tool", {}).get("attn-advisor")
                if table is not None:
                    return table, shared, above
        return {}, None, self.cwd

    def _project_torch(self, folder: Path) -> tuple[int, int] | None:
        for above in (folder, *folder.parents):
            if (above / "pyproject.toml").is_file():
                project = self._toml(above / "pyproject.toml").get("project", {})
                return torch_requirement(project.get("dependencies") if isinstance(project, dict) else None)
        return None

    def _toml(self, path: Path) -> dict[str, Any]:
        if path not in self._tables:
            self._tables[path] = read_toml(path)
        return self._tables[path]

    def _build(self, table: Any, source: Path | None, root: Path, project_torch: tuple[int, int] | None) -> Settings:
        where = str(source) if source else "the default settings"
        if not isinstance(table, dict):
            raise SettingsError(f"{where}: `tool.attn-advisor` must be a table")
        given = self.overrides
        values = {**read_table(table, where), **read_table(given.inline, "--config")}
        rules = registry().rules
        layers = [
            Layer(values.get("select"), values.get("ignore", ()), values.get("extend-select", ()), where),
            Layer(given.select, given.ignore, given.extend_select, "the command line"),
        ]
        ignores = values.get("per-file-ignores", ()) if given.per_file_ignores is None else given.per_file_ignores
        codes = list(rules)
        try:
            for layer in layers:
                for key in ("select", "ignore", "extend_select"):
                    check_selectors(getattr(layer, key) or (), codes, f"`{key.replace('_', '-')}` of {layer.source}")
            for _, selectors in ignores:
                check_selectors(selectors, codes, f"`per-file-ignores` of {where}")
        except SelectionError as error:
            raise SettingsError(str(error)) from error
        preview = given.values.get("preview", values.get("preview", False))
        exclude = values.get("exclude", DEFAULT_EXCLUDE) if given.exclude is None else given.exclude
        target = project_torch
        if "torch-version" in values:
            target = parse_torch(values["torch-version"], where)
        if given.target_torch is not None:
            target = parse_torch(given.target_torch, "--target-torch")
        settings = Settings(
            root=root,
            enabled=enabled(rules, layers, preview),
            per_file_ignores=ignores,
            exclude=(*exclude, *values.get("extend-exclude", ()), *given.extend_exclude),
            target_torch=target,
            cache_dir=root / values["cache-dir"] if "cache-dir" in values else None,
            profile=values.get("profile", {}),
            **{
                key: values[name]
                for key in (
                    "respect_gitignore",
                    "force_exclude",
                    "fix",
                    "unsafe_fixes",
                    "fix_only",
                    "show_fixes",
                    "output_format",
                )
                if (name := key.replace("_", "-")) in values
            },
        )
        return replace(settings, **{**given.values, "preview": preview})
