"""Calls of scaled_dot_product_attention in a file, each with its operands and the source they are written as."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from attn_advisor.dataflow.operations import SIGNATURES, VIEWS
from attn_advisor.dataflow.shapes import Shapes
from attn_advisor.dataflow.statements import Interpreter, interpret
from attn_advisor.dataflow.storage import storage
from attn_advisor.dataflow.values import Frame, Graph, Value
from attn_advisor.findings import Edit
from attn_advisor.source.module import Class, Function, Module
from attn_advisor.source.text import SourceText

SDPA = "scaled_dot_product_attention"
_TWICE = re.compile(r"create_graph ?= ?True|torch\.func|functorch|\.jvp\(|\.hvp\(|hessian\(")
ATOMS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)


@dataclass
class Call:
    """One call. `arguments`: the expression of each operand, by the name SDPA's signature gives it."""

    value: Value
    node: ast.Call
    arguments: dict[str, ast.expr]
    function: str
    frame: Frame
    interpreter: Interpreter
    shapes: Shapes

    @property
    def source(self) -> SourceText:
        return self.frame.module.source

    def operand(self, name: str) -> Value | None:
        """The value given, None if there is none or it is the constant None."""
        value = self.value.get(name)
        return None if value is None or value.const is None else value

    def text(self, name: str) -> str:
        """An argument as it is written, on one line."""
        return " ".join(self.source.segment(self.arguments[name]).split())

    def items(self) -> list[tuple[int, int]]:
        """Spans of the arguments, keyword included, in their order."""
        return sorted(self.source.span(item) for item in (*self.node.args, *self.node.keywords))

    def parenthesised(self, start: int) -> bool:
        """Whether parentheses of its own (or a comment) may stand in front of the argument that starts there."""
        before = [end for _, end in self.items() if end <= start]
        return "(" in self.source.text[max(before, default=self.source.span(self.node.func)[1] + 1) : start]

    def appended(self, name: str, suffix: str) -> list[Edit]:
        """Edits that put a suffix such as `.unsqueeze(0)` behind an argument."""
        node = self.arguments[name]
        start, end = self.source.span(node)
        if isinstance(node, ATOMS):
            return [Edit(end, end, suffix)]
        return [Edit(start, start, "("), Edit(end, end, ")" + suffix)]

    def shapes_sure(self) -> bool:
        """Whether the shapes that were unpacked into sizes, and that the operands come from, have as many axes whenever the call is reached."""
        hints = self.interpreter.rank_hints
        unpacked = _unpacked(self.interpreter.graph)
        stack, seen = [self.value], set()
        while stack:
            value = stack.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            stack.extend(value.args)
            if value.key in hints:
                groups = unpacked.get(value.key, [])
                if any(len(group) != hints[value.key] for group in groups):
                    return False
                if not any(_precedes(group[0], self.value) for group in groups):
                    return False
        return True

    def differentiated_twice(self) -> list[str]:
        """Where the file takes gradients of gradients, which only the math kernel has."""
        found = _TWICE.search(self.source.text)
        if found is None:
            return []
        line = self.source.position(found.start())[0]
        return [f"line {line}: gradients of gradients may be taken, which fused kernels do not have"]

    def changed_later(self) -> Value | None:
        """A change in place of what fused kernels keep for the backward pass: the operands and the output."""
        operands = [v for v in (self.operand(n) for n in ("query", "key", "value", "attn_mask")) if v is not None]
        stack, seen = [self.value, *(storage(v) for v in operands)], set()
        in_loop = bool(self.value.stmt is not None and self.frame.contexts_at[self.value.stmt][1])
        while stack:
            value = stack.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            for user in value.users:
                if user.inplace and user.args[0] is value:
                    if user.order > self.value.order or in_loop:
                        return user
                    stack.append(user)
                elif user.op in VIEWS or user.op in ("phi", "mutated"):
                    stack.append(user)
        return None


def calls_in(module: Module) -> Iterator[Call]:
    """Every call that stands directly in a function or method of the file, operands given one by one."""
    names = _names(module)
    mention = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b")
    source = module.source
    for name, function, cls in module.all_functions():
        start, end = source.span(function)
        if mention.search(source.text, start, end) and _calls(function, names):
            yield from _in_function(module, name, function, cls)


def _names(module: Module) -> set[str]:
    """What the file calls SDPA."""
    imported = {name for name, found in module.imports.items() if found.name == SDPA}
    bound = {name for name, expr in module.constants.items() if getattr(expr, "attr", getattr(expr, "id", "")) == SDPA}
    return {SDPA, *imported, *bound}


def _calls(function: Function, names: set[str]) -> bool:
    """Whether a function calls one of the names (it may also only speak of it)."""
    called = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return any(getattr(func, "attr", getattr(func, "id", "")) in names for func in called)


def _in_function(module: Module, name: str, function: Function, cls: Class | None) -> Iterator[Call]:
    interpreter, frame = interpret(module, function, cls)
    shapes = Shapes(interpreter.rank_hints)
    nodes = [v.node for v in interpreter.graph.by_op.get(SDPA, []) if v.frame is frame]
    for value in list(interpreter.graph.by_op.get(SDPA, [])):
        if value.frame is not frame or not isinstance(value.node, ast.Call) or nodes.count(value.node) > 1:
            continue
        arguments = _arguments(value.node)
        if arguments is None or len(arguments) != len(value.args):
            continue  # stars, or the method of some object
        if {"query", "key", "value"} <= arguments.keys():
            yield Call(value, value.node, arguments, name, frame, interpreter, shapes)
    interpreter.graph.release()


def _unpacked(graph: Graph) -> dict[object, list[list[Value]]]:
    """The sizes each shape was unpacked into, by the key of the tensor; one list for each time."""
    groups: dict[object, dict[tuple[int, int], list[Value]]] = {}
    for size in graph.by_op.get("size", []):
        if isinstance(size.node, (ast.Attribute, ast.Call)):
            groups.setdefault(size.args[0].key, {}).setdefault((id(size.node), id(size.stmt)), []).append(size)
    return {key: [g for g in by_place.values() if len(g) > 1] for key, by_place in groups.items()}


def _precedes(earlier: Value, later: Value) -> bool:
    """Whether one value is computed whenever, and before, the other is."""
    if earlier.order > later.order or len(earlier.conditions) > len(later.conditions):
        return False
    return all(a is c and b == d for (a, b), (c, d) in zip(earlier.conditions, later.conditions, strict=False))


def _arguments(node: ast.Call) -> dict[str, ast.expr] | None:
    """Expressions by operand name; None where stars hide some."""
    if any(isinstance(a, ast.Starred) for a in node.args) or len(node.args) > len(SIGNATURES[SDPA]):
        return None
    found: dict[str, ast.expr] = dict(zip(SIGNATURES[SDPA], node.args, strict=False))
    for keyword in node.keywords:
        if keyword.arg is None:
            return None
        found[keyword.arg] = keyword.value
    return found
