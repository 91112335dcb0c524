"""The detector of hand-written attention: ATN101, ATN102 and ATN103."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from typing import Literal

from attn_advisor.attention.candidates import Candidates
from attn_advisor.attention.discards import thrown_away
from attn_advisor.attention.editor import SDPA
from attn_advisor.attention.express import Inexpressible, Writer
from attn_advisor.attention.fold import fold
from attn_advisor.attention.folded import Folded, Problem
from attn_advisor.attention.place import root_statement
from attn_advisor.attention.rewrite import Rewrite, rewrite
from attn_advisor.attention.site import Site, find_sites
from attn_advisor.dataflow.shapes import Shapes
from attn_advisor.dataflow.statements import Interpreter, interpret
from attn_advisor.dataflow.values import Frame, Value
from attn_advisor.findings import Detection, Fix
from attn_advisor.source.module import Class, Function, Module, names_in

Verdict = Literal["exact", "guarded", "refuse"]
_SCRIPTED = "scripted code"
OBJECT = re.compile(r"^\d+\.")  # stands for an object that has no name, in front of its attribute
TRANSPOSED = re.compile(r"\.(transpose\((-2, -1|-1, -2)\)|mT)$")
_CODES = {"exact": "ATN101", "guarded": "ATN102", "refuse": "ATN103"}


def attention_sites(module: Module) -> Iterator[Detection]:
    """One detection for each hand-written attention of the file."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 5000))
    try:
        found: dict[int, Detection] = {}
        candidates = Candidates(module)
        for name, function, cls in module.all_functions():
            if candidates.may_hold(function, cls):
                for detection, softmaxes in _in_function(module, name, function, cls):
                    if not any(id(n) in found for n in softmaxes):
                        found.update({id(n): detection for n in softmaxes})
                        yield detection
    finally:
        sys.setrecursionlimit(limit)


def _in_function(
    module: Module, name: str, function: Function, cls: Class | None
) -> Iterator[tuple[Detection, list[ast.AST]]]:
    interpreter, frame = interpret(module, function, cls)
    try:
        yield from _in_graph(module, name, function, cls, interpreter, frame)
    finally:
        interpreter.graph.release()


def _in_graph(
    module: Module, name: str, function: Function, cls: Class | None, interpreter: Interpreter, frame: Frame
) -> Iterator[tuple[Detection, list[ast.AST]]]:
    fallback = SDPA in interpreter.graph.by_op or _beside_sdpa(function, cls)
    for site in find_sites(interpreter, frame):
        owner = _owner(site)
        if owner is None or owner is not frame and not _nested(owner, frame):
            continue
        inner = name if owner is frame else f"{name}.{getattr(owner.function, 'name', '')}"
        detection = _detection(module, inner, site, interpreter, owner)
        if detection is not None:
            if fallback:
                _as_fallback(detection)
            yield detection, [s.node for s in site.softmaxes if s.node is not None]


def _as_fallback(detection: Detection) -> None:
    """A branch kept beside SDPA is there on purpose: worth knowing, nothing to change."""
    detection.severity, detection.fix = "info", None
    detection.blockers.insert(0, "stands beside a call of SDPA, as its fallback")
    detection.way = "fallback"


def _hooks(module: Module, cls: Class | None, site: Site) -> Problem | None:
    """A hook that some file of the package registers on the module that makes or drops the probabilities."""
    for value in (site.softmax, *site.softmaxes, *(k.value for k in site.behind)):
        made = value.attrs.get("_module")
        while made is not None and made.op == "getitem":
            made = made.args[0]
        name = made.attrs.get("name") if made is not None and made.op == "attribute" else None
        if (
            name is not None
            and cls is not None
            and name in module.project.hooked(module.path, cls.node.name, module.source.text)
        ):
            return Problem("guard", value.line, f"a forward hook is registered on `{name}`, which records the weights")
    return None


def _beside_sdpa(function: Function, cls: Class | None) -> bool:
    """Whether the class's caller of this method chooses between it and a method that calls SDPA."""
    if cls is None or SDPA not in cls.module.source.text:
        return False
    fused = {
        name
        for name, method in cls.methods.items()
        if method is not function and SDPA in names_in(method).attributes | names_in(method).plain
    }
    if not fused:
        return False
    for caller in cls.methods.values():
        called = names_in(caller).attributes
        if function.name in called and called & fused:
            return True
    return False


def _nested(inner: Frame, outer: Frame) -> bool:
    """Whether `inner` runs a function defined inside the one `outer` runs."""
    return isinstance(inner.function, (ast.FunctionDef, ast.AsyncFunctionDef)) and inner.parent is outer


def _owner(site: Site) -> Frame | None:
    """The innermost execution that holds the whole attention."""
    paths = []
    for value in (site.product, site.softmax, site.output):
        path = list(value.frame.ancestors())[::-1] if value.frame is not None else []
        paths.append(path)
    shared = None
    for frames in zip(*paths, strict=False):
        if all(f is frames[0] for f in frames):
            shared = frames[0]
    while (
        shared is not None
        and isinstance(shared.function, (ast.Lambda, ast.ListComp, ast.GeneratorExp))
        and shared.caller is not None
    ):
        shared = shared.caller
    return shared


def _detection(module: Module, name: str, site: Site, interpreter: Interpreter, frame: Frame) -> Detection | None:
    first, last = root_statement(site.product, frame), root_statement(site.output, frame)
    if first is None or last is None:
        return None
    shapes = Shapes(interpreter.rank_hints)
    folded = fold(site, shapes)
    hooked = _hooks(module, frame.cls, site)
    if hooked is not None:
        folded.problems.append(hooked)
    made = rewrite(site, folded, shapes, interpreter, frame)
    verdict = _verdict(folded, made)
    _outside(module, frame, folded, made)
    blockers = [f"line {p.line}: {p.text}" for p in folded.problems]
    blockers += _escape_texts(made, site, frame)
    source = module.source
    start, end = source.span(first)[0], source.span(last)[1]
    if source.span(last)[0] < start:
        start, end = source.span(last)[0], source.span(first)[1]
    facts = _facts(site, folded, made, frame)
    detection = Detection(_CODES[verdict], start, end, name, facts, verdict=verdict)
    detection.values = {k: TRANSPOSED.sub("", str(facts[k])) for k in ("query", "key", "value")}
    if site.key.value.op == "transpose" and site.key.labels[-1:] == (
        site.key_axis,
    ):  # the key itself, not its transpose
        detection.values["key"] = _text(site.key.value.args[0], frame, last)
    detection.blockers = list(dict.fromkeys(blockers))
    if made.call is not None and (verdict == "exact" or made.guarded):
        detection.assumes = list(dict.fromkeys(made.call.assumes))
    refusal = next((p for p in folded.problems if p.kind == "refuse"), None)
    detection.values["reason"] = (
        f"line {refusal.line} {refusal.text}"
        if refusal is not None
        else detection.blockers[0]
        if detection.blockers
        else ""
    )
    detection.way = refusal.way if refusal is not None else _wanted(made, site, frame) if verdict == "guarded" else ""
    if verdict == "exact" and made.edits:
        safe = not any(p.kind == "unsafe" for p in folded.problems)
        detection.fix = Fix(
            "safe" if safe else "unsafe", f"Replace with `{made.expression}`", tuple(sorted(set(made.edits)))
        )
    elif verdict == "guarded" and made.edits and not any(p.text == _SCRIPTED for p in folded.problems):
        detection.fix = Fix(
            "unsafe",
            f"Keep these lines where the weights are wanted, else `{made.expression}`",
            tuple(sorted(set(made.edits))),
        )
    return detection


def _verdict(folded: Folded, made: Rewrite) -> Verdict:
    kinds = {p.kind for p in folded.problems}
    if "refuse" in kinds:
        return "refuse"
    return "guarded" if "guard" in kinds or made.escapes else "exact"


def _outside(module: Module, frame: Frame, folded: Folded, made: Rewrite) -> None:
    """What the rest of the file forbids."""
    text = module.source.text
    for word in ("create_graph=True", "create_graph = True", "torch.func", "functorch", ".jvp(", ".hvp(", "hessian("):
        if word in text:
            folded.problems.append(
                Problem(
                    "unsafe",
                    text[: text.index(word)].count("\n") + 1,
                    "gradients of gradients may be taken, which fused kernels do not have",
                )
            )
            break
    target = module.target_torch
    if target is not None and made.call is not None:
        if target < (2, 0):
            folded.problems.append(
                Problem(
                    "unsafe",
                    getattr(frame.function, "lineno", 1),
                    f"torch {target[0]}.{target[1]} has no SDPA; it came with 2.0",
                )
            )
        elif target < (2, 1) and made.call.scale is not None:
            folded.problems.append(
                Problem("unsafe", getattr(frame.function, "lineno", 1), "SDPA's scale came with torch 2.1")
            )
    function = frame.function
    decorators = [
        *getattr(function, "decorator_list", []),
        *(frame.cls.node.decorator_list if frame.cls is not None else []),
    ]
    for decorator in decorators:
        if "script" in ast.unparse(decorator).split("(")[0].split("."):
            folded.problems.append(Problem("unsafe", decorator.lineno, _SCRIPTED))


def _escape_texts(made: Rewrite, site: Site, frame: Frame) -> list[str]:
    texts = []
    for value, effect in made.escapes:
        always = "always " if any(effect is a for a in made.always) else ""
        if effect is None:
            texts.append(f"line {value.line}: the weights are {always}handed to another function")
        elif effect.kind == "return":
            dropped = thrown_away(effect, site, frame) if always else None
            texts.append(
                f"line {effect.stmt.lineno}: the weights are {always}returned{f', and {dropped}' if dropped else ''}"
            )
        elif effect.kind == "store":
            name = OBJECT.sub("", effect.name)
            texts.append(f"line {effect.stmt.lineno}: the weights are {always}stored in `{name}`")
        else:
            texts.append(f"line {effect.stmt.lineno}: the weights are {always}used ({effect.kind})")
    return texts


def _wanted(made: Rewrite, site: Site, frame: Frame) -> str:
    """The way out where every call makes the weights: nobody takes them, or whoever does has to ask."""
    if not made.always:
        return ""
    unused = all(e is not None and e.kind == "return" and thrown_away(e, site, frame) is not None for e in made.always)
    return "thrown-away" if unused else "always-made"


def _facts(site: Site, folded: Folded, made: Rewrite, frame: Frame) -> dict[str, object]:
    stmt = site.output.stmt if site.output.frame is frame else root_statement(site.output, frame)
    assert stmt is not None
    call = made.call
    dropout = folded.dropout
    return {
        "query": _text(site.query.value, frame, stmt),
        "key": _text(site.key.value, frame, stmt),
        "value": _text(site.val.value, frame, stmt),
        "axes": {
            "query": " ".join(site.query.labels),
            "key": " ".join(site.key.labels),
            "value": " ".join(site.val.labels),
            "output": " ".join(site.out_labels),
        },
        "scale": (call.scale or "default")
        if call is not None
        else "none"
        if not folded.factors
        else " ".join(("/ " if f.divide else "* ") + _text(f.value, frame, stmt) for f in folded.factors),
        "dropout": None if dropout is None else (call.dropout if call is not None else "unknown"),
        "masks": [
            {
                "expression": _text(item.value, frame, stmt),
                "form": item.form,
                "keep": _text(item.keep, frame, stmt) if item.keep is not None else None,
                "kind": "bool" if item.kind == "fill" else "additive",
                "fill": str(item.fill.number if item.fill.number is not None else item.fill.strength)
                if item.kind == "fill"
                else None,
                "when": " and ".join(
                    ("" if way else "not ") + _text(test, frame, stmt) for test, way in item.conditions
                )
                or None,
            }
            for item in folded.items
        ],
        "causal": call is not None and call.causal is not None,
        "sdpa": made.expression or None,
        "weights": "returned"
        if any(e is not None and e.kind == "return" for _, e in made.escapes)
        else "stored"
        if made.escapes
        else "none",
    }


def _text(value: Value, frame: Frame, stmt: ast.stmt) -> str:
    """The value as source where it can be written, else its operation."""
    try:
        return Writer(frame, stmt).write(value).text
    except Inexpressible:
        node = value.node
        if isinstance(node, ast.expr) and value.frame is not None:
            return " ".join(value.frame.module.source.segment(node).split())
        return value.op


__all__ = ["attention_sites"]
