"""What the project passes for a parameter: the arguments of every call of its function, where all calls can be seen."""

from __future__ import annotations

import ast
import re

from attn_advisor.dataflow.statements import interpret
from attn_advisor.dataflow.values import Value
from attn_advisor.source.module import Class, Function, Module, names_in

_MOST_CALLERS = 8


def values_passed(param: Value) -> list[Value]:
    """The arguments of all calls; empty if there is none, or if some call cannot be followed."""
    if "_passed" not in param.attrs:
        param.attrs["_passed"] = []  # a recursive call ends here
        frame = param.frame
        if frame is not None and frame.caller is None and isinstance(frame.function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            param.attrs["_passed"] = _calls(frame.module, frame.function, frame.cls, param.attrs["name"])
    return param.attrs["_passed"]


def _calls(module: Module, function: Function, cls: Class | None, name: str) -> list[Value]:
    owner = function.name if cls is None else cls.node.name
    if cls is not None and function.name != "forward":
        callers = _own_calls(module, function, cls)
    elif _known_elsewhere(module, owner):
        return []
    else:
        callers = _users(module, cls) if cls is not None else _mentions(module, function)
    if callers is None or not 0 < len(callers) <= _MOST_CALLERS:
        return []
    found: list[Value] = []
    for caller, calls, home in callers:
        interpreter, root = interpret(module, caller, home)
        frames = [f for f in interpreter.graph.frames if f.function is function and f.caller is root]
        if {id(f.call) for f in frames} != {id(c) for c in calls}:
            return []
        found += [f.given[name] for f in frames]
    return found


def _known_elsewhere(module: Module, name: str) -> bool:
    """Whether another file of the package may import the name from this one: by this file's name, or through a star import of it."""
    word, stem = name.encode(), module.path.stem.encode()
    others = [data for path, data in module.project.package_sources(module.path).items() if path != module.path]
    starred = any(stem in data and re.search(rb"from\s+[\w.]*\b" + stem + rb"\s+import\s+\*", data) for data in others)
    mentions = [data for data in others if word in data and (starred or stem in data)]
    used = re.compile(rb"import[^\n]*\b" + word + rb"\b|import\s*\([^)]*\b" + word + rb"\b|\." + word + rb"\b")
    own = re.compile(rb"^(?:class|def)\s+" + word + rb"\b", re.MULTILINE)
    return any(used.search(data) and not own.search(data) for data in mentions)


def _users(module: Module, cls: Class) -> list[tuple[Function, list[ast.Call], Class | None]] | None:
    """Methods that call `self.x` where a constructor sets x to an instance of the class; None if an instance is kept in any other way."""
    callers: list[tuple[Function, list[ast.Call], Class | None]] = []
    plain: set[int] = set()
    if any(other is not cls and other.is_subclass(cls) for other in module.classes.values()):
        return None
    for other in module.classes.values():
        init = other.methods.get("__init__")
        if init is None or cls.node.name not in names_in(init).plain:
            continue
        attributes = set()
        for node in ast.walk(init):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name) and node.value.func.id == cls.node.name:
                if len(node.targets) == 1 and isinstance(node.targets[0], ast.Attribute):
                    attributes.add(node.targets[0].attr)
                    plain.add(id(node.value.func))
        for method in other.methods.values():
            if not attributes & names_in(method).of_self:
                continue
            calls = [
                n
                for n in ast.walk(method)
                if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in attributes and isinstance(n.func.value, ast.Name) and n.func.value.id == "self"
            ]
            if calls:
                callers.append((method, calls, other))
    return callers if all(id(node) in plain for node in module.uses.get(cls.node.name, ())) else None


def _own_calls(module: Module, function: Function, cls: Class) -> list[tuple[Function, list[ast.Call], Class | None]] | None:
    """Methods of the class that call `self.name`; None if the file mentions the name in any other way."""
    callers: list[tuple[Function, list[ast.Call], Class | None]] = []
    called: set[int] = set()
    for method in cls.methods.values():
        if function.name in names_in(method).of_self:
            calls = [n for n in ast.walk(method) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == function.name and isinstance(n.func.value, ast.Name) and n.func.value.id == "self"]
            callers.append((method, calls, cls))
            called |= {id(c.func) for c in calls}
    others = [n for n in ast.walk(module.tree) if isinstance(n, ast.Attribute) and n.attr == function.name and id(n) not in called]
    return None if others else callers


def _mentions(module: Module, function: Function) -> list[tuple[Function, list[ast.Call], Class | None]] | None:
    """Functions and methods that call a module-level function; None if it is used in any other way."""
    callers: list[tuple[Function, list[ast.Call], Class | None]] = []
    called: set[int] = set()
    for _, caller, cls in module.all_functions():
        if function.name not in names_in(caller).plain:
            continue
        calls = [n for n in ast.walk(caller) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == function.name]
        if calls and caller is not function:
            callers.append((caller, calls, cls))
            called |= {id(c.func) for c in calls}
    return callers if all(id(node) in called for node in module.uses.get(function.name, ())) else None


__all__ = ["values_passed"]
