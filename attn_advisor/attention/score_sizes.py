"""Sizes, dtype and device of the scores, read off the query and key."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from itertools import pairwise

from attn_advisor.attention.express import ATOM, Inexpressible, Writer
from attn_advisor.attention.site import Operand, Site
from attn_advisor.dataflow.values import Frame, Graph, Value


@dataclass
class About:
    """A size, dtype or device of the scores, and how to read it off the query or key."""

    value: Value
    node: ast.expr
    text: str
    used: list[Value]


def about_scores(site: Site, graph: Graph, frame: Frame) -> list[About]:
    """Uses of the scores, in this function's own text, that only ask for their size, dtype or device."""
    found = []
    read_off = {id(value): read for value, read in _asked(site, graph)}
    for value in graph.by_op.get("tuple", []):  # sizes taken together: scores.shape[-2:]
        sizes = [read_off.get(id(a)) for a in value.args]
        if (
            value.frame is frame
            and value.stmt is not None
            and isinstance(value.node, ast.Subscript)
            and sizes
            and None not in sizes
        ):
            writer = Writer(frame, value.stmt)
            try:
                parts = [writer.write(of).at(ATOM) + suffix for of, suffix in sizes]  # type: ignore[misc]
            except Inexpressible:
                continue
            found += [About(a, value.node, f"({', '.join(parts)})", writer.used) for a in value.args]
    for value, read in _asked(site, graph):
        if value.frame is not frame or value.stmt is None or not isinstance(value.node, ast.expr):
            continue
        if value.op == "size" and not isinstance(value.node, (ast.Call, ast.Subscript)):
            continue
        writer = Writer(frame, value.stmt)
        try:
            text = writer.write(read[0]).at(ATOM) + read[1]
        except Inexpressible:
            continue
        found.append(About(value, value.node, text, writer.used))
    return found


def give_sizes(site: Site, graph: Graph, writer: Writer) -> None:
    """Let the writer read sizes, dtype and device of the scores off the query and key."""
    for value, (of, suffix) in _asked(site, graph):
        if id(value) not in writer.given:
            used, names = list(writer.used), set(writer.names)
            try:
                writer.given[id(value)] = writer.write(of).at(ATOM) + suffix
            except Inexpressible:
                continue
            finally:
                writer.used, writer.names = used, names


def _asked(site: Site, graph: Graph) -> list[tuple[Value, tuple[Value, str]]]:
    """Sizes, dtypes and devices of the scores, each with the tensor and the suffix that give the same."""
    labels = {id(site.product): site.score_labels}
    links = [*site.before, *site.behind]
    labels.update({id(link.operand): link.labels for link in links})
    for link, following in pairwise(links):
        labels[id(link.value)] = following.labels
    cast = False
    same_dtype = {id(site.product)}
    for link in site.before:
        if not cast:
            same_dtype.add(id(link.operand))
        cast = cast or link.kind in ("cast", "unknown")
        if not cast:
            same_dtype.add(id(link.value))
    found = []
    for op in ("size", "dtype", "device"):
        for value in graph.by_op.get(op, []):
            of = value.args[0]
            if id(of) not in labels:
                continue
            operand, suffix = site.query, f".{op}"
            if op == "size":
                axes, axis = labels[id(of)], value.attrs["axis"]
                if not -len(axes) <= axis < len(axes) or ("..." in axes and axis >= 0):
                    continue
                label = axes[axis]
                if label not in (site.query_axis, site.key_axis):
                    continue
                operand = site.query if label == site.query_axis else site.key
                suffix = f".size({operand.labels.index(label) - len(operand.labels)})"
            elif op == "dtype" and id(of) not in same_dtype:
                continue
            found.append((value, _unswapped(operand, suffix)))
    return found


def _unswapped(operand: Operand, suffix: str) -> tuple[Value, str]:
    """The tensor under a swap of the last two axes, with the axis number swapped along."""
    value = operand.value
    if value.op == "transpose" and value.attrs.get("dims") in ((-2, -1), (-1, -2)):
        swapped = {".size(-1)": ".size(-2)", ".size(-2)": ".size(-1)"}
        return value.args[0], swapped.get(suffix, suffix)
    return value, suffix
