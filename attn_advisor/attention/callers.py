"""What the project passes for a parameter: the arguments of every call of its function, where all calls can be seen."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from attn_advisor.dataflow.statements import Interpreter, interpret
from attn_advisor.dataflow.values import Frame, Value
from attn_advisor.source.module import Class, Function, Module, names_in, nodes_in

_MOST_CALLERS = 8


@dataclass
class Caller:
    """A function with its calls of another; through_loop: the calls are of loop variables `loop_names`."""

    function: Function
    calls: list[ast.Call]
    cls: Class | None
    through_loop: bool = False
    loop_names: frozenset[str] = frozenset()


def values_passed(param: Value) -> list[Value]:
    """The arguments of all calls; empty if there is none, or if some call cannot be followed."""
    if "_passed" not in param.attrs:
        param.attrs["_passed"] = []  # a recursive call ends here
        frame = param.frame
        if (
            frame is not None
            and frame.caller is None
            and isinstance(frame.function, (ast.FunctionDef, ast.AsyncFunctionDef))
        ):
            param.attrs["_passed"] = _calls(frame.module, frame.function, frame.cls, param.attrs["name"])
    return param.attrs["_passed"]


def _calls(module: Module, function: Function, cls: Class | None, name: str) -> list[Value]:
    callers = callers_of(module, function, cls)
    if callers is None or not 0 < len(callers) <= _MOST_CALLERS:
        return []
    found: list[Value] = []
    for caller in callers:
        interpreter, root = interpret(module, caller.function, caller.cls)
        vars(module).setdefault("_graphs", []).append(
            interpreter.graph
        )  # for release(): the arguments are looked at later
        given = (
            _inlined(interpreter, root, function, caller, name)
            if not caller.through_loop
            else _looped(interpreter, function, caller, name)
        )
        if given is None:
            return []
        found += given
    return found


def callers_of(module: Module, function: Function, cls: Class | None) -> list[Caller] | None:
    """All that call the function; None if some may not be seen."""
    if cls is not None and function.name != "forward":
        return _own_calls(module, function, cls)
    if _known_elsewhere(module, function.name if cls is None else cls.node.name):
        return None
    return _users(module, cls) if cls is not None else _mentions(module, function)


def _inlined(
    interpreter: Interpreter, root: Frame, function: Function, caller: Caller, name: str
) -> list[Value] | None:
    """What the calls pass, read off their executions; None if one was not followed."""
    frames = [f for f in interpreter.graph.frames if f.function is function and f.caller is root]
    if {id(f.call) for f in frames} != {id(c) for c in caller.calls}:
        return None
    return [f.given[name] for f in frames]


def _looped(interpreter: Interpreter, function: Function, caller: Caller, name: str) -> list[Value] | None:
    """What calls of a loop variable pass (`for block in self.blocks: x = block(x, bias)`)."""
    position = [a.arg for a in (*function.args.posonlyargs, *function.args.args)][1:]
    made = {id(v.node): v for v in interpreter.graph.by_op.get("call", ())}
    found: list[Value] = []
    for call in caller.calls:
        value = made.get(id(call))
        if value is None or any(a.op == "starred" for a in value.args) or "**" in value.names:
            return None
        operands = [a for n, a in zip(value.names, value.args, strict=False) if n.startswith("_") and n[1:].isdigit()]
        if not isinstance(call.func, ast.Name) or call.func.id not in caller.loop_names:
            operands = operands[1:]  # checkpoint(block, x, ...)
        given = dict(zip(position, operands, strict=False)) | {
            n: a for n, a in zip(value.names, value.args, strict=False) if not n.startswith("_") and n != "function"
        }
        if name in given:
            found.append(given[name])
    return found


def _known_elsewhere(module: Module, name: str) -> bool:
    """Whether another file of the package may import the name from this one, directly or through star imports."""
    word = name.encode()
    starred = module.project.sources_with(module.path, b"import *")
    providers = {module.path.stem}
    for _ in range(3):  # files that hand on everything of a provider
        stars = re.compile(rb"from\s+[\w.]*\b(?:" + "|".join(sorted(providers)).encode() + rb")\s+import\s+\*")
        more = {
            p.parent.name if p.stem == "__init__" else p.stem
            for p, data in starred.items()
            if p != module.path and stars.search(data)
        }
        if more <= providers:
            break
        providers |= more
    named = "|".join(sorted(providers)).encode()
    used = re.compile(
        rb"from\s+(?:[\w.]*\b(?:"
        + named
        + rb")|\.+)\s+import\s+(?:\([^)]*|[^\n]*)\b"
        + word
        + rb"\b|\b(?:"
        + named
        + rb")\."
        + word
        + rb"\b"
    )
    return any(
        path != module.path and used.search(data)
        for path, data in module.project.sources_with(module.path, word).items()
    )


def _users(module: Module, cls: Class) -> list[Caller] | None:
    """Methods that call an instance kept in `self.x`, or in a list or Sequential of the same object; None if one is kept in any other way."""
    callers: list[Caller] = []
    seen: set[int] = set()
    if any(other is not cls and other.is_subclass(cls) for other in module.classes.values()):
        return None
    for other in module.classes.values():
        init = other.methods.get("__init__")
        if init is None or cls.node.name not in names_in(init).plain:
            continue
        mentions = [n for n in ast.walk(init) if isinstance(n, ast.Name) and n.id == cls.node.name]
        seen |= {id(n) for n in mentions}
        attributes, direct = set(), set()
        for node in ast.walk(init):
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Call)
                and node.value.func in mentions
                and len(node.targets) == 1
                and isinstance(node.targets[0], ast.Attribute)
            ):
                attributes.add(node.targets[0].attr)
                direct.add(id(node.value.func))
        in_list = any(id(n) not in direct for n in mentions)
        for method in other.methods.values():
            calls = (
                [n for n in ast.walk(method) if isinstance(n, ast.Call) and _of_self(n.func) in attributes]
                if attributes & names_in(method).of_self
                else []
            )
            if calls:
                callers.append(Caller(method, calls, other))
            if in_list and method is not init:
                callers += _loops(method, other)
    return callers if all(id(node) in seen for node in module.uses.get(cls.node.name, ())) else None


def _of_self(node: ast.expr) -> str | None:
    return (
        node.attr
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
        else None
    )


def _loops(method: Function, cls: Class) -> list[Caller]:
    """Calls of the variables of loops over something of self."""
    names: set[str] = set()
    for node in ast.walk(method):
        if isinstance(node, (ast.For, ast.comprehension)) and any(
            _of_self(n) for n in ast.walk(node.iter) if isinstance(n, ast.expr)
        ):
            names |= {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
    calls = [
        n
        for n in ast.walk(method)
        if isinstance(n, ast.Call)
        and (
            isinstance(n.func, ast.Name)
            and n.func.id in names
            or n.args
            and isinstance(n.args[0], ast.Name)
            and n.args[0].id in names
            and "checkpoint" in ast.unparse(n.func)
        )
    ]
    return [Caller(method, calls, cls, True, frozenset(names))] if calls else []


def _own_calls(module: Module, function: Function, cls: Class) -> list[Caller] | None:
    """Methods of the class that call `self.name`; None if the file mentions the name in any other way."""
    callers: list[Caller] = []
    called: set[int] = set()
    for method in cls.methods.values():
        if function.name in names_in(method).of_self:
            calls = [
                n
                for n in ast.walk(method)
                if isinstance(n, ast.Call)
                and isinstance(n.func, ast.Attribute)
                and n.func.attr == function.name
                and isinstance(n.func.value, ast.Name)
                and n.func.value.id == "self"
            ]
            callers.append(Caller(method, calls, cls))
            called |= {id(c.func) for c in calls}
    others = [
        n
        for n in nodes_in(module.tree)
        if isinstance(n, ast.Attribute) and n.attr == function.name and id(n) not in called
    ]
    return None if others else callers


def _mentions(module: Module, function: Function) -> list[Caller] | None:
    """Functions and methods that call a module-level function; None if it is used in any other way."""
    callers: list[Caller] = []
    called: set[int] = set()
    for _, caller, cls in module.all_functions():
        if function.name not in names_in(caller).plain:
            continue
        calls = [
            n
            for n in ast.walk(caller)
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == function.name
        ]
        if calls and caller is not function:
            callers.append(Caller(caller, calls, cls))
            called |= {id(c.func) for c in calls}
    return callers if all(id(node) in called for node in module.uses.get(function.name, ())) else None


__all__ = ["Caller", "callers_of", "values_passed"]
