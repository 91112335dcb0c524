"""Detector of the rules ATN501 to ATN506 and ATN310: unsafe in-place changes in any function of a file."""

from __future__ import annotations

import ast
import itertools
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import cache

from attn_advisor.autograd.attributes import attributes
from attn_advisor.autograd.callers import Callers
from attn_advisor.autograd.interpret import Context, Hazard, Interpreter, context_of
from attn_advisor.autograd.outofplace import rewrite
from attn_advisor.findings import Detection
from attn_advisor.source.module import Class, Function, Module

# Lines that may change a tensor in place. Not: `+= (item,)`, `+= [...]`, `+= "..."`, `d["key"] = ...`, `name: list[int] = ...`.
# Each pattern begins with a letter or sign of its own, not with a choice: `re` finds those many times faster.
_INPLACE = tuple(
    map(
        re.compile,
        (
            r"""=(?!=)(?:(?<=[-+*/|&^%]=)|(?<=<<=)|(?<=>>=))(?!\s*(?:\([\w.\[\]]*,\s*\)|["'f\[]))""",
            r"""_\((?<=[a-zA-Z0-9]_\()""",
            r"""\](?<!["']\])\s*=(?!=)""",
            r"""out(?<=[(,\s]out)\s*=""",
        ),
    )
)
_ANNOTATED = re.compile(r"\s*(?!else\b|try\b|finally\b)\w+\s*:")
_INPLACE_LAYER = re.compile(r"inplace\s*=\s*True")
UNSEEN = "is changed where autograd does not see it: the gradient will be that of the old computation, without an error"
REPEATED = "is changed in a function that checkpoint runs again during backward: it changes twice"
CODES = {"result": "ATN501", "outputs": "ATN502", "leaf": "ATN502", "input": "ATN503", "silent": "ATN504"}


def inplace_hazards(module: Module) -> Iterable[Detection]:
    """All unsafe in-place changes of a file, in order."""
    text = module.source.text
    if "torch" not in text:
        return []
    rows, layers = candidates(module)
    if not rows and not layers:
        return []
    known = cache(attributes)
    callers = Callers(module, known)
    found: list[Detection] = []
    for name, function, cls in functions(module, rows, layers):
        context = context_of(module, function, cls, name)
        if context.quiet:
            continue
        for hazard in Interpreter(module, function, cls, known, context).run():
            if not callers.harmless(hazard, function, cls):
                found.append(detection(module, hazard, function, context))
    return found


def candidates(module: Module) -> tuple[list[int], list[int]]:
    """(rows that may hold an in-place change, rows that may make a layer which works in place), sorted."""
    source, text = module.source, module.source.text
    rows = set()
    for match in itertools.chain.from_iterable(pattern.finditer(text) for pattern in _INPLACE):
        if text[match.start()] == "o" and text[max(match.start() - 100, 0) : match.start()].rstrip()[-1:] not in (
            "(",
            ",",
        ):
            continue
        if text[match.start()] == "]" and _ANNOTATED.match(text, text.rfind("\n", 0, match.start()) + 1, match.start()):
            continue
        rows.add(source.position(match.end() - 1)[0])
    layers = [source.position(match.start())[0] for match in _INPLACE_LAYER.finditer(text)]
    return sorted(rows.union(layers)), layers


def functions(module: Module, rows: list[int], layers: list[int]) -> Iterator[tuple[str, Function, Class | None]]:
    """Every function that holds one of the rows, nested ones too; the forward of a class with layers that work in place."""

    def holds(node: ast.stmt, rows: list[int] = rows) -> bool:
        at = bisect_left(rows, node.lineno)
        return at < len(rows) and rows[at] <= (node.end_lineno or 0)

    for name, function, cls in module.all_functions():
        if not holds(function) and not (cls is not None and function.name == "forward" and holds(cls.node, layers)):
            continue
        yield name, function, cls
        start, end = module.source.span(function)
        if module.source.text.find("def ", module.source.text.find(":", start), end) < 0:
            continue
        for node in ast.walk(function):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node is not function and holds(node):
                yield f"{name}.<locals>.{node.name}", node, None


def detection(module: Module, hazard: Hazard, function: Function, context: Context) -> Detection:
    """The finding of one hazard, with its fix."""
    source = module.source
    start, end = source.span(hazard.node)
    code = CODES.get(hazard.kind) or argument_code(hazard)
    memory = hazard.memory
    target = ast.unparse(hazard.target)
    values = {
        "target": target,
        "operation": hazard.op,
        "saved_by": hazard.saved.op if hazard.saved else "",
        "saved_line": str(getattr(hazard.saved.node, "lineno", "")) if hazard.saved else "",
        "argument": memory.name if memory else "",
        "source": producer(hazard),
        "through": hazard.through,
        "effect": REPEATED if hazard.through == "checkpoint" else UNSEEN,
    }
    facts = {
        "kind": hazard.kind,
        "target": target,
        "operation": hazard.op,
        "saved": {"by": hazard.saved.op, "as": hazard.saved.role, "line": getattr(hazard.saved.node, "lineno", 0)}
        if hazard.saved
        else None,
        "results_of": producer(hazard) if hazard.kind == "outputs" or hazard.part_of else None,
        "breaks_if_shared": hazard.perhaps,
        "also_seen_by": sorted(hazard.aliases),
    }
    made = Detection(code, start, end, context.name, facts, values)
    if hazard.kind in ("result", "outputs", "leaf", "input") and not hazard.sure:
        made.severity = "warning"  # nothing shows that a gradient is asked for
    made.fix, made.blockers = rewrite(module, hazard, function, code)
    return made


def producer(hazard: Hazard) -> str:
    """What gave the tensor that is changed, in words of the source."""
    node = hazard.part_of or hazard.value.outputs
    if isinstance(node, ast.Call):
        return node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
    return "unpacking" if node is not None else hazard.value.op


def argument_code(hazard: Hazard) -> str:
    if hazard.kind == "alias":
        return "ATN505"
    return "ATN310" if hazard.memory is not None and re.search(r"mask|bias", hazard.memory.name) else "ATN506"
