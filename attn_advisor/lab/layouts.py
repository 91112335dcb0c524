"""How query, key and value may be laid out: by the axes that the detection found, then as people usually do.

A layout has one letter an axis (`Sizes.of`): b, h, l (queries), s (keys), d, n (batch and heads in one), 1 (any other axis).
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from typing import Any

from attn_advisor.lab.job import Sizes

LETTERS = set("bhlsdn1")
ROLES = ("query", "key", "value")
USUAL = (
    ("bhld", "bhsd", "bhsd"),
    ("nld", "nsd", "nsd"),
    ("blhd", "bshd", "bshd"),
    ("bhld", "bhds", "bhsd"),
    ("nld", "nds", "nsd"),
    ("bld", "bsd", "bsd"),
    ("lnd", "snd", "snd"),
    ("nld", "nds", "nds"),
    ("bdl", "bds", "bds"),
    ("ld", "sd", "sd"),
)
"""How query, key and value are laid out together, the usual first."""

Layout = tuple[str, ...]


def layouts(facts: dict[str, Any]) -> list[Layout]:
    """Layouts to try: the one the detection found first, where it found it."""
    return list(dict.fromkeys([*_found(facts), *USUAL]))


def fit(facts: dict[str, Any], shapes: Mapping[str, Sequence[int]]) -> tuple[dict[str, str], Sizes]:
    """The layout that fits tensors of these shapes: the axes of each operand by its name, and the sizes. Without one, no axes and a guess."""
    names = [_name_in(str(facts.get(role) or ""), shapes) for role in ROLES]
    for layout in layouts(facts):
        lengths: dict[str, int] = {}
        fits = any(names)
        for name, axes in zip(names, layout):
            if name:
                shape = shapes[name]
                fits &= len(shape) == len(axes)
                fits &= all(letter == "1" or lengths.setdefault(letter, n) == n for letter, n in zip(axes, shape))
        if fits:
            length, batch = lengths.get("l", 1), lengths.get("b", lengths.get("n", 1))
            sizes = Sizes(batch, lengths.get("h", 1), length, lengths.get("s", length), lengths.get("d", 1))
            return {name: axes for name, axes in zip(names, layout) if name}, sizes
    shape = next(iter(shapes.values()), ())
    length, width = (*(1, 1), *shape)[-2:]
    return {}, Sizes(math.prod(shape[:-2]), 1, length, length, width)


def _name_in(expression: str, names: Mapping[str, Any]) -> str:
    """The only one of the names that an expression reads; empty if there are none or several."""
    try:
        tree = ast.parse(expression, mode="eval")
    except SyntaxError:
        return ""
    found = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id in names}
    return found.pop() if len(found) == 1 else ""


def _labels(facts: dict[str, Any], role: str) -> list[str]:
    """The axis labels of an operand, written apart or as single letters."""
    text = str((facts.get("axes") or {}).get(role) or "")
    return text.split() if " " in text else list(text)


def letters(facts: dict[str, Any]) -> dict[str, str]:
    """The letter of each axis label in the detection's facts; empty if they say nothing."""
    query, key, value, output = (_labels(facts, role) for role in (*ROLES, "output"))
    if not (query and key and value and output):
        return {}
    labels = dict.fromkeys([*query, *key, *value, *output])
    if labels.keys() <= LETTERS:
        return {label: label for label in labels}  # they are letters already
    found: dict[str, str] = {}
    batch = [label for label in query if label in key and label in output and label != "..."]
    length = next((x for x in reversed(key) if x in value and x not in query), "")
    for label in labels:
        if label == "..." or label in batch:
            continue
        if label in query and label in key or label in value and label in output and label not in key:
            found[label] = "d"
        elif label in query and label in output:
            found[label] = "l"
        elif label == length:
            found[label] = "s"
        else:
            found[label] = "1"
    return found | _batch_letters(batch)


def _batch_letters(batch: list[str]) -> dict[str, str]:
    """One batch axis is batch and heads in one; of several the first is the batch and the last the heads, unless their labels say otherwise."""
    if len(batch) < 2:
        return dict.fromkeys(batch, "n")
    heads = "h" if "h" in batch else next((x for x in reversed(batch) if x != "b"), batch[-1])
    first = "b" if "b" in batch else next(x for x in batch if x != heads)
    return {label: "h" if label == heads else "b" if label == first else "1" for label in batch}


def _found(facts: dict[str, Any]) -> list[Layout]:
    """The detection's axes in letters; of operands that are transposed names, those of the names."""
    table = letters(facts)
    if not table:
        return []
    made: list[Layout] = []
    for more in ("bh", "n", ""):
        layout: list[str] = []
        for role in ROLES:
            axes = "".join(more if label == "..." else table[label] for label in _labels(facts, role))
            layout.append(before(str(facts.get(role) or ""), axes) or axes)
        made.append(tuple(layout))
        if not any("..." in _labels(facts, role) for role in ROLES):
            break
    return made


def before(expression: str, axes: str) -> str:
    """Axes of the name in `name.transpose(-2, -1)` and the like, given those of the whole; empty if it is anything else.

    >>> before("k.transpose(-2, -1)", "bhds")
    'bhsd'
    """
    try:
        node = ast.parse(expression, mode="eval").body
    except SyntaxError:
        return ""
    order = list(axes)
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute) and node.attr in ("mT", "mH", "T") and (node.attr != "T" or len(axes) == 2):
            order[-1], order[-2] = order[-2], order[-1]
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.keywords:
            if not _undo(node.func.attr, node.args, order):
                return ""
            node = node.func.value
        else:
            return ""
    return "".join(order)


def _undo(method: str, arguments: list[ast.expr], order: list[str]) -> bool:
    """Undo one method call on the axes; False if that cannot be told."""
    if method in ("contiguous", "float", "type_as", "to"):
        return True
    try:
        numbers = [ast.literal_eval(a) for a in arguments]
        if method in ("transpose", "swapaxes", "swapdims"):
            first, second = numbers
            order[first], order[second] = order[second], order[first]
            return True
        if method == "permute":
            numbers = list(numbers[0]) if len(numbers) == 1 else numbers
            undone = dict(zip((n % len(order) for n in numbers), order))
            order[:] = [undone[n] for n in range(len(order))]
            return True
    except (ValueError, TypeError, IndexError, KeyError):
        pass
    return False
