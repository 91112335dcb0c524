"""Values that are not in the source: what a rewrite computes instead."""

from __future__ import annotations

from typing import Any

from attn_advisor.dataflow.values import Value


def synthetic(op: str, *args: Value, **attrs: Any) -> Value:
    """A value made by a rewrite; it is nobody's user, so liveness does not see it."""
    return Value(op, args, (), attrs, None, None, register=False)


def constant(value: Any) -> Value:
    return synthetic("const", value=value)


def compare(left: Value, how: str, right: Value) -> Value:
    return synthetic("compare", left, right, how=how)
