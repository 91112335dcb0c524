"""SDPA's arguments for a site: masks, scale, dropout and the operands, as source text."""

from __future__ import annotations

from dataclasses import dataclass, field

from attn_advisor.attention import layout, masks
from attn_advisor.attention.axes import Labels
from attn_advisor.attention.conditions import all_follow, none_test
from attn_advisor.attention.express import (
    ATOM,
    BITAND,
    BITOR,
    COMPARE,
    COND,
    OR,
    PRODUCT,
    UNARY,
    Inexpressible,
    Text,
    Writer,
)
from attn_advisor.attention.folded import Factor, Folded, Item, Problem
from attn_advisor.attention.hiding import hides
from attn_advisor.attention.layout import Target
from attn_advisor.attention.site import Site
from attn_advisor.attention.synthetic import constant, synthetic
from attn_advisor.attention.triangles import Triangle, triangle
from attn_advisor.dataflow.attributes import definition
from attn_advisor.dataflow.shapes import Dim, Shapes
from attn_advisor.dataflow.values import Condition, Value

_TURNS = (
    "transpose",
    "permute",
    "reshape",
    "rearrange",
    "einops_rearrange",
    "getitem",
    "part",
    "unsqueeze",
    "flatten",
    "unflatten",
    "repeat_interleave",
    "expand",
)
EVENLY = "  # a fully masked row attends evenly, as before"


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


class Arguments:
    """Writes the call for one site with one writer. Problems found on the way are appended to folded.problems."""

    def __init__(
        self, site: Site, folded: Folded, shapes: Shapes, writer: Writer, taken: set[str], undecided: bool = False
    ) -> None:
        """undecided: nothing else is in the way of a safe fix, so that a costly look is worth it."""
        self.site, self.folded, self.shapes, self.writer = site, folded, shapes, writer
        self.taken = taken
        self.undecided = undecided
        self.call = Call()
        self.target = Target(())
        self.query_factors: list[Factor] = []

    def problem(self, kind: str, line: int, text: str, way: str = "") -> None:
        self.folded.problems.append(Problem(kind, line, text, way))

    def build(self) -> Call:
        """Raises Inexpressible where something cannot be written here."""
        items = self.folded.items
        self.target = layout.choose(self.site, [i.labels for i in (*items, *self.folded.zeroed)], self.shapes)
        self._operands()
        self._scale()
        self._masks()
        self._sign()
        self._dropout()
        self._weights()
        query_shape = self.call.query if self.target.flat else None
        self.call.suffix += "".join(
            layout.output_operations(self.site, self.target, self._plain_query() if query_shape else None)
        )
        self._dtype()
        return self.call

    # -- operands -------------------------------------------------------------------------------------------------------------------------
    def _operands(self) -> None:
        site, target, writer = self.site, self.target, self.writer
        for operand in (site.query, site.key, site.val):
            rank = self.shapes.rank(operand.value)
            if rank is not None and rank < 2:
                raise Inexpressible(f"{self._try(operand.value)} has a single axis")
        left, right = site.product.args[:2]
        if (
            site.product.op == "matmul"
            and not self.folded.items
            and right.op not in _TURNS
            and self.shapes.rank(left) is None
            and self.shapes.rank(right) is None
        ):
            self.problem(
                "unsafe", site.product.line, f"{self._try(right)}, which is not transposed here, may have a single axis"
            )
        texts = []
        for operand, tail in (
            (site.query, (site.query_axis, site.contracted)),
            (site.key, (site.key_axis, site.contracted)),
            (site.val, (site.key_axis, self._value_axis())),
        ):
            text = layout.operand_text(operand, tail, target, writer, site)
            texts.append(Text(layout.fill_sizes(text.text, site, writer), text.level))
        self.texts = texts
        self.call.query, self.call.key, self.call.value = (t.text for t in texts)

    def _value_axis(self) -> str:
        site = self.site
        rest = [
            x
            for x in site.val.labels
            if x not in site.score_labels and x != site.key_axis and x != "..." and "." not in x and "+" not in x
        ]
        return rest[0] if rest else "e"

    def _weights(self) -> None:
        """Factors on the probabilities of each head or key, put on the values."""
        factors = self.folded.value_factors
        if factors and (
            self.target.lead
            or self.target.flat
            or self.target.split
            or any(x.endswith((".0", ".1")) for x in self.target.batch)
        ):
            raise Inexpressible("the probabilities are weighed under another view")
        for factor in factors:
            self.texts[2] = Text(
                f"{self.texts[2].at(PRODUCT)} {'/' if factor.divide else '*'} {self.writer.write(factor.value).at(UNARY)}",
                PRODUCT,
            )
            self.call.value = self.texts[2].text

    def _plain_query(self) -> str:
        """The query before its leading axes are merged, for its shape."""
        text = self.texts[0].text
        return text.rsplit(".flatten(", 1)[0]

    def _dtype(self) -> None:
        """Keep the dtypes of the three operands equal, as the original's casts left them."""
        site = self.site
        query, key, value = (_cast_kinds(o.value) for o in (site.query, site.key, site.val))
        back = any(k.kind == "cast" for k in site.behind)
        if not value and (query or key) and back:
            dtype = f"{self.texts[2].at(ATOM)}.dtype"
            for name, cast in (("query", query), ("key", key)):
                if cast:
                    text = Text(getattr(self.call, name), COND if _loose(getattr(self.call, name)) else ATOM)
                    setattr(self.call, name, f"{text.at(ATOM)}.to({dtype})")
        elif value == {"float32"} and not query and not key:
            for name in ("query", "key"):
                text = Text(getattr(self.call, name), COND if _loose(getattr(self.call, name)) else ATOM)
                setattr(self.call, name, f"{text.at(ATOM)}.float()")
        elif value and query != value or value and key != value:
            self.problem("no fix", site.output.line, "query, key and value are cast to different dtypes")

    # -- scale ----------------------------------------------------------------------------------------------------------------------------
    def _scale(self) -> None:
        numbers: list[Factor] = []
        query = self.texts[0]
        negative = False
        for factor in self.folded.factors:
            if isinstance(factor.value.const, (int, float)) and factor.value.const < 0:
                negative = not negative
                if factor.value.const != -1:
                    numbers.append(
                        Factor(
                            constant(-factor.value.const), factor.divide, factor.conditions, factor.scalar, factor.line
                        )
                    )
                if factor.conditions:
                    self.problem("no fix", factor.line, "the sign of the scores depends on a condition")
            elif factor.scalar in ("number", "tensor"):
                numbers.append(factor)
            else:
                if factor.conditions:
                    self.problem("no fix", factor.line, "a learned scale under a condition")
                if factor.scalar == "unknown":
                    self._unknown_factor(factor)
                query = Text(
                    f"{query.at(PRODUCT)} {'/' if factor.divide else '*'} {self.writer.write(factor.value).at(UNARY)}",
                    PRODUCT,
                )
        if negative:
            query = Text(f"-{query.at(UNARY)}", UNARY)
        self.texts[0] = query
        self.call.query = query.text
        numbers = without_pairs(numbers)
        if not numbers:
            self.call.scale = "1.0"
            return
        if len(numbers) == 1 and not numbers[0].conditions and self._is_default(numbers[0]):
            return
        parts: list[Text] = []
        for conditions in dict.fromkeys(f.conditions for f in numbers):
            value = product_of([f for f in numbers if f.conditions == conditions])
            text = self.writer.write(value)
            if conditions:
                text = Text(f"{text.at(OR)} if {self._condition(conditions)} else 1.0", COND)
            parts.append(text)
        self.call.scale = parts[0].text if len(parts) == 1 else " * ".join(p.at(PRODUCT) for p in parts)
        if any(f.scalar == "tensor" for f in numbers):
            self.call.scale = f"float({self.call.scale})"

    def _sign(self) -> None:
        """A scale that may be zero or negative goes onto the query: with the causal flag, kernels make NaN of it."""
        numbers = [f.value for f in self.folded.factors if f.scalar in ("number", "tensor") and not _negated(f)]
        doubtful = (
            any(_negative(v) or v.const == 0 for v in numbers)
            or self.call.causal is not None
            and not all(_positive(v) for v in numbers)
        )
        if doubtful and self.call.scale not in (None, "1.0") and not self.call.statements:
            assert self.call.scale is not None
            scale = Text(self.call.scale, ATOM if self.call.scale.replace(".", "").isidentifier() else COND)
            self.texts[0] = Text(f"{self.texts[0].at(PRODUCT)} * {scale.at(UNARY)}", PRODUCT)
            self.call.query, self.call.scale = self.texts[0].text, "1.0"

    def _unknown_factor(self, factor: Factor) -> None:
        """A factor that may be a number or a tensor: only its name speaks for a number."""
        text = self._try(factor.value)
        named = any(
            word in text.lower() for word in ("scale", "scaling", "temp", "norm", "tau", "sqrt")
        ) and not _has_axes(factor.value)
        self.problem("unsafe" if named else "no fix", factor.line, f"{text} is not known to be one number")

    def _try(self, value: Value) -> str:
        """The value as source for a message; nothing stays computed for that."""
        used, names = list(self.writer.used), set(self.writer.names)
        try:
            text = self.writer.write(value).text
        except Inexpressible:
            return "a factor"
        finally:
            self.writer.used, self.writer.names = used, names
        return f"`{text}`" if len(text) <= 100 else "a factor"

    def _is_default(self, factor: Factor) -> bool:
        """Whether the factor is D**-0.5 of the very axis that the product contracts."""
        power = self._power(factor.value)
        if power is None:
            return False
        size, exponent = power
        if factor.divide:
            exponent = -exponent
        return exponent == -0.5 and size == self._contracted_size()

    def _contracted_size(self) -> Dim:
        known = self.shapes.shape(self.site.query.value)
        return (
            known[self.site.query.labels.index(self.site.contracted) - len(self.site.query.labels)]
            if known is not None
            else Dim(-1)
        )

    def _power(self, value: Value) -> tuple[Dim | None, float] | None:
        if value.op == "size":
            return (self._contracted_size() if self._is_contracted(value) else self.shapes.dim(value)), 1.0
        if value.op == "sqrt":
            inner = self._power(value.args[0])
            return None if inner is None else (inner[0], inner[1] / 2)
        if value.op == "pow" and isinstance(value.args[1].const, (int, float)):
            inner = self._power(value.args[0])
            return None if inner is None else (inner[0], inner[1] * value.args[1].const)
        if value.op == "div" and value.args[0].const == 1:
            inner = self._power(value.args[1])
            return None if inner is None else (inner[0], -inner[1])
        if value.op == "number":
            return self._power(value.args[0])
        if value.op in ("floordiv", "attribute", "param"):
            return self.shapes.dim(value), 1.0
        return None

    def _is_contracted(self, size: Value) -> bool:
        """`x.size(axis)` of the query or key on its contracted axis."""
        axis = size.attrs["axis"]
        for operand in (self.site.query, self.site.key):
            value, labels = operand.value, operand.labels
            for _ in range(4):
                if size.args[0] is value or size.args[0].key == value.key:
                    at = axis if axis < 0 else axis - len(labels) if "..." not in labels else None
                    if at is not None and -at <= len(labels) and labels[at] == self.site.contracted:
                        return True
                inner = layout._peel(value, labels)
                if inner is None and value.op == "transpose" and value.attrs.get("dims") in ((-2, -1), (-1, -2)):
                    inner = value.args[0], (*labels[:-2], labels[-1], labels[-2])
                if inner is None:
                    break
                value, labels = inner
        return False

    # -- dropout --------------------------------------------------------------------------------------------------------------------------
    def _dropout(self) -> None:
        drop = self.folded.dropout
        if drop is None:
            return
        value = drop.value
        if value.op == "dropout" and value.attrs.get("module"):
            module = value.attrs["_module"]
            if module.op == "construct":  # nn.Dropout(p)(x) is always in training mode
                probability = module.args[0] if module.args else constant(0.5)
                text = self.writer.write(probability)
            else:
                name = self.writer.write(module).at(ATOM)
                text = Text(f"{name}.p if {name}.training else 0.0", COND)
                if value.attrs.get("maybe_identity"):
                    self.problem("unsafe", drop.line, f"`{name}` may be an nn.Identity, which has no p")
                    text = Text(f'getattr({name}, "p", 0.0) if {name}.training else 0.0', COND)
        elif value.op == "dropout":
            probability = value.get("p") or constant(0.5)
            training = value.get("training")
            text = self.writer.write(probability)
            if training is not None and training.const is False:
                return
            if training is not None and training.const is not True:
                text = Text(f"{text.at(OR)} if {self.writer.write(training).at(OR)} else 0.0", COND)
        else:  # a function that is only called dropout
            name = self.writer.write(value.args[0]).at(ATOM)
            text = Text(f'getattr({name}, "p", 0.0) if {name}.training else 0.0', COND)
        if drop.conditions:
            text = Text(f"({text.text}) if {self._condition(drop.conditions)} else 0.0", COND)
        self.call.dropout = text.text

    def _condition(self, conditions: tuple[Condition, ...]) -> str:
        parts = []
        for test, way in conditions:
            tested = none_test((test, True)) or none_test((test, False))
            if tested is not None:
                given = none_test((test, way)) is not None
                text = Text(f"{self._tested(test, tested).at(BITOR)} is {'not ' if given else ''}None", COMPARE)
            else:
                text = self.writer.write(test if way else _not(test))
            parts.append(text.at(OR) if len(conditions) == 1 else text.at(COMPARE))
        return " and ".join(parts)

    def _tested(self, test: Value, tested: Value) -> Text:
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

    # -- masks ----------------------------------------------------------------------------------------------------------------------------
    def _masks(self) -> None:
        items = self.folded.items
        for item in (*items, *self.folded.zeroed):
            if item.labels[-2:] == (self.site.key_axis, self.site.query_axis):
                self._turn(item)
        if self.folded.zeroed:
            self._zeroed(items)
            return
        if not items:
            return
        causal = self._causal(items)
        if causal is not None:
            self.call.causal = causal
            return
        fills, adds = [i for i in items if i.kind == "fill"], [i for i in items if i.kind == "add"]
        for item in adds:
            self._check_added(item, items)
        if fills:
            self._check_fills(fills, adds)
        if fills and self._may_be_empty(fills):
            self._evenly(fills, adds)
        elif fills and not adds:
            self.call.mask = self._optional([(self._laid(self._keep(i)), i.conditions) for i in fills], "&", BITAND)
        elif adds and not fills:
            self.call.mask = self._optional(
                [(self._laid(self._term(i)), i.conditions) for i in adds], "+", masks_sum_level()
            )
        else:
            self.call.mask = self._filled(fills, adds)

    def _turn(self, item: Item) -> None:
        """A mask over (key, query) for SDPA's (query, key)."""
        rank = self.shapes.rank(item.value)
        if rank is not None and rank < 2:
            raise Inexpressible("a mask of one axis over the queries")
        item.value = synthetic("transpose", item.value, dims=(-2, -1))
        if item.keep is not None:
            item.keep = synthetic("transpose", item.keep, dims=(-2, -1))
        item.labels = (*item.labels[:-2], item.labels[-1], item.labels[-2])

    def _check_added(self, item: Item, items: list[Item]) -> None:
        answer = hides(item.value, self.shapes, ask_callers=self.undecided)
        name = self._try(item.value)
        if masks.whole(item.value):
            self.problem("no fix", item.line, f"{name} holds whole numbers, which SDPA does not add")
        if answer == "possible" or item.subtract and answer == "rows kept":
            self.problem("unsafe", item.line, f"{name} may hide every key of a row; SDPA then differs")
        finite = any(i.kind == "fill" and i.fill.strength == "finite" for i in items)
        if answer != "no" and finite and triangle(item.value, self.shapes) is not None:
            self.problem("no fix", item.line, f"{name} and a finite fill may together hide every key of a row")
        elif answer == "rows kept" and len(items) > 1:
            self.problem("unsafe", item.line, f"{name} and another mask may together hide every key of a row")
        if not masks.is_bool(item.value):
            root = item.value
            while root.args and root.op in ("unsqueeze", "reshape", "getitem", "expand", "transpose", "permute", "phi"):
                root = root.args[1] if root.op == "phi" else root.args[0]
            if root.op not in ("mul", "einsum", "matmul", "embedding", "div", "pow") and not (
                root.op == "attribute" and _parameter(root)
            ):
                self.call.assumes.append(f"{name} is a floating tensor")

    def _check_fills(self, fills: list[Item], adds: list[Item]) -> None:
        """What can go wrong where a row may be fully masked by finite fills: the original is then finite too."""
        for item in fills:
            if (
                item.factors
                and item.fill.strength == "finite"
                and not (item.fill.number is not None and item.fill.number <= -1e8)
            ):
                self.problem("unsafe", item.line, "the fill is scaled afterwards")
            if any(f.scalar not in ("number", "tensor") or not _positive(f.value) for f in item.factors):
                self.problem("unsafe", item.line, "the fill is multiplied by a factor that may be negative")
            if (
                item.fill.number is not None
                and item.factors
                and all(isinstance(f.value.const, (int, float)) and f.value.const for f in item.factors)
            ):
                number = item.fill.number
                for factor in item.factors:
                    number = number / factor.value.const if factor.divide else number * factor.value.const
                if number > masks.STRONG:
                    self.problem("no fix", item.line, f"scaling makes the fill {number:g}, which does not mask")
            elif any(_negative(f.value) for f in item.factors):
                self.problem("no fix", item.line, "the fill is multiplied by a negative factor")
        if not self._may_be_empty(fills):
            return
        order = self.folded.items
        finite = [i for i in fills if i.fill.strength == "finite"]
        if not finite:
            return
        if any(order.index(a) > order.index(f) for a in adds for f in finite):
            self.problem("no fix", finite[0].line, "a bias is added after a finite fill, and a row may be fully masked")
        if len({i.fill.number for i in finite}) > 1:
            self.problem("no fix", finite[-1].line, "masks with different fills may together hide every key of a row")
        if any(order.index(i) < order.index(f) for i in fills if i.fill.strength == "inf" for f in finite):
            self.problem("no fix", finite[-1].line, "a finite fill after one with -inf may fill a whole row")
        if any(f.scalar not in ("number", "tensor") for i in finite for f in i.factors):
            self.problem(
                "no fix", finite[0].line, "a learned factor after a finite fill, and a row may be fully masked"
            )
        if self.site.softmax.op != "softmax":
            self.problem("no fix", finite[0].line, "a softmax written by hand rounds fully masked rows in its own way")

    def _triangle(self, item: Item) -> Triangle | None:
        """The cells an item keeps, if they are a lower triangle."""
        if item.kind == "fill" and item.keep is not None:
            found = triangle(item.keep, self.shapes)
            return found.keep() if found is not None else None
        if item.kind == "add" and not item.subtract and not item.factors:
            found = triangle(item.value, self.shapes)
            if (
                found is None
                or {found.inside, found.outside} & {0.0} == set()
                or min(found.inside, found.outside) > masks.STRONG
            ):
                return None
            return Triangle(
                found.lower,
                found.diagonal,
                found.rows,
                found.columns,
                float(found.inside == 0),
                float(found.outside == 0),
                found.row_start,
            ).keep()
        return None

    def _may_be_empty(self, fills: list[Item]) -> bool:
        """Whether a row can be fully masked with a finite fill, where the original is finite too."""
        if all(i.fill.strength == "inf" for i in fills):
            return False
        found = self._triangle(fills[0]) if len(fills) == 1 else None
        return found is None or not found.nonempty or found.columns is None

    def _causal(self, items: list[Item]) -> str | None:
        """is_causal's value, if the only mask is the causal one of equal lengths."""
        shapes = {self._triangle(i) for i in items}
        if len(items) > 1 and (len(shapes) > 1 or any(i.conditions or i.kind != "fill" for i in items)):
            return None  # the same triangle may be put on twice
        if any(f.scalar not in ("number", "tensor") or not _positive(f.value) for i in items for f in i.factors):
            return None
        item, site = items[0], self.site
        found = self._triangle(item)
        if found is None or found.diagonal != 0:
            return None
        rows, columns = site.sizes.get(site.query_axis), site.sizes.get(site.key_axis)
        if rows is None or rows != columns or found.rows != rows or found.columns != columns:
            return None
        if found.row_start not in ("0", "end:" + repr(rows)):
            return None
        if any(i.kind == "fill" and i.fill.strength not in ("inf", "finite") for i in items):
            return None
        self._assume_buffer(item.value)
        if not item.conditions:
            return "True"
        if none_test(item.conditions[-1]) is not None:
            return None
        text = self._condition(item.conditions)
        test = item.conditions[0][0]
        return text if len(item.conditions) == 1 and _bool_attribute(test) else f"bool({text})"

    def _assume_buffer(self, value: Value) -> None:
        stack, seen = [value], 0
        while stack and seen < 50:
            at = stack.pop()
            seen += 1
            made = definition(at) if at.op == "attribute" else None
            if made is not None and made.op == "buffer" and made.attrs.get("persistent"):
                self.call.assumes.append(f"the buffer `self.{at.attrs['name']}` keeps the value given in __init__")
                return
            stack.extend(at.args)

    def _under(self, value: Value, conditions: tuple[Condition, ...]) -> Text:
        """The value's text, for a place where the conditions hold."""
        before, self.writer.assumed = self.writer.assumed, conditions
        try:
            return self.writer.write(value)
        finally:
            self.writer.assumed = before

    def _keep(self, item: Item) -> Text:
        assert item.keep is not None
        return self._rows(self._under(item.keep, item.conditions), item)

    def _drop(self, item: Item) -> Text:
        if item.form in ("masked_fill", "setitem"):
            return self._rows(self._under(item.value, item.conditions), item)
        assert item.keep is not None
        return self._rows(self._under(masks.negated(item.keep, True), item.conditions), item)

    def _rows(self, text: Text, item: Item) -> Text:
        """SDPA wants a mask of two axes at least, under the view of the scores that all masks share."""
        rank = self.shapes.rank(item.value)
        if rank == 1:
            text = Text(f"{text.at(ATOM)}[None, :]")
        elif rank is None and _given(item.value):
            self.call.assumes.append(f"{self._try(item.value)} has two axes or more, and none that the scores have not")
        return self._rejoined(text, item)

    def _term(self, item: Item) -> Text:
        value = item.value
        for factor in without_pairs(item.factors):
            value = synthetic("div" if factor.divide else "mul", value, factor.value)
            if factor.conditions != item.conditions and factor.conditions:
                self.problem("no fix", item.line, "the mask is scaled under a condition")
        if item.subtract:
            value = synthetic("neg", value)
        return self._rows(self._under(value, item.conditions), item)

    def _laid(self, text: Text) -> Text:
        """A mask for 4-D inputs: right-aligned as the scores were."""
        if self.target.lead == 1:
            return Text(f"{text.at(ATOM)}.unsqueeze(0)")
        return text

    def _rejoined(self, text: Text, item: Item) -> Text:
        """A mask that was put on a finer view of the scores (windows of an image), for the view the others have."""
        at = next(
            (n for n, label in enumerate(item.labels) if label.endswith(".0") and label not in self.target.batch), None
        )
        if at is None or "..." in item.labels:
            return text
        first, second = self.site.splits.parts[item.labels[at][:-2]]
        if second.const == -1 or any(x.endswith(".0") for n, x in enumerate(item.labels) if n != at):
            raise Inexpressible("a mask under a view of unknown size")
        inner = self.writer.write(second)
        outer = (
            self.writer.write(first)
            if first.const != -1
            else Text(f"{self._plain_query()}.size({at}) // {inner.at(PRODUCT + 1)}", PRODUCT)
        )
        sizes = ["-1"] * len(item.labels)
        sizes[at], sizes[at + 1] = outer.text, inner.text
        return Text(f"{text.at(ATOM)}.expand({', '.join(sizes)}).flatten({at}, {at + 1})")

    def _optional(self, parts: list[tuple[Text, tuple[Condition, ...]]], sign: str, level: int) -> str:
        """The masks combined, each under its condition; None where none applies."""
        always = [t for t, c in parts if not c]
        base = (
            (always[0] if len(always) == 1 else Text(f" {sign} ".join(t.at(level) for t in always), level))
            if always
            else None
        )
        perhaps = [(t, c) for t, c in parts if c]
        if not perhaps:
            assert base is not None
            return base.text
        if len(perhaps) == 1 and (base is None or base.text.isidentifier()):
            text, conditions = perhaps[0]
            return self._when(
                text if base is None else Text(f"{base.at(level)} {sign} {text.at(level + 1)}", level), base, conditions
            ).text
        paths = {c for _, c in perhaps}
        if len(paths) == 2 and base is None:
            (a, ca), (b, cb) = perhaps
            if len(ca) == len(cb) == 1 and ca[0][0] is cb[0][0] and ca[0][1] != cb[0][1]:  # one or the other
                first, second = (a, b) if ca[0][1] else (b, a)
                return f"{first.at(OR)} if {self._condition(((ca[0][0], True),))} else {second.at(COND)}"
        name = self._fresh("attn_mask")
        start = base.text if base is not None else "None"
        given: list[tuple[Condition, ...]] = []  # under any of these there is a mask already
        if base is None and self._passes(*perhaps[0]):
            start, given, perhaps = perhaps[0][0].text, [perhaps[0][1]], perhaps[1:]
        self.call.statements.append(f"{name} = {start}")
        for text, conditions in perhaps:
            self.call.statements.append(f"if {self._condition(conditions)}:")
            if base is None and not given:
                self.call.statements.append(f"    {name} = {text.text}")
            elif base is None and not any(all_follow(c, conditions) for c in given):
                self.call.statements.append(
                    f"    {name} = {text.at(OR)} if {name} is None else {name} {sign} {text.at(level + 1)}"
                )
            else:
                self.call.statements.append(f"    {name} = {name} {sign} {text.at(level + 1)}")
            given.append(conditions)
        return name

    def _passes(self, text: Text, conditions: tuple[Condition, ...]) -> bool:
        """Whether the text is None exactly where the conditions do not hold."""
        tested = none_test(conditions[0]) if len(conditions) == 1 else None
        return tested is not None and self.writer.write(tested).text == text.text

    def _when(self, text: Text, otherwise: Text | None, conditions: tuple[Condition, ...]) -> Text:
        """text under the conditions, else `otherwise` (None if there is nothing)."""
        other = otherwise.text if otherwise is not None else "None"
        if len(conditions) == 1:
            tested = none_test(conditions[0])
            if tested is not None:
                name = self._tested(conditions[0][0], tested)
                if text.text == name.text and otherwise is None:
                    return text
                return Text(f"{other} if {name.at(COMPARE)} is None else {text.at(COND)}", COND)
        return Text(f"{text.at(OR)} if {self._condition(conditions)} else {other}", COND)

    def _fresh(self, wanted: str) -> str:
        name, number = wanted, 2
        while name in self.taken:
            name, number = f"{wanted}_{number}", number + 1
        self.taken.add(name)
        return name

    def _filled(self, fills: list[Item], adds: list[Item]) -> str:
        """A bias with -inf where a bool mask drops."""
        perhaps_fill, perhaps_add = [i for i in fills if i.conditions], [i for i in adds if i.conditions]
        if len(fills) > 1 or len(perhaps_add) > 1 or perhaps_fill and perhaps_add:
            raise Inexpressible("a bias and several optional masks")
        fill = fills[0]
        if not perhaps_add:
            bias = self._sum(adds)
            filled = Text(f'{bias.at(ATOM)}.masked_fill({self._drop(fill).text}, float("-inf"))')
            return (
                self._when(self._laid(filled), self._laid(bias), fill.conditions).text
                if fill.conditions
                else self._laid(filled).text
            )
        if len(adds) > 1:
            raise Inexpressible("several biases, some of them optional, and a mask")
        bias = self._term(adds[0])
        filled = Text(f'{bias.at(ATOM)}.masked_fill({self._drop(fill).text}, float("-inf"))')
        return self._when(self._laid(filled), self._laid(self._keep(fill)), adds[0].conditions).text

    def _sum(self, adds: list[Item]) -> Text:
        texts = [self._term(i) for i in adds]
        return (
            texts[0] if len(texts) == 1 else Text(" + ".join(t.at(masks_sum_level()) for t in texts), masks_sum_level())
        )

    def _keep_all(self, fills: list[Item]) -> Text:
        texts = [self._keep(i) for i in fills]
        return texts[0] if len(texts) == 1 else Text(" & ".join(t.at(BITAND) for t in texts), BITAND)

    def _evenly(self, fills: list[Item], adds: list[Item]) -> None:
        """A finite fill: rows without any kept key must attend evenly, on every backend."""
        if any(i.conditions for i in adds) or len({i.conditions for i in fills}) > 1:
            raise Inexpressible("optional masks with a finite fill")
        conditions = fills[0].conditions
        if conditions and adds:
            raise Inexpressible("a bias and an optional mask with a finite fill")
        kept = self._laid(self._keep_all(fills))
        keep = kept.text if kept.text.isidentifier() else self._fresh("keep")
        some = self._fresh("some")
        lines = [] if keep == kept.text else [f"{keep} = {kept.text}"]
        lines.append(f"{some} = {keep}.any(dim=-1, keepdim=True){EVENLY}")
        hard = [i for i in fills if i.fill.strength == "inf"]
        mask = f"{keep} | ~{some}"
        if hard:  # what -inf hides stays hidden
            if adds:
                raise Inexpressible("a bias and masks with different fills")
            mask = f"{keep} | (~{some} & {self._laid(self._keep_all(hard)).at(BITAND + 1)})"
        if adds:
            mask = (
                f'{self._laid(self._sum(adds)).at(ATOM)}.masked_fill(~{keep}, float("-inf")).masked_fill(~{some}, 0.0)'
            )
        query = f"{self.texts[0].at(PRODUCT)} * {some}"
        if not conditions:
            self.call.statements += lines
            self.call.query, self.call.mask = query, mask
            return
        masked_query, name = self._fresh("masked_query"), self._fresh("attn_mask")
        self.call.statements += [
            f"{masked_query}, {name} = {self.texts[0].text}, None",
            f"if {self._condition(conditions)}:",
            *(f"    {line}" for line in lines),
            f"    {masked_query}, {name} = {query}, {mask}",
        ]
        self.call.query, self.call.mask = masked_query, name

    def _zeroed(self, items: list[Item]) -> None:
        """Fully masked rows give 0: the same mask put on the probabilities again, or nan_to_num."""
        zeroed, fills = self.folded.zeroed, [i for i in items if i.kind == "fill"]
        if len(zeroed) != 1 or len(fills) != 1 or len(items) != 1 or zeroed[0].conditions != fills[0].conditions:
            again = zeroed[0].keep is not None and any(zeroed[0].keep.same(f.keep) for f in fills)
            self.problem(
                "no fix" if again else "refuse",
                zeroed[0].line,
                "masks the probabilities after the softmax",
                "late-mask",
            )
            raise Inexpressible("a mask after the softmax")
        same = (
            zeroed[0].kind == "nan"
            and fills[0].fill.strength == "inf"
            or zeroed[0].keep is not None
            and zeroed[0].keep.same(fills[0].keep)
        )
        if not same or fills[0].conditions:
            self.problem("no fix", zeroed[0].line, "masks the probabilities after the softmax")
            raise Inexpressible("another mask after the softmax")
        kept = self._laid(self._keep(fills[0]))
        keep = kept.text if kept.text.isidentifier() else self._fresh("keep")
        some = self._fresh("some")
        self.call.statements += [] if keep == kept.text else [f"{keep} = {kept.text}"]
        self.call.statements.append(
            f"{some} = {keep}.any(dim=-1, keepdim=True)  # a fully masked row gives 0, as before"
        )
        self.call.mask = f"{keep} | ~{some}"
        self.call.suffix = f".masked_fill(~{some}, 0.0)"


def masks_sum_level() -> int:
    from attn_advisor.attention.express import SUM

    return SUM


def without_pairs(factors: list[Factor]) -> list[Factor]:
    """Without numbers that are divided out again (`x / 32 * 32`)."""
    left: list[Factor] = []
    for factor in factors:
        pair = next(
            (
                f
                for f in left
                if f.divide != factor.divide
                and f.conditions == factor.conditions
                and f.value.const == factor.value.const
            ),
            None,
        )
        if pair is not None and isinstance(factor.value.const, (int, float)) and factor.value.const:
            left.remove(pair)
        else:
            left.append(factor)
    return left


def product_of(factors: list[Factor]) -> Value:
    """One value for a product of multiplied and divided numbers."""
    above = [f.value for f in factors if not f.divide]
    below = [f.value for f in factors if f.divide]
    value = above[0] if above else constant(1)
    for factor in above[1:]:
        value = synthetic("mul", value, factor)
    for factor in below:
        value = synthetic("div", value, factor)
    return value


def _negative(value: Value) -> bool:
    """Whether a factor is written as a negative number."""
    if isinstance(value.const, (int, float)):
        return value.const < 0
    made = definition(value) if value.op == "attribute" else None
    return value.op == "neg" or made is not None and _negative(made)


def _negated(factor: Factor) -> bool:
    """Whether the sign of the factor has been moved to the query."""
    return isinstance(factor.value.const, (int, float)) and factor.value.const < 0


_SIGNED = ("scale", "scaling", "temp", "tau", "coef", "alpha", "beta", "gamma", "factor", "mult", "gain")


def _positive(value: Value, depth: int = 0) -> bool:
    """Whether a factor is a number above zero: a size, a root, a width or index by its name, or computed from such."""
    if isinstance(value.const, (int, float)):
        return value.const > 0
    if depth > 20:
        return False
    if value.op in ("size", "sqrt", "rsqrt", "numel", "py_len", "ndim", "dim", "exp", "softplus"):
        return True
    if value.op == "pow" and isinstance(value.args[1].const, float) and not value.args[1].const.is_integer():
        return True
    if value.op == "attribute":
        made = definition(value)
        if made is not None:
            return _positive(made, depth + 1)
    if value.op == "param" and getattr(value.frame.function if value.frame else None, "name", "") != "__init__":
        return value.attrs.get("annotation", "").startswith("int")
    if value.op in ("attribute", "param"):
        return not any(word in value.attrs["name"].lower() for word in _SIGNED)
    operands = (
        value.args[1:]
        if value.op == "phi"
        else value.args[:1]
        if value.op in ("pow", "tensor", "as_tensor", "cast", "full", "buffer", "number", "py_float", "identity")
        else value.args
    )
    known = [a for a in operands if not (a.op == "const" and a.const is None)]
    computed = (
        "mul",
        "div",
        "add",
        "floordiv",
        "pow",
        "or",
        "and",
        "phi",
        "py_min",
        "py_max",
        "py_abs",
        "abs",
        "number",
        "py_float",
        "tensor",
        "as_tensor",
        "cast",
        "buffer",
        "identity",
    )
    return value.op in computed and bool(known) and all(_positive(a, depth + 1) for a in known)


def _has_axes(value: Value, depth: int = 0) -> bool:
    """Whether a value is computed along axes, so that it is no single number."""
    if value.op in (
        "norm",
        "vector_norm",
        "std",
        "var",
        "sum",
        "mean",
        "amax",
        "amin",
        "unsqueeze",
        "einsum",
        "matmul",
        "linear",
        "slice",
    ):
        return True
    return (
        depth < 10
        and value.op not in ("size", "shape", "attribute")
        and any(_has_axes(a, depth + 1) for a in value.args)
    )


def _not(test: Value) -> Value:
    if test.op == "not":
        return test.args[0]
    if test.op == "compare":
        flip = {"is": "is_not", "is_not": "is", "eq": "ne", "ne": "eq", "in": "not_in", "not_in": "in"}.get(
            test.attrs["how"]
        )
        if flip:
            return synthetic("compare", *test.args, how=flip)
    return synthetic("not", test)


def _given(value: Value) -> bool:
    """Whether a mask comes from outside, so that its axes are not known."""
    while (
        value.op != "param"
        and value.args
        and value.op in ("compare", "invert", "logical_not", "cast", "phi", "identity")
    ):
        value = value.args[1] if value.op == "phi" else value.args[0]
    return value.op == "param"


def _bool_attribute(value: Value) -> bool:
    made = definition(value) if value.op == "attribute" else value
    if made is None:
        return False
    if made.op == "param":
        default = made.attrs.get("_default")
        return made.attrs.get("annotation") == "bool" or isinstance(getattr(default, "value", None), bool)
    return isinstance(made.const, bool)


def _parameter(value: Value) -> bool:
    made = definition(value)
    return made is not None and made.op == "construct" and made.attrs["qualified"].endswith("Parameter")


def _cast_kinds(value: Value, depth: int = 0) -> set[str]:
    """The dtypes an operand may have been cast to on its way to the product."""
    if depth > 12 or not value.args:
        return set()
    if value.op == "cast":
        return {value.attrs["kind"] or "other"}
    if value.op == "phi":
        return _cast_kinds(value.args[1], depth + 1) | _cast_kinds(value.args[2], depth + 1)
    if value.op in ("add", "sub", "mul", "div"):
        return _cast_kinds(value.args[0], depth + 1)
    if value.op in (
        "transpose",
        "permute",
        "identity",
        "reshape",
        "neg",
        "unsqueeze",
        "rearrange",
        "normalize",
        "expand",
        "repeat_interleave",
    ):
        return _cast_kinds(value.args[0], depth + 1)
    return set()


def _loose(text: str) -> bool:
    """Whether text has an operator at its outermost level."""
    depth = 0
    for at, char in enumerate(text):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char in " *+-/" and depth == 0 and at:
            return True
    return text.startswith("-")


__all__ = ["Arguments", "Call", "Labels", "Text"]
