"""Runnable versions of one detected attention, at the attention and at the module level.

A `Program` holds the versions (as written, in place, rewritten, and one whose lines are marked), the arguments they all take, and
what stands behind `self`. `setup` makes all of it concrete for given sizes, dtype, device and mode.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from attn_advisor.lab import cut as cutting
from attn_advisor.lab import inputs, instantiate, roles, transform
from attn_advisor.lab.job import Job, Sizes
from attn_advisor.lab.loading import Loaded, MissingPackage, load
from attn_advisor.lab.roles import Spec
from attn_advisor.source.text import SourceText

TINY_ATTENTION = (Sizes(2, 3, 5, 5, 4), Sizes(2, 3, 5, 7, 4))
TINY_MODULE = (Sizes(2, 4, 16, 16, 8), Sizes(2, 4, 49, 49, 8))
VERSIONS = ("as_written", "inplace", "rewritten", "marked")


class CannotRun(Exception):
    """No program can be made at this level; the message says what is missing and how to give it."""


Version = Callable[[Any, dict[str, Any]], torch.Tensor]


@dataclass
class Setup:
    """A program made concrete: `run(version)` is one forward on the same arguments and weights."""

    values: dict[str, Any]
    owners: dict[str, Any]
    versions: dict[str, Version]
    specs: tuple[Spec, ...]
    sizes: Sizes

    def run(self, version: str) -> torch.Tensor:
        return self.versions[version](self.owners.get(version), self.values)


@dataclass
class Program:
    """Versions of one attention, their arguments and their owner."""

    level: str
    specs: tuple[Spec, ...]
    versions: dict[str, Version]
    owner: Callable[[str, Sizes], Any]
    """Makes what stands behind `self` for a version and sizes; None where there is none."""
    unavailable: dict[str, str] = field(default_factory=dict)
    """Why a version does not exist."""
    notes: list[str] = field(default_factory=list)
    tiny: Sizes = TINY_ATTENTION[0]
    """The size at which the program was found to run."""
    rows: tuple[int, int] = (0, 0)
    """First and last row of the attention in the file."""

    def setup(self, sizes: Sizes, dtype: torch.dtype, device: torch.device, mode: str, seed: int = 0) -> Setup:
        """Arguments and owners on the device. Raises what the user's constructor raises."""
        train = mode == "train"
        owners: dict[str, Any] = {}
        first: Any = None
        for version in self.versions:
            if self.level == "attention" and first is not None:
                owners[version] = first  # one object serves all versions of a cut
                continue
            owner = self.owner(version, sizes)
            if isinstance(owner, torch.nn.Module):
                if first is not None:
                    _share_weights(first, owner)
                owner.to(device=device, dtype=dtype).train(train)
                owner.requires_grad_(train and self.level == "module")
            first = owner if first is None else first
            owners[version] = owner
        plain = tuple(s for s in self.specs if not s.name.startswith("self."))
        values = inputs.make_all(plain, sizes, dtype, device, seed, grad=train)
        for spec in self.specs:
            if spec.name.startswith("self."):
                _set(first, spec.name[5:], inputs.make(spec, sizes, dtype, device, seed))
        return Setup(values, owners, self.versions, plain, sizes)


def _share_weights(source: torch.nn.Module, target: torch.nn.Module) -> None:
    """The same parameters and buffers; buffers that exist in one only (a rewrite may drop a mask) stay."""
    target.load_state_dict(source.state_dict(), strict=False)
    for name, buffer in source.named_buffers():
        with contextlib.suppress(AttributeError):
            target.get_buffer(name).data = buffer.data.clone()


def _set(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, torch.nn.Module) and isinstance(value, torch.Tensor):
        owner.register_buffer(name, value)
    else:
        object.__setattr__(owner, name, value) if isinstance(owner, torch.nn.Module) else setattr(owner, name, value)


def first_tensor(output: Any) -> torch.Tensor:
    """The first floating tensor of whatever a forward returns. Raises CannotRun if there is none."""
    if isinstance(output, torch.Tensor) and output.is_floating_point():
        return output
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, (tuple, list)) else ()
    for part in parts:
        if isinstance(part, (torch.Tensor, tuple, list, dict)):
            with contextlib.suppress(CannotRun):
                return first_tensor(part)
    raise CannotRun("no floating tensor is returned")


class Source:
    """The job's file, parsed and cut, with its versions loaded."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.path = Path(job.path)
        self.root = Path(job.root) if job.root else None
        self.source = SourceText(job.text, job.path)
        self.tree = ast.parse(job.text)
        edits = [(e[0], e[1], e[2]) for e in job.edits]
        self.found = cutting.cut(self.source, self.tree, job.start, job.end)
        if job.fixed_text is not None:
            self.found = cutting.cut(self.source, self.tree, *cutting.widened(self.source, self.found, edits))
        self.loaded = self.load(self.tree, "as_written")
        self.fixed_cut: cutting.Cut | None = None
        self.fixed_tree: ast.Module | None = None
        self.fixed_source: SourceText | None = None
        if job.fixed_text is not None:
            self.fixed_tree = ast.parse(job.fixed_text)
            self.fixed_source = SourceText(job.fixed_text, job.path)
            start = cutting.moved(self.found.start, edits, after=False)
            end = cutting.moved(self.found.end, edits, after=True)
            self.fixed_cut = cutting.cut(self.fixed_source, self.fixed_tree, start, end)

    def load(self, tree: ast.Module, suffix: str, mark: Any = None) -> Loaded:
        return load(tree, self.path, self.root, suffix, {transform.MARK: mark} if mark else None)

    @property
    def notes(self) -> list[str]:
        """What of the file could not be imported or run."""
        return [f"not importable here, replaced by placeholders: {', '.join(self.loaded.missing[:6])}"] if self.loaded.missing else []

    def class_named(self, loaded: Loaded) -> type | None:
        name = self.found.class_name
        made = loaded.namespace.get(name) if name else None
        return made if inspect.isclass(made) else None

    def class_node(self) -> ast.ClassDef | None:
        nodes = (n for n in ast.walk(self.tree) if isinstance(n, ast.ClassDef) and n.name == self.found.class_name)
        return next(nodes, None)

    def overrides(self, part: str) -> dict[str, Any]:
        """Values the user gave under [tool.attn-advisor.profile] for this class: `init`, `config` or `forward`."""
        table = self.job.overrides.get(self.found.class_name or "", {})
        return dict(table.get(part, {})) if isinstance(table, dict) else {}


def mark(row: int) -> Any:
    """What marked code calls around each statement: a range that the profiler records."""
    return torch.profiler.record_function(f"attn_advisor:{row}")


# ---- attention level -------------------------------------------------------------------------------------------------------


def attention_program(source: Source) -> Program:
    """The cut as a program. Raises CannotRun with what could not be found."""
    found = source.found
    functions = {"as_written": _compile(cutting.build(found), source.loaded.namespace, source.path)}
    unavailable: dict[str, str] = {}
    changed = transform.in_place(found.statements)
    if changed is None:
        unavailable["inplace"] = "no score change to make in place"
    else:
        functions["inplace"] = _compile(cutting.build(found, changed), source.loaded.namespace, source.path)
    if source.fixed_cut is None:
        unavailable["rewritten"] = "; ".join(source.job.blockers) or "no rewrite is known"
    else:
        assert source.fixed_tree is not None
        fixed = source.load(source.fixed_tree, "rewritten")
        functions["rewritten"] = _compile(cutting.build(source.fixed_cut), fixed.namespace, source.path)
    names = {**source.loaded.namespace, transform.MARK: mark}
    functions["marked"] = _compile(transform.marked_function(cutting.build(found)), names, source.path)
    takes = {version: set(inspect.signature(f).parameters) for version, f in functions.items()}

    def version_of(name: str) -> Version:
        function, accepted = functions[name], takes[name]

        def call(owner: Any, values: dict[str, Any]) -> torch.Tensor:
            arguments = {k: v for k, v in values.items() if k in accepted}
            if found.self_name in accepted:
                arguments[found.self_name] = owner
            return first_tensor(function(**arguments))

        return call

    missing = (takes.get("rewritten") or set()) - set(found.free) - {found.self_name}
    if missing:
        functions.pop("rewritten")
        unavailable["rewritten"] = f"the rewrite reads {', '.join(sorted(map(str, missing)))}, which the cut does not hold"
    versions = {name: version_of(name) for name in functions}
    specs, owner, notes, tiny = _solve_attention(source, versions["as_written"])
    return Program("attention", specs, versions, owner, unavailable, source.notes + notes, tiny, found.rows)


def _compile(function: ast.FunctionDef, namespace: dict[str, Any], path: Path) -> Callable[..., Any]:
    scope = dict(namespace)
    exec(compile(ast.Module([function], []), str(path), "exec"), scope)
    made: Callable[..., Any] = scope[function.name]
    return made


def _solve_attention(source: Source, version: Version) -> tuple[tuple[Spec, ...], Callable[[str, Sizes], Any], list[str], Sizes]:
    """Arguments and owner for which the cut runs at a tiny size."""
    from attn_advisor.lab.free import attribute_options, free_options

    found = source.found
    options = free_options(source)
    failures: list[str] = []

    def attempt(specs: tuple[Spec, ...], owner: Any, sizes: Sizes) -> bool:
        try:
            values = inputs.make_all([s for s in specs if not s.name.startswith("self.")], sizes, torch.float32, torch.device("cpu"))
            for spec in specs:
                if spec.name.startswith("self."):
                    _set(owner, spec.name[5:], inputs.make(spec, sizes, torch.float32, torch.device("cpu"), 0))
            with torch.no_grad():
                output = version(owner, values)
        except (Exception, SystemExit) as error:
            failures.append(f"{type(error).__name__}: {error}"[:300])
            return False
        plausible = output.numel() in (sizes.B * sizes.H * sizes.L * sizes.D, sizes.B * sizes.L * sizes.D)
        if not plausible:
            failures.append(f"its result has shape {list(output.shape)}")
        return plausible and bool(torch.isfinite(output).float().mean() > 0.9)

    for sizes in TINY_ATTENTION:
        if found.self_name is None:
            specs = roles.solve(options, lambda chosen: attempt(chosen, None, sizes))
            if specs is not None:
                return specs, lambda name, wanted: None, [], sizes
            continue
        for owner_of, extra, note in _owners(source, sizes, attribute_options):
            owner = owner_of("as_written", sizes)
            specs = roles.solve(options + extra, lambda chosen: attempt(chosen, owner, sizes))
            if specs is not None:
                return specs, owner_of, note, sizes
    raise CannotRun(_explain(source, failures))


def _owners(source: Source, sizes: Sizes, attribute_options: Any) -> Iterator[tuple[Callable[[str, Sizes], Any], list[list[Spec]], list[str]]]:
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
        base = made if made is not None and issubclass(made, torch.nn.Module) else torch.nn.Module
        owner = base.__new__(base)
        torch.nn.Module.__init__(owner)
        if node is not None:
            for key, value in instantiate.initial_values(node, wanted, source.loaded.namespace, overrides).items():
                with contextlib.suppress(AttributeError, TypeError):
                    setattr(owner, key, value)
        return owner

    note = [f"{source.found.class_name} was not built; its attributes were evaluated one by one"]
    yield stand_in, attribute_options(source, stand_in("", sizes)), note


def _explain(source: Source, failures: list[str]) -> str:
    names = ", ".join(source.found.free)
    last = max(set(failures), key=failures.count) if failures else "nothing could be tried"
    text = f"no inputs were found for the attention cut out of {source.job.function or 'the file'} (it reads {names}): {last}"
    return text + "".join(f"; {note}" for note in source.notes)


# ---- module level ----------------------------------------------------------------------------------------------------------


def module_program(source: Source) -> Program:
    """The class that holds the attention, built and called. Raises CannotRun with what is missing and how to give it."""
    name = source.found.class_name
    if name is None:
        raise CannotRun("the attention is in a function, not in a class")
    made = source.class_named(source.loaded)
    if made is None or not issubclass(made, torch.nn.Module):
        reason = "is not a torch.nn.Module" if made is not None else "could not be defined"
        raise CannotRun(f"{name} {reason}" + "".join(f" ({note})" for note in source.notes))
    place, specs, tiny = _solve_module(source, made)
    trees: dict[str, ast.Module] = {"as_written": source.tree}
    unavailable: dict[str, str] = {}
    changed = transform.in_place(source.found.statements)
    if changed is None:
        unavailable["inplace"] = "no score change to make in place"
    else:
        trees["inplace"] = transform.replaced(source.tree, source.found.statements, changed)
    if source.fixed_tree is None:
        unavailable["rewritten"] = "; ".join(source.job.blockers) or "no rewrite is known"
    else:
        trees["rewritten"] = source.fixed_tree
    trees["marked"] = transform.marked(source.tree)
    loaded = {
        version: source.loaded if version == "as_written" else source.load(tree, version, mark if version == "marked" else None)
        for version, tree in trees.items()
    }
    overrides = {**source.overrides("config"), **source.overrides("init")}

    def owner(version: str, sizes: Sizes) -> Any:
        cls = source.class_named(loaded[version])
        assert cls is not None
        return instantiate.rebuild(cls, sizes, loaded[version].namespace, overrides, place)

    def call(owner: Any, values: dict[str, Any]) -> torch.Tensor:
        return first_tensor(owner(**values))

    return Program("module", specs, dict.fromkeys(trees, call), owner, unavailable, source.notes, tiny, source.found.rows)


def _solve_module(source: Source, made: type) -> tuple[int, tuple[Spec, ...], Sizes]:
    """Which constructor arguments and which forward arguments work at a tiny size."""
    from attn_advisor.lab.free import forward_options

    overrides = {**source.overrides("config"), **source.overrides("init")}
    problems: list[str] = []
    chosen: tuple[Spec, ...] = ()

    def accept(instance: Any, sizes: Sizes) -> bool:
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
            place, _ = instantiate.build(made, sizes, source.loaded.namespace, overrides, lambda i: accept(i, sizes))
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


@contextlib.contextmanager
def no_dropout(setup: Setup) -> Iterator[None]:
    """Every dropout rate of arguments and owners is 0 inside, so that versions can be compared in training mode."""
    undo: list[Callable[[], None]] = []

    def put(target: Any, name: str, value: Any) -> None:
        old = getattr(target, name)
        undo.append(lambda: setattr(target, name, old))
        setattr(target, name, value)

    for owner in {id(o): o for o in setup.owners.values()}.values():
        for module in owner.modules() if isinstance(owner, torch.nn.Module) else ():
            for key, value in list(vars(module).items()):
                rate = isinstance(value, float) and (roles.means(r".*drop.*", key) or isinstance(module, torch.nn.modules.dropout._DropoutNd))
                if rate:
                    put(module, key, 0.0)
    saved = dict(setup.values)
    for spec in setup.specs:
        if spec.role == "dropout":
            setup.values[spec.name] = 0.0
    try:
        yield
    finally:
        setup.values.update(saved)
        for action in reversed(undo):
            action()


def doubled(owner: Any) -> Any:
    """A float64 copy of an owner."""
    return copy.deepcopy(owner).double() if isinstance(owner, torch.nn.Module) else copy.deepcopy(owner)


__all__ = ["CannotRun", "MissingPackage", "Program", "Setup", "Source", "attention_program", "module_program", "no_dropout"]
