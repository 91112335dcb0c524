"""Running a user's file as a module: with its own package around it, and without what is not installed.

Runs in the worker only. What cannot be imported becomes a placeholder that raises when it is used, so that an attention which
does not need the missing package can still be measured.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class MissingPackage(ImportError):
    """Something from a package that could not be imported was used."""


class Placeholder:
    """Stands for a name that could not be imported: harmless as decorator, base class or annotation, an error in arithmetic."""

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def __getattr__(self, name: str) -> Placeholder:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Placeholder(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and isinstance(args[0], (type, types.FunctionType)):
            return args[0]  # used as a decorator
        return Placeholder(f"{self._name}()")

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        import torch

        return () if any(isinstance(b, type) for b in bases) else (torch.nn.Module,)

    def __getitem__(self, key: Any) -> Placeholder:
        return self

    def __or__(self, other: Any) -> Any:
        return Any

    __ror__ = __or__

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __bool__(self) -> bool:
        return False

    def _fail(self, *args: Any) -> Any:
        raise MissingPackage(f"{self._name} could not be imported")

    __add__ = __radd__ = __mul__ = __rmul__ = __sub__ = __rsub__ = __truediv__ = __matmul__ = __int__ = __float__ = (
        _fail  # type: ignore[assignment]
    )


class _Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Last finder on sys.meta_path: packages that nobody else finds become modules of placeholders."""

    def __init__(self) -> None:
        self.missing: list[str] = []

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        root = fullname.partition(".")[0]
        if root in sys.stdlib_module_names or root in ("torch", "numpy"):
            return None
        if fullname not in self.missing:
            self.missing.append(fullname)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: _attribute(spec.name, name)  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


def _attribute(module: str, name: str) -> Any:
    if name == "__version__":
        return "0.0.0"
    if name.startswith("__") and name.endswith("__"):
        raise AttributeError(name)
    return Placeholder(f"{module}.{name}")


@dataclass
class Loaded:
    """A module's names, and what could not be imported or run."""

    namespace: dict[str, Any]
    name: str
    missing: list[str] = field(default_factory=list)


def package_of(path: Path) -> tuple[Path, str]:
    """The folder to put on sys.path and the dotted module name, from the `__init__.py` files around the path."""
    parts, folder = [path.stem] if path.stem != "__init__" else [], path.parent
    while (folder / "__init__.py").exists():
        parts.append(folder.name)
        folder = folder.parent
    return folder, ".".join(reversed(parts)) or path.stem


@contextmanager
def _search_path(*folders: Path) -> Iterator[None]:
    added = [str(f) for f in folders if str(f) not in sys.path]
    sys.path[:0] = added
    try:
        yield
    finally:
        for folder in added:
            sys.path.remove(folder)


def load(tree: ast.Module, path: Path, root: Path | None, suffix: str, names: dict[str, Any] | None = None) -> Loaded:
    """Run the file's statements under its own package as `<module>__<suffix>`, with `names` already defined.

    First as Python would; if that fails, again statement by statement, with placeholders for what cannot be imported.
    Raises nothing of the user's: statements that fail are named in `missing`.
    """
    folder, name = package_of(path)
    package = name.rpartition(".")[0]
    roots = [folder, *([root, root / "src"] if root else [])]
    with _search_path(*roots):
        try:
            if package:
                importlib.import_module(package)
            return Loaded(_run(tree, path, f"{name}__{suffix}", package, names or {}), f"{name}__{suffix}")
        except (Exception, SystemExit):
            return _lenient(tree, path, name, package, suffix, folder, names or {})


def _module(path: Path, name: str, package: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__file__ = str(path)
    module.__package__ = package
    module.__dict__["__builtins__"] = builtins
    sys.modules[name] = module  # dataclasses and pickling look the module up by its name
    return module


def _run(tree: ast.Module, path: Path, name: str, package: str, names: dict[str, Any]) -> dict[str, Any]:
    module = _module(path, name, package)
    module.__dict__.update(names)
    exec(compile(tree, str(path), "exec"), module.__dict__)
    return module.__dict__


def _lenient(
    tree: ast.Module, path: Path, name: str, package: str, suffix: str, folder: Path, names: dict[str, Any]
) -> Loaded:
    """Statement by statement. The parent packages exist with their `__path__` but their `__init__` is not run."""
    parts = package.split(".") if package else []
    for depth in range(1, len(parts) + 1):
        parent = ".".join(parts[:depth])
        if parent not in sys.modules:
            sys.modules[parent] = module = types.ModuleType(parent)
            module.__path__ = [str(folder.joinpath(*parts[:depth]))]
    stubs = _Stubs()
    full = f"{name}__{suffix}"
    namespace = _module(path, full, package).__dict__
    namespace.update(names)
    loaded = Loaded(namespace, full)
    sys.meta_path.append(stubs)
    try:
        for statement in tree.body:
            _step(statement, path, namespace, loaded)
    finally:
        sys.meta_path.remove(stubs)
    loaded.missing = [*dict.fromkeys(m.partition(".")[0] for m in stubs.missing), *loaded.missing]
    return loaded


def _step(statement: ast.stmt, path: Path, namespace: dict[str, Any], loaded: Loaded) -> None:
    try:
        exec(compile(ast.Module([statement], []), str(path), "exec"), namespace)
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        loaded.missing.append(f"line {statement.lineno} ({reason.splitlines()[0][:120]})")
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            for alias in statement.names:
                _import_one(statement, alias, path, namespace)
        elif isinstance(statement, (ast.If, ast.Try)):
            for inner in statement.body:  # a guarded import or definition: take what works
                _step(inner, path, namespace, loaded)
        elif isinstance(statement, (ast.FunctionDef, ast.ClassDef)) and statement.decorator_list:
            bare = type(statement)(**{**{f: getattr(statement, f) for f in statement._fields}, "decorator_list": []})
            _step(ast.copy_location(bare, statement), path, namespace, loaded)


def _import_one(
    statement: ast.Import | ast.ImportFrom, alias: ast.alias, path: Path, namespace: dict[str, Any]
) -> None:
    """One name of a failed import: itself if it can be had alone, else a placeholder."""
    if isinstance(statement, ast.Import):
        single: ast.stmt = ast.Import([alias])
    else:
        single = ast.ImportFrom(statement.module, [alias], statement.level)
    try:
        exec(compile(ast.Module([ast.copy_location(single, statement)], []), str(path), "exec"), namespace)
    except (Exception, SystemExit):
        if alias.name != "*":
            source = getattr(statement, "module", None) or ""
            bound = alias.asname or (alias.name.partition(".")[0] if not source else alias.name)
            namespace.setdefault(bound, Placeholder(f"{source}.{alias.name}".lstrip(".")))
