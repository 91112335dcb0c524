"""What an instance's attributes hold: read from `__init__` and from who else stores them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from attn_advisor.dataflow.values import Frame, Graph, Value

if TYPE_CHECKING:
    from attn_advisor.source.module import Class, Module

_REGISTER = ("register_buffer", "register_parameter", "add_module", "register_module")


def class_of(value: Value) -> Class | None:
    """The project's class a value is an instance of."""
    if value.op == "self":
        return value.attrs["_cls"]
    if value.op == "attribute":
        if "_instance" not in value.attrs:
            value.attrs["_instance"] = None  # a cycle ends here
            made = definition(value)
            value.attrs["_instance"] = instance_class(made) if made is not None else None
        return value.attrs["_instance"]
    return instance_class(value)


def instance_class(value: Value) -> Class | None:
    """The class whose constructor call this value is."""
    if value.op == "call" and value.args and value.args[0].op == "class":
        return value.args[0].attrs["_cls"]
    return None


def definition(value: Value) -> Value | None:
    """What `self.name` was set to in `__init__`; None if unknown, or if anything else may set it."""
    if value.op != "attribute":
        return None
    if "_definition" not in value.attrs:
        cls = value.attrs.get("_cls") or class_of(value.args[0])
        value.attrs["_definition"] = attribute_definition(cls, value.attrs["name"]) if cls is not None else None
    return value.attrs["_definition"]


def attribute_definition(cls: Class, name: str) -> Value | None:
    """The value `__init__` (its own or the nearest base's that does) gives attribute `name`."""
    known = cls.__dict__.setdefault("_definitions", {})
    if name not in known:
        known[name] = _attribute_definition(cls, name)
    return known[name]


def _attribute_definition(cls: Class, name: str) -> Value | None:
    if stored_outside_init(cls, name):
        return None
    for owner in cls.mro:
        frame = init_frame(owner)
        if frame is None:
            continue
        if f"self.{name}" in frame.env:
            made = _filled_later(frame.env[f"self.{name}"])
            return (
                None
                if made.op == "buffer" and (name in _patched(cls) or _ANY_BUFFER.search(cls.module.source.text))
                else made
            )
    found = cls.constant(name)
    if found is not None:
        return init_expression(found[1], found[0])
    return None


def _filled_later(value: Value) -> Value:
    """A parameter or module that an initialiser fills in place is still that parameter or module."""
    root = value
    while (root.inplace or root.op == "mutated") and root.args:
        root = root.args[0]
    return root if root.op == "construct" else value


def starts_empty(value: Value) -> bool:
    """Whether an attribute is a cache: every assignment of it, in any method, is an empty dict."""
    cls = value.attrs.get("_cls") or class_of(value.args[0]) if value.op == "attribute" else None
    if cls is None:
        return False
    found = False
    for member in cls.mro:
        for method in member.methods.values():
            for node in ast.walk(method):
                if isinstance(node, (ast.Assign, ast.AnnAssign)):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    if any(isinstance(t, ast.Attribute) and t.attr == value.attrs["name"] for t in targets):
                        if not (isinstance(node.value, ast.Dict) and not node.value.keys):
                            return False
                        found = True
    return found


def stored_values(value: Value) -> list[Value]:
    """Everything any method of the class sets the attribute to; empty if something else may set it."""
    cls = value.attrs.get("_cls") or class_of(value.args[0]) if value.op == "attribute" else None
    if cls is None or any(c is not cls and c.is_subclass(cls) for c in cls.module.classes.values()):
        return []
    name, found = value.attrs["name"], []
    for owner in cls.mro:
        for method in _stores(owner).get(name, ()):
            frame = _method_frame(owner, method)
            made = frame.env.get(f"self.{name}")
            if made is None:
                return []
            found.append(made)
            found += [e.value for e in frame.graph.effects if e.kind == "store" and e.name == f"self.{name}"]
    return found


def _method_frame(cls: Class, name: str) -> Frame:
    """The execution of one method with unknown arguments."""
    frames = cls.__dict__.setdefault("_method_frames", {})
    if name not in frames:
        from attn_advisor.dataflow.statements import Interpreter

        frames[name] = Interpreter(Graph()).run(cls.module, cls.methods[name], cls)
    return frames[name]


# `layer.attn.drop = x`, and `setattr(anything, "drop", x)`; `self.drop = x` is not meant. All begin with what `re` finds quickly.
_STORE = re.compile(r"\.(\w+)[ \t]*=(?!=)")
_HOLDER = re.compile(r"(?:^|[\[\]])(?!self$)[A-Za-z_][\w.\[\]]*$")
_SETATTR = re.compile(r"""setattr\((?<!\wsetattr\()\s*[\w.\[\]]+,\s*["'](\w+)["']""")


# `self.attn.mask.fill_(1)`, `self.attn.mask[:n] = 1`: the content of another object's buffer
_FOREIGN_CONTENT = re.compile(
    r"""self\.(?<![\w.]self\.)\w[\w.\[\]]*\.(\w+)(?:\.data)?(?:\[[^\]\n]*\][ \t]*=(?!=)|\.[a-z]\w*_\()"""
)


# Code that may change any buffer.
_ANY_BUFFER = re.compile(r"\b_buffers\[|\bin self\.(?:named_)?buffers\(")


def _stored_from_outside(module: Module) -> frozenset[str]:
    """Names of attributes that code of the file sets on objects other than its own instance."""
    found = module.__dict__.get("_foreign_stores")
    if found is None:
        text = module.source.text
        names = set(_SETATTR.findall(text))
        for match in _STORE.finditer(text):
            start = match.start()
            while start > 0 and (text[start - 1].isalnum() or text[start - 1] in "_.[]"):
                start -= 1
            if match[1] not in names and _HOLDER.search(text[start : match.start()]):
                names.add(match[1])
        found = module.__dict__["_foreign_stores"] = frozenset(names)
    return found


def stored_outside_init(cls: Class, name: str) -> bool:
    """Whether anything but the constructor sets attribute `name`: a method, a subclass, other code of the file."""
    if name in _stored_from_outside(cls.module):
        return True
    family = [*cls.mro, *(c for c in cls.module.classes.values() if c is not cls and c.is_subclass(cls))]
    for member in family:
        stores = _stores(member).get(name, set())
        if stores - {"__init__"}:
            return True
        if member not in cls.mro and (stores or name in member.constants or name in member.methods):
            return True
    return False


def _stores(cls: Class) -> dict[str, set[str]]:
    """Attribute name -> methods of this class that assign it."""
    cached = cls.__dict__.get("_attribute_stores")
    if cached is None:
        cached = {}
        for name, method in cls.methods.items():
            for attribute in _stored_by(method):
                cached.setdefault(attribute, set()).add(name)
        cls.__dict__["_attribute_stores"] = cached
    return cached


def _stored_by(method: ast.AST) -> Iterator[str]:
    """Names of the attributes of self that a method assigns, deletes or registers."""
    for stmt in statements(method):
        targets: list[ast.expr] = []
        if isinstance(stmt, (ast.Assign, ast.Delete)):
            targets = stmt.targets
        elif isinstance(stmt, (ast.AugAssign, ast.AnnAssign, ast.For)):
            targets = [stmt.target]
        elif isinstance(stmt, ast.With):
            targets = [i.optional_vars for i in stmt.items if i.optional_vars is not None]
        elif isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Call):
            call = stmt.value
            if (
                isinstance(call.func, ast.Attribute)
                and call.func.attr in _REGISTER
                and call.args
                and isinstance(call.args[0], ast.Constant)
                and isinstance(call.args[0].value, str)
            ):
                yield call.args[0].value
        for target in targets:
            parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
            for part in parts:
                if isinstance(part, ast.Starred):
                    part = part.value
                if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self":
                    yield part.attr


def _patched(cls: Class) -> set[str]:
    """Attributes whose content a method other than the constructor changes: `self.mask[:n] = 1`, `self.mask.fill_(1)`, `self.mask.data = x`."""
    cached = cls.__dict__.get("_patched")
    if cached is None:
        cached = set(_FOREIGN_CONTENT.findall(cls.module.source.text))
        family = [*cls.mro, *(c for c in cls.module.classes.values() if c is not cls and c.is_subclass(cls))]
        for member in family:
            for name, method in member.methods.items():
                if name == "__init__":
                    continue
                for stmt in statements(method):
                    targets: list[ast.expr] = (
                        stmt.targets
                        if isinstance(stmt, ast.Assign)
                        else [stmt.target]
                        if isinstance(stmt, ast.AugAssign)
                        else []
                    )
                    if (
                        isinstance(stmt, ast.Expr)
                        and isinstance(stmt.value, ast.Call)
                        and isinstance(stmt.value.func, ast.Attribute)
                        and stmt.value.func.attr.endswith("_")
                    ):
                        targets = [stmt.value.func.value, *stmt.value.args[:1]]
                    for target in targets:
                        at: ast.AST = target
                        while isinstance(at, (ast.Subscript, ast.Attribute, ast.Call)) and not (
                            isinstance(at, ast.Attribute) and isinstance(at.value, ast.Name)
                        ):
                            at = at.func if isinstance(at, ast.Call) else at.value
                        if isinstance(at, ast.Attribute) and isinstance(at.value, ast.Name) and at.value.id == "self":
                            cached.add(at.attr)
        cls.__dict__["_patched"] = cached
    return cached


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements of a definition, nested blocks included, without looking into expressions."""
    stack: list[ast.AST] = [node]
    while stack:
        at = stack.pop()
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            for inner in getattr(at, block, ()) if isinstance(getattr(at, block, None), list) else ():
                if isinstance(inner, ast.stmt):
                    yield inner
                stack.append(inner)


def init_frame(cls: Class) -> Frame | None:
    """The execution of the class's own `__init__`, or None if it has none."""
    if "_init_frame" not in cls.__dict__:
        cls.__dict__["_init_frame"] = None
        if "__init__" in cls.methods:
            from attn_advisor.dataflow.statements import Interpreter

            cls.__dict__["_init_frame"] = Interpreter(Graph()).run(cls.module, cls.methods["__init__"], cls)
    return cls.__dict__["_init_frame"]


def init_expression(cls: Class, expr: ast.expr) -> Value:
    """A class-level constant as a value."""
    from attn_advisor.dataflow.statements import Interpreter

    graph = Graph()
    frame = Frame(graph, cls.module, cls.node)
    return Interpreter(graph).eval(expr, frame)
