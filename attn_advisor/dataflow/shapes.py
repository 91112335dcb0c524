"""Shapes of values: the size of each axis, or unknown."""

from __future__ import annotations

from typing import Any

from attn_advisor.dataflow.attributes import definition
from attn_advisor.dataflow.dims import Dim, Shape, atom
from attn_advisor.dataflow.values import UNKNOWN, Value

_SAME = frozenset(
    "softmax dropout cast identity masked_fill clamp tanh exp log sqrt sigmoid neg normalize tril triu nan_to_num relu invert abs rsqrt contiguous log_softmax mutated zeros_like ones_like full_like cumsum setitem copy roll flip square cos sin zero fill".split()
)
_SAME_MODULES = frozenset(
    f"torch.nn.{name}"
    for name in "LayerNorm Identity Dropout GELU ReLU RMSNorm BatchNorm1d BatchNorm2d GroupNorm SiLU Tanh".split()
)
_SCALARS = frozenset("const size number py_float sqrt finfo".split())


class Shapes:
    """Shapes of the values of one graph."""

    def __init__(self, rank_hints: dict[Any, int]) -> None:
        self.rank_hints = rank_hints
        self._known: dict[int, Shape | None] = {}

    def rank(self, value: Value) -> int | None:
        shape = self.shape(value)
        return len(shape) if shape is not None else None

    def shape(self, value: Value) -> Shape | None:
        """Its sizes, outermost axis first; None if its rank is unknown."""
        known = self._known.get(id(value), UNKNOWN)
        if known is not UNKNOWN:
            return known
        self._known[id(value)] = None  # a cycle ends here
        shape = self._shape(value)
        if shape is None:
            rank = self.rank_hints.get(value.key)
            if rank is not None:
                shape = tuple(atom(("axis", value.key, i)) for i in range(rank))
        self._known[id(value)] = shape
        return shape

    def size(self, value: Value, axis: int) -> Dim:
        shape = self.shape(value)
        if shape is not None and -len(shape) <= axis < len(shape):
            return shape[axis]
        if shape is None:
            source = self._same_axis(value, axis)
            if source is not None:
                return self.size(*source)
        return atom(("axis", value.key, axis))

    def _same_axis(self, value: Value, axis: int) -> tuple[Value, int] | None:
        """An earlier value and its axis of the same size, where the number of axes is not known."""
        if value.op in _SAME and value.args or value.op in ("mul", "div") and self._scalar(value.args[1]):
            return value.args[0], axis
        if value.op == "getitem" and isinstance(value.args[1].const, int) and axis < 0:
            return value.args[0], axis
        source = value.args[0] if value.op == "part" else None
        if source is not None and source.op == "unbind" and source.attrs.get("dim") == 0:
            return source.args[0], axis if axis < 0 else axis + 1
        if source is not None and source.op in ("chunk", "split"):
            along = source.attrs.get("dim")
            return (source.args[0], axis) if along is not None and along != axis and (along < 0) == (axis < 0) else None
        if (
            value.op == "transpose"
            and value.attrs.get("dims")
            and all((d < 0) == (axis < 0) for d in value.attrs["dims"])
        ):
            a, b = value.attrs["dims"]
            return value.args[0], {a: b, b: a}.get(axis, axis)
        return None

    def axis(self, value: Value, axis: int, rank: int) -> Dim:
        """Size of one axis of a value that must have `rank` axes."""
        shape = self.shape(value)
        if shape is not None:
            return shape[axis] if axis < len(shape) else atom(("axis", value.key, axis))
        if value.op in _SAME and value.args:
            return self.axis(value.args[0], axis, rank)
        if value.op in ("mul", "div") and self._scalar(value.args[1]):
            return self.axis(value.args[0], axis, rank)
        if value.op == "part" and value.args[0].op in ("chunk", "split"):
            along = value.args[0].attrs.get("dim")
            if along is not None and along % rank != axis:
                return self.axis(value.args[0].args[0], axis, rank)
        if value.op == "part" and value.args[0].op == "unbind" and value.args[0].attrs.get("dim") is not None:
            along = value.args[0].attrs["dim"] % (rank + 1)
            return self.axis(value.args[0].args[0], axis if axis < along else axis + 1, rank + 1)
        if value.op == "transpose" and value.attrs.get("dims"):
            a, b = (d % rank for d in value.attrs["dims"])
            return self.axis(value.args[0], {a: b, b: a}.get(axis, axis), rank)
        if value.op == "phi":
            a, b = self.axis(value.args[1], axis, rank), self.axis(value.args[2], axis, rank)
            if a == b:
                return a
        kind = self._module_kind(value)
        if kind in _SAME_MODULES or kind == "torch.nn.Linear" and axis != rank - 1:
            return self.axis(value.args[1], axis, rank)
        return atom(("axis", value.key, axis))

    def _module_kind(self, value: Value) -> str | None:
        """Qualified class of the library module a call applies."""
        if value.op != "call" or len(value.args) != 2 or value.args[0].op not in ("attribute", "getitem"):
            return None
        made = definition(value.args[0])
        return made.attrs["qualified"] if made is not None and made.op == "construct" else None

    def dim(self, value: Value) -> Dim:
        """The size an integer value stands for."""
        if isinstance(value.const, int) and not isinstance(value.const, bool):
            return Dim(value.const)
        if value.op == "size":
            return self.size(value.args[0], value.attrs["axis"])
        if value.op == "mul":
            return self.dim(value.args[0]) * self.dim(value.args[1])
        if value.op == "number":
            return self.dim(value.args[0])
        if value.op == "floordiv":
            quotient = self.dim(value.args[0]) / self.dim(value.args[1])
            if not quotient.below and float(quotient.factor).is_integer():
                return quotient
        if value.op == "attribute":
            made = definition(value)
            if made is not None and made.op == "const" and isinstance(made.const, int):
                return Dim(made.const)
        return atom(value.key)

    def _shape(self, v: Value) -> Shape | None:
        if v.op in _SAME:
            return self.shape(v.args[0]) if v.args else None
        handler = getattr(self, "_" + v.op, None)
        return handler(v) if handler else None

    def _transpose(self, v: Value) -> Shape | None:
        shape, dims = self.shape(v.args[0]), v.attrs.get("dims")
        if dims is None:
            return None
        if shape is None:
            if v.attrs.get("rank") == 2:
                return self.size(v.args[0], 1), self.size(v.args[0], 0)
            return None
        a, b = dims
        if not (-len(shape) <= a < len(shape) and -len(shape) <= b < len(shape)):
            return None
        out = list(shape)
        out[a], out[b] = out[b], out[a]
        return tuple(out)

    def _permute(self, v: Value) -> Shape | None:
        dims = v.attrs.get("dims")
        if dims is None:
            return None
        shape = tuple(self.axis(v.args[0], i, len(dims)) for i in range(len(dims)))
        return tuple(shape[d] for d in dims)

    def _reshape(self, v: Value) -> Shape | None:
        if not v.attrs.get("sizes"):
            return None
        dims = [None if a.const == -1 else self.dim(a) for a in v.args[1:]]
        if None in dims:
            rest = Dim()
            for d in dims:
                rest = rest * d if d is not None else rest
            source = self.shape(v.args[0])
            if source is not None:
                total = Dim()
                for d in source:
                    total = total * d
                missing = total / rest
            else:
                missing = atom(("infer", v.args[0].key, rest))
            dims = [missing if d is None else d for d in dims]
        return tuple(d for d in dims if d is not None)

    def _unsqueeze(self, v: Value) -> Shape | None:
        shape, axis = self.shape(v.args[0]), v.get("dim")
        if shape is None or axis is None or not isinstance(axis.const, int):
            return None
        at = axis.const if axis.const >= 0 else len(shape) + 1 + axis.const
        return (*shape[:at], Dim(1), *shape[at:])

    def _squeeze(self, v: Value) -> Shape | None:
        shape, axis = self.shape(v.args[0]), v.get("dim")
        if (
            shape is None
            or axis is None
            or not isinstance(axis.const, int)
            or not -len(shape) <= axis.const < len(shape)
        ):
            return None
        at = axis.const % len(shape)
        return (*shape[:at], *shape[at + 1 :]) if shape[at] == Dim(1) else None

    def _flatten(self, v: Value) -> Shape | None:
        shape = self.shape(v.args[0])
        first, last = v.get("start_dim"), v.get("end_dim")
        a, b = (first.const if first else 0), (last.const if last else -1)
        if shape is None or not isinstance(a, int) or not isinstance(b, int):
            return None
        a, b = a % len(shape), b % len(shape)
        total = Dim()
        for d in shape[a : b + 1]:
            total = total * d
        return (*shape[:a], total, *shape[b + 1 :])

    def _unflatten(self, v: Value) -> Shape | None:
        shape, axis, sizes = self.shape(v.args[0]), v.get("dim"), v.get("sizes")
        if (
            shape is None
            or axis is None
            or not isinstance(axis.const, int)
            or sizes is None
            or sizes.op not in ("tuple", "list")
        ):
            return None
        at = axis.const % len(shape)
        parts = [None if s.const == -1 else self.dim(s) for s in sizes.args]
        rest = Dim()
        for p in parts:
            rest = rest * p if p is not None else rest
        return (*shape[:at], *(shape[at] / rest if p is None else p for p in parts), *shape[at + 1 :])

    def _rearrange(self, v: Value) -> Shape | None:
        left, right = v.attrs["left"], v.attrs["right"]
        if any(g == ("...",) for g in (*left, *right)):
            return None
        sizes: dict[str, Dim] = {name: self.dim(value) for name, value in zip(v.names[1:], v.args[1:], strict=True)}
        for axis, group in enumerate(left):
            unknown = [label for label in group if label not in sizes and not label.isdigit()]
            whole = self.axis(v.args[0], axis, len(left))
            if len(unknown) == 1:
                for label in group:
                    if label in sizes:
                        whole = whole / sizes[label]
                sizes[unknown[0]] = whole
            else:
                for label in unknown:
                    sizes[label] = atom(("axis", v.key, label))
        out = []
        for group in right:
            total = Dim()
            for label in group:
                total = total * (Dim(int(label)) if label.isdigit() else sizes.get(label, atom(("axis", v.key, label))))
            out.append(total)
        return tuple(out)

    def _einsum(self, v: Value) -> Shape | None:
        if any("..." in term for term in (*v.attrs["inputs"], v.attrs["output"])):
            return None
        sizes: dict[str, Dim] = {}
        for term, arg in zip(v.attrs["inputs"], v.args, strict=True):
            for axis, label in enumerate(term):
                known = self.shape(arg)
                sizes.setdefault(
                    label, known[axis] if known is not None and axis < len(known) else self.axis(arg, axis, len(term))
                )
        return tuple(sizes[label] for label in v.attrs["output"])

    def _matmul(self, v: Value) -> Shape | None:
        a, b = self.shape(v.args[0]), self.shape(v.args[1])
        if v.attrs.get("spelled") in ("bmm", "mm"):
            rank = 3 if v.attrs["spelled"] == "bmm" else 2
            a = a or tuple(atom(("axis", v.args[0].key, i - rank)) for i in range(rank))
            b = b or tuple(atom(("axis", v.args[1].key, i - rank)) for i in range(rank))
        if a is None or b is None or len(a) < 2 or len(b) < 2:
            return None
        longer = a if len(a) >= len(b) else b
        return (*longer[:-2], a[-2], b[-1])

    def _baddbmm(self, v: Value) -> Shape | None:
        if len(v.args) < 3:
            return None
        return self.size(v.args[1], 0), self.size(v.args[1], 1), self.size(v.args[2], 2)

    def _elementwise(self, v: Value) -> Shape | None:
        a, b = v.args[0], v.args[1]
        if self._scalar(b):
            return self.shape(a)
        if self._scalar(a):
            return self.shape(b)
        left, right = self.shape(a), self.shape(b)
        if left is None or right is None:
            return None
        longer, shorter = (left, right) if len(left) >= len(right) else (right, left)
        out = list(longer)
        for i in range(1, len(shorter) + 1):
            if longer[-i] == Dim(1):
                out[-i] = shorter[-i]
        return tuple(out)

    _add = _sub = _mul = _div = _mod = _floordiv = _bitand = _bitor = _logical_and = _logical_or = _elementwise

    def _compare(self, v: Value) -> Shape | None:
        return (
            self._elementwise(v)
            if len(v.args) == 2 and v.attrs.get("how") not in ("is", "is_not", "in", "not_in")
            else None
        )

    def _logical_not(self, v: Value) -> Shape | None:
        return self.shape(v.args[0])

    def _arange(self, v: Value) -> Shape | None:
        sizes = [a for name, a in zip(v.names, v.args, strict=False) if name.startswith("_") or name == "end"]
        return (self.dim(sizes[0]) if len(sizes) == 1 else atom(v.key),) if sizes else None

    def _scalar(self, v: Value) -> bool:
        if v.op in _SCALARS:
            return True
        if v.op == "param":
            return getattr(v.frame.function if v.frame else None, "name", "") == "__init__"
        if v.op in ("attribute", "buffer"):
            made = definition(v)
            return made is not None and (made.op == "pow" or made.op != "param" and self._scalar(made))
        if v.op in ("pow", "div", "mul", "add", "sub", "neg", "floordiv", "or"):
            return all(self._scalar(a) for a in v.args)
        if v.op == "phi":
            return all(self._scalar(a) for a in v.args[1:])
        return False

    def _pow(self, v: Value) -> Shape | None:
        return self.shape(v.args[0])

    def _where(self, v: Value) -> Shape | None:
        shapes = [s for a in v.args if (s := self.shape(a)) is not None]
        return max(shapes, key=len) if len(shapes) > 1 else None

    def _phi(self, v: Value) -> Shape | None:
        a, b = self.shape(v.args[1]), self.shape(v.args[2])
        if a is None or b is None or len(a) != len(b):
            return None
        return tuple(x if x == y else atom(("phi", v.args[0].key, x, y)) for x, y in zip(a, b, strict=True))

    def _part(self, v: Value) -> Shape | None:
        source = v.args[0]
        if source.op == "unbind" or source.op == "getitem":
            shape = self.shape(source.args[0]) if source.op == "unbind" else None
            axis = source.attrs.get("dim")
            if shape is None or axis is None:
                return None
            at = axis % len(shape)
            return (*shape[:at], *shape[at + 1 :])
        if source.op in ("chunk", "split"):
            shape, axis = self.shape(source.args[0]), source.attrs.get("dim")
            if shape is None or axis is None or not -len(shape) <= axis < len(shape):
                return None
            at, out = axis % len(shape), list(shape)
            count = source.attrs.get("count")
            size = source.get("split_size")
            if source.op == "chunk" and count:
                out[at] = out[at] / Dim(count)
            elif size is not None and size.op not in ("tuple", "list"):
                out[at] = self.dim(size)
            elif size is not None and v.attrs["index"] < len(size.args):
                out[at] = self.dim(size.args[v.attrs["index"]])
            else:
                out[at] = atom(("part", source.key, v.attrs["index"]))
            return tuple(out)
        shape = self.shape(source)  # unpacking a tensor walks its first axis
        return (
            shape[1:]
            if shape is not None and len(shape) > 1 and source.op in ("permute", "reshape", "transpose", "rearrange")
            else None
        )

    def _getitem(self, v: Value) -> Shape | None:
        shape = self.shape(v.args[0])
        if shape is None:
            return None
        index = v.args[1]
        items = list(index.args) if index.op == "tuple" else [index]
        if any(i.op == "const" and i.const is Ellipsis for i in items):
            at = next(n for n, i in enumerate(items) if i.op == "const" and i.const is Ellipsis)
            taken = sum(1 for i in items if not (i.op == "const" and (i.const is None or i.const is Ellipsis)))
            full = Value(
                "slice", tuple(Value("const", attrs={"value": None}, register=False) for _ in range(3)), register=False
            )
            items[at : at + 1] = [full] * (len(shape) - taken)
        out: list[Dim] = []
        axis = 0
        for item in items:
            if item.op == "const" and item.const is None:
                out.append(Dim(1))
            elif axis >= len(shape):
                return None
            elif item.op == "slice":
                out.append(self._sliced(shape[axis], item, v, axis))
                axis += 1
            elif isinstance(item.const, int) and not isinstance(item.const, bool):
                axis += 1
            else:
                return None  # an index tensor or an unknown index
        return (*out, *shape[axis:])

    def _sliced(self, size: Dim, item: Value, v: Value, axis: int) -> Dim:
        lower, upper, step = item.args
        if step.const not in (None, 1):
            return atom(("slice", v.key, axis))
        if lower.const in (None, 0) and upper.const is None:
            return size
        if lower.const in (None, 0) and not (isinstance(upper.const, int) and upper.const < 0):
            return self.dim(upper)
        return atom(("slice", v.args[0].key, axis, lower.key, upper.key))

    def _cat(self, v: Value) -> Shape | None:
        items = v.get("tensors")
        if items is None or items.op not in ("tuple", "list") or not items.args:
            return None
        shape, axis = self.shape(items.args[0]), v.get("dim")
        at = axis.const if axis is not None else 0
        if shape is None or not isinstance(at, int) or not -len(shape) <= at < len(shape):
            return None
        out = list(shape)
        out[at % len(shape)] = atom(("cat", tuple(a.key for a in items.args), at))
        return tuple(out)

    def _expand(self, v: Value) -> Shape | None:
        shape = self.shape(v.args[0])
        sizes = v.args[1:]
        if not sizes or any(s.op in ("shape", "starred") for s in sizes):
            return None
        out = []
        for i, s in enumerate(sizes):
            at = i - len(sizes)
            out.append(
                (shape[at] if shape is not None and -at <= len(shape) else atom(("axis", v.args[0].key, at)))
                if s.const == -1
                else self.dim(s)
            )
        return tuple(out)

    def _repeat_interleave(self, v: Value) -> Shape | None:
        shape, axis, times = self.shape(v.args[0]), v.get("dim"), v.get("repeats")
        if shape is None or axis is None or times is None or not isinstance(axis.const, int):
            return None
        out = list(shape)
        out[axis.const] = out[axis.const] * self.dim(times)
        return tuple(out)

    def _repeat(self, v: Value) -> Shape | None:
        shape = self.shape(v.args[0])
        if shape is None or len(shape) > len(v.args) - 1:
            return None
        times = [self.dim(a) for a in v.args[1:]]
        padded = (*(Dim(1) for _ in range(len(times) - len(shape))), *shape)
        return tuple(p * t for p, t in zip(padded, times, strict=True))

    def _factory(self, v: Value) -> Shape | None:
        sizes = [a for name, a in zip(v.names, v.args, strict=False) if name.startswith("_") or name == "size"]
        if len(sizes) == 1 and sizes[0].op in ("tuple", "list"):
            sizes = list(sizes[0].args)
        return tuple(self.dim(s) for s in sizes) if sizes and all(s.op != "starred" for s in sizes) else None

    def _tensor(self, v: Value) -> Shape | None:
        content = v.args[0] if v.args else None
        if content is None:
            return None
        if content.op in ("tuple", "list"):
            return (Dim(len(content.args)),) if all(a.op not in ("tuple", "list") for a in content.args) else None
        return () if self._scalar(content) or content.op in ("neg", "log", "param", "attribute") else None

    _as_tensor = _tensor

    def _new(self, v: Value) -> Shape | None:
        sizes = [a for name, a in zip(v.names[1:], v.args[1:], strict=False) if name.startswith("_") or name == "size"]
        if len(sizes) == 1 and sizes[0].op in ("tuple", "list"):
            sizes = list(sizes[0].args)
        return tuple(self.dim(s) for s in sizes) if sizes and all(s.op != "starred" for s in sizes) else None

    _new_ones = _new_zeros = _new

    _ones = _zeros = _randn = _rand = _empty = _full = _factory

    def _call(self, v: Value) -> Shape | None:
        """A module applied to a tensor: nn.Linear changes the last axis, norms change nothing."""
        kind = self._module_kind(v)
        shape = self.shape(v.args[1]) if kind is not None else None
        if shape is None:
            return None
        if kind == "torch.nn.Linear":
            made = definition(v.args[0])
            return (*shape[:-1], self.dim(made.args[1])) if made is not None and len(made.args) >= 2 else None
        return shape if kind in _SAME_MODULES else None

    def _buffer(self, v: Value) -> Shape | None:
        return self.shape(v.args[0])

    def _attribute(self, v: Value) -> Shape | None:
        made = definition(v)
        if made is None or made.op not in ("buffer", "construct"):
            return None
        if made.op == "construct":
            if made.attrs["qualified"] != "torch.nn.Parameter" or not made.args:
                return None
            return self.shape(made.args[0])
        return self.shape(made.args[0])
