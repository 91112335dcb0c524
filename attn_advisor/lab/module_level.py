"""Module-level programs: the class that holds the attention, built from its signature and called."""

from __future__ import annotations

import ast
import contextlib
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from attn_advisor.lab import inputs, instantiate, roles, transform
from attn_advisor.lab.free import forward_options
from attn_advisor.lab.job import Sizes
from attn_advisor.lab.programs import TINY_MODULE, CannotRun, Program, Source, first_tensor, mark
from attn_advisor.lab.roles import Spec


def module_program(source: Source) -> Program:
    """The class that holds the attention, built and called. Raises CannotRun with what is missing and how to give it."""
    made = module_class(source)
    place, specs, tiny = solved(source, made)
    trees: dict[str, ast.Module] = {"as_written": source.tree}
    unavailable: dict[str, str] = {}
    changed = transform.in_place(source.found.statements)
    if changed is None:
        unavailable["inplace"] = "no score change to make in place"
    else:
        trees["inplace"] = transform.replaced(source.tree, source.found.statements, changed)
    if source.fixed_tree is None:
        unavailable["rewritten"] = source.no_rewrite()
    else:
        trees["rewritten"] = source.fixed_tree
    trees["marked"] = transform.marked(source.tree)
    loaded = {
        version: source.loaded if version == "as_written" else source.load(tree, version, {transform.MARK: mark})
        for version, tree in trees.items()
    }
    overrides = source.constructor_overrides()

    def owner(version: str, sizes: Sizes) -> Any:
        cls = source.class_named(loaded[version])
        assert cls is not None
        return instantiate.rebuild(cls, sizes, loaded[version].namespace, overrides, place)

    def call(owner: Any, values: dict[str, Any]) -> torch.Tensor:
        return first_tensor(owner(**values))

    return Program(
        "module", specs, dict.fromkeys(trees, call), owner, unavailable, source.notes, tiny, source.found.rows
    )


def module_class(source: Source) -> type:
    """The torch module whose method holds the attention. Raises CannotRun if there is none."""
    name = source.found.class_name
    if name is None:
        raise CannotRun("the attention is in a function, not in a class")
    made = source.class_named(source.loaded)
    if made is None or not issubclass(made, torch.nn.Module):
        reason = "is not a torch.nn.Module" if made is not None else "could not be defined"
        raise CannotRun(f"{name} {reason}" + "".join(f" ({note})" for note in source.notes))
    return made


def solved(source: Source, made: type) -> tuple[int, tuple[Spec, ...], Sizes]:
    """Which constructor arguments and which forward arguments work at a tiny size."""
    overrides = source.constructor_overrides()
    problems: list[str] = []
    chosen: tuple[Spec, ...] = ()

    def accept(sizes: Sizes, instance: Any) -> bool:
        nonlocal chosen
        instance.eval()

        def attempt(specs: tuple[Spec, ...]) -> bool:
            rows: set[int] = set()
            try:
                values = inputs.make_all(specs, sizes, torch.float32, torch.device("cpu"))
                with torch.no_grad(), _rows_run(source.job.path, rows):
                    output = first_tensor(instance(**values))
            except (Exception, SystemExit) as error:
                problems.append(f"{type(error).__name__}: {error}"[:300])
                return False
            if not rows & set(range(source.found.rows[0], source.found.rows[1] + 1)):
                problems.append("the attention's lines do not run with these arguments")
                return False
            return bool(torch.isfinite(output).float().mean() > 0.9)

        for options in forward_options(source, made):
            found = roles.solve(options, attempt, limit=120)
            if found is not None:
                chosen = found
                return True
        return False

    error = ""
    for sizes in TINY_MODULE:
        try:
            place, _ = instantiate.build(made, sizes, source.loaded.namespace, overrides, partial(accept, sizes))
            return place, chosen, sizes
        except instantiate.CannotBuild as failure:
            error = error or str(failure)
    detail = f" ({max(set(problems), key=problems.count)})" if problems else ""
    name = made.__name__
    raise CannotRun(
        f"{error}{detail}; give the missing arguments under [tool.attn-advisor.profile.{name}.init] or [tool.attn-advisor.profile.{name}.forward]"
    )


@contextlib.contextmanager
def _rows_run(path: str, rows: set[int]) -> Iterator[None]:
    """Collects the rows of the file that run."""

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != path:
            return None
        if event == "line":
            rows.add(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
