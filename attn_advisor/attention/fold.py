"""Folding the chain of an attention into what SDPA takes: scale, masks in order, dropout - and what stands in the way."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from attn_advisor.attention import masks
from attn_advisor.attention.axes import Labels
from attn_advisor.attention.callers import values_passed
from attn_advisor.attention.chain import Link, _maximum_of
from attn_advisor.attention.masks import Fill
from attn_advisor.attention.site import Site
from attn_advisor.attention.synthetic import constant, synthetic
from attn_advisor.dataflow.attributes import definition
from attn_advisor.dataflow.operations import SIGNATURES
from attn_advisor.dataflow.shapes import Dim, Shapes
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


_SKIP = frozenset(
    "loop identity transpose permute reshape rearrange unsqueeze squeeze flatten unflatten expand".split()
)
_POINTWISE = {  # functions of one score: what they do, way out
    "tanh": ("caps the scores with tanh", "capped-scores"),
    "clamp": ("clamps the scores", "clamped-scores"),
    "sigmoid": ("takes a sigmoid of the scores", "pointwise-function"),
    "relu": ("takes a relu of the scores", "pointwise-function"),
    "abs": ("takes the absolute value of the scores", "pointwise-function"),
    "exp": ("takes the exponential of the scores", "pointwise-function"),
    "log": ("takes the logarithm of the scores", "pointwise-function"),
}
_MIXING = ("torch.nn.Linear", "torch.nn.Conv1d", "torch.nn.Conv2d")


def fold(site: Site, shapes: Shapes) -> Folded:
    out = Folded()
    _product(site, out)
    skip: set[int] = set()
    for n, link in enumerate(site.before):
        if id(link) not in skip:
            _score_link(site, link, site.before[n + 1 :], out, skip, shapes)
    if out.floored:
        for item in out.items:
            if item.fill.strength == "inf":
                item.fill = Fill("finite")
    for link in site.behind:
        _probability_link(site, link, out, shapes)
    for kind, value in site.unclear:
        _unclear(kind, value, out)
    if site.softmax.op == "div" and site.softmax.args[1].op == "add":
        out.problems.append(
            Problem("refuse", site.softmax.line, "adds to the sum that the softmax divides by", "off-by-one")
        )
    own = _spelled(site, "apply")
    if own is not None:
        out.problems.append(Problem("no fix", own.line, "a torch.autograd.Function has a gradient of its own"))
    cut = _spelled(site, "data")
    if cut is not None:
        out.problems.append(
            Problem("refuse", cut.line, "takes the weights out of the gradient (`.data`)", "detached-weights")
        )
    if site.softmax.op == "gumbel_softmax":
        out.problems.append(
            Problem("refuse", site.softmax.line, "draws the weights at random (gumbel_softmax)", "random-weights")
        )
    chain = {id(v) for v in site.chain_values} | {id(k.operand) for k in (*site.before, *site.behind)}
    for item in out.items:
        way = _made_from(item.value, chain)
        if way:
            out.problems.append(Problem("refuse", item.line, "makes its mask from the scores themselves", way))
    return out


def _spelled(site: Site, name: str) -> Value | None:
    """The value of the chain that hands its operand on under this spelling."""
    links = (*site.before, *site.behind)
    return next((k.value for k in links if k.kind == "identity" and k.value.attrs.get("spelled") == name), None)


def _made_from(value: Value, chain: set[int]) -> str:
    """The way out where a value depends on what the scores hold, not only on their size or dtype: by their rank in a row, or each by itself."""
    stack, seen, found = [(value, False)], set(), ""
    while stack:
        at, ranked = stack.pop()
        if (id(at), ranked) in seen:
            continue
        seen.add((id(at), ranked))
        if id(at) in chain:
            if ranked:
                return "top-k"
            found = "mask-from-scores"
        elif at.op not in (
            "size",
            "shape",
            "dtype",
            "device",
            "ndim",
            "ones_like",
            "zeros_like",
            "full_like",
            "new_ones",
            "new_zeros",
            "new_full",
        ):
            ranked = ranked or at.op in ("topk", "kthvalue", "sort", "argsort")
            stack.extend(
                (a, ranked) for a in (at.args[:1] if at.op in ("type_as", "expand_as", "reshape_as", "to") else at.args)
            )
    return found


def _product(site: Site, out: Folded) -> None:
    """baddbmm(input, a, b, beta=, alpha=) is beta * input + alpha * a @ b."""
    product = site.product
    if product.op != "baddbmm":
        return
    beta, alpha = product.get("beta"), product.get("alpha")
    if alpha is not None and alpha.const != 1:
        _factor(Factor(alpha, False, (), scalar_kind(alpha), product.line), out)
    if beta is None or beta.const != 0:
        term = product.args[0]
        if beta is not None and beta.const != 1:
            term = synthetic("mul", term, beta)
            if scalar_kind(beta) != "number":
                out.problems.append(
                    Problem("no fix", product.line, "baddbmm with a beta that is not known to be a number")
                )
        out.items.append(Item("add", term, (), site.score_labels, product.line, "add"))


def _factor(factor: Factor, out: Folded) -> None:
    out.factors.append(factor)
    for item in out.items:
        item.factors.append(factor)


def _score_link(site: Site, link: Link, later: list[Link], out: Folded, skip: set[int], shapes: Shapes) -> None:
    kind, line = link.kind, link.value.line
    if kind in _SKIP:
        return
    if kind == "cast":
        out.casts.append(link)
        return
    if kind in ("mul", "div"):
        _multiplied(site, link, later, out, skip, shapes)
    elif kind in ("add", "sub"):
        _added(site, link, out)
    elif kind == "neg":
        _factor(Factor(constant(-1), False, link.conditions, "number", line), out)
    elif kind in ("masked_fill", "where", "setitem"):
        _masked(link, out, shapes)
    elif kind == "softmax":
        out.problems.append(Problem("refuse", line, "takes a second softmax of the scores", "second-softmax"))
    elif kind in _POINTWISE and not _floor(link):
        out.problems.append(Problem("refuse", line, *_POINTWISE[kind]))
    elif kind == "dropout":
        out.problems.append(Problem("refuse", line, "drops scores before the softmax", "dropped-scores"))
    elif kind == "unknown":
        _unknown(link, out)
    elif kind in ("clamp", "maximum", "max") and _floor(link):
        out.floored = True  # -inf becomes a finite number: rows without any key attend evenly
    elif kind in ("topk", "sort"):
        out.problems.append(Problem("refuse", line, "keeps only some of the scores", "top-k"))
    elif kind == "cat":
        out.problems.append(Problem("refuse", line, "joins other columns to the scores", "joined-columns"))
    else:
        out.problems.append(Problem("refuse", line, f"changes the scores by `{kind}`", "function-of-scores"))


def _unknown(link: Link, out: Folded) -> None:
    """A function that is not read. One that is given more than the scores, by a name that says so, adds a bias or mask."""
    value = link.value
    target = value.args[0] if value.args else None
    name = str((target.attrs.get("name") or target.attrs.get("qualified") or "") if target is not None else "").lower()
    if value.op == "call" and any(word in name for word in ("pos", "bias", "mask", "alibi")):
        out.problems.append(
            Problem("no fix", value.line, f"`{name}` is applied to the scores, and what it does is not known")
        )
    elif _mixes_heads(value):
        out.problems.append(Problem("refuse", value.line, "mixes the scores of the heads", "talking-heads"))
    else:
        out.problems.append(
            Problem(
                "refuse", value.line, "hands the scores to another function before the softmax", "function-of-scores"
            )
        )


def _mixes_heads(value: Value) -> bool:
    """Talking heads: a product with a weight or a linear layer takes the scores (or probabilities) of all heads."""
    if value.op == "einsum":
        return True
    made = definition(value.args[0]) if value.op == "call" and value.args[0].op == "attribute" else None
    return made is not None and made.op == "construct" and made.attrs["qualified"] in _MIXING


def _floor(link: Link) -> bool:
    """max(scores, finfo.min) and clamp(min=finfo.min): nothing but a floor under the masked cells."""
    value = link.value
    if link.kind == "clamp":
        low, high = value.get("min"), value.get("max")
        return low is not None and high is None and masks.fill_of(low).strength == "finite"
    return len(link.rest) == 1 and masks.fill_of(link.rest[0]).strength == "finite"


def _multiplied(site: Site, link: Link, later: list[Link], out: Folded, skip: set[int], shapes: Shapes) -> None:
    other, line = link.rest[0], link.value.line
    if link.kind == "div" and link.reversed:
        out.problems.append(Problem("refuse", line, "divides by the scores", "pointwise-function"))
        return
    if len(link.rest) > 1:
        out.problems.append(Problem("no fix", line, "a division that rounds"))
    scalar = scalar_kind(other)
    if scalar in ("number", "tensor"):
        _factor(Factor(other, link.kind == "div", link.conditions, scalar, line), out)
        return
    if _blend(site, link, later, out, skip):
        return
    if scalar == "parameter" or scalar == "unknown":
        shape = shapes.shape(other)
        if shape is not None and (len(shape) == 0 or shape[-1] == Dim(1)):
            if len(shape) > 2 or scalar == "parameter" or len(shape) == 0:
                _factor(Factor(other, link.kind == "div", link.conditions, "parameter", line), out)
                return
        if shape is not None and len(shape) == 1:
            out.problems.append(Problem("no fix", line, "multiplies the scores by a number for each key"))
        if shape is not None and len(shape) >= 2 and (scalar == "unknown" or shape[-2] != Dim(1)):
            out.problems.append(Problem("refuse", line, "multiplies the scores by a tensor", "weighted-scores"))
            return
        _factor(Factor(other, link.kind == "div", link.conditions, "unknown", line), out)
        return
    out.problems.append(Problem("refuse", line, "multiplies the scores by a tensor", "weighted-scores"))


def _blend(site: Site, link: Link, later: list[Link], out: Folded, skip: set[int]) -> bool:
    """`scores * keep + fill * (1 - keep)`: a fill by arithmetic, where keep holds only 0 and 1."""
    if link.kind != "mul":
        return False
    keep = link.rest[0]
    follow = next((k for k in later if k.kind not in _SKIP and k.kind != "cast"), None)
    if (
        follow is None
        or follow.kind not in ("add", "sub")
        or follow.reversed
        and follow.kind == "sub"
        or follow.conditions != link.conditions
    ):
        return False
    term = follow.rest[0]
    if term.op != "mul" or len(term.args) != 2:
        return False
    for number, rest in (term.args, term.args[::-1]):
        if rest.op == "sub" and rest.args[0].const == 1 and rest.args[1].same(keep):
            amount = number.const if isinstance(number.const, (int, float)) else None
            if amount is None:
                return False
            fill = Fill(
                "finite" if (-amount if follow.kind == "sub" else amount) <= masks.STRONG else "weak",
                float(-amount if follow.kind == "sub" else amount),
            )
            item = Item(
                "fill", keep, link.conditions, link.labels, link.value.line, "multiply", masks.as_bool(keep), fill
            )
            out.items.append(item)
            skip.add(id(follow))
            if not _zero_or_one(keep):
                out.problems.append(
                    Problem(
                        "unsafe",
                        link.value.line,
                        "the mask that multiplies the scores is not known to hold only 0 and 1",
                    )
                )
            return True
    return False


def _zero_or_one(value: Value) -> bool:
    if masks.is_bool(value):
        return True
    if (
        value.op in ("cast", "getitem", "unsqueeze", "reshape", "buffer", "identity", "tril", "triu", "expand")
        and value.args
    ):
        return _zero_or_one(value.args[0])
    if value.op in ("ones", "zeros", "ones_like", "zeros_like", "eye"):
        return True
    if value.op == "attribute":
        made = definition(value)
        return made is not None and made.op == "buffer" and _zero_or_one(made)
    return False


def _added(site: Site, link: Link, out: Folded) -> None:
    term, line = link.rest[0] if link.rest else link.operand, link.value.line
    if len(link.rest) > 1:
        out.problems.append(Problem("no fix", line, "an addition with alpha"))
        return
    if link.kind == "sub" and _shift(term, link.operand, link.labels, site):
        if link.reversed:  # max - scores: the same as -scores
            _factor(Factor(constant(-1), False, link.conditions, "number", line), out)
        return
    if link.kind == "sub" and link.reversed:
        _factor(Factor(constant(-1), False, link.conditions, "number", line), out)
        if not (isinstance(term.const, (int, float)) and site.key_axis):
            out.items.append(Item("add", term, link.conditions, link.labels, line, "add"))
        return
    if isinstance(term.const, (int, float)):
        if site.key_axis:  # one number added to every score changes nothing
            return
    if masks.is_bool(term):
        out.problems.append(Problem("unsafe", line, "a bool mask is added to the scores, which adds 1"))
    out.items.append(Item("add", term, link.conditions, link.labels, line, "add", subtract=link.kind == "sub"))


def _shift(term: Value, scores: Value, labels: Labels, site: Site) -> bool:
    """Whether the term is the scores' maximum over the key axis: a shift the softmax does not see."""
    last = term.get("dim")
    if term.op == "unsqueeze" and last is not None and last.const == -1 and term.args[0].op in ("amax", "max"):
        inner = term.args[0]
        dim = inner.get("dim")
        return dim is not None and dim.const == -1 and labels[-1] == site.key_axis and inner.args[0].same(scores)
    while term.op in ("expand_as", "expand", "detach", "identity"):
        term = term.args[0]
    axis = term
    while axis.op in ("part", "getitem", "attribute"):
        axis = axis.args[0]
    dim = axis.get("dim")
    if dim is None or not isinstance(dim.const, int) or not -len(labels) <= dim.const < len(labels):
        return False
    return (
        "..." not in labels[dim.const :] and labels[dim.const] == site.key_axis and _maximum_of(term, scores, dim.const)
    )


def _masked(link: Link, out: Folded, shapes: Shapes) -> None:
    value, line = link.value, link.value.line
    if link.kind == "masked_fill":
        if len(value.args) < 3:
            out.problems.append(Problem("no fix", line, "a masked_fill without a value"))
            return
        mask, fill = value.args[1], value.args[2]
        keep: Value = masks.negated(mask, certainly_bool=True)
    elif link.kind == "where":
        mask, fill = link.rest
        keep = masks.negated(mask, certainly_bool=False) if link.reversed else masks.as_bool(mask)
    else:
        mask, fill = value.args[1], value.args[2]
        if mask.op == "tuple" and _last_axes(mask, link.labels, shapes):
            mask = mask.args[-1]
        if mask.op in ("tuple", "slice", "const", "list"):
            out.problems.append(Problem("no fix", line, "only part of the scores is set"))
            return
        keep = masks.negated(mask, certainly_bool=True)
    strength = masks.fill_of(fill)
    if strength.strength in ("unknown", "weak"):
        if strength.strength == "weak":
            text = (
                f"fills masked scores with a mere {strength.number:g}"
                if strength.number is not None
                else "fills masked scores with too small a number"
            )
            out.problems.append(Problem("refuse", line, text, "weak-fill"))
        else:
            out.problems.append(Problem("no fix", line, "fills masked scores with an unknown number"))
    out.items.append(Item("fill", mask, link.conditions, link.labels, line, link.kind, keep, strength))


def _last_axes(index: Value, labels: Labels, shapes: Shapes) -> bool:
    """Whether `scores[:, :, mask]` or `scores[..., mask]` indexes the last axes by one mask."""
    *front, mask = index.args
    rank = shapes.rank(mask)
    full = [i for i in front if i.op == "slice" and all(a.const is None for a in i.args)]
    dots = [i for i in front if i.op == "const" and i.const is Ellipsis]
    if rank is None or mask.op in ("slice", "const") or len(full) + len(dots) != len(front) or len(dots) > 1:
        return False
    return bool(dots) and not full or not dots and "..." not in labels and len(front) + rank == len(labels)


def _probability_link(site: Site, link: Link, out: Folded, shapes: Shapes) -> None:
    kind, line = link.kind, link.value.line
    if kind in _SKIP:
        return
    if kind == "cast":
        out.casts.append(link)
    elif kind == "dropout":
        if out.dropout is not None:
            out.problems.append(Problem("no fix", line, "a second dropout"))
        out.dropout = Dropout(link.value, link.conditions, line)
    elif kind == "unknown" and _named_dropout(link.value) and _other_module(link.value):
        out.problems.append(Problem("refuse", line, "drops the probabilities in a way of its own", "other-dropout"))
    elif kind == "unknown" and _named_dropout(link.value):
        out.problems.append(
            Problem(
                "unsafe",
                line,
                "what is applied to the probabilities is called dropout but is not known to be nn.Dropout",
            )
        )
        out.dropout = Dropout(link.value, link.conditions, line)
    elif kind == "mul" and link.conditions and _none_test(link.conditions[-1]) is not None:
        out.problems.append(Problem("guard", line, "multiplies the probabilities by a mask on request"))
        out.guards.append((link.value, link.conditions[-1]))
    elif kind in ("masked_fill", "where"):
        mask = link.value.args[1] if kind == "masked_fill" else link.rest[0]
        fill = (
            link.value.args[2]
            if kind == "masked_fill" and len(link.value.args) > 2
            else link.rest[-1]
            if kind == "where"
            else None
        )
        if fill is None or fill.const != 0:
            out.problems.append(
                Problem("refuse", line, "changes the probabilities after the softmax", "function-of-probabilities")
            )
            return
        keep = masks.negated(mask, True) if kind == "masked_fill" or link.reversed else masks.as_bool(mask)
        out.zeroed.append(Item("fill", mask, link.conditions, link.labels, line, kind, keep))
    elif kind == "nan_to_num" and (nan := link.value.get("nan")) is not None and nan.const != 0:
        out.problems.append(
            Problem("refuse", line, "replaces NaN weights by a number other than 0", "function-of-probabilities")
        )
    elif kind == "nan_to_num":
        out.zeroed.append(Item("nan", link.value, link.conditions, link.labels, line, kind))
    elif (
        kind in ("mul", "div")
        and not link.reversed
        and not link.conditions
        and len(link.rest) == 1
        and _weighs(site, link, out, shapes)
    ):
        pass
    elif kind in ("mul", "div"):
        out.problems.append(
            Problem("refuse", line, "multiplies the probabilities by a tensor", "weighted-probabilities")
        )
    elif kind == "unknown" and _mixes_heads(link.value):
        out.problems.append(Problem("refuse", line, "mixes the probabilities of the heads", "talking-heads"))
    elif kind == "unknown":
        out.problems.append(
            Problem(
                "refuse",
                line,
                "hands the probabilities to another function before the value product",
                "function-of-probabilities",
            )
        )
    elif kind in ("add", "sub"):
        out.problems.append(Problem("refuse", line, "adds to the probabilities", "added-weights"))
    else:
        out.problems.append(
            Problem("refuse", line, f"changes the probabilities by `{kind}`", "function-of-probabilities")
        )


def _weighs(site: Site, link: Link, out: Folded, shapes: Shapes) -> bool:
    """A factor of each head or key goes onto the values (inside SDPA, so that autocast treats it alike); one of each query or a full one goes nowhere."""
    factor, shape = link.rest[0], shapes.shape(link.rest[0])
    if link.labels[-2:] != (site.query_axis, site.key_axis):
        return False
    if any(k.kind in ("dropout", "unknown") for k in site.behind[site.behind.index(link) :]):
        return False  # what is dropped would be scaled before, not after
    number = scalar_kind(factor) == "number" or shape is not None and len(shape) == 0
    if not number and (shape is None or len(shape) < 2 or shape[-2] != Dim(1)):
        return False
    if not number and shape is not None and shape[-1] != Dim(1):
        factor = synthetic("transpose", factor, dims=(-2, -1))
    out.value_factors.append(Factor(factor, link.kind == "div", (), "number", link.value.line))
    return True


def _named_dropout(value: Value) -> bool:
    target = value.args[0] if value.args else None
    name = "" if target is None else str(target.attrs.get("name", target.attrs.get("qualified", "")))
    return value.op == "call" and "drop" in name.lower()


def _other_module(value: Value) -> bool:
    """Whether the module is known, and is not nn.Dropout."""
    made = definition(value.args[0]) if value.args[0].op == "attribute" else None
    return made is not None and made.op == "construct"


def _none_test(condition: Condition) -> Value | None:
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


none_test = _none_test


def _unclear(kind: str, value: Value, out: Folded) -> None:
    texts = {
        "two": "the branches compute the scores from different products",
        "partial": "one branch gives no scores",
        "axis": "the softmax axis cannot be followed",
        "getitem": "only part of the scores is used",
        "mutated": "the scores are changed through another name",
        "loop": "a loop changes the scores",
    }
    if kind in ("unknown", "cat"):
        return  # named where the link is folded
    out.problems.append(
        Problem("no fix", value.line, texts.get(kind, f"`{kind}` stands between the scores and the values"))
    )


_ARITHMETIC = frozenset(
    {
        "size",
        "pow",
        "mul",
        "div",
        "add",
        "sub",
        "neg",
        "floordiv",
        "sqrt",
        "rsqrt",
        "getitem",
        "shape",
        "number",
        "attribute",
        "where",
    }
)


def scalar_kind(value: Value, depth: int = 0) -> str:
    """What a factor is: "number" (Python number), "tensor" (0-dim, without gradient), "parameter" (learned), else "unknown"."""
    if depth > 20:
        return "unknown"
    op = value.op
    if op == "const":
        return "number" if isinstance(value.const, (int, float)) and not isinstance(value.const, bool) else "unknown"
    if op in ("size", "number", "ndim", "py_len", "py_min", "py_max", "py_float", "numel", "dim", "py_round"):
        return "number"
    if op == "import":
        return "number" if value.attrs["qualified"].startswith("math.") else "unknown"
    if op == "param":
        if getattr(value.frame.function if value.frame else None, "name", "") == "__init__":
            return "unknown" if _built_with_tensor(value) else "number"
        given = values_passed(value)
        passed = {scalar_kind(v, depth + 1) for v in given}
        if passed and passed <= {"number"}:
            return "number"
        if passed & {"parameter", "tensor"} or any(v.op in SIGNATURES and v.op not in _ARITHMETIC for v in given):
            return "unknown"
        default = value.attrs.get("_default")
        annotation = value.attrs.get("annotation", "").replace("Optional[", "").rstrip("]")
        number = (
            default is not None
            and isinstance(getattr(default, "value", None), (int, float))
            and not isinstance(default.value, bool)
        )  # type: ignore[attr-defined]
        return "number" if annotation.split("|")[0].strip() in ("float", "int") or number else "unknown"
    if op in (
        "pow",
        "mul",
        "div",
        "add",
        "sub",
        "neg",
        "floordiv",
        "sqrt",
        "rsqrt",
        "log",
        "or",
        "and",
        "phi",
        "py_abs",
        "mod",
    ):
        operands = value.args[1:] if op == "phi" else value.args
        kinds = {scalar_kind(a, depth + 1) for a in operands if not (a.op == "const" and a.const is None)}
        return _strongest(kinds)
    if op in (
        "exp",
        "clamp",
        "sigmoid",
        "softplus",
        "unsqueeze",
        "reshape",
        "getitem",
        "abs",
        "cast",
        "identity",
        "expand",
        "tanh",
        "rearrange",
    ):
        kind = scalar_kind(value.args[0], depth + 1) if value.args else "unknown"
        return (
            kind
            if kind in ("parameter", "tensor")
            and op in ("exp", "clamp", "sigmoid", "softplus", "abs", "cast", "identity", "tanh")
            else "parameter"
            if kind == "parameter"
            else "unknown"
        )
    if op in ("tensor", "as_tensor"):
        return "tensor" if value.args and scalar_kind(value.args[0], depth + 1) == "number" else "unknown"
    if op == "buffer":
        return scalar_kind(value.args[0], depth + 1)
    if op == "construct":
        return (
            "parameter"
            if value.attrs["qualified"] in ("torch.nn.Parameter", "torch.nn.parameter.Parameter")
            else "unknown"
        )
    if op == "attribute":
        made = definition(value)
        if made is None:
            return _config_number(value)
        return scalar_kind(made, depth + 1)
    return "unknown"


def _built_with_tensor(value: Value) -> bool:
    """Whether a call of the class in this file gives its constructor a tensor for the parameter."""
    frame = value.frame
    assert frame is not None
    name = frame.cls.node.name if frame.cls is not None else ""
    if not name or frame.module.source.text.count(f"{name}(") < 2:
        return False
    names = [a.arg for a in (*frame.function.args.posonlyargs, *frame.function.args.args)][1:]  # type: ignore[attr-defined]
    for call in ast.walk(frame.module.tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == name:
            given = dict(zip(names, call.args, strict=False)) | {k.arg: k.value for k in call.keywords if k.arg}
            argument = given.get(value.attrs["name"])
            made = frame.module.qualified(argument.func) if isinstance(argument, ast.Call) else None
            if made is not None and made.startswith("torch."):
                return True
    return False


def _config_number(value: Value) -> str:
    """`config.head_dim` inside `__init__` is a hyperparameter."""
    base = value
    while base.op == "attribute":
        base = base.args[0]
    if base.op == "param" and getattr(base.frame.function if base.frame else None, "name", "") == "__init__":
        return "number"
    if (
        value.args[0].op == "attribute"
        and base.op == "self"
        and any(word in value.args[0].attrs["name"].lower() for word in ("config", "cfg", "args", "hparams"))
    ):
        return "number"
    return "unknown"


def _strongest(kinds: set[str]) -> str:
    for kind in ("unknown", "parameter", "tensor"):
        if kind in kinds:
            return kind
    return "number" if kinds else "unknown"


__all__ = ["Dropout", "Factor", "Folded", "Item", "Problem", "fold", "none_test", "scalar_kind", "synthetic"]
