"""What the callers in the same file say about a function: whether they hand it fresh tensors, and whether gradients are recorded."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from attn_advisor.autograd.arguments import parameters_of
from attn_advisor.autograd.expressions import Attributes
from attn_advisor.autograd.interpret import Hazard, Interpreter, context_of
from attn_advisor.autograd.values import Value
from attn_advisor.source.module import Class, Function, Module, nodes_in

_OPEN = ("forward", "__call__")  # called by code that is not in sight


@dataclass
class Call:
    """One call: argument values by position and name, and whether gradients were recorded there."""

    args: list[Value]
    kwargs: dict[str, Value]
    gradients: bool


class Callers:
    """The calls of a file's own functions, evaluated when asked for."""

    def __init__(self, module: Module, attributes: Attributes) -> None:
        self.module = module
        self.attributes = attributes
        self._calls: dict[str, list[Call]] = {}

    def _sites(self, called: str) -> Iterator[tuple[ast.Call, str, Function, Class | None]]:
        """Calls of a name, each with the function it stands in."""
        for name, function, cls in self.module.all_functions():
            if called not in self.module.source.lines(function):
                continue
            for node in nodes_in(function):
                if isinstance(node, ast.Call):
                    func = node.func
                    if (func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")) == called:
                        yield node, name, function, cls

    def calls(self, called: str) -> list[Call]:
        if called not in self._calls:
            self._calls[called] = []
            by_function: dict[Function, tuple[str, Class | None, set[ast.Call]]] = {}
            for node, name, function, cls in self._sites(called):
                by_function.setdefault(function, (name, cls, set()))[2].add(node)
            for function, (name, cls, nodes) in by_function.items():
                context = context_of(self.module, function, cls, name)
                caller = Interpreter(self.module, function, cls, self.attributes, context)
                caller.watched = nodes
                caller.run()
                self._calls[called] += [Call(*seen) for seen in caller.seen.values()]
        return self._calls[called]

    def harmless(self, hazard: Hazard, function: Function, cls: Class | None) -> bool:
        """Whether every caller in sight makes the hazard one that cannot show."""
        if function.name in _OPEN:
            return False
        calls = self.calls(function.name)
        if not calls:
            return False
        if hazard.kind not in ("argument", "alias") or hazard.memory is None:
            return not any(call.gradients for call in calls)
        parameters = [argument.arg for argument in parameters_of(function, cls is not None)]
        if hazard.memory.name not in parameters:
            return False
        at = parameters.index(hazard.memory.name)
        return all(fresh(call, at, hazard.memory.name) for call in calls)


def fresh(call: Call, at: int, name: str) -> bool:
    """Whether the argument is a tensor that the caller made itself."""
    value = call.kwargs.get(name) or (call.args[at] if at < len(call.args) else None)
    if value is None or not value.tensorlike:
        return value is not None
    return all(m.origin == "new" for m in value.memory) and all(m.origin == "new" for m, _ in value.maybe)
