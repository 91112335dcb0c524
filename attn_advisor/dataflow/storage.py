"""Which values share memory, and the environment's names for attributes."""

from __future__ import annotations

from attn_advisor.dataflow.operations import VIEWS
from attn_advisor.dataflow.values import Value


def store_key(base: Value, name: str) -> str:
    """The environment's name for an attribute stored in this execution."""
    path, at = name, base
    while at.op == "attribute":
        path, at = f"{at.attrs['name']}.{path}", at.args[0]
    return f"self.{path}" if at.op == "self" else f"{id(at)}.{path}"


def storage(value: Value) -> Value:
    """The value whose memory this one may share."""
    seen = 0
    while value.args and seen < 50:
        if value.inplace or value.op == "buffer" or value.op in VIEWS and value.attrs.get("spelled") != "clone":
            value = value.args[0]
        elif value.op == "mutated":
            value = value.args[0]
        else:
            break
        seen += 1
    return value
