"""The fix: the in-place change written out of place, in the tensor's own dtype.

`x += e` becomes `x = (x + e).to(x.dtype)` (in place keeps x's dtype, out of place promotes; the cast is left out for numbers), `x.mul_(s)` becomes
`x = x.mul(s)`. Where there is no such form (item assignment, copy_, fill_), `x = x.clone()` goes before the statement.
"""

from __future__ import annotations

import ast

from attn_advisor.autograd.interpret import Hazard
from attn_advisor.autograd.operations import WRITERS, table
from attn_advisor.autograd.reads import used_later
from attn_advisor.findings import Edit, Fix
from attn_advisor.source.module import Function, Module

SAFE_CODES = (
    "ATN501",
    "ATN502",
    "ATN505",
)  # backward raises, or raises where the memory is shared: nobody relies on it
_SYMBOLS = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
}
_PROMOTES = {
    "add",
    "sub",
    "mul",
    "div",
    "pow",
    "floor_divide",
    "remainder",
    "addcmul",
    "addcdiv",
    "lerp",
    "fmod",
    "true_divide",
    "multiply",
}
_ATOMS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)


def rewrite(module: Module, hazard: Hazard, function: Function, code: str) -> tuple[Fix | None, list[str]]:
    """(fix, why it is not a safe one)."""
    edits = _edits(module, hazard, function)
    if edits is None:
        return None, []
    blockers = observers(hazard, function)
    if code == "ATN503":
        blockers.append("what was computed from the old value may be meant to see the new one")
    elif code == "ATN504":
        blockers.append("gradients change: autograd does not see the change as it is written")
    elif code not in SAFE_CODES:
        blockers.append("the caller no longer sees the change")
    message = f"Write the change of `{ast.unparse(hazard.target)}` out of place"
    return Fix("unsafe" if blockers else "safe", message, tuple(edits)), blockers


def observers(hazard: Hazard, function: Function) -> list[str]:
    """Who else sees the in-place change and would no longer."""
    seen = []
    if hazard.exposed and hazard.kind not in ("argument",):
        seen.append("the tensor belongs to the caller or to the module, who would no longer see the change")
    for name in sorted(hazard.aliases):
        if not name.isidentifier() or used_later(name, hazard.stmt, function, hazard.loops):
            seen.append(f"`{name}` shares the memory and is read afterwards")
    return seen


def _edits(module: Module, hazard: Hazard, function: Function) -> list[Edit] | None:
    node, target = hazard.node, hazard.target
    plain = isinstance(target, (ast.Name, ast.Attribute))
    if isinstance(node, ast.AugAssign) and plain and target is node.target and type(node.op) in _SYMBOLS:
        return _augmented(module, hazard, node)
    if (
        isinstance(node, ast.Call)
        and hazard.op in table()
        and hazard.op not in WRITERS
        and isinstance(strip_data(target), ast.Name)
    ):
        return _call(module, hazard, node, function)
    return _clone(module, hazard)


def strip_data(target: ast.expr) -> ast.expr:
    return target.value if isinstance(target, ast.Attribute) and target.attr == "data" else target


def _augmented(module: Module, hazard: Hazard, node: ast.AugAssign) -> list[Edit]:
    """`x *= a + b` to `x = x * (a + b)`: the operator is replaced, the operand (with its comments) stays where it is."""
    source = module.source
    name = source.segment(strip_data(node.target))
    start, end = source.span(node)
    value_start, value_end = source.span(node.value)
    operator = source.text.index("=", source.span(node.target)[1]) + 1
    before, after = source.text[operator:value_start], source.text[value_end:end]
    enclosed = before.lstrip().startswith("(") and after.rstrip().endswith(")")  # not part of the operand's node
    opening, closing = ("", "") if enclosed or isinstance(node.value, _ATOMS) else ("(", ")")
    keep = keeps_dtype(hazard)
    edits = [Edit(start, operator, f"{name} = {'' if keep else '('}{name} {_SYMBOLS[type(node.op)]}")]
    if opening:
        edits.append(Edit(value_start, value_start, opening))
    if tail := closing + ("" if keep else f").to({name}.dtype)"):
        edits.append(Edit(end, end, tail))
    return edits


def keeps_dtype(hazard: Hazard) -> bool:
    """Whether the result has the tensor's own dtype out of place too: so with numbers and with a comparison's result."""
    return hazard.op not in _PROMOTES or all(operand.boolean for operand in hazard.operands)


def _call(module: Module, hazard: Hazard, node: ast.Call, function: Function) -> list[Edit] | None:
    source, stmt = module.source, hazard.stmt
    name = source.segment(strip_data(hazard.target))
    edits = _renamed(module, hazard, node)
    if edits is None:
        return None
    if not keeps_dtype(hazard):
        edits.append(Edit(source.span(node)[1], source.span(node)[1], f".to({name}.dtype)"))
    value = stmt.value if isinstance(stmt, (ast.Expr, ast.Assign, ast.Return, ast.AnnAssign)) else None
    whole = value is not None and _links(value, node)
    later = used_later(name, stmt, function, hazard.loops)
    at = source.span(stmt)[0]
    if isinstance(stmt, ast.Expr):
        return [Edit(at, at, f"{name} = "), *edits] if whole else None
    own = isinstance(stmt, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in stmt.targets)
    if own or not later:
        return edits
    if isinstance(stmt, ast.Assign) and whole:
        start = source.span(value)[0]  # type: ignore[arg-type]
        return [Edit(start, start, f"{name} = "), *edits]
    return None


def _links(value: ast.expr, node: ast.Call) -> bool:
    """Whether the value is the call, or a chain of in-place methods on its result."""
    while value is not node:
        if not (
            isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr.endswith("_")
        ):
            return False
        value = value.func.value
    return True


def _renamed(module: Module, hazard: Hazard, node: ast.Call) -> list[Edit] | None:
    """`mul_` to `mul`, `.data` and `inplace=True` taken out."""
    source, edits = module.source, []
    func = node.func
    if isinstance(func, ast.Attribute) and func.attr.endswith("_"):
        end = source.span(func)[1]
        edits.append(Edit(end - 1, end, ""))
        if hazard.target is not strip_data(hazard.target):
            start, stop = source.span(strip_data(hazard.target))[1], source.span(hazard.target)[1]
            edits.append(Edit(start, stop, ""))
        return edits
    for word in node.keywords:
        if word.arg == "inplace":
            previous = max(
                source.span(other)[1]
                for other in [*node.args, *node.keywords]
                if other is not word and source.span(other)[1] <= source.span(word)[0]
            )
            return [Edit(previous, source.span(word)[1], "")]
    return None


def _clone(module: Module, hazard: Hazard) -> list[Edit] | None:
    """`x = x.clone()` on the line before: the last resort. No help where the statement itself reads what it changes."""
    if hazard.saved is not None and hazard.saved.node is hazard.node:
        return None
    root: ast.expr = hazard.target
    while isinstance(root, ast.Subscript) or (isinstance(root, ast.Attribute) and root.attr == "data"):
        root = root.value
    if (
        not isinstance(root, ast.Name)
        or hazard.kind == "silent"
        or not isinstance(hazard.node, (ast.Assign, ast.AugAssign, ast.Call))
    ):
        return None
    if isinstance(hazard.node, ast.Call) and not (
        isinstance(hazard.node.func, ast.Attribute) and hazard.node.func.attr.endswith("_")
    ):
        return None
    at = module.source.span(hazard.stmt)[0]
    line_start = module.source.text.rfind("\n", 0, at) + 1
    indent = module.source.text[line_start:at]
    if indent.strip():
        return None
    return [Edit(at, at, f"{root.id} = {root.id}.clone()\n{indent}")]
