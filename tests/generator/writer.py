"""The text of one generated module while it is put together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from attn_advisor.fixes.inputs import Spec
from tests.generator.choices import Choices

HEADS, HEAD_DIM, LONGEST = 2, 4, 16
DIM = HEADS * HEAD_DIM


class Writer:
    """Lines of `__init__` and of the body, parameters with their input specs, helpers, and the spellings the file keeps to."""

    def __init__(self, choices: Choices) -> None:
        self.c = choices
        self.imports: set[str] = set()
        self.init: list[str] = []
        self.body: list[str] = []
        self.indent = ""
        self.parameters: dict[str, tuple[Spec, str | None]] = {}  # name -> (input, default's text)
        self.methods: list[str] = []
        self.functions: list[str] = []
        self.traits: list[str] = []
        self.in_class = True
        self.attention = True
        self.functional = choices.often("functional", ["F", "nn.functional", "torch.nn.functional", "nnf"])
        self.names = choices.often(
            "names",
            [
                ("q", "k", "v"),
                ("query", "key", "value"),
                ("query_layer", "key_layer", "value_layer"),
                ("qs", "ks", "vs"),
            ],
            2,
        )
        self.scores = choices.pick("scores name", ["scores", "att", "dots", "w", "attn"])
        self.output = choices.pick("output name", ["out", "y", "x", "context"])
        self.rename = choices.flip("probabilities renamed", 2)

    def emit(self, *lines: str) -> None:
        self.body += [self.indent + line for line in lines]

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.emit(head)
        before, self.indent = self.indent, self.indent + "    "
        yield
        self.indent = before

    @contextmanager
    def elsewhere(self) -> Iterator[list[str]]:
        """Lines emitted inside go to the list instead of the body."""
        before, indent = self.body, self.indent
        self.body, self.indent = [], ""
        lines = self.body
        yield lines
        self.body, self.indent = before, indent

    def trait(self, text: str) -> None:
        self.traits.append(text)

    @property
    def f(self) -> str:
        """The name `torch.nn.functional` goes by."""
        if self.functional == "F":
            self.imports.add("import torch.nn.functional as F")
        elif self.functional == "nnf":
            self.imports.add("from torch.nn import functional as nnf")
        else:
            self.imports.add("from torch import nn" if self.functional == "nn.functional" else "import torch")
        return self.functional

    def math(self, name: str) -> str:
        if self.c.made.setdefault("math import", self.c._index("math import", 3)) == 2:
            self.imports.add(f"from math import {name}")
            return name
        self.imports.add("import math")
        return f"math.{name}"

    def text(self, name: str, signature: str, body: list[str]) -> str:
        """The whole file, with the class or function `name`."""
        self.imports.add("import torch")
        if self.in_class:
            self.imports.add("from torch import nn")
        parts = ["\n".join(sorted(self.imports, key=lambda line: (line.startswith("from"), line)))]
        parts += self.functions
        if self.in_class:
            methods = [_method("__init__(self, dim=8, heads=2, dropout=0.1)", ["super().__init__()", "self.heads = heads", "self.head_dim = dim // heads",
                                                                              *self.init])]  # fmt: skip
            methods += [*self.methods, _method(signature, body)]
            parts.append(f"class {name}(nn.Module):\n" + "\n".join(methods))
        else:
            parts.append(f"def {signature}:\n" + "\n".join("    " + line for line in body))
        return "\n\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _method(signature: str, body: list[str]) -> str:
    return f"    def {signature}:\n" + "\n".join("        " + line for line in body) + "\n"
