"""The cache: findings of files that have not changed, under the same settings and the same version of the tool.

A finding may rest on other files (base classes, helpers). The places where such files were looked for are kept with their time and
size; when one of them changes, the files that were analysed are analysed again, those only checked for syntax are not.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import attn_advisor
from attn_advisor.findings import Edit, Finding, Fix
from attn_advisor.pipeline import FileResult
from attn_advisor.rules.registry import registry
from attn_advisor.settings import CACHE_NAME, Settings

IGNORE_ALL = "# Written by attn-advisor.\n*\n"


@lru_cache(maxsize=1)
def tool_state() -> str:
    """Changes whenever the tool could answer differently: its own files, the rules, the detectors of plug-ins, Python."""
    package = Path(attn_advisor.__file__).parent
    paths = [*package.rglob("*.py"), *package.rglob("*.json")]
    for rule in registry().rules.values():
        module = rule.detector.partition(":")[0]
        if module and not module.startswith("attn_advisor."):
            spec = importlib.util.find_spec(module)
            paths += [Path(spec.origin)] if spec and spec.origin else []
    state = [attn_advisor.__version__, sys.version, repr(registry().rules), *map(str, map(stamp, sorted(paths)))]
    return hashlib.sha256("\n".join(state).encode()).hexdigest()


def stamp(path: Path) -> list[int] | None:
    """Time and size of a file, None if it is absent."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return [status.st_mtime_ns, status.st_size]


def _stem_stamp(stem: str) -> list[list[int] | None]:
    return [stamp(Path(stem + ".py")), stamp(Path(stem, "__init__.py"))]


class Cache:
    """What is known of the files under one Settings. Nothing here raises: a cache that fails is an empty one."""

    def __init__(self, settings: Settings) -> None:
        self.root = settings.root
        self.folder = settings.cache_dir or settings.root / CACHE_NAME
        parts = (
            str(settings.root),
            sorted(settings.enabled),
            settings.per_file_ignores,
            settings.ignore_noqa,
            settings.target_torch,
            tool_state(),
        )
        self.path = self.folder / f"{hashlib.sha256(repr(parts).encode()).hexdigest()[:24]}.json"
        self.files: dict[str, list[Any]] = {}  # by path: digest, whether analysed, findings
        self.consulted: dict[str, list[list[int] | None]] = {}
        self.changed = False
        self._load()

    def _load(self) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            table = json.loads(self.path.read_text(encoding="utf-8"))
            files, consulted = dict(table["files"]), dict(table["consulted"])
            if any(_stem_stamp(stem) != known for stem, known in consulted.items()):
                files = {path: entry for path, entry in files.items() if not entry[1]}
                consulted = {}
            self.files, self.consulted = files, consulted

    def get(self, path: str, data: bytes) -> list[Finding] | None:
        """The findings of a file with these bytes, if they are known."""
        entry = self.files.get(path)
        if entry is None or entry[0] != digest(data):
            return None
        try:
            return [_finding(values) for values in entry[2]]
        except (TypeError, KeyError, AttributeError):
            return None

    def put(self, result: FileResult, data: bytes) -> None:
        """Remember what came of a file that had these bytes; of one that was rewritten, only where it looked."""
        for stem in result.consulted:
            self.consulted[stem] = _stem_stamp(stem)
        if not result.errors and result.fixed_text is None:
            self.files[result.path] = [digest(data), result.analysed, [asdict(found) for found in result.findings]]
        self.changed = True

    def save(self) -> None:
        """Write the cache in one step; where that is not possible there is none."""
        if not self.changed:
            return
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            ignore = self.folder / ".gitignore"
            if not ignore.exists():
                ignore.write_text(IGNORE_ALL)
            handle, temporary = tempfile.mkstemp(dir=self.folder, suffix=".tmp")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"consulted": self.consulted, "files": self.files}, file, default=str)
            os.replace(temporary, self.path)


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _finding(values: dict[str, Any]) -> Finding:
    fix = values["fix"]
    if fix is not None:
        fix = Fix(fix["applicability"], fix["message"], tuple(Edit(**edit) for edit in fix["edits"]))
    return Finding(**{**values, "fix": fix})


def caches(settings: Iterable[Settings]) -> dict[int, Cache]:
    """A cache for each Settings object, by its id."""
    return {id(one): Cache(one) for one in {id(one): one for one in settings}.values()}
