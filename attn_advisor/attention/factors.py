"""What a factor is: a number, a tensor, a learned parameter; of which sign; of how many axes."""

from __future__ import annotations

import ast

from attn_advisor.attention.callers import values_passed
from attn_advisor.dataflow.attributes import definition
from attn_advisor.dataflow.operations import SIGNATURES
from attn_advisor.dataflow.values import Value

_ARITHMETIC = frozenset(
    {
        "size",
        "pow",
        "mul",
        "div",
        "add",
        "sub",
        "neg",
        "floordiv",
        "sqrt",
        "rsqrt",
        "getitem",
        "shape",
        "number",
        "attribute",
        "where",
    }
)


# Of what operations give a Python number, whatever they are given.
_NUMBERS = frozenset("size number ndim py_len py_min py_max py_float numel dim py_round".split())
# Of what operations give the strongest kind of their operands.
_COMPUTED = frozenset("pow mul div add sub neg floordiv sqrt rsqrt log or and phi py_abs mod".split())
_POINTWISE = frozenset("exp clamp sigmoid softplus abs cast identity tanh".split())
_VIEWED = frozenset("unsqueeze reshape getitem expand rearrange".split())


def scalar_kind(value: Value, depth: int = 0) -> str:
    """What a factor is: "number" (Python number), "tensor" (0-dim, without gradient), "parameter" (learned), else "unknown"."""
    if depth > 20:
        return "unknown"
    op = value.op
    if op == "const":
        return "number" if isinstance(value.const, (int, float)) and not isinstance(value.const, bool) else "unknown"
    if op in _NUMBERS or op == "import" and value.attrs["qualified"].startswith("math."):
        return "number"
    if op == "param":
        return _param_kind(value, depth)
    if op in _COMPUTED:
        operands = value.args[1:] if op == "phi" else value.args
        return _strongest({scalar_kind(a, depth + 1) for a in operands if not (a.op == "const" and a.const is None)})
    if op in _POINTWISE or op in _VIEWED:
        kind = scalar_kind(value.args[0], depth + 1) if value.args else "unknown"
        return kind if kind == "parameter" or kind == "tensor" and op in _POINTWISE else "unknown"
    if op in ("tensor", "as_tensor"):
        return "tensor" if value.args and scalar_kind(value.args[0], depth + 1) == "number" else "unknown"
    if op == "buffer":
        return scalar_kind(value.args[0], depth + 1)
    if op == "construct":
        learned = value.attrs["qualified"] in ("torch.nn.Parameter", "torch.nn.parameter.Parameter")
        return "parameter" if learned else "unknown"
    if op == "attribute":
        made = definition(value)
        return _config_number(value) if made is None else scalar_kind(made, depth + 1)
    return "unknown"


def _param_kind(value: Value, depth: int) -> str:
    """The same for a parameter: by what the project passes for it, its annotation and its default."""
    if getattr(value.frame.function if value.frame else None, "name", "") == "__init__":
        return "unknown" if _built_with_tensor(value) else "number"
    given = values_passed(value)
    passed = {scalar_kind(v, depth + 1) for v in given}
    if passed and passed <= {"number"}:
        return "number"
    if passed & {"parameter", "tensor"} or any(v.op in SIGNATURES and v.op not in _ARITHMETIC for v in given):
        return "unknown"
    default = getattr(value.attrs.get("_default"), "value", None)
    annotation = value.attrs.get("annotation", "").replace("Optional[", "").rstrip("]")
    number = isinstance(default, (int, float)) and not isinstance(default, bool)
    return "number" if annotation.split("|")[0].strip() in ("float", "int") or number else "unknown"


def _built_with_tensor(value: Value) -> bool:
    """Whether a call of the class in this file gives its constructor a tensor for the parameter."""
    frame = value.frame
    assert frame is not None
    name = frame.cls.node.name if frame.cls is not None else ""
    if not name or frame.module.source.text.count(f"{name}(") < 2:
        return False
    names = [a.arg for a in (*frame.function.args.posonlyargs, *frame.function.args.args)][1:]  # type: ignore[attr-defined]
    for call in ast.walk(frame.module.tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == name:
            given = dict(zip(names, call.args, strict=False)) | {k.arg: k.value for k in call.keywords if k.arg}
            argument = given.get(value.attrs["name"])
            made = frame.module.qualified(argument.func) if isinstance(argument, ast.Call) else None
            if made is not None and made.startswith("torch."):
                return True
    return False


def _config_number(value: Value) -> str:
    """`config.head_dim` inside `__init__` is a hyperparameter."""
    base = value
    while base.op == "attribute":
        base = base.args[0]
    if base.op == "param" and getattr(base.frame.function if base.frame else None, "name", "") == "__init__":
        return "number"
    if (
        value.args[0].op == "attribute"
        and base.op == "self"
        and any(word in value.args[0].attrs["name"].lower() for word in ("config", "cfg", "args", "hparams"))
    ):
        return "number"
    return "unknown"


def _strongest(kinds: set[str]) -> str:
    for kind in ("unknown", "parameter", "tensor"):
        if kind in kinds:
            return kind
    return "number" if kinds else "unknown"


def negative(value: Value) -> bool:
    """Whether a factor is written as a negative number."""
    if isinstance(value.const, (int, float)):
        return value.const < 0
    made = definition(value) if value.op == "attribute" else None
    return value.op == "neg" or made is not None and negative(made)


_SIGNED = ("scale", "scaling", "temp", "tau", "coef", "alpha", "beta", "gamma", "factor", "mult", "gain")


def positive(value: Value, depth: int = 0) -> bool:
    """Whether a factor is a number above zero: a size, a root, a width or index by its name, or computed from such."""
    if isinstance(value.const, (int, float)):
        return value.const > 0
    if depth > 20:
        return False
    if value.op in ("size", "sqrt", "rsqrt", "numel", "py_len", "ndim", "dim", "exp", "softplus"):
        return True
    if value.op == "pow" and isinstance(value.args[1].const, float) and not value.args[1].const.is_integer():
        return True
    if value.op == "attribute":
        made = definition(value)
        if made is not None:
            return positive(made, depth + 1)
    if value.op == "param" and getattr(value.frame.function if value.frame else None, "name", "") != "__init__":
        return value.attrs.get("annotation", "").startswith("int")
    if value.op in ("attribute", "param"):
        return not any(word in value.attrs["name"].lower() for word in _SIGNED)
    operands = (
        value.args[1:]
        if value.op == "phi"
        else value.args[:1]
        if value.op in ("pow", "tensor", "as_tensor", "cast", "full", "buffer", "number", "py_float", "identity")
        else value.args
    )
    known = [a for a in operands if not (a.op == "const" and a.const is None)]
    computed = (
        "mul",
        "div",
        "add",
        "floordiv",
        "pow",
        "or",
        "and",
        "phi",
        "py_min",
        "py_max",
        "py_abs",
        "abs",
        "number",
        "py_float",
        "tensor",
        "as_tensor",
        "cast",
        "buffer",
        "identity",
    )
    return value.op in computed and bool(known) and all(positive(a, depth + 1) for a in known)


def has_axes(value: Value, depth: int = 0) -> bool:
    """Whether a value is computed along axes, so that it is no single number."""
    if value.op in (
        "norm",
        "vector_norm",
        "std",
        "var",
        "sum",
        "mean",
        "amax",
        "amin",
        "unsqueeze",
        "einsum",
        "matmul",
        "linear",
        "slice",
    ):
        return True
    return (
        depth < 10
        and value.op not in ("size", "shape", "attribute")
        and any(has_axes(a, depth + 1) for a in value.args)
    )
