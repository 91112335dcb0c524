"""The part of a file that one definition needs: so that a script's definitions can be had without running the script."""

from __future__ import annotations

import ast
import symtable

RUNS = (ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Expr)
"""Statements that run a script's work rather than define something."""


def needed(tree: ast.Module, names: set[str]) -> ast.Module:
    """The module's statements that bind the names, and what those read in turn, in their order; `from x import *` always stays.

    Statements under `if` and `try` count as one; loops and blocks under `with` are left out. The nodes are the tree's own.
    """
    bound = [(s, set() if isinstance(s, RUNS) else _bound(s)) for s in tree.body]
    kept = {number for number, (statement, _) in enumerate(bound) if _stars(statement)}
    seen: set[str] = set()
    while new := names - seen:
        seen |= new
        found = {number for number, (_, binds) in enumerate(bound) if binds & new} - kept
        kept |= found
        names = names.union(*(_read(bound[number][0]) for number in found))
    return ast.Module([tree.body[number] for number in sorted(kept)], tree.type_ignores)


def names_around(tree: ast.Module, name: str) -> set[str]:
    """What the module's statements bind that define a class or function of that name, perhaps inside another."""
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    around = (s for s in tree.body if any(isinstance(n, definitions) and n.name == name for n in ast.walk(s)))
    return {bound for statement in around for bound in _bound(statement)}


def _bound(statement: ast.stmt) -> set[str]:
    """Names that a statement of a module binds, or changes an attribute or an element of."""
    names = {
        s.get_name() for s in _table(statement).get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()
    }
    if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
            while isinstance(target, (ast.Attribute, ast.Subscript)):
                target = target.value
            names |= {target.id} if isinstance(target, ast.Name) else set()
    return names


def _stars(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*"


def _read(statement: ast.stmt) -> set[str]:
    """Names of the module that a statement reads, also inside the functions and classes that it defines."""
    found: set[str] = set()
    waiting = [_table(statement)]
    while waiting:
        table = waiting.pop()
        own = table.get_type() == "module"
        found |= {s.get_name() for s in table.get_symbols() if s.is_referenced() and (own or s.is_global())}
        waiting += table.get_children()
    return found


def _table(statement: ast.stmt) -> symtable.SymbolTable:
    return symtable.symtable(ast.unparse(statement), "module", "exec")
