"""Loading source text as a module, beside other versions of the same file and with the package it came from."""

from __future__ import annotations

import importlib
import itertools
import linecache
import sys
import types
from pathlib import Path
from typing import Any

_numbers = itertools.count()


def package_of(path: Path) -> tuple[Path, str]:
    """(folder to import from, dotted name of the package the file is in, "" for none), judged by `__init__.py` files."""
    folder = path.resolve().parent
    parts: list[str] = []
    while (folder / "__init__.py").exists() and folder.parent != folder:
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts)


def load_source(text: str, path: Path | None = None) -> types.ModuleType:
    """Run the text as a module of its own. With a path, its imports work as they would in that file.

    Raises whatever the code raises. `unload` forgets the module.
    """
    package = ""
    if path is not None:
        root, package = package_of(path)
        for folder in (str(root), str(path.resolve().parent)):
            if folder not in sys.path:
                sys.path.append(folder)
        if package:
            importlib.import_module(package)
    stem = f"{path.stem if path else 'source'}_version{next(_numbers)}"
    module = types.ModuleType(f"{package}.{stem}" if package else stem)
    file = f"<{module.__name__}>"
    module.__file__ = str(path) if path else file
    if package:
        module.__package__ = package
    sys.modules[module.__name__] = module  # dataclasses and pickling look the module up
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)  # inspect.getsource and tracebacks
    try:
        exec(compile(text, file, "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        unload(module)
        raise
    return module


def unload(module: types.ModuleType) -> None:
    """Forget a module that `load_source` made."""
    sys.modules.pop(module.__name__, None)
    linecache.cache.pop(f"<{module.__name__}>", None)


def lookup(module: types.ModuleType, name: str) -> Any:
    """The object of a dotted name in the module; AttributeError if there is none."""
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part)
    return value
