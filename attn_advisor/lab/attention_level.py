"""Attention-level programs: the statements of one attention, cut out of their function."""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from attn_advisor.lab import captured, inputs, instantiate, roles, transform
from attn_advisor.lab import cut as cutting
from attn_advisor.lab.free import attribute_options, computed_biases, free_options
from attn_advisor.lab.job import Sizes
from attn_advisor.lab.programs import TINY_ATTENTION, CannotRun, Program, Source, Version, first_tensor, mark, put
from attn_advisor.lab.roles import Spec

TRIED = 200
"""Combinations of arguments tried for one layout, at most."""


def attention_program(source: Source) -> Program:
    """The cut as a program. Where no inputs are found for it, again without the views that end it, whose sizes are often those of
    a whole module. Raises CannotRun with what could not be found."""
    try:
        return _program(source, source.found, source.fixed_cut, captures=False)
    except CannotRun:
        found, views = cutting.without_views(source.found)
        fixed, fixed_views = cutting.without_views(source.fixed_cut) if source.fixed_cut else (None, views)
        if views and views == fixed_views:
            with contextlib.suppress(CannotRun):
                made = _program(source, found, fixed, captures=False)
                made.notes.append(f"left out at the end: {views}")
                return made
    return _program(source, source.found, source.fixed_cut, captures=True)


def _program(source: Source, found: cutting.Cut, fixed_cut: cutting.Cut | None, *, captures: bool) -> Program:
    """The program of a cut and its rewrite; with `captures` its inputs may be captured from a run of the module."""
    versions, unavailable = cut_versions(source, found, fixed_cut)
    names = cutting.names_read(found, fixed_cut)
    try:
        specs, owner, notes, tiny = _solve_attention(source, names, versions)
    except CannotRun as error:
        if not captures:
            raise
        return captured.program(source, names, versions, unavailable, str(error))
    return Program("attention", specs, versions, owner, unavailable, source.notes + notes, tiny, found.rows)


def cut_versions(
    source: Source, found: cutting.Cut, fixed_cut: cutting.Cut | None
) -> tuple[dict[str, Version], dict[str, str]]:
    """The cut as functions of its owner and its free names: as written, in place, rewritten and marked; and why one does not exist."""
    functions = {"as_written": _compile(cutting.build(found), source.loaded.namespace, source.path)}
    unavailable: dict[str, str] = {}
    changed = transform.in_place(found.statements)
    if changed is None:
        unavailable["inplace"] = "no score change to make in place"
    else:
        functions["inplace"] = _compile(cutting.build(found, changed), source.loaded.namespace, source.path)
    if fixed_cut is None:
        unavailable["rewritten"] = source.no_rewrite()
    else:
        assert source.fixed_tree is not None
        fixed = source.load(source.fixed_tree, "rewritten")
        functions["rewritten"] = _compile(cutting.build(fixed_cut), fixed.namespace, source.path)
    namespace = {**source.loaded.namespace, transform.MARK: mark}
    functions["marked"] = _compile(transform.marked_function(cutting.build(found)), namespace, source.path)
    takes = {version: set(inspect.signature(f).parameters) for version, f in functions.items()}

    def version_of(name: str) -> Version:
        function, accepted = functions[name], takes[name]

        def call(owner: Any, values: dict[str, Any]) -> torch.Tensor:
            arguments = {k: v for k, v in values.items() if k in accepted}
            if found.self_name in accepted:
                arguments[found.self_name] = owner
            return first_tensor(function(**arguments))

        return call

    return {name: version_of(name) for name in functions}, unavailable


def _compile(function: ast.FunctionDef, namespace: dict[str, Any], path: Path) -> Callable[..., Any]:
    scope = dict(namespace)
    exec(compile(ast.Module([function], []), str(path), "exec"), scope)
    made: Callable[..., Any] = scope[function.name]
    return made


def _solve_attention(
    source: Source, free: list[str], versions: dict[str, Version]
) -> tuple[tuple[Spec, ...], Callable[[str, Sizes], Any], list[str], Sizes]:
    """Arguments and owner for which the cut runs at a tiny size: those that the rewrite takes too, if there are any."""
    version, found = versions["as_written"], source.found
    families = list(free_options(source, free))
    failures: list[str] = []

    def attempt(sizes: Sizes, both: bool, owner: Any, specs: tuple[Spec, ...]) -> bool:
        try:
            values = inputs.make_all(
                [s for s in specs if not s.name.startswith("self.")], sizes, torch.float32, torch.device("cpu")
            )
            for spec in specs:
                if spec.name.startswith("self."):
                    put(owner, spec.name[5:], inputs.make(spec, sizes, torch.float32, torch.device("cpu"), 0))
            with torch.no_grad():
                output = version(owner, values)
                if both:
                    versions["rewritten"](owner, values)
        except (Exception, SystemExit) as error:
            failures.append(f"{type(error).__name__}: {error}"[:300])
            return False
        widths = [sizes.D, sizes.S] if "(" in str(source.job.facts.get("value")) else [sizes.D]
        plausible = output.numel() in [sizes.B * heads * sizes.L * width for heads in (sizes.H, 1) for width in widths]
        if not plausible:
            failures.append(f"its result has shape {list(output.shape)}")
        return plausible and bool(torch.isfinite(output).float().mean() > 0.9)

    for both, sizes in itertools.product((True, False) if "rewritten" in versions else (False,), TINY_ATTENTION):
        if found.self_name is None:
            for options in families:
                specs = roles.solve(options, partial(attempt, sizes, both, None), limit=TRIED)
                if specs is not None:
                    return specs, lambda name, wanted: None, [], sizes
            continue
        for owner_of, extra, note in _owners(source, sizes, attribute_options):
            owner = owner_of("as_written", sizes)
            for options in families:
                specs = roles.solve(options + extra, partial(attempt, sizes, both, owner), limit=TRIED)
                if specs is not None:
                    return specs, owner_of, note, sizes
    raise CannotRun(_explain(source, failures))


def _owners(
    source: Source, sizes: Sizes, attribute_options: Any
) -> Iterator[tuple[Callable[[str, Sizes], Any], list[list[Spec]], list[str]]]:
    """What may stand behind self: an instance of the class, else an object that has the attributes the cut reads."""
    made = source.class_named(source.loaded)
    overrides = source.overrides("init")
    if made is not None and issubclass(made, torch.nn.Module):
        namespace = source.loaded.namespace
        with contextlib.suppress(instantiate.CannotBuild):
            place, _ = instantiate.build(made, sizes, namespace, overrides, lambda instance: True)
            yield (lambda name, wanted: instantiate.rebuild(made, wanted, namespace, overrides, place)), [], []
    node = source.class_node()

    def stand_in(name: str, wanted: Sizes) -> Any:
        base: type = made if made is not None and issubclass(made, torch.nn.Module) else torch.nn.Module
        owner: Any = object.__new__(base)
        torch.nn.Module.__init__(owner)
        if node is not None:
            for key, value in instantiate.initial_values(node, wanted, source.loaded.namespace, overrides).items():
                with contextlib.suppress(AttributeError, TypeError):
                    setattr(owner, key, value)
        return owner

    note = [f"{source.found.class_name} was not built; its attributes were evaluated one by one"]
    missing = attribute_options(source, stand_in("", sizes))
    yield stand_in, missing, note
    if biases := computed_biases(source):
        given = {options[0].name for options in biases}
        rest = [options for options in missing if options[0].name not in given]
        names = ", ".join(sorted(given))
        yield stand_in, rest + biases, [*note, f"what {names} would compute was given as a tensor"]


def _explain(source: Source, failures: list[str]) -> str:
    names = ", ".join(source.found.free)
    last = max(set(failures), key=failures.count) if failures else "nothing could be tried"
    text = f"no inputs were found for the attention cut out of {source.job.function or 'the file'} (it reads {names}): {last}"
    return text + "".join(f"; {note}" for note in source.notes)
