"""Callers that throw returned weights away: `out, _ = self.attn(x)`, `attend(q, k, v)[0]`."""

from __future__ import annotations

import ast

from attn_advisor.attention.callers import Caller, callers_of
from attn_advisor.attention.site import Site
from attn_advisor.dataflow.values import Effect, Frame, Value


def thrown_away(returned: Effect, site: Site, frame: Frame) -> str | None:
    """Which call drops the part of the returned tuple that holds the weights, as every call in the project does; None if one keeps it."""
    function = frame.function
    if returned.value.op != "tuple" or not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    items = returned.value.args
    held = [n for n, item in enumerate(items) if _holds_weights(item, site)]
    callers = callers_of(frame.module, function, frame.cls)
    if not held or not callers or not all(_drops(c, n, len(items)) for c in callers for n in held):
        return None
    calls = [call for c in callers for call in c.calls]
    who = "the only call of it" if len(calls) == 1 else "every call of it"
    return f"{who} (line {calls[0].lineno}) throws them away"


def _holds_weights(value: Value, site: Site) -> bool:
    """Whether scores or probabilities reach the value on another way than through the output."""
    weights = {id(v) for v in site.chain_values}
    stack, seen = [value], {id(site.output)}
    while stack:
        at = stack.pop()
        if id(at) in weights:
            return True
        if id(at) not in seen:
            seen.add(id(at))
            stack += at.args
    return False


def _drops(caller: Caller, index: int, length: int) -> bool:
    """Whether no call of this caller keeps the item of the returned tuple."""
    calls = {id(call) for call in caller.calls}
    read = {n.id for n in ast.walk(caller.function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    for node in ast.walk(caller.function):
        if isinstance(node, ast.Subscript) and id(node.value) in calls:
            if (
                not isinstance(node.slice, ast.Constant)
                or not isinstance(node.slice.value, int)
                or node.slice.value % length == index
            ):
                return False
            calls.discard(id(node.value))
        elif isinstance(node, ast.Assign) and id(node.value) in calls:
            target = node.targets[0]
            if len(node.targets) > 1 or not isinstance(target, ast.Tuple) or len(target.elts) != length:
                return False
            name = target.elts[index]
            if not isinstance(name, ast.Name) or name.id in read:
                return False
            calls.discard(id(node.value))
    return not calls


__all__ = ["thrown_away"]
