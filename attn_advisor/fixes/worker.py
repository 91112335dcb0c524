"""The process that runs user code for `--verify`: reads lines [seconds, job], answers each with a line [verdict, reason].

Each job runs in a forked child where the system has fork, so that one file's code cannot disturb the next; the parent process
(`attn_advisor.fixes.verify`) ends a worker that takes too long.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from attn_advisor.fixes.executor import ALL_ROWS, NOT_EMPTY, Report, compare
from attn_advisor.fixes.inputs import Choice, Dims, Ids, Mask, MaskForm, Recipe, Tensor, Value, optional
from attn_advisor.fixes.inputs import Spec as Argument
from attn_advisor.lab import roles
from attn_advisor.lab.attention_level import attention_program
from attn_advisor.lab.free import forward_options
from attn_advisor.lab.inputs import make_all
from attn_advisor.lab.job import Job, Sizes
from attn_advisor.lab.module_level import module_program
from attn_advisor.lab.programs import TINY_ATTENTION, CannotRun, Program, Source
from attn_advisor.lab.roles import Spec

LETTERS = "bhlsdecnyx"


class _Cut(nn.Module):
    """An attention cut out of its function, with what stands behind its self."""

    def __init__(self, program: Program, version: str) -> None:
        super().__init__()
        self.version = program.versions[version]
        self.given = {s.name[5:]: s for s in program.specs if s.name.startswith("self.")}
        self.owner = program.owner(version, program.tiny)
        for name, spec in self.given.items():
            value = make_all([spec], program.tiny, torch.float32, torch.device("cpu"))[spec.name]
            if isinstance(self.owner, nn.Module) and isinstance(value, torch.Tensor):
                self.owner.register_buffer(name, value)
            else:
                setattr(self.owner, name, value)

    def forward(self, **values: Any) -> Any:
        return self.version(self.owner, values)


def judge(job: Job) -> tuple[str, str]:
    """Whether the job's fixed text computes what its text does: ("equal" | "differs" | "could not run", reason)."""
    try:
        source = Source(job)
    except Exception as error:
        return "could not run", f"{type(error).__name__}: {error}"
    reasons: list[str] = []
    for program, old, new in _levels(source, reasons):
        report = _compare(source, program, old, new)
        if report.verdict != "could not run":
            return report.verdict, f"at the {program.level} level: {report}"
        reasons.append(report.reason)
    return "could not run", "; ".join(dict.fromkeys(reasons)) or "no inputs were found"


def _levels(source: Source, reasons: list[str]) -> Iterator[tuple[Program, Any, Any]]:
    """The whole class or function, then the attention alone, as original and rewrite."""
    for make in (module_program, function_program, attention_program):
        try:
            program = make(source)
            if "rewritten" not in program.versions:
                raise CannotRun(program.unavailable.get("rewritten", "there is no rewrite to run"))
            if program.level == "attention":
                yield program, _Cut(program, "as_written"), _Cut(program, "rewritten")
            else:
                yield program, program.owner("as_written", program.tiny), program.owner("rewritten", program.tiny)
        except Exception as error:
            reasons.append(str(error) if isinstance(error, CannotRun) else f"{type(error).__name__}: {error}")


def function_program(source: Source) -> Program:
    """The function that holds the attention, called as it is. Raises CannotRun."""
    name = source.found.function.name
    if source.found.class_name is not None:
        raise CannotRun("the attention is in a class")
    assert source.fixed_tree is not None
    loaded = {"as_written": source.loaded, "rewritten": source.load(source.fixed_tree, "rewritten")}
    made = {version: _as_module(one.namespace.get(name)) for version, one in loaded.items()}
    problems: list[str] = []
    module = made["as_written"]()
    for sizes in TINY_ATTENTION:

        def attempt(specs: tuple[Spec, ...], sizes: Sizes = sizes) -> bool:
            try:
                with torch.no_grad():
                    module(**make_all(specs, sizes, torch.float32, torch.device("cpu")))
            except Exception as error:
                problems.append(f"{type(error).__name__}: {error}")
                return False
            return True

        for options in forward_options(source, type(module)):
            specs = roles.solve(options, attempt, limit=120)
            if specs is not None:
                versions = dict.fromkeys(loaded, lambda owner, values: owner(**values))
                return Program("function", specs, versions, lambda version, sizes: made[version](), tiny=sizes)
    raise CannotRun(f"no arguments were found for {name}" + (f" ({problems[0]})" if problems else ""))


def _as_module(function: Any) -> type[nn.Module]:
    """A module class whose forward is the function."""
    if not inspect.isfunction(function):
        raise CannotRun("the function is not at the top of its file")

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)]
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
    made = type(function.__name__, (nn.Module,), {"forward": forward})
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return made


def _compare(source: Source, program: Program, old: Any, new: Any) -> Report:
    masks = source.job.facts.get("masks") or []
    added = any(mask.get("form") == "add" or mask.get("kind") == "additive" for mask in masks)
    arguments = {spec.name: argument(spec, masks) for spec in program.specs if not spec.name.startswith("self.")}
    if program.level != "attention":
        arguments |= _more(source, program, old, arguments)
    recipe = Recipe(arguments, tuple(_dims(sizes) for sizes in _sizes(program.tiny)))
    # a mask that hides a whole row with finite values is what an unsafe fix's blocker warns of, not a fault of the fix
    return compare(old, new, recipe, rows=NOT_EMPTY if added and source.job.blockers else ALL_ROWS)


def argument(spec: Spec, masks: list[dict[str, Any]]) -> Argument:
    """The executor's kind of input for one of the lab's."""
    shape = tuple(1 if letter == "1" else letter for letter in spec.axes)
    if spec.role == "mask":
        if spec.kind == "additive":
            return Mask(shape, ("finite", "additive", "bias"), "keep")
        index = any(mask.get("form") == "setitem" for mask in masks)
        forms: tuple[MaskForm, ...] = ("bool",) if index else ("bool", "int", "uint8", "float01")
        return Mask(shape, forms, "drop" if spec.drop else "keep")
    if spec.role == "ids":
        return Ids(shape, 2)
    if spec.axes:
        return Tensor(shape)
    return Value(spec.value(Sizes(2, 2, 2, 2, 2)) if callable(spec.value) else spec.value)


def _more(source: Source, program: Program, module: Any, arguments: dict[str, Argument]) -> dict[str, Argument]:
    """Optional masks and flags of the forward that were left out, where the original takes them."""
    masks = source.job.facts.get("masks") or []
    known = list(program.specs)
    found: dict[str, Argument] = {}
    for options in forward_options(source, type(module)):
        for choices in options:
            name = choices[0].name
            if name in arguments or name in found:
                continue
            for spec in choices:
                if spec.role == "none" or (spec.value is None and not spec.axes):
                    continue
                values = make_all([*known, spec], program.tiny, torch.float32, torch.device("cpu"))
                try:
                    with torch.no_grad():
                        module(**values)
                except Exception:
                    continue
                found[name] = optional(argument(spec, masks)) if spec.axes else _flag(module, name, spec)
                break
    return found


def _flag(module: Any, name: str, spec: Spec) -> Argument:
    default = inspect.signature(module.forward).parameters[name].default
    return Choice((Value(default), Value(spec.value)))


def _sizes(tiny: Sizes) -> list[Sizes]:
    """The sizes that are known to run, and others that may."""
    shorter = replace(tiny, L=max(1, tiny.L // 2), S=max(1, tiny.S // 2))
    return [tiny, shorter, replace(tiny, B=1, L=1), replace(tiny, L=1, S=1)]


def _dims(sizes: Sizes) -> Dims:
    return {letter: roles.side(letter, sizes) for letter in LETTERS}


def _answer(line: str) -> str:
    try:
        seconds, job = json.loads(line)
        if hasattr(signal, "alarm"):
            signal.alarm(int(seconds) + 1)  # should the parent die, what hangs must not outlive it for long
        return json.dumps(judge(Job(**job)))
    except BaseException as error:
        return json.dumps(["could not run", f"{type(error).__name__}: {error}"])


def _forked(line: str) -> str:
    """The answer of a child process; a child that dies says so."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as out:
            out.write(_answer(line))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as source:
        answer = source.read()
    _, status = os.waitpid(child, 0)
    return answer or json.dumps(
        ["could not run", f"the code ended its process (exit status {os.waitstatus_to_exitcode(status)})"]
    )


def main() -> None:
    """Serve until standard input ends. User code that prints is not heard: its output goes nowhere."""
    torch.set_num_threads(1)
    out = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    out.write("ready\n")
    out.flush()
    for line in iter(sys.stdin.readline, ""):
        out.write((_forked(line) if hasattr(os, "fork") else _answer(line)) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
