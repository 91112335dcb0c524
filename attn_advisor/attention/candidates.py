"""Which functions can hold attention: those that mention a softmax, themselves or through what they call.

Asked of every function of a file, so it works on the text of a function, looked through once.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from attn_advisor.source.module import Class, Function, Module

_SOFT = re.compile(r"softmax|\bexp_?\b", re.IGNORECASE)
_SELF = re.compile(r"\bself\.(\w+)")
_NAME = re.compile(r"(?<![.\w])[A-Za-z_]\w*")
_DEPTH = 4  # calls followed


@dataclass
class Mentions:
    """What a function's text names: a softmax, attributes of self, functions of the file, imported names."""

    soft: bool
    attributes: set[str]
    functions: set[str]
    imported: set[str]


@dataclass
class Candidates:
    """Answers about the functions of one file and of those it calls."""

    module: Module
    _mentions: dict[int, Mentions] = field(default_factory=dict)
    _reaches: dict[tuple[int, int, int], bool] = field(default_factory=dict)
    _attributes: dict[int, dict[str, ast.expr]] = field(default_factory=dict)
    _imports: dict[tuple[int, str], tuple[Module, Function] | None] = field(default_factory=dict)

    def may_hold(self, function: Function, cls: Class | None) -> bool:
        """Whether the function, or one of the project's it calls, mentions a softmax."""
        return self._reach(self.module, function, cls, 0)

    def _reach(self, module: Module, function: Function, cls: Class | None, depth: int) -> bool:
        key = (id(function), id(cls), depth)
        if key not in self._reaches:
            mentions = self._mentioned(module, function)
            self._reaches[key] = mentions.soft or (depth < _DEPTH and self._calls(module, mentions, cls, depth + 1))
        return self._reaches[key]

    def _calls(self, module: Module, mentions: Mentions, cls: Class | None, depth: int) -> bool:
        for name in mentions.functions:
            if self._reach(module, module.functions[name], None, depth):
                return True
        if cls is not None and any(self._attribute(cls, name, depth) for name in mentions.attributes):
            return True
        for name in mentions.imported:
            found = self._imported(module, name)
            if found is not None and self._reach(found[0], found[1], None, depth):
                return True
        return False

    def _attribute(self, cls: Class, name: str, depth: int) -> bool:
        """Whether `self.name` is a softmax, a method or a module that mentions one."""
        method = cls.lookup(name)
        if method is not None:
            return self._reach(method[1].module, method[0], cls, depth)
        for owner in cls.mro:
            value = self._set_by_init(owner).get(name)
            if value is None:
                continue
            if any("softmax" in (getattr(n, "attr", "") or getattr(n, "id", "")).lower() for n in ast.walk(value)):
                return True
            held = owner.module.find_class(value.func) if isinstance(value, ast.Call) else None
            forward = held.lookup("forward") if held is not None else None
            return forward is not None and self._reach(forward[1].module, forward[0], held, depth)
        return False

    def _set_by_init(self, cls: Class) -> dict[str, ast.expr]:
        """What the constructor assigns to attributes, by name."""
        if id(cls) not in self._attributes:
            table: dict[str, ast.expr] = {}
            init = cls.methods.get("__init__")
            for node in ast.walk(init) if init is not None else ():
                if isinstance(node, ast.Assign):
                    for target in node.targets:
                        if isinstance(target, ast.Attribute):
                            table.setdefault(target.attr, node.value)
            self._attributes[id(cls)] = table
        return self._attributes[id(cls)]

    def _imported(self, module: Module, name: str) -> tuple[Module, Function] | None:
        key = (id(module), name)
        if key not in self._imports:
            found = module.imported(name)
            known = isinstance(found, tuple) and isinstance(found[1], (ast.FunctionDef, ast.AsyncFunctionDef))
            self._imports[key] = found if known else None  # type: ignore[assignment]
        return self._imports[key]

    def _mentioned(self, module: Module, function: Function) -> Mentions:
        if id(function) not in self._mentions:
            starts = module.source.line_starts
            last = function.end_lineno or function.lineno
            end = starts[last] if last < len(starts) else len(module.source.text)
            text = module.source.text[starts[function.lineno - 1] : end]
            names = set(_NAME.findall(text))
            self._mentions[id(function)] = Mentions(
                soft=_SOFT.search(text) is not None or any(_SOFT.search(module.imports[n].qualified) for n in names & module.imports.keys()),
                attributes=set(_SELF.findall(text)),
                functions=names & module.functions.keys(),
                imported=(names & module.imports.keys()) - module.functions.keys(),
            )
        return self._mentions[id(function)]
