"""Building operation values from a call's operands: every spelling comes out as one canonical value."""

from __future__ import annotations

import ast

from attn_advisor.dataflow.operations import (
    CASTS,
    SIGNATURES,
    parse_einops_einsum,
    parse_einsum,
    parse_rearrange,
)
from attn_advisor.dataflow.values import UNKNOWN, Frame, Value

_MIRROR = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


def constant(value: object, node: ast.AST | None, frame: Frame | None) -> Value:
    return Value("const", attrs={"value": value}, node=node, frame=frame)


def ints(values: tuple[Value, ...] | list[Value]) -> tuple[int, ...] | None:
    """Their constants, if all are integers."""
    found = tuple(v.const for v in values)
    return found if all(isinstance(c, int) and not isinstance(c, bool) for c in found) else None


def operation(
    op: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST | None, frame: Frame, spelled: str = ""
) -> Value:
    """The value of one call of a tensor operation. `spelled` is the name the source used ("view" or "reshape", "bmm" or "matmul")."""
    special = _SPECIAL.get(op)
    made = special(args, kwargs, node, frame, spelled) if special else None
    if made is None:
        names, operands = bind(op, args, kwargs)
        made = Value(
            op, tuple(operands), tuple(names), {"spelled": spelled} if spelled and spelled != op else None, node, frame
        )
    return frame.graph.add(made)


def bind(op: str, args: list[Value], kwargs: dict[str, Value]) -> tuple[list[str], list[Value]]:
    """Operand names and operands in the signature's order (absent ones left out)."""
    signature = SIGNATURES.get(op, ())
    names, operands = [], []
    given = dict(kwargs)
    for index, arg in enumerate(args):
        names.append(signature[index] if index < len(signature) else f"_{index}")
        operands.append(arg)
    renamed = {
        "axis": "dim",
        "self": "input",
        "mat2": "other",
        "tensor": "input",
        "split_size_or_sections": "split_size",
        "x": "input",
    }
    for name, value in given.items():
        names.append(renamed.get(name, name) if renamed.get(name, name) in signature or name not in signature else name)
        operands.append(value)
    if signature and signature[0] == "input" and "input" in names and names[0] != "input":
        at = names.index("input")
        names.insert(0, names.pop(at))
        operands.insert(0, operands.pop(at))
    return names, operands


def _unread(args, kwargs, node, frame) -> Value:  # type: ignore[no-untyped-def]
    """An operation whose pattern is not written out here."""
    return Value("opaque", (*args, *kwargs.values()), (), None, node, frame)


def _einsum(args, kwargs, node, frame, spelled):  # type: ignore[no-untyped-def]
    if not args:
        return _unread(args, kwargs, node, frame)
    if isinstance(args[0].const, str):
        parsed, operands = parse_einsum(args[0].const), args[1:]
    elif isinstance(args[-1].const, str):
        parsed, operands = parse_einops_einsum(args[-1].const), args[:-1]
    else:
        return _unread(args, kwargs, node, frame)
    if len(operands) == 1 and operands[0].op in ("tuple", "list"):
        operands = list(operands[0].args)
    if parsed is None or len(parsed[0]) != len(operands) or kwargs:
        return _unread(args, kwargs, node, frame)
    return Value(
        "einsum",
        tuple(operands),
        tuple(f"_{i}" for i in range(len(operands))),
        {"inputs": parsed[0], "output": parsed[1]},
        node,
        frame,
    )


def _rearrange(args, kwargs, node, frame, spelled):  # type: ignore[no-untyped-def]
    if "pattern" in kwargs and len(args) == 1:
        args, kwargs = [*args, kwargs["pattern"]], {k: v for k, v in kwargs.items() if k != "pattern"}
    parsed = parse_rearrange(args[1].const) if len(args) == 2 and isinstance(args[1].const, str) else None
    if parsed is None:
        return _unread(args, kwargs, node, frame)
    return Value(
        "rearrange",
        (args[0], *kwargs.values()),
        ("input", *kwargs),
        {"left": parsed[0], "right": parsed[1]},
        node,
        frame,
    )


def _dims(args: list[Value]) -> list[Value] | None:
    """Sizes or axes given one by one or as one tuple or list; None if a star or an unknown sequence hides them."""
    rest = args[1:]
    if len(rest) == 1 and rest[0].op in ("tuple", "list"):
        rest = list(rest[0].args)
    if any(v.op == "starred" for v in rest):
        return None
    return rest


def _reshape(args, kwargs, node, frame, spelled):  # type: ignore[no-untyped-def]
    if "shape" in kwargs or "size" in kwargs:
        args = [*args, kwargs.get("shape") or kwargs["size"]]
    dims = _dims(args)
    if dims is None or not dims:
        return Value("reshape", tuple(args), (), {"sizes": False, "spelled": spelled}, node, frame)
    if (
        len(dims) == 1
        and dims[0].const is UNKNOWN
        and dims[0].op in ("shape", "add", "getitem", "param", "attribute", "phi")
    ):
        return Value(
            "reshape", (args[0], dims[0]), ("input", "shape"), {"sizes": False, "spelled": spelled}, node, frame
        )
    if len(dims) == 1 and dims[0].op == "dtype":
        return Value("view_dtype", tuple(args), (), None, node, frame)
    return Value(
        "reshape",
        (args[0], *dims),
        ("input", *(f"_{i}" for i in range(len(dims)))),
        {"sizes": True, "spelled": spelled},
        node,
        frame,
    )


def _permute(args, kwargs, node, frame, spelled):  # type: ignore[no-untyped-def]
    if "dims" in kwargs:
        args = [*args, kwargs["dims"]]
    dims = _dims(args)
    axes = ints(dims) if dims is not None else None
    return (
        Value("permute", (args[0],), ("input",), {"dims": axes, "_rest": tuple(args[1:])}, node, frame)
        if axes is not None
        else Value("permute", tuple(args), (), {"dims": None}, node, frame)
    )


def _transpose(args, kwargs, node, frame, spelled):  # type: ignore[no-untyped-def]
    names, operands = bind(
        "transpose", args, {{"axis0": "dim0", "axis1": "dim1"}.get(k, k): v for k, v in kwargs.items()}
    )
    given = dict(zip(names, operands, strict=True))
    axes = ints([given["dim0"], given["dim1"]]) if "dim0" in given and "dim1" in given else None
    if axes is None or "input" not in given:
        return Value("transpose", tuple(operands), tuple(names), {"dims": None}, node, frame)
    return Value("transpose", (given["input"],), ("input",), {"dims": axes}, node, frame)


def _t(args, kwargs, node, frame, spelled):  # type: ignore[no-untyped-def]
    return (
        Value("transpose", (args[0],), ("input",), {"dims": (-2, -1), "rank": 2}, node, frame)
        if len(args) == 1
        else None
    )


def _expand(args, kwargs, node, frame, spelled):  # type: ignore[no-untyped-def]
    dims = _dims(args)
    if dims is None:
        return None
    return Value("expand", (args[0], *dims), ("input", *(f"_{i}" for i in range(len(dims)))), None, node, frame)


def _repeat(args, kwargs, node, frame, spelled):  # type: ignore[no-untyped-def]
    dims = _dims(args)
    if dims is None:
        return None
    return Value("repeat", (args[0], *dims), ("input", *(f"_{i}" for i in range(len(dims)))), None, node, frame)


def _softmax(args, kwargs, node, frame, spelled):  # type: ignore[no-untyped-def]
    names, operands = bind("softmax", args, kwargs)
    given = dict(zip(names, operands, strict=True))
    if "input" not in given:
        return None
    if spelled != "F" and len(args) > 2:  # torch.softmax(x, dim, dtype), x.softmax(dim, dtype)
        given["dtype"] = given.pop("_stacklevel")
    dim = given["dim"].const if "dim" in given else None
    attrs = {"dim": dim if isinstance(dim, int) else None, "dim_given": "dim" in given}
    kept = [("input", given["input"]), *((k, v) for k, v in given.items() if k == "dtype" and v.const is not None)]
    return Value("softmax", tuple(v for _, v in kept), tuple(k for k, _ in kept), attrs, node, frame)


def cast(source: Value, target: Value | None, kind: str | None, node: ast.AST | None, frame: Frame) -> Value:
    args = (source,) if target is None else (source, target)
    return frame.graph.add(Value("cast", args, ("input", "dtype")[: len(args)], {"kind": kind}, node, frame))


def _cast(name: str):  # type: ignore[no-untyped-def]
    def make(args, kwargs, node, frame, spelled):  # type: ignore[no-untyped-def]
        kind = CASTS[name]
        if kind is not None:
            return Value("cast", (args[0],), ("input",), {"kind": kind}, node, frame)
        targets = [
            v
            for k, v in [*((str(i), a) for i, a in enumerate(args[1:])), *kwargs.items()]
            if k not in ("non_blocking", "copy", "memory_format")
        ]
        targets = [t for t in targets if t.op != "device" and not isinstance(t.const, (str, bool))]
        if not targets:
            return Value("identity", (args[0],), ("input",), {"spelled": "to"}, node, frame)
        # the dtype comes last: .to(device, dtype); a lone unknown operand may be a device, a dtype or a tensor
        target = kwargs.get("dtype") or targets[-1]
        return Value("cast", (args[0], target), ("input", "dtype"), {"kind": dtype_name(target)}, node, frame)

    return make


def dtype_name(value: Value) -> str | None:
    """ "float32" for torch.float32 or torch.float; None if it is not a literal dtype."""
    if value.op == "import":
        name = value.attrs["qualified"].removeprefix("torch.")
        return {"float": "float32", "half": "float16", "double": "float64", "long": "int64", "int": "int32"}.get(
            name, name
        )
    return None


def _identity(args, kwargs, node, frame, spelled):  # type: ignore[no-untyped-def]
    return Value("identity", (args[0],), ("input",), {"spelled": spelled}, node, frame)


def _size(args, kwargs, node, frame, spelled):  # type: ignore[no-untyped-def]
    axis = args[1] if len(args) > 1 else kwargs.get("dim")
    if axis is None:
        return Value("shape", (args[0],), ("input",), None, node, frame)
    if isinstance(axis.const, int):
        return Value("size", (args[0],), ("input",), {"axis": axis.const}, node, frame)
    return None


def _dropout(args, kwargs, node, frame, spelled):  # type: ignore[no-untyped-def]
    names, operands = bind("dropout", args, kwargs)
    return Value("dropout", tuple(operands), tuple(names), {"module": False}, node, frame)


def _compare(name: str):  # type: ignore[no-untyped-def]
    def make(args, kwargs, node, frame, spelled):  # type: ignore[no-untyped-def]
        names, operands = bind(name, args, kwargs)
        return Value("compare", tuple(operands), tuple(names), {"how": name}, node, frame)

    return make


def _split(op: str):  # type: ignore[no-untyped-def]
    def make(args, kwargs, node, frame, spelled):  # type: ignore[no-untyped-def]
        names, operands = bind(op, args, kwargs)
        given = dict(zip(names, operands, strict=True))
        count = given.get("chunks")
        dim = given["dim"].const if "dim" in given else 0
        attrs = {
            "dim": dim if isinstance(dim, int) else None,
            "count": count.const if count is not None and isinstance(count.const, int) else None,
        }
        return Value(op, tuple(operands), tuple(names), attrs, node, frame)

    return make


def _movedim(args, kwargs, node, frame, spelled):  # type: ignore[no-untyped-def]
    return Value("movedim", tuple(args), (), None, node, frame)


_SPECIAL = {
    "einsum": _einsum,
    "rearrange": _rearrange,
    "reshape": _reshape,
    "permute": _permute,
    "transpose": _transpose,
    "t": _t,
    "expand": _expand,
    "repeat": _repeat,
    "softmax": _softmax,
    "contiguous": _identity,
    "clone": _identity,
    "size": _size,
    "dropout": _dropout,
    "chunk": _split("chunk"),
    "split": _split("split"),
    "unbind": _split("unbind"),
    "movedim": _movedim,
    "cpu": _identity,
    "cuda": _identity,
    **{name: _compare(name) for name in _MIRROR},
    **{name: _cast(name) for name in CASTS},
}
