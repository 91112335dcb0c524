"""What to try for the free variables of a cut, the attributes behind its self, and the arguments of a forward."""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from attn_advisor.lab import roles
from attn_advisor.lab.job import Sizes
from attn_advisor.lab.layouts import ROLES, layouts, letters
from attn_advisor.lab.roles import Spec

if TYPE_CHECKING:
    from attn_advisor.lab.programs import Source

LETTERS = set("bhlsdecnyx1")


def free_options(source: Source, free: list[str]) -> Iterator[list[list[Spec]]]:
    """For each layout of query, key and value: for each free name of a cut its likely specs, the likeliest first."""
    unpacked = _unpacked_sizes(source)
    for layout in layouts(source.job.facts):
        yield [_options(source, name, unpacked, dict(zip(ROLES, layout))) for name in free]


def _options(source: Source, name: str, unpacked: dict[str, str], layout: dict[str, str]) -> list[Spec]:
    facts = source.job.facts
    for role in ROLES:
        if name == str(facts.get(role) or ""):
            return [_tensor(source, name, role, layout[role])]
    if name in unpacked:
        return [_plain(name, "size", unpacked[name])]
    for role in ROLES:
        if name in _names(str(facts.get(role) or "")) and not roles.means(roles.SCALE, name) and _means_nothing(name):
            return [_tensor(source, name, role, layout[role])]
    for mask in facts.get("masks") or [] if not called(source, name) else []:
        if name in _names(str(mask.get("expression"))) | _names(str(mask.get("keep") or "")):
            if roles.means(roles.MASK, name) or roles.means(roles.BIAS, name) or _means_nothing(name):
                return _mask_options(name, mask)
    if roles.means(roles.DROPOUT, name) and not roles.means("p|rate", name):
        return [Spec(name, "dropout", value=0.1), Spec(name, "object", value=torch.nn.Dropout(0.1))]
    if axes := _einsum_axes(source, name):
        return [Spec(name, "captured", axes, grad=True)]
    if called(source, name):
        return [Spec(name, "none"), Spec(name, "object", value=torch.nn.Identity())]
    if re.fullmatch(r"(\w+_)?(q|query(_states|_layer)?)|queries|xq|qh|q_\w*", name):
        return [_tensor(source, name, "query", layout["query"])]
    if re.fullmatch(r"(\w+_)?(k|key(_states|_layer)?)|keys|xk|kh|k_\w*", name):
        return [_tensor(source, name, "key", layout["key"])]
    if re.fullmatch(r"(\w+_)?(v|value(_states|_layer)?)|values|xv|vh|v_\w*", name):
        return [_tensor(source, name, "value", layout["value"])]
    if roles.means(roles.SCALE, name):
        return [_plain(name, "scale", name)]
    if roles.means(r".*(indices|indexes|ids)", name):
        return [Spec(name, "ids", axes, pattern=row) for row in ("", "first") for axes in ("ls", "bl", "l", "s")]
    if roles.means(roles.BIAS, name) and not roles.means(r".*mask.*|causal_bias", name):
        return [*_bias_options(name), Spec(name, "none")]
    if roles.means(roles.MASK, name):
        return [*roles.mask_specs(name), *roles.mask_specs(name, kind="additive"), Spec(name, "none")]
    value = roles.number(name, Sizes(2, 2, 2, 2, 2))
    made = [] if value is None else [_plain(name, "flag" if isinstance(value, bool) else "size", name)]
    if made and len(name) > 4:
        return [*made, Spec(name, "none"), *roles.hidden_specs(name)[:1]]  # a spelled-out name means what it says
    sizes = [_plain(name, "size", letter) for letter in ("l", "s", "b", "h", "d", "c")]
    return [
        *made,
        Spec(name, "none"),
        Spec(name, "flag", value=False),
        *roles.hidden_specs(name)[:1],
        *_bias_options(name)[:2],
        *sizes,
    ]


def _einsum_axes(source: Source, name: str) -> str:
    """Axes of a name that is an operand of an einsum in the cut, by the labels that it shares with the query and the key."""
    table = letters(source.job.facts)
    for node in (n for s in source.found.statements for n in ast.walk(s)):
        if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)):
            continue
        first = node.args[1] if len(node.args) > 1 else None
        operands = first.elts if isinstance(first, ast.Tuple) else node.args[1:]
        parts = str(node.args[0].value).partition("->")[0].split(",")
        for operand, part in zip(operands, parts):
            if isinstance(operand, ast.Name) and operand.id == name:
                labels = part.split() if " " in part.strip() else list(part.strip())
                if labels and all(label in table for label in labels):
                    return "".join(table[label] for label in labels)
    return ""


def called(source: Source, name: str) -> bool:
    """Whether the cut calls the name as a function."""
    nodes = (n for s in source.found.statements for n in ast.walk(s) if isinstance(n, ast.Call))
    return any(isinstance(n.func, ast.Name) and n.func.id == name for n in nodes)


def _means_nothing(name: str) -> bool:
    """Whether the name is none that sizes, rates and flags go by."""
    return roles.number(name, Sizes(2, 2, 2, 2, 2)) is None


def _mask_options(name: str, mask: dict[str, Any]) -> list[Spec]:
    """By the mask's form and kind; which sense hides is read off the `keep` expression by evaluating it."""
    kind = {"bool": "bool", "additive": "additive", "causal": "bool"}.get(str(mask.get("kind")), "")
    if not kind:
        kind = "additive" if mask.get("form") == "add" else "bool"
    pattern = "causal" if mask.get("kind") == "causal" else ""
    drop = drops(name, mask)
    first = roles.mask_specs(name, kind=kind, pattern=pattern, drop=drop)
    other = "int" if kind == "bool" else "bool"
    if mask.get("form") == "add" and roles.means(roles.BIAS, name):
        first = [*_bias_options(name), *first]
    return [*first, *roles.mask_specs(name, kind=other, pattern=pattern, drop=drop)[:4], Spec(name, "none")]


def drops(name: str, mask: dict[str, Any]) -> bool:
    """Whether True in the named mask hides a key, by the keep expression or the form of its use."""
    keep = str(mask.get("keep") or "")
    if name in _names(keep):
        try:
            kept = eval(keep, {"torch": torch}, {name: torch.tensor([[[[True, False]]]])})
            first, second = torch.as_tensor(kept).flatten()[:2].tolist()
            if first != second:
                return not first
        except Exception:
            pass
    expression = str(mask.get("expression"))
    inverted = bool(re.search(r"== *0|~|logical_not|== *False|< *1|<= *0", expression)) or expression.startswith("not ")
    if mask.get("form") in ("masked_fill", "setitem"):
        return not inverted
    return inverted


def _bias_options(name: str) -> list[Spec]:
    return [Spec(name, "bias", axes) for axes in ("1hls", "hls", "bhls", "ls", "nls", "1h1s", "bls", "sh")]


def _tensor(source: Source, name: str, role: str, axes: str) -> Spec:
    """A query, key or value, in memory as the function lays it out: heads split from a projection stand after the length."""
    memory = ""
    if axes in ("bhld", "bhsd") and _split_from_projection(source, name):
        memory = axes[0] + axes[2] + axes[1] + axes[3]
    return Spec(name, role, axes, memory, grad=True)


def _split_from_projection(source: Source, name: str) -> bool:
    first_row = source.found.rows[0]
    for node in ast.walk(source.found.function):
        if isinstance(node, ast.Assign) and node.lineno < first_row:
            stored = {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
            text = re.sub(r"\s", "", ast.unparse(node.value))
            if name in stored and re.search(
                r"transpose\((1,2|-2,-3|-3,-2|2,1)\)|permute\(\(?0,2,1,3|bn\(?hd\)?->bhnd|->\w*bhnd", text
            ):
                return True
    return False


def _plain(name: str, role: str, meaning: str) -> Spec:
    """A number that follows the sizes: `meaning` is an axis letter or a name."""
    if len(meaning) == 1 and meaning in LETTERS:
        return Spec(name, role, value=partial(_length, meaning))
    return Spec(name, role, value=partial(roles.number, meaning))


def _length(letter: str, sizes: Sizes) -> int:
    return roles.side(letter, sizes)


def _reassigned(source: Source, name: str) -> bool:
    """Whether the function gives the name a new value before the attention."""
    stores = (n for n in ast.walk(source.found.function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return any(n.id == name and n.lineno < source.found.rows[0] for n in stores)


def _names(expression: str) -> set[str]:
    try:
        tree = ast.parse(expression, mode="eval")
    except SyntaxError:
        return set()
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}


def _unpacked_sizes(source: Source) -> dict[str, str]:
    """Names that the function unpacks from a shape before the cut: `B, L, C = x.shape` gives letters."""
    found: dict[str, str] = {}
    shapes = {2: "lc", 3: "blc", 4: "bhld"}
    for node in ast.walk(source.found.function):
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)):
            continue
        text = ast.unparse(node.value)
        names = [e.id if isinstance(e, ast.Name) else "" for e in node.targets[0].elts]
        if not re.search(r"\.shape|\.size\(\)", text) or len(names) not in shapes:
            continue
        for name, letter in zip(names, shapes[len(names)]):
            if name and not (roles.means(roles.HEADS, name) or roles.means(roles.HEAD_DIM, name)):
                found.setdefault(name, letter)
    return found


def attribute_options(source: Source, owner: Any) -> list[list[Spec]]:
    """Specs named `self.x` for attributes the cut reads and the stand-in object does not have."""
    read: list[str] = []
    for statement in source.found.statements:
        for node in ast.walk(statement):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == source.found.self_name
            ):
                if isinstance(node.ctx, ast.Load) and not hasattr(owner, node.attr) and node.attr not in read:
                    read.append(node.attr)
    options: list[list[Spec]] = []
    for name in read:
        attribute = f"self.{name}"
        if roles.means(r".*(softmax|attend)", name):
            options.append([Spec(attribute, "object", value=torch.nn.Softmax(dim=-1))])
        elif roles.means(r".*(drop|dropout)\w*", name):
            options.append(
                [Spec(attribute, "object", value=torch.nn.Dropout(0.1)), Spec(attribute, "dropout", value=0.1)]
            )
        elif roles.means(roles.MASK, name):
            options.append([*roles.mask_specs(attribute, pattern="causal", drop=False), Spec(attribute, "none")])
        elif roles.number(name, Sizes(2, 2, 2, 2, 2)) is not None:
            options.append([_plain_attribute(name)])
        else:
            options.append(
                [
                    Spec(attribute, "object", value=torch.nn.Identity()),
                    Spec(attribute, "flag", value=False),
                    Spec(attribute, "none"),
                ]
            )
    return options


def computed_biases(source: Source) -> list[list[Spec]]:
    """Specs named `self.x` for methods and modules behind self that compute what is added to the scores: calls that give a bias."""
    names: list[str] = []
    for mask in source.job.facts.get("masks") or []:
        with contextlib.suppress(SyntaxError):
            for node in ast.walk(ast.parse(str(mask.get("expression")), mode="eval")):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    owner, name = node.func.value, node.func.attr
                    if isinstance(owner, ast.Name) and owner.id == source.found.self_name and name not in names:
                        names.append(name)
    return [[replace(s, kind="call") for s in _bias_options(f"self.{name}")] for name in names]


def _plain_attribute(name: str) -> Spec:
    return Spec(f"self.{name}", "size", value=partial(roles.number, name))


def forward_options(source: Source, made: type) -> Iterator[list[list[Spec]]]:
    """Argument lists to try for a forward: the required ones, then with optional contexts, then with optional masks."""
    parameters = list(inspect.signature(made.forward).parameters.values())[1:]  # type: ignore[attr-defined]
    overrides = source.overrides("forward")
    plain = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    required = [p for p in plain if p.default is p.empty or p.name in overrides]
    yield [_argument(source, p, overrides) for p in required]
    optional = [p for p in plain if p not in required]
    contexts = [p for p in optional if roles.means(roles.OTHER, p.name) or roles.means(roles.HIDDEN, p.name)]
    if contexts:
        yield [_argument(source, p, overrides) for p in required + contexts]
    masks = [p for p in optional if roles.means(roles.MASK, p.name)]
    if masks:
        yield [_argument(source, p, overrides) for p in required + contexts + masks]
    flags = [p for p in optional if isinstance(p.default, bool)]
    if flags:
        flipped = [[Spec(p.name, "flag", value=not p.default)] for p in flags]
        yield [_argument(source, p, overrides) for p in required] + flipped


def _argument(source: Source, parameter: inspect.Parameter, overrides: dict[str, Any]) -> list[Spec]:
    name = parameter.name
    if name in overrides:
        return [Spec(name, "given", value=overrides[name])]
    for mask in source.job.facts.get("masks") or []:
        if name in _names(str(mask.get("expression"))):
            return _mask_options(name, mask)
    for role in ("query", "key", "value"):
        if source.job.facts.get(role) == name and not _reassigned(source, name):
            tried = [layout[ROLES.index(role)] for layout in layouts(source.job.facts)]
            return [Spec(name, role, axes, grad=True) for axes in dict.fromkeys(tried)]
    if roles.means(r"(k|v|key|value|keys|values|kv)(_\w+)?", name) and not roles.means(roles.MASK, name):
        return roles.hidden_specs(name, "value" if name.startswith("v") else "key", keys=True)
    if roles.means(roles.MEMORY, name) and parameter.default is parameter.empty:
        return [Spec(name, "context", axes, grad=True) for axes in ("bmc", "mbc")] + [Spec(name, "none")]
    if roles.means(roles.POSITIONS, name):
        return [Spec(name, "positions", axes) for axes in ("sc", "lc", "sbc", "blc")] + [Spec(name, "none")]
    if roles.means(roles.OTHER, name):
        return roles.hidden_specs(name, "context", keys=True)
    if roles.means(roles.HIDDEN, name):
        return roles.hidden_specs(name, "query" if name.startswith("q") else "hidden")
    if roles.means(roles.MASK, name):
        kinds = [spec for kind in ("bool", "additive", "int") for spec in roles.mask_specs(name, kind=kind)]
        return [*kinds, Spec(name, "none")] if parameter.default is parameter.empty else [Spec(name, "none"), *kinds]
    if roles.means(r"(input_)?(ids?|tokens?|idx|indices|position_ids|positions)", name):
        return [Spec(name, "ids", "bl"), Spec(name, "none")]
    if roles.means(roles.BIAS, name):
        return [*_bias_options(name), Spec(name, "none")]
    value = roles.number(name, Sizes(2, 2, 2, 2, 2))
    plain = [_plain(name, "size", name)] if value is not None else []
    return [*plain, Spec(name, "none"), *roles.hidden_specs(name)]
