"""What is done to the scores before the softmax, one link of the chain after the other."""

from __future__ import annotations

from attn_advisor.attention import masks
from attn_advisor.attention.axes import Labels
from attn_advisor.attention.chain import Link, _maximum_of
from attn_advisor.attention.factors import scalar_kind
from attn_advisor.attention.folded import Factor, Folded, Item, Problem
from attn_advisor.attention.masks import Fill
from attn_advisor.attention.site import Site
from attn_advisor.attention.synthetic import constant
from attn_advisor.dataflow.attributes import definition
from attn_advisor.dataflow.dims import Dim
from attn_advisor.dataflow.shapes import Shapes
from attn_advisor.dataflow.values import Value

SKIP = frozenset("loop identity transpose permute reshape rearrange unsqueeze squeeze flatten unflatten expand".split())


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


def add_factor(factor: Factor, out: Folded) -> None:
    out.factors.append(factor)
    for item in out.items:
        item.factors.append(factor)


def change_scores(site: Site, link: Link, later: list[Link], out: Folded, skip: set[int], shapes: Shapes) -> None:
    kind, line = link.kind, link.value.line
    if kind in SKIP:
        return
    if kind == "cast":
        out.casts.append(link)
        return
    if kind in ("mul", "div"):
        _multiplied(site, link, later, out, skip, shapes)
    elif kind in ("add", "sub"):
        _added(site, link, out)
    elif kind == "neg":
        add_factor(Factor(constant(-1), False, link.conditions, "number", line), out)
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
    elif mixes_heads(value):
        out.problems.append(Problem("refuse", value.line, "mixes the scores of the heads", "talking-heads"))
    else:
        out.problems.append(
            Problem(
                "refuse", value.line, "hands the scores to another function before the softmax", "function-of-scores"
            )
        )


def mixes_heads(value: Value) -> bool:
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
        add_factor(Factor(other, link.kind == "div", link.conditions, scalar, line), out)
        return
    if _blend(site, link, later, out, skip):
        return
    if scalar == "parameter" or scalar == "unknown":
        shape = shapes.shape(other)
        if shape is not None and (len(shape) == 0 or shape[-1] == Dim(1)):
            if len(shape) > 2 or scalar == "parameter" or len(shape) == 0:
                add_factor(Factor(other, link.kind == "div", link.conditions, "parameter", line), out)
                return
        if shape is not None and len(shape) == 1:
            out.problems.append(Problem("no fix", line, "multiplies the scores by a number for each key"))
        if shape is not None and len(shape) >= 2 and (scalar == "unknown" or shape[-2] != Dim(1)):
            out.problems.append(Problem("refuse", line, "multiplies the scores by a tensor", "weighted-scores"))
            return
        add_factor(Factor(other, link.kind == "div", link.conditions, "unknown", line), out)
        return
    out.problems.append(Problem("refuse", line, "multiplies the scores by a tensor", "weighted-scores"))


def _blend(site: Site, link: Link, later: list[Link], out: Folded, skip: set[int]) -> bool:
    """`scores * keep + fill * (1 - keep)`: a fill by arithmetic, where keep holds only 0 and 1."""
    if link.kind != "mul":
        return False
    keep = link.rest[0]
    follow = next((k for k in later if k.kind not in SKIP and k.kind != "cast"), None)
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
            add_factor(Factor(constant(-1), False, link.conditions, "number", line), out)
        return
    if link.kind == "sub" and link.reversed:
        add_factor(Factor(constant(-1), False, link.conditions, "number", line), out)
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
