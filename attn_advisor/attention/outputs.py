"""The output of an attention in the functions of the file that run the one it stands in."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from attn_advisor.dataflow.attributes import definition
from attn_advisor.dataflow.statements import interpret
from attn_advisor.dataflow.values import Frame, Value
from attn_advisor.source.module import names_in

_MOST_CALLERS = 8
_TOUCHES = re.compile(r"\.view\(|\w_\(|[-+*/]=|inplace|\][ \t]*=(?!=)")  # what may change or view a result
_FIRST_INPLACE = frozenset(
    {"ReLU", "ReLU6", "SiLU", "Mish", "SELU", "Hardswish", "Hardsigmoid"}
)  # inplace is their first argument


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


__all__ = ["in_callers", "works_in_place"]
