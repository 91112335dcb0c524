"""Loads one version of a package beside another: each tree keeps its own modules, active only inside `with tree:`."""

from __future__ import annotations

import importlib
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path

from tests.realcode.stubs import STUBBED, StubFinder, StubModule


@dataclass
class Tree:
    """A folder that holds a package, and the modules loaded from it.

    `own`: the top-level names that belong to the tree. `bare` packages are entered without running their `__init__`, which would import hundreds of files;
    `attributes` are what other files read from such a package.
    """

    root: Path
    bare: dict[str, dict[str, object]] = field(default_factory=dict)
    hidden: dict[str, dict[str, object]] = field(default_factory=dict)  # modules replaced by an empty one
    own: frozenset[str] = frozenset()
    stubbed: frozenset[str] = STUBBED
    modules: dict[str, types.ModuleType] = field(default_factory=dict)
    outside: dict[str, types.ModuleType] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.finder = StubFinder(self.stubbed)
        self.tops = self.stubbed | self.own | {name.partition(".")[0] for name in self.bare}

    def owns(self, name: str) -> bool:
        return name.partition(".")[0] in self.tops

    def __enter__(self) -> Tree:
        self.outside = {name: sys.modules.pop(name) for name in list(sys.modules) if self.owns(name)}
        for name, attributes in [*self.bare.items(), *self.hidden.items()]:
            if name not in self.modules:
                module = StubModule(name) if name in self.bare else types.ModuleType(name)
                if name in self.bare:
                    module.__path__ = [str(self.root.joinpath(*name.split(".")))]
                module.__dict__.update(attributes)
                self.modules[name] = module
        sys.modules.update(self.modules)
        sys.meta_path.insert(0, self.finder)
        sys.path.insert(0, str(self.root))
        importlib.invalidate_caches()
        return self

    def __exit__(self, *error: object) -> None:
        sys.path.remove(str(self.root))
        sys.meta_path.remove(self.finder)
        self.modules = {name: sys.modules.pop(name) for name in list(sys.modules) if self.owns(name)}
        sys.modules.update(self.outside)

    def load(self, name: str) -> types.ModuleType:
        return importlib.import_module(name)
