"""Effects of one operation: which memory its result has, what it keeps for backward, whether a gradient flows on."""

from __future__ import annotations

import ast
import re

from attn_advisor.autograd.operations import CONTIGUOUS, CREATORS, Form, table
from attn_advisor.autograd.values import Saved, State, Value, new, replace

_KEYWORDS = {"input": "self", "self": "input", "axis": "dim", "tensors": "tensors", "mat2": "other", "x": "self"}
_DROPOUT = {"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout"}
_RESHAPES = {"reshape", "reshape_as", "flatten", "ravel"}
_TRANSPOSES = {
    "transpose",
    "permute",
    "T",
    "mT",
    "H",
    "mH",
    "t",
    "movedim",
    "moveaxis",
    "swapaxes",
    "swapdims",
    "expand",
    "expand_as",
}
_ORDER_KEPT = {"unsqueeze", "squeeze", "view", "view_as", "unflatten", "narrow", "select"}
_CASTS = {
    "to",
    "type_as",
    "float",
    "double",
    "half",
    "bfloat16",
    "long",
    "int",
    "bool",
    "cpu",
    "cuda",
    "byte",
    "char",
    "short",
}


def tensors(value: Value | None) -> list[Value]:
    """The tensors in an argument: itself, or the members of a sequence."""
    if value is None:
        return []
    if value.kind == "sequence":
        inner = [t for item in value.items for t in tensors(item)]
        return inner or tensors(value.element)
    return [value] if value.tensorlike else []


def bind(forms: tuple[Form, ...], args: list[Value], kwargs: dict[str, Value]) -> tuple[Form, dict[str, Value]]:
    """The form a call means, and its tensor arguments by name.

    Of the forms that take all that are certainly tensors, the one that takes the most of the others, then the smallest.
    """
    best: tuple[tuple[int, int, int, int], Form, dict[str, Value]] | None = None
    for form in forms:
        given = dict(zip(form.args, args, strict=False))
        unknown = max(0, len(args) - len(form.args)) if len(form.args) > 1 else 0
        for name, value in kwargs.items():
            own = name if name in form.args else _KEYWORDS.get(name, name)
            unknown += own not in form.args
            given[own] = value
        bound = {name: value for name, value in given.items() if tensors(value)}
        certain = {name for name, value in bound.items() if any(t.kind == "tensor" for t in tensors(value))}
        wrong = len(certain - form.tensors)
        perhaps = len(set(bound) - form.tensors)
        rank = (wrong, unknown, perhaps, len(form.tensors) * 16 + len(form.args))
        if best is None or rank < best[0]:
            best = (rank, form, {name: value for name, value in bound.items() if name in form.tensors})
    assert best is not None
    return best[1], best[2]


def record(state: State, op: str, form: Form, bound: dict[str, Value], results: list[Value], node: ast.AST) -> None:
    """Notes what backward of the operation will read."""
    needing = {name for name, value in bound.items() if any(state.needs_gradient(t) for t in tensors(value))}
    if op == "einsum":
        return  # operands one by one: see `einsum`
    sure = state.is_trained(t for value in bound.values() for t in tensors(value))
    for kept, needs in form.saves.items():
        if not needing.intersection(needs):
            continue
        if kept.startswith("result"):
            at = int(kept[7:] or 0)
            if at < len(results):
                state.keep(results[at], Saved(op, "result", node, sure=sure))
        else:
            for value in tensors(bound.get(kept)):
                state.keep(value, Saved(op, kept, node, sure=sure))


def einsum(state: State, operands: list[Value], node: ast.AST) -> None:
    """A product keeps each operand for the gradients of the others."""
    sure = state.is_trained(operands)
    for at, value in enumerate(operands):
        if any(state.needs_gradient(other) for index, other in enumerate(operands) if index != at):
            state.keep(value, Saved("einsum", "operand", node, sure=sure))


def apply(
    state: State,
    op: str,
    args: list[Value],
    kwargs: dict[str, Value],
    node: ast.AST,
    gradients: bool,
    numbers: dict[str, object],
) -> Value:
    """The result of an operation of the table. `numbers`: keyword and positional constants by name or position."""
    forms = table().get(op)
    inputs = [t for arg in [*args, *kwargs.values()] for t in tensors(arg)]
    flows = gradients and any(state.needs_gradient(t) for t in inputs)
    if forms is None or op in CREATORS:
        made = new(op, node, contiguous=True if op in CREATORS else None, detached=not gradients)
        if flows and op not in CREATORS:
            state.give_gradient(made.memory, state.is_trained(inputs))
        return made
    form, bound = bind(forms, args, kwargs)
    first = next((t for name in form.args if name in bound for t in tensors(bound[name])), None)
    if form.alias and first is not None:
        return alias(op, form.alias, first, node, gradients, state, numbers)
    if op == "einsum":
        operands = inputs
        bound = {"operands": Value("sequence", items=tuple(inputs))}
        if flows:
            einsum(state, operands, node)
    dense = op in CONTIGUOUS or (bool(inputs) and all(t.contiguous for t in inputs))
    result = new(op, node, contiguous=True if dense else None, detached=not gradients)
    if op not in CONTIGUOUS and any(t.transposed for t in inputs):
        result = replace(result, transposed=True)
    if form.constant:
        result = replace(result, boolean=op in _COMPARISONS)
    results = [result, *(new(op, node) for _ in range(form.outputs - 1))]
    if flows and not form.constant:
        state.give_gradient(result.memory, state.is_trained(inputs))
        record(state, op, form, bound, results, node)
    return Value("sequence", items=tuple(results), node=node) if form.outputs > 1 else result


_COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "logical_not", "logical_and", "logical_or"}


def alias(
    op: str, kind: str, base: Value, node: ast.AST, gradients: bool, state: State, numbers: dict[str, object]
) -> Value:
    """The result of an operation that may share its argument's memory."""
    if kind in ("list", "views"):
        outputs = node if gradients and kind == "list" else None
        view = base.view(node, op, outputs=outputs or base.outputs, transposed=base.transposed)
        return Value("sequence", element=view, node=node)
    if op in _RESHAPES:
        if base.transposed:
            return copied(op, base, node, gradients, state)
        return replace(base.view(node, op), contiguous=base.contiguous)
    if op == "contiguous":
        if base.contiguous:
            return base.view(node, op, transposed=base.transposed)
        if base.transposed:
            return replace(copied(op, base, node, gradients, state), contiguous=True)
        return perhaps(op, base, node, gradients, state)
    if op in _DROPOUT:
        if numbers.get("training", numbers.get("p_only")) is True or numbers.get("train") is True:
            return copied(op, base, node, gradients, state)
        return perhaps(op, base, node, gradients, state)
    if op in _CASTS or kind == "maybe":
        if numbers.get("copy") is True:
            return copied(op, base, node, gradients, state)
        return perhaps(op, base, node, gradients, state)
    transposed = base.transposed or op in _TRANSPOSES
    result = base.view(node, op, transposed=transposed)
    if op in _ORDER_KEPT and op not in ("narrow", "select"):
        result = replace(result, contiguous=base.contiguous)
    if op in ("detach", "data"):
        return replace(result, detached=True, leaf=False, data=op == "data", contiguous=base.contiguous)
    return result


def copied(op: str, base: Value, node: ast.AST, gradients: bool, state: State) -> Value:
    """New memory with the argument's values."""
    result = new(op, node, detached=base.detached or not gradients)
    if gradients and state.needs_gradient(base):
        state.give_gradient(result.memory, state.is_trained([base]))
    return result


def perhaps(op: str, base: Value, node: ast.AST, gradients: bool, state: State) -> Value:
    """New memory or the argument itself: only run time tells."""
    result = copied(op, base, node, gradients, state)
    shared = frozenset((memory, op) for memory in base.memory) | base.maybe
    return replace(result, maybe=shared, boolean=base.boolean, transposed=base.transposed, contiguous=base.contiguous)


def rearranges_in_place(pattern: str) -> bool | None:
    """Whether an einops.rearrange gives a view (True), a copy (False), or either (None)."""
    left, arrow, right = pattern.partition("->")
    if not arrow:
        return None
    before, after = (re.findall(r"[\w.…]+", side) for side in (left, right))
    if before == after:
        return True
    merged = re.findall(r"\(([^()]*)\)", right)
    groups = [m.split() for m in merged if len(m.split()) > 1]
    if not groups:
        return True
    flat = " ".join(before)
    return None if all(" ".join(group) in flat for group in groups) else False
