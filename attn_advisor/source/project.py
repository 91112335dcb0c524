"""Finding the other files of a project that a file's names come from."""

from __future__ import annotations

import re
import tokenize
from collections.abc import KeysView
from pathlib import Path
from typing import TYPE_CHECKING

from attn_advisor.source.text import SourceText

if TYPE_CHECKING:
    from attn_advisor.source.module import Module

_MARKERS = ("pyproject.toml", "setup.py", "setup.cfg", ".git", ".hg")
_HOOK = re.compile(rb"(\w+)\s*\.register_forward(?:_pre)?_hook\b")
_CLASS = re.compile(rb"^class[ \t]+([A-Za-z_]\w*)", re.MULTILINE)
_MOST_FILES = 3000
_LARGEST = 2_000_000  # bytes; larger files are data in disguise


class Project:
    """Files under one root. Modules are parsed once, on demand; a file that cannot be read or parsed is as if absent."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root
        self._modules: dict[Path, Module | None] = {}
        self._exists: dict[Path, Path | None] = {}
        self._sources: dict[Path, dict[Path, bytes]] = {}
        self._holding: dict[tuple[int, bytes], dict[Path, bytes]] = {}
        self._plain: dict[Path, frozenset[str]] = {}
        self._resolved: dict[tuple[Path, str, int], Path | None] = {}

    @staticmethod
    def find_root(path: Path) -> Path:
        """The nearest folder above `path` that holds a project marker, else the topmost package's parent."""
        start = path.parent if path.suffix else path
        for folder in (start, *start.parents):
            if any((folder / marker).exists() for marker in _MARKERS):
                return folder
        return package_parent(path)

    def module(self, path: Path) -> Module | None:
        """The parsed file, or None."""
        if path not in self._modules:
            self._modules[path] = None  # a cycle of imports sees nothing
            self._modules[path] = self._read(path)
        return self._modules[path]

    @property
    def consulted(self) -> KeysView[Path]:
        """Where modules were looked for so far (paths without suffix), in order, whether or not there was one."""
        return self._exists.keys()

    def add(self, path: Path, module: Module) -> None:
        self._modules[path] = module

    def _read(self, path: Path) -> Module | None:
        from attn_advisor.source.module import Module

        try:
            if path.stat().st_size > _LARGEST:
                return None
            with tokenize.open(path) as file:
                text = file.read()
            module = Module(SourceText(text, str(path)), self)
            module.tree  # noqa: B018 - parse now, so that errors surface here
            return module
        except (OSError, SyntaxError, UnicodeDecodeError, ValueError, RecursionError):
            return None

    def resolve(self, importer: Path, dotted: str, level: int = 0) -> Path | None:
        """The file of module `dotted` as imported by `importer` (`level` leading dots), inside the project."""
        key = (importer.parent, dotted, level)
        if key not in self._resolved:
            self._resolved[key] = self._resolve(importer, dotted, level)
        return self._resolved[key]

    def _resolve(self, importer: Path, dotted: str, level: int) -> Path | None:
        parts = [p for p in dotted.split(".") if p]
        if level:
            base = importer.parent
            for _ in range(level - 1):
                base = base.parent
            return self._file(base.joinpath(*parts))
        if not parts or parts[0] in ("torch", "numpy", "math", "typing", "einops"):
            return None
        for base in dict.fromkeys(
            [package_parent(importer), *([self.root, self.root / "src"] if self.root else []), importer.parent]
        ):
            found = self._file(base.joinpath(*parts))
            if found:
                return found
        return None

    def package_sources(self, path: Path) -> dict[Path, bytes]:
        """The files of the topmost package `path` belongs to (of its folder, where that is no package), `path` itself included."""
        folder = path.parent
        while (folder.parent / "__init__.py").is_file() and folder != folder.parent:
            folder = folder.parent
        if folder not in self._sources:
            pattern = "**/*.py" if (folder / "__init__.py").is_file() else "*.py"
            found: dict[Path, bytes] = {}
            for file in sorted(folder.glob(pattern))[:_MOST_FILES]:
                try:
                    if file.stat().st_size <= _LARGEST:
                        found[file] = file.read_bytes()
                except OSError:
                    continue
                self._exists.setdefault(file.with_suffix(""), file)
            self._sources[folder] = found
        return self._sources[folder]

    def sources_with(self, path: Path, word: bytes) -> dict[Path, bytes]:
        """Those of `package_sources` that the word occurs in."""
        sources = self.package_sources(path)
        key = (id(sources), word)
        if key not in self._holding:
            self._holding[key] = {file: data for file, data in sources.items() if word in data}
        return self._holding[key]

    def classes_without(self, path: Path, pattern: re.Pattern[bytes]) -> frozenset[str]:
        """Names of the module-level classes of a file that the pattern does not occur in, as seen without parsing it; none of another file."""
        if path not in self._plain:
            try:
                data = path.read_bytes()
            except OSError:
                data = b""
            self._plain[path] = (
                frozenset() if pattern.search(data) else frozenset(map(bytes.decode, _CLASS.findall(data)))
            )
        return self._plain[path]

    def hooked(self, path: Path, cls: str, text: str) -> frozenset[str]:
        """Names of the attributes of class `cls` of file `path` that `text` (the file's own) or a file of the package registers forward hooks on.

        A file counts if it is the class's own, or imports the class from there.
        """
        hooking = self.sources_with(path, b".register_forward")
        names = {m.decode() for m in _HOOK.findall(text.encode())} if ".register_forward" in text else set()
        if not hooking:
            return frozenset(names)
        imported = re.compile(
            rb"from\s+[\w.]*\b" + path.stem.encode() + rb"\s+import\s+(?:\([^)]*|[^\n]*)\b" + cls.encode() + rb"\b"
        )
        for data in hooking.values():
            if imported.search(data):
                names |= {m.decode() for m in _HOOK.findall(data)}
        return frozenset(names)

    def _file(self, stem: Path) -> Path | None:
        if stem not in self._exists:
            module, package = stem.with_name(stem.name + ".py"), stem / "__init__.py"
            self._exists[stem] = module if module.is_file() else package if package.is_file() else None
        return self._exists[stem]


def package_parent(path: Path) -> Path:
    """The folder that holds the topmost package `path` belongs to."""
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        folder = folder.parent
    return folder
