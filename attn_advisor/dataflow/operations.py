"""What calls mean: one canonical name and one operand order for every spelling of an operation.

Names follow torch. A function `torch.f(x, ...)`, a method `x.f(...)`, its in-place form `x.f_(...)` and `F.f` are one operation.
"""

from __future__ import annotations

import re

# Operand names in positional order. Operations not listed keep their call's operands as they are.
SIGNATURES: dict[str, tuple[str, ...]] = {
    "matmul": ("input", "other"),
    "baddbmm": ("input", "batch1", "batch2"),
    "add": ("input", "other", "alpha"),
    "sub": ("input", "other", "alpha"),
    "mul": ("input", "other"),
    "div": ("input", "other", "rounding_mode"),
    "pow": ("input", "exponent"),
    "neg": ("input",),
    "sqrt": ("input",),
    "rsqrt": ("input",),
    "exp": ("input",),
    "log": ("input",),
    "tanh": ("input",),
    "sigmoid": ("input",),
    "softmax": ("input", "dim", "_stacklevel", "dtype"),
    "gumbel_softmax": ("input", "tau", "hard", "eps", "dim"),
    "log_softmax": ("input", "dim", "_stacklevel", "dtype"),
    "masked_fill": ("input", "mask", "value"),
    "where": ("condition", "input", "other"),
    "transpose": ("input", "dim0", "dim1"),
    "squeeze": ("input", "dim"),
    "unsqueeze": ("input", "dim"),
    "flatten": ("input", "start_dim", "end_dim"),
    "unflatten": ("input", "dim", "sizes"),
    "clamp": ("input", "min", "max"),
    "dropout": ("input", "p", "training", "inplace"),
    "chunk": ("input", "chunks", "dim"),
    "split": ("input", "split_size", "dim"),
    "unbind": ("input", "dim"),
    "cat": ("tensors", "dim"),
    "stack": ("tensors", "dim"),
    "tril": ("input", "diagonal"),
    "triu": ("input", "diagonal"),
    "sum": ("input", "dim", "keepdim"),
    "mean": ("input", "dim", "keepdim"),
    "max": ("input", "dim", "keepdim"),
    "amax": ("input", "dim", "keepdim"),
    "logsumexp": ("input", "dim", "keepdim"),
    "normalize": ("input", "p", "dim", "eps"),
    "nan_to_num": ("input", "nan", "posinf", "neginf"),
    "repeat_interleave": ("input", "repeats", "dim"),
    "expand_as": ("input", "other"),
    "type_as": ("input", "other"),
    "invert": ("input",),
    "full": ("size", "fill_value"),
    "full_like": ("input", "fill_value"),
    "zeros_like": ("input",),
    "ones_like": ("input",),
    "eye": ("n", "m"),
    "finfo": ("type",),
    "select": ("input", "dim", "index"),
    "narrow": ("input", "dim", "start", "length"),
    "index_select": ("input", "dim", "index"),
    "any": ("input", "dim", "keepdim"),
    "all": ("input", "dim", "keepdim"),
    "topk": ("input", "k", "dim"),
    "linear": ("input", "weight", "bias"),
    "movedim": ("input", "source", "destination"),
    "lt": ("input", "other"),
    "le": ("input", "other"),
    "gt": ("input", "other"),
    "ge": ("input", "other"),
    "eq": ("input", "other"),
    "ne": ("input", "other"),
    "bitand": ("input", "other"),
    "bitor": ("input", "other"),
    "scaled_dot_product_attention": (
        "query",
        "key",
        "value",
        "attn_mask",
        "dropout_p",
        "is_causal",
        "scale",
        "enable_gqa",
    ),
}

# Other names of the same operation.
ALIASES = {
    "bmm": "matmul",
    "mm": "matmul",
    "multiply": "mul",
    "true_divide": "div",
    "divide": "div",
    "subtract": "sub",
    "negative": "neg",
    "concat": "cat",
    "concatenate": "cat",
    "swapaxes": "transpose",
    "swapdims": "transpose",
    "clip": "clamp",
    "bitwise_not": "invert",
    "bitwise_and": "bitand",
    "bitwise_or": "bitor",
    "greater": "gt",
    "less": "lt",
    "greater_equal": "ge",
    "less_equal": "le",
    "not_equal": "ne",
    "view": "reshape",
    "permute_dims": "permute",
    "moveaxis": "movedim",
    "less_than": "lt",
    "hstack": "cat",
    "view_as": "reshape_as",
    "zero_": "zero",
}

# x.name(...) with no other meaning than a tensor's method.
METHODS = frozenset(
    {
        *SIGNATURES,
        *ALIASES,
        "reshape",
        "permute",
        "expand",
        "repeat",
        "contiguous",
        "clone",
        "detach",
        "float",
        "half",
        "double",
        "bfloat16",
        "to",
        "type",
        "type_as",
        "int",
        "long",
        "bool",
        "cpu",
        "cuda",
        "t",
        "size",
        "dim",
        "numel",
        "item",
        "gather",
        "scatter",
        "fill",
        "zero",
        "copy",
        "reshape_as",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_tensor",
        "abs",
        "argmax",
        "sort",
        "roll",
        "norm",
        "min",
        "masked_select",
        "index_put",
        "cumsum",
        "std",
        "var",
        "adjoint",
        "requires_grad_",
        "diagonal",
        "prod",
        "square",
        "reciprocal",
        "cos",
        "sin",
        "relu",
        "erf",
        "flip",
        "tile",
        "unfold",
        "is_floating_point",
        "new_empty",
        "logical_not",
        "logical_and",
        "logical_or",
        "addmm",
        "lerp",
    }
)

CASTS = {
    "float": "float32",
    "half": "float16",
    "double": "float64",
    "bfloat16": "bfloat16",
    "int": "int32",
    "long": "int64",
    "bool": "bool",
    "to": None,
    "type": None,
    "type_as": None,
}

# Operations whose result may share memory with their first operand.
VIEWS = frozenset(
    {
        "transpose",
        "permute",
        "reshape",
        "squeeze",
        "unsqueeze",
        "flatten",
        "unflatten",
        "expand",
        "expand_as",
        "getitem",
        "part",
        "select",
        "narrow",
        "chunk",
        "split",
        "unbind",
        "rearrange",
        "contiguous",
        "cast",
        "identity",
        "detach",
        "dropout",
        "movedim",
        "t",
        "mT",
        "T",
        "data",
        "reshape_as",
        "diagonal",
        "unfold",
    }
)

_TORCH = re.compile(r"^(torch|torch\.nn\.functional|torch\.special|torch\.Tensor|torch\.linalg|torch\._C\._nn)\.(\w+)$")
_OTHER = {
    "math.sqrt": "sqrt",
    "numpy.sqrt": "sqrt",
    "math.exp": "exp",
    "math.log": "log",
    "math.pow": "pow",
    "numpy.tril": "tril",
    "numpy.triu": "triu",
    "numpy.ones": "ones",
    "operator.matmul": "matmul",
    "operator.mul": "mul",
    "einops.rearrange": "rearrange",
    "einops.einsum": "einsum",
    "einops.repeat": "einops_repeat",
    "einops.reduce": "einops_reduce",
    "einops.einops.rearrange": "rearrange",
    "opt_einsum.contract": "einsum",
    "torch.functional.einsum": "einsum",
}
# torch.<name> that is not an operation on tensors.
_NOT_OPERATIONS = frozenset(
    {
        "no_grad",
        "enable_grad",
        "inference_mode",
        "device",
        "Tensor",
        "nn",
        "autograd",
        "jit",
        "compile",
        "Generator",
        "Size",
        "FloatTensor",
        "LongTensor",
        "dtype",
        "autocast",
    }
)


def canonical(qualified: str) -> str | None:
    """The operation a qualified function name stands for, else None.

    >>> canonical("torch.nn.functional.softmax"), canonical("torch.bmm"), canonical("torch.add_")
    ('softmax', 'matmul', 'add')
    """
    if qualified in _OTHER:
        return _OTHER[qualified]
    match = _TORCH.match(qualified)
    if not match or match[2] in _NOT_OPERATIONS or match[2][0].isupper():
        return None
    name = match[2].rstrip("_") if match[2].endswith("_") and not match[2].startswith("_") else match[2]
    return ALIASES.get(name, name)


def method(name: str) -> str | None:
    """The operation a tensor method stands for (without a trailing underscore), else None."""
    return ALIASES.get(name, name) if name in METHODS else None


def parse_einsum(equation: str) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]] | None:
    """Axis labels of an einsum's operands and output; "..." stands for unknown leading axes.

    Both forms: letters ("bhid,bhjd->bhij") and einops' words ("b h i d, b h j d -> b h i j").

    >>> parse_einsum("id,jd")
    ((('i', 'd'), ('j', 'd')), ('i', 'j'))
    """
    left, arrow, right = equation.partition("->")
    terms = [_labels(term) for term in left.split(",")]
    if any(term is None for term in terms):
        return None
    inputs = tuple(t for t in terms if t is not None)
    if arrow:
        output = _labels(right)
        return (inputs, output) if output is not None else None
    counts: dict[str, int] = {}
    for term in inputs:
        for label in term:
            counts[label] = counts.get(label, 0) + 1
    implicit = tuple(sorted(label for label, n in counts.items() if n == 1 and label != "..."))
    return inputs, (("...",) if "..." in counts else ()) + implicit


def parse_einops_einsum(pattern: str) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]] | None:
    """The same for einops.einsum, whose axes are words."""
    left, arrow, right = pattern.partition("->")
    if not arrow or "(" in pattern:
        return None
    return tuple(tuple(t.split()) for t in left.split(",")), tuple(right.split())


def _labels(term: str) -> tuple[str, ...] | None:
    term = term.strip()
    head: tuple[str, ...] = ()
    if "..." in term:
        before, _, term = term.partition("...")
        head = (*before.replace(" ", ""), "...")
    letters = term.replace(" ", "")
    if not all(c.isalpha() for c in letters):
        return None
    return (*head, *letters)


Group = tuple[str, ...]


def parse_rearrange(pattern: str) -> tuple[tuple[Group, ...], tuple[Group, ...]] | None:
    """Both sides of an einops pattern; each axis is a tuple of labels, ("...",) for the ellipsis.

    >>> parse_rearrange("b n (h d) -> b h n d")
    ((('b',), ('n',), ('h', 'd')), (('b',), ('h',), ('n',), ('d',)))
    """
    left, arrow, right = pattern.partition("->")
    if not arrow:
        return None
    sides = []
    for side in (left, right):
        groups: list[Group] = []
        for token in re.findall(r"\([^()]*\)|[^\s()]+", side):
            groups.append(tuple(token[1:-1].split()) if token.startswith("(") else (token.replace("…", "..."),))
        sides.append(tuple(groups))
    return sides[0], sides[1]
