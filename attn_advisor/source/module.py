"""One parsed file: its definitions and what its module-level names mean."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from attn_advisor.source.project import Project
from attn_advisor.source.text import SourceText

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Imported:
    """What an import binds: `name` of `module` (name "" for the module itself), with `level` leading dots."""

    module: str
    name: str = ""
    level: int = 0

    @property
    def qualified(self) -> str:
        return "." * self.level + (
            f"{self.module}.{self.name}" if self.module and self.name else self.module or self.name
        )


@dataclass(eq=False)
class Class:
    """A class definition. `methods` and `constants` are its own; use `lookup` to see inherited ones."""

    module: Module
    node: ast.ClassDef
    qualname: str
    methods: dict[str, Function] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)

    @cached_property
    def bases(self) -> list[Class | str]:
        """Base classes: a Class where it is found in the project, else its qualified name."""
        found: list[Class | str] = []
        for base in self.node.bases:
            if isinstance(base, ast.Subscript):
                base = base.value
            found.append(self.module.find_class(base) or self.module.qualified(base) or ast.unparse(base))
        return found

    @cached_property
    def mro(self) -> list[Class]:
        """Itself and the known classes above it, nearest first."""
        order: list[Class] = []

        def visit(cls: Class, above: tuple[Class, ...]) -> None:
            if cls in order:
                order.remove(cls)  # a common base comes behind all that derive from it
            order.append(cls)
            for base in cls.bases if len(above) < 20 else ():
                if isinstance(base, Class) and base not in above:
                    visit(base, (*above, base))

        visit(self, (self,))
        return order

    @cached_property
    def closed(self) -> bool:
        """Whether every base is known: a class of the project, object, or torch.nn.Module."""
        return all(
            isinstance(b, Class)
            or b
            in (
                "object",
                "torch.nn.Module",
                "torch.nn.modules.module.Module",
                "abc.ABC",
                "typing.Generic",
                "Generic",
                "Protocol",
            )
            for c in self.mro
            for b in c.bases
        )

    def lookup(self, name: str) -> tuple[Function, Class] | None:
        """The method `name` resolves to, with the class that defines it."""
        for cls in self.mro:
            if name in cls.methods:
                return cls.methods[name], cls
        return None

    def constant(self, name: str) -> tuple[ast.expr, Class] | None:
        for cls in self.mro:
            if name in cls.constants:
                return cls.constants[name], cls
        return None

    def is_subclass(self, other: Class) -> bool:
        return other in self.mro

    def overridden(self, name: str) -> bool:
        """Whether a subclass in this file finds another method or constant by that name."""
        below = (c for c in self.module.classes.values() if c is not self and c.is_subclass(self))
        here = self.lookup(name) or self.constant(name) or (None,)
        return any((c.lookup(name) or c.constant(name) or (None,))[0] is not here[0] for c in below)


@dataclass(frozen=True)
class Names:
    """What a function mentions: plain names, attribute names, and those of them read off `self`."""

    plain: frozenset[str]
    attributes: frozenset[str]
    of_self: frozenset[str]


def nodes_in(node: ast.AST) -> list[ast.AST]:
    """All nodes of a definition, in the order of `ast.walk`; kept with the node."""
    found = node.__dict__.get("_nodes")
    if found is None:
        found = [node]
        for at in found:
            for field_name in at._fields:
                child = getattr(at, field_name, None)
                if isinstance(child, list):
                    found += [c for c in child if isinstance(c, ast.AST)]
                elif isinstance(child, ast.AST):
                    found.append(child)
        node.__dict__["_nodes"] = found = found[1:]  # without itself: no circle
    return found


def blocks(function: ast.AST) -> list[list[ast.stmt]]:
    """Every statement list of a function, outermost first."""
    found = []
    for node in (function, *nodes_in(function)):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                found.append(block)
    return found


def names_in(node: ast.AST) -> Names:
    """The names a definition mentions; kept with the node."""
    found = node.__dict__.get("_names")
    if found is None:
        plain: set[str] = set()
        attributes: set[str] = set()
        of_self: set[str] = set()
        stack: list[ast.AST] = [node]
        while stack:
            at = stack.pop()
            if isinstance(at, ast.Name):
                plain.add(at.id)
                continue
            if isinstance(at, ast.Attribute):
                attributes.add(at.attr)
                if isinstance(at.value, ast.Name) and at.value.id == "self":
                    of_self.add(at.attr)
                    continue
            for field_name in at._fields:
                child = getattr(at, field_name, None)
                if isinstance(child, list):
                    stack.extend(c for c in child if isinstance(c, ast.AST))
                elif isinstance(child, ast.AST):
                    stack.append(child)
        found = node.__dict__["_names"] = Names(frozenset(plain), frozenset(attributes), frozenset(of_self))
    return found


class Module:
    """One file. `tree` raises SyntaxError where the file cannot be parsed."""

    def __init__(
        self, source: SourceText, project: Project | None = None, target_torch: tuple[int, int] | None = None
    ) -> None:
        self.source = source
        self.path = Path(source.path)
        self.project = project or Project()
        self.target_torch = target_torch
        self._imported: dict[str, Class | tuple[Module, Function] | tuple[Module, ast.expr] | None] = {}

    @cached_property
    def tree(self) -> ast.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(self.source.text.removeprefix("\ufeff"))

    @cached_property
    def _top(self) -> list[ast.stmt]:
        """Module-level statements, those in `if` and `try` included."""
        found: list[ast.stmt] = []
        stack = list(reversed(self.tree.body))
        while stack:
            node = stack.pop()
            found.append(node)
            if isinstance(node, (ast.If, ast.Try, ast.With)):
                inner = [*node.body, *getattr(node, "orelse", []), *getattr(node, "finalbody", [])]
                for handler in getattr(node, "handlers", []):
                    inner += handler.body
                stack.extend(reversed(inner))
        return found

    @cached_property
    def imports(self) -> dict[str, Imported]:
        found: dict[str, Imported] = {}
        for node in self._top:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                found.update(import_bindings(node))
        return found

    @cached_property
    def star_imports(self) -> list[Imported]:
        return [
            Imported(node.module or "", "", node.level)
            for node in self._top
            if isinstance(node, ast.ImportFrom) and any(a.name == "*" for a in node.names)
        ]

    @cached_property
    def uses(self) -> dict[str, list[ast.Name]]:
        """Every mention of every plain name of the file."""
        found: dict[str, list[ast.Name]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name):
                found.setdefault(node.id, []).append(node)
        return found

    @cached_property
    def functions(self) -> dict[str, Function]:
        """Module-level functions by name; the last definition wins, as at run time."""
        return {n.name: n for n in self._top if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))}

    @cached_property
    def constants(self) -> dict[str, ast.expr]:
        """Module-level names bound once, to this expression."""
        found: dict[str, ast.expr] = {}
        seen: set[str] = set()
        for node in self._top:
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
                targets = [node.target]
            for target in targets:
                for name in (n for n in ast.walk(target) if isinstance(n, ast.Name)):
                    if name.id in seen:
                        found.pop(name.id, None)
                    elif name is target and isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                        found[name.id] = node.value
                    seen.add(name.id)
        return found

    @cached_property
    def classes(self) -> dict[str, Class]:
        """All classes by qualified name, nested ones and those inside functions too."""
        found: dict[str, Class] = {}
        stack: list[tuple[ast.AST, str]] = [(n, "") for n in reversed(self._top)]
        while stack:
            node, prefix = stack.pop()
            if isinstance(node, ast.ClassDef):
                cls = Class(self, node, prefix + node.name)
                found[cls.qualname] = cls
                for item in _class_body(node):
                    if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
                        cls.methods[item.name] = item
                    elif (
                        isinstance(item, ast.Assign)
                        and len(item.targets) == 1
                        and isinstance(item.targets[0], ast.Name)
                    ):
                        cls.constants[item.targets[0].id] = item.value
                    elif (
                        isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value is not None
                    ):
                        cls.constants[item.target.id] = item.value
                    elif isinstance(item, ast.ClassDef):
                        stack.append((item, cls.qualname + "."))
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                stack.extend(
                    (n, f"{prefix}{node.name}.<locals>.")
                    for n in reversed(node.body)
                    if isinstance(n, (ast.ClassDef, ast.If))
                )
            elif prefix and isinstance(node, ast.If):
                stack.extend((n, prefix) for n in reversed([*node.body, *node.orelse]))
        return found

    def all_functions(self) -> Iterator[tuple[str, Function, Class | None]]:
        """Every function: (qualified name, node, class it is a method of)."""
        for name, node in self.functions.items():
            yield name, node, None
        for cls in self.classes.values():
            for name, node in cls.methods.items():
                yield f"{cls.qualname}.{name}", node, cls

    def qualified(self, expr: ast.expr) -> str | None:
        """Dotted name of an expression rooted in an import ("torch.nn.functional.softmax"), else None."""
        parts: list[str] = []
        while isinstance(expr, ast.Attribute):
            parts.append(expr.attr)
            expr = expr.value
        if not isinstance(expr, ast.Name):
            return None
        if expr.id in self.imports:
            return ".".join([self.imports[expr.id].qualified, *reversed(parts)])
        if not parts and expr.id in ("object",):
            return "object"
        return None

    def find_class(self, expr: ast.expr) -> Class | None:
        """The project's class an expression names, through imports."""
        if isinstance(expr, ast.Name):
            if expr.id in self.classes:
                return self.classes[expr.id]
            found = self.imported(expr.id)
            return found if isinstance(found, Class) else None
        return None

    def imported(self, name: str, depth: int = 0) -> Class | tuple[Module, Function] | tuple[Module, ast.expr] | None:
        """The project's definition that an imported name stands for."""
        if name not in self._imported:
            self._imported[name] = self._find_imported(name, depth)
        return self._imported[name]

    def _find_imported(self, name: str, depth: int) -> Class | tuple[Module, Function] | tuple[Module, ast.expr] | None:
        sources = [self.imports[name]] if name in self.imports else self.star_imports
        for source in sources:
            wanted = source.name or name
            if source.name == "" and name in self.imports:
                return None  # a module
            path = self.project.resolve(self.path, source.module, source.level)
            module = self.project.module(path) if path else None
            if module is None:
                continue
            if wanted in module.classes:
                return module.classes[wanted]
            if wanted in module.functions:
                return module, module.functions[wanted]
            if wanted in module.constants:
                return module, module.constants[wanted]
            if depth < 4 and (wanted in module.imports or module.star_imports):
                found = module.imported(wanted, depth + 1)
                if found is not None:
                    return found
        return None


def _class_body(node: ast.ClassDef) -> Iterator[ast.stmt]:
    for item in node.body:
        if isinstance(item, ast.If):
            yield from item.body
            yield from item.orelse
        else:
            yield item


def import_bindings(node: ast.Import | ast.ImportFrom) -> dict[str, Imported]:
    """Names an import statement binds."""
    if isinstance(node, ast.Import):
        return {
            alias.asname or alias.name.split(".")[0]: Imported(alias.name if alias.asname else alias.name.split(".")[0])
            for alias in node.names
        }
    return {a.asname or a.name: Imported(node.module or "", a.name, node.level) for a in node.names if a.name != "*"}
