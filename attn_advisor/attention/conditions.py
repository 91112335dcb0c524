"""Conditions of branches: their outcomes, and which follow from others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from attn_advisor.dataflow.attributes import definition
from attn_advisor.dataflow.values import Condition, Value


@dataclass(frozen=True)
class Literal:
    """A test and its outcome. key and holds are one for `x is None` that fails and `x is not None` that holds."""

    key: Any
    holds: bool
    test: Value = field(compare=False)
    way: bool = field(compare=False)


def literal(test: Value, way: bool = True) -> Literal:
    while test.op == "not":
        test, way = test.args[0], not way
    if test.op == "compare" and test.args[1].const is None and test.attrs["how"] in ("is", "is_not", "eq", "ne"):
        return Literal(("given", test.args[0].key), (test.attrs["how"] in ("is_not", "ne")) == way, test, way)
    return Literal(("true", test.key), way, test, way)


class Facts:
    """Tests whose outcome is known."""

    def __init__(self, literals: Iterable[Literal] = ()) -> None:
        self.known: dict[Any, bool] = {x.key: x.holds for x in literals}

    def without(self, guards: Iterable[Literal]) -> Facts:
        """The same where none of the guards holds."""
        facts = Facts()
        facts.known = {**self.known, **{g.key: not g.holds for g in guards}}
        return facts

    def truth(self, test: Value) -> bool | None:
        own = literal(test)
        if own.key in self.known:
            return self.known[own.key] == own.holds
        if own.test.op in ("and", "or"):
            each = [self.truth(a) for a in own.test.args]
            decides = own.test.op == "or"  # one operand with this outcome decides
            outcome = decides if decides in each else None if None in each else not decides
            return outcome if outcome is None or own.way else not outcome
        return None

    def exclude(self, conditions: Iterable[Condition]) -> bool:
        """Whether the branch cannot be taken."""
        return any(self.truth(test) is (not way) for test, way in conditions)

    def left(self, conditions: tuple[Condition, ...]) -> tuple[Condition, ...]:
        """The conditions that are still open, without those that follow from others."""
        return plain(tuple((test, way) for test, way in conditions if self.truth(test) is None))


def plain(conditions: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """Without those that follow from another one: `a or b` where b holds, `x != 1` where `x == 2`."""
    left = list(conditions)
    for condition in conditions:
        others = [c for c in left if c is not condition]
        if follows(*condition, others):
            left = others
    return tuple(left)


def follows(test: Value, way: bool, others: list[Condition]) -> bool:
    """Whether the test has this outcome wherever the other conditions hold."""
    if Facts(literal(*c) for c in others).truth(test) is way:
        return True
    own = literal(test, way)
    if (
        own.test.op != "compare"
        or own.test.attrs["how"] not in ("eq", "ne")
        or own.test.args[1].op != "const"
        or own.way != (own.test.attrs["how"] == "ne")
    ):
        return False
    for other in (literal(*c).test for c in others if literal(*c).way):
        if other.op == "compare" and other.attrs["how"] == "eq" and other.args[1].op == "const":
            if other.args[0].same(own.test.args[0]) and other.args[1].const != own.test.args[1].const:
                return True
    return False


def all_follow(conditions: Iterable[Condition], others: Iterable[Condition]) -> bool:
    """Whether the conditions hold wherever the others do."""
    known = list(others)
    return all(follows(*c, known) for c in conditions)


def none_test(condition: Condition) -> Value | None:
    """The value that the condition says is not None."""
    test, way = condition
    if (
        test.op == "compare"
        and test.args[1].op == "const"
        and test.args[1].const is None
        and test.attrs["how"] in ("is", "is_not", "eq", "ne")
    ):
        return test.args[0] if (test.attrs["how"] in ("is_not", "ne")) == way else None
    return None


def bool_attribute(value: Value) -> bool:
    """Whether a test is a flag: a bool by its annotation, its default or what __init__ sets it to."""
    made = definition(value) if value.op == "attribute" else value
    if made is None:
        return False
    if made.op == "param":
        default = made.attrs.get("_default")
        return made.attrs.get("annotation") == "bool" or isinstance(getattr(default, "value", None), bool)
    return isinstance(made.const, bool)


__all__ = ["Facts", "Literal", "all_follow", "bool_attribute", "follows", "literal", "none_test", "plain"]
