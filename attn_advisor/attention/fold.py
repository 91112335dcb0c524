"""Folding the chain of an attention into what SDPA takes: scale, masks in order, dropout - and what stands in the way."""

from __future__ import annotations

from attn_advisor.attention.factors import scalar_kind
from attn_advisor.attention.folded import Factor, Folded, Item, Problem
from attn_advisor.attention.masks import Fill
from attn_advisor.attention.score_changes import add_factor, change_scores
from attn_advisor.attention.site import Site
from attn_advisor.attention.synthetic import synthetic
from attn_advisor.attention.weight_changes import change_weights
from attn_advisor.dataflow.shapes import Shapes
from attn_advisor.dataflow.values import Value


def fold(site: Site, shapes: Shapes) -> Folded:
    out = Folded()
    _product(site, out)
    skip: set[int] = set()
    for n, link in enumerate(site.before):
        if id(link) not in skip:
            change_scores(site, link, site.before[n + 1 :], out, skip, shapes)
    if out.floored:
        for item in out.items:
            if item.fill.strength == "inf":
                item.fill = Fill("finite")
    for link in site.behind:
        change_weights(site, link, out, shapes)
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
        add_factor(Factor(alpha, False, (), scalar_kind(alpha), product.line), out)
    if beta is None or beta.const != 0:
        term = product.args[0]
        if beta is not None and beta.const != 1:
            term = synthetic("mul", term, beta)
            if scalar_kind(beta) != "number":
                out.problems.append(
                    Problem("no fix", product.line, "baddbmm with a beta that is not known to be a number")
                )
        out.items.append(Item("add", term, (), site.score_labels, product.line, "add"))


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
