"""What the chain of an attention folds into: factors, masks, dropout, and what stands in the way."""

from __future__ import annotations

from dataclasses import dataclass, field

from attn_advisor.attention.axes import Labels
from attn_advisor.attention.chain import Link
from attn_advisor.attention.masks import Fill
from attn_advisor.dataflow.values import Condition, Value


@dataclass
class Problem:
    """Something in the way. kind: "refuse" (SDPA cannot express it), "no fix" (not understood well enough to write), "unsafe" (written, not proved), "guard".

    way: of a refusal, the key of the way out among those of rule ATN103's page.
    """

    kind: str
    line: int
    text: str
    way: str = ""


@dataclass
class Factor:
    """The scores are multiplied (or divided) by this."""

    value: Value
    divide: bool
    conditions: tuple[Condition, ...]
    scalar: str  # number, tensor, parameter, unknown
    line: int


@dataclass
class Item:
    """One mask or bias. add: `value` is added (or subtracted); fill: cells outside `keep` get `fill`."""

    kind: str
    value: Value  # the term, or the mask as written
    conditions: tuple[Condition, ...]
    labels: Labels
    line: int
    form: str
    keep: Value | None = None
    fill: Fill = field(default_factory=lambda: Fill("unknown"))
    subtract: bool = False
    factors: list[Factor] = field(default_factory=list)  # multiplied onto the scores after it


@dataclass
class Dropout:
    value: Value
    conditions: tuple[Condition, ...]
    line: int


@dataclass
class Folded:
    factors: list[Factor] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    dropout: Dropout | None = None
    zeroed: list[Item] = field(default_factory=list)  # masks put on the probabilities
    problems: list[Problem] = field(default_factory=list)
    casts: list[Link] = field(default_factory=list)
    floored: bool = False
    value_factors: list[Factor] = field(default_factory=list)
    guards: list[tuple[Value, Condition | None]] = field(default_factory=list)
