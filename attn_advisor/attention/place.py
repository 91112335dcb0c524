"""The statement and the expression that the call replaces."""

from __future__ import annotations

import ast

from attn_advisor.attention.folded import Problem
from attn_advisor.attention.site import Site
from attn_advisor.dataflow.values import Frame, Value


def place_of(site: Site, frame: Frame) -> tuple[ast.stmt, ast.expr] | Problem:
    """The statement and the expression that the call replaces."""
    output = site.output
    if output.frame is not frame or not isinstance(output.node, ast.expr) or output.stmt is None:
        return Problem("no fix", output.line, "the product with the value stands in another function")
    if output.inplace or output.get("out") is not None:
        return Problem("no fix", output.line, "the product with the value is written into a given tensor")
    if not isinstance(output.stmt, (ast.Assign, ast.AnnAssign, ast.Return, ast.Expr, ast.AugAssign)):
        return Problem("no fix", output.line, "the product with the value stands in a compound statement")
    at_product = root_statement(site.product, frame)
    if at_product is None:
        return Problem("no fix", output.line, "the product of query and key stands in another function")
    here, there = frame.contexts_at[output.stmt], frame.contexts_at[at_product]
    if here != there or any(_contexts(v) != _contexts(output) for v in site.chain_values):
        return Problem("no fix", output.line, "the attention runs across a `with` block or a loop")
    replaced = next((f for v in _everything(site) for f in _path(v, frame) if f.overridden), None)
    if replaced is not None:
        return Problem("no fix", output.line, f"a subclass has a `{replaced.function.name}` of its own")  # type: ignore[attr-defined]
    reader = next(
        (
            n
            for n in ast.walk(frame.function)
            if isinstance(n, ast.Call)
            and isinstance(n.func, ast.Name)
            and n.func.id in ("locals", "vars", "eval", "exec")
            and n.func.id not in frame.module.functions
        ),
        None,
    )
    if reader is not None:
        return Problem("no fix", reader.lineno, f"`{ast.unparse(reader)}` may read any name")
    if site.others:
        return Problem("no fix", site.others[0].line, "the probabilities go into a second product")
    return output.stmt, output.node


_GRADIENT = ("no_grad", "inference_mode", "enable_grad", "set_grad_enabled")


_HARMLESS = ("autocast", "record_function", "profile", "range", "annotate", "timer")


def _contexts(value: Value) -> list[ast.AST]:
    """The `with` blocks and decorators around the value's computation that may change what it means, those around the calls included."""
    if value.frame is None or value.stmt is None:
        return []
    around = value.frame.contexts_at.get(value.stmt, (value.frame.contexts, ()))[0]
    decorators = [
        d for f in value.frame.ancestors() for d in getattr(f.function, "decorator_list", ()) if _called(d) in _GRADIENT
    ]
    return [*decorators, *(w for w in around if not all(_called(i.context_expr) in _HARMLESS for i in w.items))]


def _called(node: ast.expr) -> str:
    function = node.func if isinstance(node, ast.Call) else node
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _path(value: Value, frame: Frame) -> list[Frame]:
    """The inlined executions that the value was computed in, down to `frame`."""
    path: list[Frame] = []
    for at in value.frame.ancestors() if value.frame is not None else ():
        if at is frame:
            return path
        path.append(at)
    return []


def _everything(site: Site) -> list[Value]:
    """The attention's own values and all that goes into its masks and factors."""
    stack, found = [*site.chain_values, *(r for k in (*site.before, *site.behind) for r in k.rest)], {}
    stop = {id(site.query.value), id(site.key.value), id(site.val.value)}
    while stack:
        value = stack.pop()
        if id(value) not in found and id(value) not in stop:
            found[id(value)] = value
            stack.extend(value.args)
    return list(found.values())


def root_statement(value: Value, frame: Frame) -> ast.stmt | None:
    """The statement of `frame` during which the value was computed."""
    at, stmt = value.frame, value.stmt
    while at is not None and at is not frame:
        stmt, at = at.call_stmt, at.caller
    return stmt if at is frame else None
