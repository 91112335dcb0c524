"""What becomes of the output of an attention: views, changes in place, the functions of the file that run the one it stands in."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from attn_advisor.attention.factors import scalar_kind
from attn_advisor.attention.folded import Folded, Problem
from attn_advisor.attention.site import Site
from attn_advisor.dataflow.attributes import definition
from attn_advisor.dataflow.operations import VIEWS
from attn_advisor.dataflow.statements import interpret
from attn_advisor.dataflow.storage import storage
from attn_advisor.dataflow.values import Frame, Value
from attn_advisor.findings import Edit
from attn_advisor.source.module import Module, names_in

_MOST_CALLERS = 8


_TOUCHES = re.compile(r"\.view\(|\w_\(|[-+*/]=|inplace|\][ \t]*=(?!=)")  # what may change or view a result


_FIRST_INPLACE = frozenset(
    {"ReLU", "ReLU6", "SiLU", "Mish", "SELU", "Hardswish", "Hardsigmoid"}
)  # inplace is their first argument


_SAME_OBJECT = frozenset({"phi", "dropout", "cast", "identity", "loop"})  # may hand back the very tensor they are given


def in_callers(output: Value, frame: Frame) -> Iterator[tuple[Value, Frame]]:
    """The output where a calling function of the file was interpreted, with that function's execution; valid until the next is asked for."""
    function, module, cls = frame.function, frame.module, frame.cls
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    owner = cls.node.name if cls is not None and function.name in ("forward", "__call__") else None
    users = [
        c
        for c in module.classes.values()
        if owner is not None and "__init__" in c.methods and owner in names_in(c.methods["__init__"]).plain
    ]
    left = _MOST_CALLERS
    for _, other, holder in module.all_functions():
        if other is function or not left:
            continue
        text = module.source.lines(other)
        mentions = (
            text.count(function.name) > (other.name == function.name)
            or holder in users
            or owner is not None
            and owner in text
        )
        if not mentions or not _TOUCHES.search(text):
            continue
        names = names_in(other)
        if not (
            function.name in names.plain | names.attributes
            or holder in users
            or owner is not None
            and owner in names.plain
        ):
            continue
        left -= 1
        interpreter, root = interpret(module, other, holder)
        try:
            for value in interpreter.graph.by_op.get(output.op, ()):
                if value.node is output.node and value.frame is not root:
                    yield value, root
        finally:
            interpreter.graph.release()


def works_in_place(user: Value) -> bool:
    """Whether the value is made by a layer that overwrites its input."""
    function = user.args[0] if user.args else None
    made = (
        user.attrs.get("_ctor")
        or user.attrs.get("_made")
        or (definition(function) if function is not None and function.op == "attribute" else None)
    )
    if made is None or made.op != "construct":
        return False
    given = made.get("inplace")
    if given is None and made.attrs["qualified"].rsplit(".", 1)[-1] in _FIRST_INPLACE and made.args:
        given = made.args[0]
    return given is not None and given.const is True


def later_changes(site: Site, folded: Folded, frame: Frame) -> list[Edit]:
    """In-place changes of the output, which fused kernels keep for the backward pass, made out of place, here and in callers."""
    kept = {id(storage(o.value)) for o in (site.query, site.key, site.val)}
    changed = next(
        (v for v in frame.graph.values if v.inplace and v.order > site.output.order and id(storage(v)) in kept), None
    )
    if changed is not None:
        folded.problems.append(
            Problem("no fix", changed.line, "changes in place what SDPA keeps for the backward pass")
        )
    edits = _changes_of(site.output, folded, frame)
    for output, caller in in_callers(site.output, frame):
        edits += _changes_of(output, folded, caller) + view_edits(output, frame.module)
    return edits


def _changes_of(output: Value, folded: Folded, frame: Frame) -> list[Edit]:
    edits: list[Edit] = []
    seen: set[int] = set()
    memory = {id(storage(output))}  # what may be the output itself, behind joins too
    stack = list(output.users)
    while stack:
        user = stack.pop()
        if id(user) in seen:
            continue
        seen.add(id(user))
        if user.inplace and id(storage(user)) in memory or works_in_place(user):
            edit = _out_of_place(user, frame) if user.args[0] is output else None
            if edit is None:
                folded.problems.append(
                    Problem("no fix", user.line, "changes the output in place, which SDPA keeps for the backward pass")
                )
                return []
            edits.append(edit)
            continue
        if user.op in VIEWS or user.op in _SAME_OBJECT:
            memory.add(id(storage(user)))
            stack.extend(user.users)
    return edits


def _out_of_place(user: Value, frame: Frame) -> Edit | None:
    """`x *= y` as `x = x * y`, for a plain name and a number, which keeps the dtype."""
    stmt = user.stmt
    if (
        user.frame is not frame
        or not isinstance(stmt, ast.AugAssign)
        or not isinstance(stmt.target, ast.Name)
        or len(user.args) != 2
    ):
        return None
    if scalar_kind(user.args[1]) != "number":
        return None
    source = frame.module.source
    start, end = source.span(stmt)
    value = source.segment(stmt.value)
    sign = {ast.Mult: "*", ast.Div: "/", ast.Add: "+", ast.Sub: "-"}.get(type(stmt.op))
    if sign is None:
        return None
    if not isinstance(stmt.value, (ast.Name, ast.Attribute, ast.Constant, ast.Call, ast.Subscript)):
        value = f"({value})"
    return Edit(start, end, f"{stmt.target.id} = {stmt.target.id} {sign} {value}")


def view_edits(output: Value, module: Module) -> list[Edit]:
    """`.view` of the output becomes `.reshape`: SDPA's output may have other strides."""
    edits: dict[tuple[int, int], Edit] = {}
    stack, seen = list(output.users), set()
    while stack:
        user = stack.pop()
        if id(user) in seen:
            continue
        seen.add(id(user))
        if user.op == "reshape":
            node = user.node
            if (
                user.attrs.get("spelled") == "view"
                and isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "view"
                and user.frame is not None
                and user.frame.module is module
            ):
                end = module.source.span(node.func)[1]
                edits[end - 4, end] = Edit(end - 4, end, "reshape")
            continue
        if user.op in (
            "transpose",
            "permute",
            "phi",
            "unsqueeze",
            "squeeze",
            "getitem",
            "cast",
            "tuple",
            "identity",
        ) and user.attrs.get("spelled") not in ("contiguous", "clone"):
            stack.extend(user.users)
    return list(edits.values())
