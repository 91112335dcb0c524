"""Which functions can hold attention: those that reach a softmax and a product and in which the two can meet.

Asked of every function of a file, so it works on the text of functions, looked through once. It errs on the side of yes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from attn_advisor.dataflow.attributes import statements
from attn_advisor.source.module import Class, Function, Module, names_in

_SOFT = re.compile(r"[sS]oft_?[mM]ax|SOFTMAX")
_EXP = re.compile(r"exp(?<!\wexp)_?\b")
_PRODUCT = ("@", "matmul", "bmm", "einsum", "contract")
_MM = re.compile(r"mm(?<!\wmm)\b")
_EITHER = re.compile(f"{_SOFT.pattern}|{_EXP.pattern}|{'|'.join(_PRODUCT)}|{_MM.pattern}".encode())
_PRODUCT_CALL = re.compile(r" @ |(?:matmul|bmm_?|einsum|contract|\bmm)\s*\(")
_COMMENT = re.compile(r"\n[ \t]*#.*")
_WORD = re.compile(r"[A-Za-z_]\w*")
_OF_SELF = re.compile(r"self\.(\w+)")
_OF_SUPER = re.compile(r"super\([^()]*\)\.(\w+)")

Key = tuple[Module, Function, Class | None]
Meaning = Key | Class | ast.expr


@dataclass(frozen=True)
class Mentions:
    """What a function's own text names: softmaxes, products (and calls of them, counted), words, attributes of self and of super()."""

    soft: bool
    product: bool
    calls: int
    words: frozenset[str]
    of_self: frozenset[str]
    of_super: frozenset[str]


@dataclass
class Reach:
    """Whether softmaxes and products are mentioned, how many calls of products there are, and the project's functions that may be called."""

    soft: bool = False
    product: bool = False
    calls: int = 0
    callees: list[Key] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether a whole attention fits in: a site there is reported there, and not again for its callers."""
        return self.soft and self.calls >= 2

    def add(self, other: Reach) -> None:
        self.soft, self.product, self.calls = (
            self.soft or other.soft,
            self.product or other.product,
            self.calls + other.calls,
        )

    def include(self, value: ast.expr) -> frozenset[str]:
        """Take in the value of a constant or an attribute; the names in it."""
        names, soft, product = _in_value(value)
        self.soft, self.product = self.soft or soft, self.product or product
        return names


@dataclass
class Candidates:
    """Answers about the functions of one file and of those it calls."""

    module: Module
    _own: dict[tuple[int, int], Reach] = field(default_factory=dict)
    _reaches: dict[tuple[int, int], Reach] = field(default_factory=dict)
    _names: dict[int, dict[str, list[Meaning]]] = field(default_factory=dict)
    _globally: dict[int, frozenset[str]] = field(default_factory=dict)

    def may_hold(self, function: Function, cls: Class | None) -> bool:
        """Whether a softmax and a product may meet in the function: it has a product itself, or calls what has one and not a whole attention."""
        text = _in_text(self.module, function)
        if text.soft and text.product:
            return True
        if function.name == "__init__":  # makes modules and calls none
            return False
        own = self._mentioned((self.module, function, cls))
        callees = [r for r in map(self._reach, own.callees) if r.soft or r.product]
        soft, product = own.soft or any(r.soft for r in callees), own.product or any(r.product for r in callees)
        return soft and product and (own.product or any(r.product and not r.complete for r in callees))

    def _reach(self, root: Key) -> Reach:
        """What the function and all it calls, and so on, mention."""
        key = (id(root[1]), id(root[2]))
        if key not in self._reaches:
            found, seen, stack = Reach(), {key}, [root]
            while stack:
                own = self._mentioned(stack.pop())
                found.add(own)
                for callee in own.callees:
                    inner = (id(callee[1]), id(callee[2]))
                    if inner not in seen:
                        seen.add(inner)
                        if inner in self._reaches:
                            found.add(self._reaches[inner])
                        else:
                            stack.append(callee)
            self._reaches[key] = found
        return self._reaches[key]

    def _mentioned(self, of: Key) -> Reach:
        """What the function itself mentions, in its text and in the values of the attributes and constants it names."""
        module, function, cls = of
        key = (id(function), id(cls))
        if key not in self._own:
            text = _in_text(module, function)
            own = self._own[key] = Reach(text.soft, text.product, text.calls)
            self._named(own, module, text.words, text.words)
            if cls is not None:
                for name in text.of_self:
                    self._attribute(own, cls, name, text.words)
                for name in text.of_super:
                    own.callees += [(c.module, c.methods[name], cls) for c in cls.mro[1:] if name in c.methods]
        return self._own[key]

    def _named(self, own: Reach, module: Module, names: frozenset[str], words: frozenset[str], depth: int = 0) -> None:
        """Take in functions, classes and constants of the module, its own and imported ones, among the names."""
        known = self._names.setdefault(id(module), {})
        for name in names if module.star_imports else names & self._globals(module):
            if name not in known:
                known[name] = _meaning(module, name)
            for meaning in known[name]:
                if isinstance(meaning, Class):
                    own.callees += _instance(meaning, words)
                elif isinstance(meaning, tuple):
                    own.callees.append(meaning)
                elif depth < 2:
                    self._named(own, module, own.include(meaning), words, depth + 1)

    def _globals(self, module: Module) -> frozenset[str]:
        """Names of the module that may stand for something of the project."""
        if id(module) not in self._globally:
            self._globally[id(module)] = frozenset(
                {*module.functions, *module.classes, *module.constants, *module.imports}
            )
        return self._globally[id(module)]

    def _attribute(self, own: Reach, cls: Class, name: str, words: frozenset[str]) -> None:
        """Take in what `self.name` is: a method, or what the constructor or the class sets it to."""
        method = cls.lookup(name)
        if method is not None:
            own.callees.append((method[1].module, method[0], cls))
            return
        for owner in cls.mro:
            values = _held(owner).get(name)
            if values:
                for value in values:
                    self._named(own, owner.module, own.include(value), words)
                return


def _instance(cls: Class, words: frozenset[str]) -> Iterator[Key]:
    """Methods that may run where an instance of the class is called: `forward`, and those named there."""
    for owner in cls.mro:
        for name in owner.methods.keys() & words | owner.methods.keys() & {"forward", "__call__"}:
            if not name.startswith("__") or name == "__call__":
                yield owner.module, owner.methods[name], cls


def _held(cls: Class) -> dict[str, list[ast.expr]]:
    """Attributes that the constructor or the class body sets, and to what."""
    found = cls.__dict__.get("_held")
    if found is None:
        found = cls.__dict__["_held"] = {name: [value] for name, value in cls.constants.items()}
        for stmt in statements(cls.methods["__init__"]) if "__init__" in cls.methods else ():
            if isinstance(stmt, (ast.Assign, ast.AnnAssign)) and stmt.value is not None:
                for target in stmt.targets if isinstance(stmt, ast.Assign) else [stmt.target]:
                    if isinstance(target, ast.Attribute):
                        found.setdefault(target.attr, []).append(stmt.value)
    return found


def _meaning(module: Module, name: str) -> list[Meaning]:
    """What a module-level name may stand for."""
    if name in module.functions:
        return [(module, module.functions[name], None)]
    found: list[Meaning] = []
    if name in module.classes:
        found.append(module.classes[name])
    elif name in module.constants:
        found.append(module.constants[name])
    if not _only_a_class(module, name):
        imported = module.imported(name)
        if isinstance(imported, Class):
            found.append(imported)
        elif imported is not None and isinstance(imported[1], (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.append((imported[0], imported[1], None))
    return found


def _is_soft(text: str) -> bool:
    return (
        ("oft" in text or "SOFT" in text)
        and _SOFT.search(text) is not None
        or "exp" in text
        and _EXP.search(text) is not None
    )


def _is_product(text: str) -> bool:
    return any(word in text for word in _PRODUCT) or "mm" in text and _MM.search(text) is not None


def _in_value(value: ast.expr) -> tuple[frozenset[str], bool, bool]:
    """(names, mentions a softmax, mentions a product) of a value; kept with it."""
    found = value.__dict__.get("_mentions")
    if found is None:
        if isinstance(value, ast.Constant):
            found = frozenset(), False, False
        else:
            names = names_in(value).plain | names_in(value).attributes
            text = " ".join(names)
            found = names, _is_soft(text), _is_product(text)
        value.__dict__["_mentions"] = found
    return found


def _only_a_class(module: Module, name: str) -> bool:
    """Whether a name is imported and stands for a class from a file that mentions neither softmax nor product, as seen without parsing it (most configurations)."""
    imported = module.imports.get(name)
    path = (
        module.project.resolve(module.path, imported.module, imported.level)
        if imported is not None and imported.name
        else None
    )
    return imported is not None and path is not None and imported.name in module.project.classes_without(path, _EITHER)


def _in_text(module: Module, function: Function) -> Mentions:
    """The same for every file that asks: kept with the function."""
    found = function.__dict__.get("_mentions")
    if found is None:
        text = _text(module, function)
        words = frozenset(_WORD.findall(text))
        meant = " ".join([text, *(module.imports[n].qualified for n in words & module.imports.keys())])
        soft, product = _is_soft(meant), _is_product(meant)
        calls = len(_PRODUCT_CALL.findall(text)) if product else 0
        found = Mentions(
            soft, product, calls, words, frozenset(_OF_SELF.findall(text)), frozenset(_OF_SUPER.findall(text))
        )
        function.__dict__["_mentions"] = found
    return found


def _text(module: Module, function: Function) -> str:
    """The function's lines without its docstring and comment lines."""
    text, first = module.source.lines(function), function.body[0]
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and first.lineno > function.lineno
        and len(function.body) > 1
    ):
        text = text.replace(module.source.lines(first), "", 1)
    return _COMMENT.sub("", text) if "#" in text else text
