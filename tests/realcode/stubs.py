"""Stand-ins for the third-party packages that model files import but that attention does not need.

A stand-in takes any use made of it while a module is loaded: attribute, call, decorator, base class, subscript, iteration.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import types
from collections.abc import Iterator, Sequence
from typing import Any

STUBBED = frozenset({
    "PIL", "accelerate", "bitsandbytes", "boto3", "botocore", "datasets", "fsspec", "ftfy", "horovod",
    "huggingface_hub", "jsonargparse", "labml", "labml_helpers", "lightning", "lightning_utilities", "matplotlib",
    "psutil", "regex", "requests", "safetensors", "sentencepiece", "tokenizers", "torchaudio", "torchtext", "torchvision",
    "tqdm", "wandb", "yaml",
})  # fmt: skip


class Anything(type):
    """Metaclass of the stand-ins: the classes themselves are the values, so that they also serve as bases."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(f"{cls.__qualname__}.{name}")

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if not cls.__dict__.get("_stand_in"):
            return super().__call__(*args, **kwargs)  # a class of the package that derives from a stand-in
        if len(args) == 1 and not kwargs and isinstance(args[0], (types.FunctionType, type)):
            return args[0]  # used as a decorator
        return stand_in(f"{cls.__qualname__}()")

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __enter__(cls) -> Any:
        return cls

    def __exit__(cls, *error: Any) -> None:
        return None

    def __or__(cls, other: Any) -> Any:
        return cls

    def __bool__(cls) -> bool:
        return False


def stand_in(name: str) -> Anything:
    body = {"_stand_in": True, "__qualname__": name, "__module__": __name__, "__init__": lambda self, *a, **k: None}
    return Anything(name, (), body)


class StubModule(types.ModuleType):
    __version__ = "0.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.endswith(("Error", "Exception", "Warning")):
            value: Any = type(name, (Exception,), {})  # so that `except` clauses accept it
        else:
            value = stand_in(name)
        setattr(self, name, value)
        return value


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves the stubbed packages and every submodule of theirs, whether the real ones are installed or not."""

    def __init__(self, packages: frozenset[str]) -> None:
        self.packages = packages

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self.packages:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StubModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return None
