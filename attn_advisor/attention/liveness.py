"""Which values are still needed, before and after a rewrite, and which statements may go."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from attn_advisor.attention.conditions import none_test
from attn_advisor.dataflow.storage import storage
from attn_advisor.dataflow.values import Effect, Frame, Graph, Value
from attn_advisor.source.module import nodes_in

CHECKS = ("assert", "raise")
CALLS = frozenset({"call", "method", "apply", "py_print"})


class Liveness:
    """Reachability of values from what a function gives to the outside."""

    def __init__(self, graph: Graph, frame: Frame, chain: Iterable[Value] = (), about: Iterable[Value] = ()) -> None:
        """chain: values that a rewrite removes, whose own calls are no reason to keep them; about: sizes of them that are read off elsewhere."""
        self.graph = graph
        self.frame = frame
        own = {id(v) for v in chain}
        self.about = {id(v) for v in about}
        self.roots: list[tuple[Value, Effect | None]] = []
        for effect in graph.effects:
            if (
                effect.kind in CHECKS
                or effect.kind == "inlined_return"
                or (effect.kind == "condition" and only_refuses(effect.stmt))
            ):
                continue
            self.roots.append((effect.value, effect))
        for value in graph.values:
            if id(value) in own:
                continue
            if value.op in CALLS and value.stmt is not None and not isinstance(value.stmt, (ast.Raise, ast.Assert)):
                self.roots.append((value, None))
            elif (
                value.inplace
                and storage(value).op
                in ("param", "attribute", "self", "loop", "opaque", "element", "call", "part", "getitem")
                and storage(value) is not value
            ):
                self.roots.append((value, None))

    def live(self, output: Value | None = None, instead: Iterable[Value] = ()) -> set[int]:
        """Ids of needed values. With `output`, that value is computed from `instead` rather than from its own operands."""
        replaced = id(output) if output is not None else None
        seen: set[int] = set()
        stack = [v for v, _ in self.roots]
        while stack:
            value = stack.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            if id(value) == replaced:
                stack.extend(instead)
            elif output is not None and id(value) in self.about:
                continue
            else:
                stack.extend(value.args)
                stack.extend(test for test, _ in value.conditions if value.op in CALLS)
        return seen

    def reasons(
        self, targets: Iterable[Value], output: Value, instead: Iterable[Value]
    ) -> list[tuple[Value, Effect | None]]:
        """Effects that need one of the targets although the output no longer does."""
        wanted = {id(t) for t in targets}
        found = []
        for root, effect in self.roots:
            seen: set[int] = set()
            stack = [root]
            while stack:
                value = stack.pop()
                if id(value) in seen:
                    continue
                seen.add(id(value))
                if id(value) in wanted:
                    found.append((root, effect))
                    break
                stack.extend(instead if value is output else () if id(value) in self.about else value.args)
        return found


def only_refuses(stmt: ast.stmt) -> bool:
    """`if ...: raise`: a check of the input, which a rewrite need not repeat."""
    return isinstance(stmt, ast.If) and not stmt.orelse and len(stmt.body) == 1 and isinstance(stmt.body[0], ast.Raise)


class Removal:
    """The statements of a function that nothing needs any more."""

    def __init__(self, graph: Graph, frame: Frame, before: set[int], after: set[int], keep: ast.stmt) -> None:
        self.frame = frame
        self.made: dict[ast.stmt, list[Value]] = {}
        for stmt, _, value in frame.bindings:
            self.made.setdefault(stmt, []).append(value)
        for value in graph.values:
            if value.frame is frame and value.inplace and value.stmt is not None:
                self.made.setdefault(value.stmt, []).append(value)
        self.before, self.after, self.keep = before, after, keep
        self.removed: set[ast.stmt] = set()
        self._scan(getattr(frame.function, "body", []))

    def _scan(self, body: list[ast.stmt]) -> bool:
        """Marks what can go; True if the whole block can."""
        whole = True
        for stmt in body:
            if self._goes(stmt):
                self.removed.add(stmt)
            else:
                whole = False
        return whole

    def _goes(self, stmt: ast.stmt) -> bool:
        if stmt is self.keep:
            return False
        if isinstance(stmt, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)):
            made = self.made.get(stmt, [])
            if not made or any(id(v) in self.after for v in made) or not any(id(v) in self.before for v in made):
                return False
            return self.binds_only_names(stmt)
        if isinstance(stmt, ast.If):
            if self._is_check(stmt):
                return True
            body = self._scan(stmt.body)
            orelse = self._scan(stmt.orelse) if stmt.orelse else True
            return body and orelse
        if isinstance(stmt, (ast.With, ast.AsyncWith, ast.For, ast.While, ast.Try)):
            for block in ("body", "orelse", "finalbody"):
                self._scan(getattr(stmt, block, []))
            return False
        if isinstance(stmt, ast.Assert):
            return self._needs_removed(stmt.test)
        if isinstance(stmt, ast.Delete):
            return bool(stmt.targets) and all(isinstance(t, ast.Name) and self._gone(t) for t in stmt.targets)
        return False

    def binds_only_names(self, stmt: ast.stmt) -> bool:
        """Whether the statement sets names and items of them, and no attribute."""
        targets = stmt.targets if isinstance(stmt, ast.Assign) else [getattr(stmt, "target", None)]
        return all(t is None or _plain_target(t) for t in targets)

    def _gone(self, name: ast.Name) -> bool:
        value = self.frame.name_values.get(name)
        return (
            value is not None
            and id(value) in self.before
            and id(value) not in self.after
            and value.op not in ("param", "const")
        )

    def _needs_removed(self, stmt: ast.AST) -> bool:
        return any(isinstance(n, ast.Name) and self._gone(n) for n in ast.walk(stmt))

    def _is_check(self, stmt: ast.If) -> bool:
        return only_refuses(stmt) and self._needs_removed(stmt.test)

    def bound_to(self, names: set[str]) -> list[Value]:
        """What the removed statements bind to these names."""
        return [value for stmt, name, value in self.frame.bindings if stmt in self.removed and name in names]

    def dangling(self, replaced: ast.AST, rewritten: Iterable[ast.AST] = ()) -> list[ast.Name]:
        """Names that kept code reads although what bound them goes; `rewritten` nodes get new text."""
        bound = {name for stmt, name, _ in self.frame.bindings if stmt in self.removed}
        gone = {id(value) for stmt, _, value in self.frame.bindings if stmt in self.removed}
        gone |= {id(v) for stmt in self.removed for v in self.made.get(stmt, [])}
        skip = {id(n) for n in ast.walk(replaced)}
        for node in rewritten:
            skip.update(id(n) for n in ast.walk(node))
        for stmt in self.removed:
            skip.update(id(n) for n in ast.walk(stmt))
        found = []
        for node in nodes_in(self.frame.function):
            if (
                isinstance(node, ast.Name)
                and id(node) not in skip
                and node.id in bound
                and isinstance(node.ctx, (ast.Load, ast.Del))
            ):
                value = self.frame.name_values.get(node)
                if value is None or id(value) in gone:
                    found.append(node)
        return found


def _plain_target(target: ast.expr) -> bool:
    if isinstance(target, ast.Name):
        return True
    if isinstance(target, (ast.Tuple, ast.List)):
        return all(_plain_target(e) for e in target.elts)
    return isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name)


__all__ = ["Liveness", "Removal", "none_test"]
