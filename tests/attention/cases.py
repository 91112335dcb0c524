"""Reading and checking the smallest examples: a Python file of short functions and modules, each under a comment that says what is due.

    # exact, safe: attn_mask=~mask ; scale=2.0
    # never: is_causal
    # inputs: dict(q=Tensor(("B", "L", "D")))
    def masked(q, k, v, mask):
        ...

The first word is the verdict (`exact`, `guarded`, `refuse`, `none` for no finding, `any` where only the text and the execution matter); then the fix that
is due (`safe`, `unsafe`, `not safe`, `none`, `any`); then pieces the fixed code must contain, separated by ` ; `. `never:` lists pieces that it must not contain,
`inputs:` and `init:` what it is run with beyond tests/rules/named_inputs.py. Everything up to the next such comment belongs to the case, so that
helpers may stand in it; its last definition is what runs.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from attn_advisor.fixes.executor import Report, Source, compare
from attn_advisor.fixes.load import load_source, lookup, unload
from attn_advisor.pipeline import check_text, fix_text
from tests.rules.named_inputs import recipe_for

HEADER = re.compile(r"# (exact|guarded|refuse|none|any)(?:, (safe|unsafe|not safe|none|any))?(?:: (.+))?$")
OPTION = re.compile(r"# (never|inputs|init): (.+)$")


@dataclass(frozen=True)
class Case:
    """One example: `text` is a whole file, `name` what runs."""

    name: str
    text: str
    verdict: str
    fix: str
    pieces: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    inputs: str = ""
    init: str = ""


def load_cases(path: Path) -> list[Case]:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    starts = [number for number, line in enumerate(lines) if HEADER.match(line)]
    head = "".join(lines[: starts[0]]).rstrip() + "\n\n\n"
    found = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        verdict, fix, pieces = HEADER.match(lines[start]).groups()  # type: ignore[union-attr]
        options: dict[str, str] = {}
        body = start + 1
        while option := OPTION.match(lines[body]):
            options[option[1]] = option[2]
            body += 1
        text = "".join(lines[body:end]).rstrip() + "\n"
        name = [n.name for n in ast.parse(text).body if isinstance(n, (ast.FunctionDef, ast.ClassDef))][-1]
        default = {"exact": "safe", "guarded": "not safe"}.get(verdict, "none" if verdict != "any" else "any")
        found.append(
            Case(
                name,
                head + text,
                verdict,
                fix or default,
                tuple(pieces.split(" ; ")) if pieces else (),
                tuple(options.get("never", "").split(" ; ")) if "never" in options else (),
                options.get("inputs", ""),
                options.get("init", ""),
            )
        )
    names = [case.name for case in found]
    assert len(names) == len(set(names)), f"{path.name}: two cases with the name {max(names, key=names.count)}"
    return found


def run_pair(case: Case, after: str) -> Report:
    """The case against other text, executed."""
    module = load_source(case.text)
    try:
        recipe = recipe_for(lookup(module, case.name), case.inputs, case.init)
    finally:
        unload(module)
    return compare(Source(case.text, case.name), Source(after, case.name), recipe)


def body(text: str) -> str:
    """The text behind the module's docstring, which may name what a case is about."""
    return text.split('"""', 2)[2]


def check(case: Case) -> None:
    """Detection, verdict, fix and text as they are due; the fixed code, safe and unsafe, computes the same."""
    path = str(Path(__file__).with_name(f"{case.name}.py"))
    found = [f for f in check_text(case.text, path) if f.code.startswith("ATN1")]
    if case.verdict == "none":
        found = [
            f for f in found if "as its fallback" not in " ".join(f.blockers)
        ]  # told as information, never rewritten
        assert not found, f"reported: {[(f.code, f.verdict, f.blockers) for f in found]}"
        return
    safe, unsafe = (fix_text(case.text, path, unsafe=unsafe)[0] for unsafe in (False, True))
    for after in {safe, unsafe} - {case.text}:
        report = run_pair(case, after)
        assert report.equal, f"{report}\n{after}"
    for piece in case.never:
        assert piece not in body(unsafe), f"{piece} in\n{unsafe}"
    if case.verdict == "any" and not found:
        return
    assert len(found) == 1, f"{len(found)} findings: {[(f.code, f.start, f.end) for f in found]}"
    if case.verdict != "any":
        assert found[0].verdict == case.verdict, f"verdict {found[0].verdict}, blockers {found[0].blockers}"
    offered = found[0].fix.applicability if found[0].fix else "none"
    right = case.fix in ("any", offered) or (case.fix == "not safe" and offered != "safe")
    assert right, f"fix {offered}, blockers {found[0].blockers}"
    for piece in case.pieces:
        assert piece in body(unsafe), f"{piece} not in\n{unsafe}"
