"""One SDPA call on its way: its parts so far, and how its arguments are written."""

from __future__ import annotations

from dataclasses import dataclass, field

from attn_advisor.attention import layout
from attn_advisor.attention.conditions import none_test
from attn_advisor.attention.express import BITOR, COMPARE, OR, Inexpressible, Text, Writer
from attn_advisor.attention.folded import Folded, Problem
from attn_advisor.attention.site import Site
from attn_advisor.attention.synthetic import synthetic
from attn_advisor.dataflow.shapes import Shapes
from attn_advisor.dataflow.values import Condition, Value


@dataclass
class Call:
    """One SDPA call. statements stand before it; suffix follows it."""

    query: str = ""
    key: str = ""
    value: str = ""
    mask: str | None = None
    dropout: str | None = None
    causal: str | None = None
    scale: str | None = None
    suffix: str = ""
    statements: list[str] = field(default_factory=list)
    assumes: list[str] = field(default_factory=list)

    def arguments(self) -> list[str]:
        named = (
            ("attn_mask", self.mask),
            ("dropout_p", self.dropout),
            ("is_causal", self.causal),
            ("scale", self.scale),
        )
        return [self.query, self.key, self.value, *(f"{k}={v}" for k, v in named if v is not None)]


class Draft:
    """The call under way, and what all its arguments need. Problems found on the way are appended to folded.problems."""

    def __init__(
        self, site: Site, folded: Folded, shapes: Shapes, writer: Writer, taken: set[str], undecided: bool
    ) -> None:
        """undecided: nothing else is in the way of a safe fix, so that a costly look is worth it."""
        self.site, self.folded, self.shapes, self.writer = site, folded, shapes, writer
        self.taken = taken
        self.undecided = undecided
        self.call = Call()
        self.target = layout.choose(site, [i.labels for i in (*folded.items, *folded.zeroed)], shapes)
        self.texts: list[Text] = []  # query, key and value

    def problem(self, kind: str, line: int, text: str, way: str = "") -> None:
        self.folded.problems.append(Problem(kind, line, text, way))

    def shown(self, value: Value) -> str:
        """The value as source for a message; nothing stays computed for that."""
        used, names = list(self.writer.used), set(self.writer.names)
        try:
            text = self.writer.write(value).text
        except Inexpressible:
            return "a factor"
        finally:
            self.writer.used, self.writer.names = used, names
        return f"`{text}`" if len(text) <= 100 else "a factor"

    def condition(self, conditions: tuple[Condition, ...]) -> str:
        parts = []
        for test, way in conditions:
            tested = none_test((test, True)) or none_test((test, False))
            if tested is not None:
                given = none_test((test, way)) is not None
                text = Text(f"{self.tested(test, tested).at(BITOR)} is {'not ' if given else ''}None", COMPARE)
            else:
                text = self.writer.write(test if way else negation(test))
            parts.append(text.at(OR) if len(conditions) == 1 else text.at(COMPARE))
        return " and ".join(parts)

    def tested(self, test: Value, tested: Value) -> Text:
        """The value a `... is not None` test looks at, or a variable that is None exactly when it is: `if mask is not None: mask = mask[:, None]`."""
        try:
            return self.writer.write(tested)
        except Inexpressible:
            for name, held in self.writer.env.items():
                if held.op == "phi" and "." not in name and (held.args[0] is test or held.args[0].key == test.key):
                    made, other = (
                        (held.args[1], held.args[2])
                        if none_test((test, True)) is not None
                        else (held.args[2], held.args[1])
                    )
                    if other is tested and made.op not in (
                        "const",
                        "undefined",
                        "phi",
                        "call",
                        "opaque",
                        "attribute",
                        "param",
                    ):
                        self.writer.used.append(held)
                        return Text(name)
            raise

    def under(self, value: Value, conditions: tuple[Condition, ...]) -> Text:
        """The value's text, for a place where the conditions hold."""
        before, self.writer.assumed = self.writer.assumed, conditions
        try:
            return self.writer.write(value)
        finally:
            self.writer.assumed = before

    def fresh(self, wanted: str) -> str:
        name, number = wanted, 2
        while name in self.taken:
            name, number = f"{wanted}_{number}", number + 1
        self.taken.add(name)
        return name


def negation(test: Value) -> Value:
    if test.op == "not":
        return test.args[0]
    if test.op == "compare":
        flip = {"is": "is_not", "is_not": "is", "eq": "ne", "ne": "eq", "in": "not_in", "not_in": "in"}.get(
            test.attrs["how"]
        )
        if flip:
            return synthetic("compare", *test.args, how=flip)
    return synthetic("not", test)
