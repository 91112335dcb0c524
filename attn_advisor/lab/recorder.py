"""The process that runs a user's own script for `attn-advisor run`, and keeps what reaches each detected attention.

Started as `python -m attn_advisor.lab.recorder PLAN SCRIPT|-m MODULE [ARGS]`. The files that hold an attention are compiled with one call more,
before its first statement; nothing else of the script changes. PLAN is a JSON file: the folder to write to, and the points.
"""

from __future__ import annotations

import ast
import atexit
import builtins
import contextlib
import hashlib
import importlib.abc
import importlib.machinery
import json
import os
import runpy
import signal
import sys
import threading
import traceback
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attn_advisor.lab.transform import CAPTURE, capturing

KINDS = 3
"""Calls of one attention that are kept, each with other shapes or dtypes than those before."""
PLAIN = (bool, int, float, str, type(None))
"""Attributes of these types are always kept: methods of a base class may read them."""
INDEX = "calls.json"


class Recorder:
    """Notes calls: how often each attention was reached with which shapes, and the first calls of each kind as files."""

    def __init__(self, folder: str, points: list[dict[str, Any]]) -> None:
        self.folder = Path(folder)
        self.points = {point["key"]: point for point in points}
        self.files: dict[str, list[dict[str, Any]]] = {}
        for point in points:
            self.files.setdefault(os.path.realpath(point["path"]), []).append(point)
        self.kinds: dict[str, dict[Any, dict[str, Any]]] = {}
        self.problems: list[str] = []
        self.process = os.getpid()
        self.lock = threading.Lock()

    def compiled(self, path: str, data: bytes) -> types.CodeType:
        """The file's code, with the calls that take notes. A file that is no longer the one read stays as it is."""
        tree = ast.parse(data, path)
        points = self.files.get(os.path.realpath(path), [])
        if points and hashlib.sha256(data).hexdigest() != points[0]["digest"]:
            self.problems.append(f"{path} changed while it was read; nothing of it is recorded")
            points = []
        for point in points:
            found = (n for n in ast.walk(tree) if isinstance(n, ast.stmt))
            statement = next(n for n in found if _is_at(n, point["line"], point["column"]))
            tree = capturing(tree, [statement], point["key"])
        return compile(tree, path, "exec", dont_inherit=True)

    def note(self, names: dict[str, Any], key: str) -> None:
        """Called by the script where an attention begins, with its local names. Never raises."""
        if os.getpid() != self.process:
            return  # a process that the script forked
        try:
            with self.lock:
                self._note(names, self.points[key])
        except Exception as error:
            problem = f"{self.points[key]['target']}: {type(error).__name__}: {error}"[:300]
            if problem not in self.problems:
                self.problems.append(problem)

    def _note(self, names: dict[str, Any], point: dict[str, Any]) -> None:
        import torch

        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return  # copying would end the script's CUDA graph
        owner = names.get(point["self_name"]) if point["self_name"] else None
        wanted = {name: names[name] for name in point["names"] if name in names}
        training = bool(getattr(owner, "training", torch.is_grad_enabled()))
        kind = (*(_signature(v) for v in wanted.values()), torch.is_grad_enabled(), training)
        kinds = self.kinds.setdefault(point["key"], {})
        if kind in kinds:
            kinds[kind]["calls"] += 1
            return
        kinds[kind] = entry = {"calls": 1, "file": None, "problem": ""}
        if len(kinds) <= KINDS:
            self._write(entry, point, wanted, owner, training, len(kinds))
        else:
            entry["problem"] = f"only the first {KINDS} kinds of calls are kept"
        self.save()

    def _write(
        self,
        entry: dict[str, Any],
        point: dict[str, Any],
        wanted: dict[str, Any],
        owner: Any,
        training: bool,
        number: int,
    ) -> None:
        import torch

        from attn_advisor.lab import recording

        tensors = [v for v in wanted.values() if isinstance(v, torch.Tensor)]
        kind = tensors[0].device.type if tensors else "cpu"
        entry |= {
            "shapes": {k: list(v.shape) for k, v in wanted.items() if isinstance(v, torch.Tensor)},
            "dtype": next((str(t.dtype).removeprefix("torch.") for t in tensors if t.is_floating_point()), "float32"),
            "device": str(tensors[0].device) if tensors else "cpu",
            "train": torch.is_grad_enabled() and any(t.requires_grad for t in tensors),
        }
        bytes_ = recording.size(wanted)
        if bytes_ > recording.MOST_BYTES:
            entry["problem"] = f"its inputs take {bytes_ / 2**30:.1f} GiB, more than is kept"
            return
        autocast = str(torch.get_autocast_dtype(kind)).removeprefix("torch.") if torch.is_autocast_enabled(kind) else ""
        call = recording.Call({}, {}, training, autocast, entry["device"])
        attributes = {k: v for k, v in _attributes(owner).items() if k in point["attributes"] or isinstance(v, PLAIN)}
        with torch.no_grad():
            for place, values in ((call.names, wanted), (call.owner, attributes)):
                for name, value in values.items():
                    try:
                        place[name] = recording.write(value)
                    except recording.NotKept as error:
                        call.problems[name] = str(error)
        path = self.folder / f"{point['key']}-{number}.pt"
        torch.save(vars(call), path)
        entry["file"] = str(path)

    def save(self) -> None:
        """Write the index of what was noted so far."""
        if os.getpid() == self.process:
            calls = {key: list(kinds.values()) for key, kinds in self.kinds.items()}
            part = self.folder / f"{INDEX}.part"
            part.write_text(json.dumps({"calls": calls, "problems": self.problems}), encoding="utf-8")
            part.replace(self.folder / INDEX)


def _is_at(node: ast.stmt, line: int, column: int) -> bool:
    """Whether a statement stands there; a call that takes notes bears the position of what follows it."""
    added = isinstance(node, ast.Expr) and CAPTURE in ast.unparse(node)
    return (node.lineno, node.col_offset) == (line, column) and not added


def _signature(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype, value.device, value.requires_grad
    return value if value is None or isinstance(value, (bool, str)) else type(value)


def _attributes(owner: Any) -> dict[str, Any]:
    """The attributes of the object itself; what its class defines, the worker's class has too."""
    found = dict(getattr(owner, "__dict__", {}))
    for place in ("_parameters", "_buffers", "_modules"):
        found |= found.get(place) or {}
    return found


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a file through the recorder, never from a bytecode cache."""

    def __init__(self, fullname: str, path: str, recorder: Recorder) -> None:
        super().__init__(fullname, path)
        self.recorder = recorder

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        return self.recorder.compiled(path, self.get_data(path))


class _Finder(importlib.abc.MetaPathFinder):
    """First on sys.meta_path: whatever the others find, with the recorder's loader for files that hold an attention."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find else None
            if spec is not None:
                if spec.origin and os.path.realpath(spec.origin) in self.recorder.files:
                    spec.loader = _Loader(fullname, spec.origin, self.recorder)
                return spec
        return None


def main(arguments: list[str]) -> int:
    """Run the script; its exit status."""
    plan = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    recorder = Recorder(plan["folder"], plan["points"])
    setattr(builtins, CAPTURE, recorder.note)
    sys.meta_path.insert(0, _Finder(recorder))
    atexit.register(recorder.save)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        if arguments[1] == "-m":
            sys.argv = arguments[2:]
            sys.path[0] = os.getcwd()
            runpy.run_module(arguments[2], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments[1:]
            _run_script(arguments[1], recorder)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return 130
    except BaseException as error:
        _show(error)
        return 1
    return 0


def _run_script(path: str, recorder: Recorder) -> None:
    sys.path[0] = os.path.dirname(os.path.realpath(path))
    module = types.ModuleType("__main__")
    module.__dict__.update({"__file__": path, "__builtins__": builtins})
    sys.modules["__main__"] = module
    exec(recorder.compiled(path, Path(path).read_bytes()), module.__dict__)


def _show(error: BaseException) -> None:
    """The traceback as the script alone would have had it."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        frames = frames.tb_next
    traceback.print_exception(type(error), error, frames)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    sys.exit(status)
