"""Inputs for example code by the names of its parameters: a case of a rule page, or one of the smallest examples in tests/attention.

| names | become |
|---|---|
| `q`, `query`; `k`, `key`, `v`, `value` | (B, H, L, D); (B, H, S, D) |
| `qkv` | (3, B, H, L, D): query, key and value of one sequence |
| `x`, `hidden_states`; `context`, `memory` | (B, L, 12); (B, S, 12) |
| `mask`, `drop`, `keep` | boolean (L, S), with rows that hide all keys; `drop`: True is hidden, `keep`: True is kept, `mask`: either |
| `key_padding_mask`, `padding_mask` | boolean (B, S), True is hidden |
| `attn_mask`, `attention_mask`, `additive` | floating (L, S), added to the scores: 0 and -inf |
| `bias`, `attn_bias`, `position_bias` | floating (H, L, S) of any value |
| `past`, `layer_past` | None, or keys and values (B, H, P, D) |
| `ids`, `idx`, `input_ids` | whole numbers below 11, (B, L) |

A parameter with a default that is not named here is left out. Everything else needs an `inputs` expression: a dict (or `dict(...)`) from parameter to
one of the descriptions in attn_advisor/fixes/inputs.py; its entries go over this table. `init` gives constructor arguments in the same way; those without a
default that CONSTRUCTOR names need none.
"""

from __future__ import annotations

import inspect
from typing import Any

from attn_advisor.fixes import inputs as described
from attn_advisor.fixes.inputs import Ids, Many, Mask, Recipe, Spec, Tensor, optional

QUERY, KEY = Tensor(("B", "H", "L", "D")), Tensor(("B", "H", "S", "D"))
ADDED = Mask(("L", "S"), ("additive",))
BIAS = Mask(("H", "L", "S"), ("bias",))
PADDING = Mask(("B", "S"), sense="drop")
PAST = Tensor(("B", "H", "P", "D"))
IDS = Ids(("B", "L"), 11)

NAMED: dict[str, Spec] = {
    **dict.fromkeys(("q", "query"), QUERY),
    **dict.fromkeys(("k", "key", "v", "value"), KEY),
    "qkv": Tensor((3, "B", "H", "L", "D")),
    **dict.fromkeys(("x", "hidden_states"), Tensor(("B", "L", 12))),
    **dict.fromkeys(("context", "memory"), Tensor(("B", "S", 12))),
    "mask": Mask(("L", "S")),
    "drop": Mask(("L", "S"), sense="drop"),
    "keep": Mask(("L", "S"), sense="keep"),
    **dict.fromkeys(("key_padding_mask", "padding_mask"), PADDING),
    **dict.fromkeys(("attn_mask", "attention_mask", "additive"), ADDED),
    **dict.fromkeys(("bias", "attn_bias", "position_bias"), BIAS),
    **dict.fromkeys(("past", "layer_past"), optional(Many((PAST, PAST)))),
    **dict.fromkeys(("ids", "idx", "input_ids"), IDS),
}
CONSTRUCTOR = {
    **dict.fromkeys(("dim", "width", "d_model", "embed_dim", "hidden_size", "n_embd", "n_state"), 12),
    **dict.fromkeys(("heads", "num_heads", "n_head", "n_heads", "nhead"), 3),
    **dict.fromkeys(("head_dim", "dim_head", "d_head"), 4),
}
DIMS: tuple[described.Dims, ...] = (
    {"B": 2, "H": 3, "L": 4, "S": 6, "D": 4, "P": 2},
    {"B": 2, "H": 3, "L": 5, "S": 5, "D": 4, "P": 3},
    {"B": 1, "H": 2, "L": 1, "S": 3, "D": 4, "P": 5},
)


def evaluate(expression: str) -> dict[str, Any]:
    """The dict that an `inputs` or `init` expression makes."""
    return eval(expression, vars(described) | NAMED | {"PADDING": PADDING}) if expression else {}  # our own test data


def recipe_for(target: Any, inputs: str = "", init: str = "", method: str = "") -> Recipe:
    """How to call a function or a module class. Raises KeyError for a parameter that nothing is known about."""
    given = evaluate(inputs)
    dims = given.pop("dims", DIMS)
    called = getattr(target, method or "forward") if inspect.isclass(target) else target
    arguments: dict[str, Spec] = {}
    for name, parameter in inspect.signature(called).parameters.items():
        if name == "self" or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        spec = given.get(name, NAMED.get(name))
        if spec is None:
            if parameter.default is parameter.empty:
                raise KeyError(f"no inputs for the parameter {name!r}")
            continue
        if name not in given and parameter.default is None:
            spec = optional(spec)
        arguments[name] = spec
    built = evaluate(init)
    if inspect.isclass(target):
        needed = [n for n, p in inspect.signature(target).parameters.items() if p.default is p.empty]
        built = {name: CONSTRUCTOR[name] for name in needed if name in CONSTRUCTOR} | built
    return Recipe(arguments, dims, built, method=method)
