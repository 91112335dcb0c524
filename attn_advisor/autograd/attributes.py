"""What an attribute of a module (`self.x`) or an inline `nn.X(...)` is: parameter, buffer, torch.nn module, number."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from attn_advisor.autograd.operations import CREATORS, MODULES
from attn_advisor.source.module import Class, Module


@dataclass(frozen=True)
class Layer:
    """A callable module. op: the operation it does ("" for unknown ones); chain: the members of an nn.Sequential."""

    op: str = ""
    inplace: bool = False
    chain: tuple[Layer, ...] = ()


PARAMETER, BUFFER, NUMBER, TENSOR = "parameter", "buffer", "number", "tensor"
FROZEN = "frozen"  # requires_grad is switched off
Attribute = Layer | str  # one of the four words above, or a layer


def constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def layer(module: Module, call: ast.Call) -> Layer | None:
    """The layer that `nn.X(...)` makes; None when the call makes something else."""
    name = module.qualified(call.func)
    if name is None or not name.startswith("torch.nn."):
        return None
    short = name.rsplit(".", 1)[-1]
    if short == "Identity":
        return Layer("identity")
    if short == "Sequential":
        parts = [layer(module, arg) if isinstance(arg, ast.Call) else None for arg in call.args]
        if not parts or None in parts:
            return Layer()
        return Layer(chain=tuple(part for part in parts if part is not None))
    if not short[:1].isupper() or short in ("Parameter", "ParameterList", "ModuleList", "ModuleDict", "ParameterDict"):
        return None
    inplace = any(word.arg == "inplace" and constant(word.value) is True for word in call.keywords)
    if short in ("ReLU", "ReLU6", "SELU", "SiLU", "Mish", "Hardswish") and call.args and constant(call.args[0]) is True:
        inplace = True
    return Layer(MODULES.get(short, ""), inplace)


def classify(module: Module, value: ast.expr, numbers: set[str]) -> Attribute | None:
    """What an expression assigned in `__init__` is; None for unknown."""
    if isinstance(value, ast.IfExp):
        first, second = classify(module, value.body, numbers), classify(module, value.orelse, numbers)
        if isinstance(first, Layer) and isinstance(second, Layer) and first != second:
            return first if second.op == "identity" else second if first.op == "identity" else Layer()
        return first if first == second or constant(value.orelse) is None else None
    if isinstance(value, ast.Constant):
        return NUMBER if value.value is not None else None
    if isinstance(value, (ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp)):
        names = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
        calls = [n for n in ast.walk(value) if isinstance(n, ast.Call)]
        plain = all(is_number_call(module, call) for call in calls)
        return NUMBER if plain and not (names & {"torch"}) else None
    if isinstance(value, ast.Name):
        return NUMBER if value.id in numbers else None
    if isinstance(value, ast.Call):
        if is_number_call(module, value):
            return NUMBER
        name = module.qualified(value.func) or ""
        if name.endswith(("nn.Parameter", "nn.parameter.Parameter")):
            frozen = any(word.arg == "requires_grad" and constant(word.value) is False for word in value.keywords)
            return TENSOR if frozen else PARAMETER
        if name.startswith("torch.") and name.split(".")[-1] in CREATORS:
            return TENSOR
        return layer(module, value)
    return None


def is_number_call(module: Module, call: ast.Call) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id in ("int", "float", "len", "round", "bool", "abs", "str", "sqrt", "max", "min")
    return (module.qualified(call.func) or "").startswith(("math.", "numpy.sqrt"))


def number_arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Arguments that are Python numbers or strings by annotation or default."""
    found = set()
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    pairs = [*zip(plain, defaults, strict=True), *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    for argument, default in pairs:
        annotation = ast.unparse(argument.annotation) if argument.annotation else ""
        words = set(
            annotation.replace("Optional", "").replace("Union", "").replace("None", "").strip("[]| ").split(", ")
        )
        if words and words <= {"int", "float", "bool", "str"}:
            found.add(argument.arg)
        elif isinstance(default, ast.Constant) and default.value is not None and "Tensor" not in annotation:
            found.add(argument.arg)
    return found


def attributes(cls: Class) -> dict[str, Attribute]:
    """Attributes of a class by name, those of known base classes included; unknown ones are left out."""
    found: dict[str, Attribute] = {}
    unclear: set[str] = set()
    for owner in reversed(cls.mro):
        for method in owner.methods.values():
            if method.name not in ("__init__", "build", "setup", "_build") and not method.name.startswith(
                ("_init", "init")
            ):
                continue
            numbers = number_arguments(method)
            for node in ast.walk(method):
                name, kind = _assigned(owner.module, node, numbers)
                if not name:
                    continue
                if kind == FROZEN:
                    if found.get(name) == PARAMETER:
                        found[name] = TENSOR
                    continue
                if kind is None or (name in found and found[name] != kind and owner is cls):
                    unclear.add(name)
                    if isinstance(kind, str) and isinstance(found.get(name), str):
                        continue
                else:
                    found[name] = kind
    return {name: kind for name, kind in found.items() if name not in unclear or kind == PARAMETER}


def _assigned(module: Module, node: ast.AST, numbers: set[str]) -> tuple[str, Attribute | None]:
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target, value = node.targets[0], node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        target, value = node.target, node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        name = constant(node.args[0])
        owner = node.func.value
        if node.func.attr == "requires_grad_" and name is False and isinstance(owner, ast.Attribute):
            return (
                (owner.attr, FROZEN) if isinstance(owner.value, ast.Name) and owner.value.id == "self" else ("", None)
            )
        kind = {"register_buffer": BUFFER, "register_parameter": PARAMETER}.get(node.func.attr)
        none = len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
        return (name, kind) if kind and isinstance(name, str) and not (none and kind == PARAMETER) else ("", None)
    else:
        return "", None
    if isinstance(target, ast.Attribute) and target.attr == "requires_grad" and constant(value) is False:
        owner = target.value  # self.x.requires_grad = False
        if isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Name) and owner.value.id == "self":
            return owner.attr, FROZEN
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
        return target.attr, classify(module, value, numbers)
    return "", None
