"""The executor accepts the rewrites that are right and rejects planted wrong ones."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from attn_advisor.fixes.executor import Report, Source, compare
from attn_advisor.fixes.inputs import Dim, Many, Mask, Recipe, Tensor, Value, optional

HEAD = """
import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.functional import scaled_dot_product_attention as sdpa
"""
Q, KV, SCORES = ("*", "L", "D"), ("*", "S", "D"), ("*", "L", "S")
DIMS = (
    {"*": (2, 3), "L": 5, "S": 7, "D": 4},
    {"*": (2, 3), "L": 5, "S": 5, "D": 4},
    {"*": (2,), "L": 4, "S": 6, "D": 4},
    {"*": (2, 3), "L": 1, "S": 7, "D": 4},
)
QKV = {"q": Tensor(Q), "k": Tensor(KV), "v": Tensor(KV)}
PLAIN = Recipe(QKV, DIMS)
SQUARE = Recipe(
    {name: Tensor(("B", "H", "L", "D")) for name in "qkv"},
    ({"B": 2, "H": 3, "L": 5, "D": 4}, {"B": 1, "H": 2, "L": 1, "D": 4}),
)
BOOL = Recipe(QKV | {"m": Mask(SCORES, ("bool", "int", "uint8", "float01"))}, DIMS)
OPTIONAL = Recipe(QKV | {"m": optional(Mask(SCORES, ("bool", "int", "uint8", "float01")))}, DIMS)
ADDED = Recipe(QKV | {"m": optional(Mask(SCORES, ("additive", "bias"), empty=False))}, DIMS)
HEADS = ({"B": 2, "H": 3, "L": 5, "S": 6, "D": 4}, {"B": 1, "H": 2, "L": 1, "S": 4, "D": 4})
BHLD = {"q": Tensor(("B", "H", "L", "D")), "k": Tensor(("B", "H", "S", "D")), "v": Tensor(("B", "H", "S", "D"))}


def pair(before: str, after: str, recipe: Recipe, head: str = "def f(q, k, v, m=None):", **options: bool) -> Report:
    """Compare two bodies of a function, or two classes called f."""
    sides = [HEAD + (text if text.startswith("class") else f"{head}\n" + text) for text in (before, after)]
    return compare(Source(sides[0], "f"), Source(sides[1], "f"), recipe, **options)


def body(*lines: str) -> str:
    return "".join(f"    {line}\n" for line in lines)


def naive(*steps: str, softmax: str = "s.softmax(-1)", scale: str = " / math.sqrt(q.size(-1))") -> str:
    return body(f"s = q @ k.transpose(-2, -1){scale}", *steps, f"p = {softmax}", "return p @ v")


DROPOUT = """class f(nn.Module):
    def __init__(self, p=0.2):
        super().__init__()
        self.p = p
        self.drop = nn.Dropout(p)
        self.cap = nn.Parameter(torch.ones(3, 1, 1))
    def forward(self, q, k, v):
        {}
"""
DROPPED = DROPOUT.format("return self.drop((q @ k.mT / math.sqrt(q.size(-1))).softmax(-1)) @ v")
FUNCTIONAL = DROPOUT.format("return F.dropout((q @ k.mT * q.size(-1) ** -0.5).softmax(-1), 0.2, {}) @ v")


def dropout(argument: str) -> str:
    return DROPOUT.format(f"return sdpa(q, k, v, dropout_p={argument})")


TRIL = "m = torch.ones(q.size(-2), k.size(-2)).tril()"
SOME = ("keep = m != 0", "some = keep.any(dim=-1, keepdim=True)")
CACHE = Recipe({"q": Tensor(("B", "H", "L", "D")), "k": Tensor(("B", "H", "L", "D")), "v": Tensor(("B", "H", "L", "D")),
                "past": optional(Many((Tensor(("B", "H", "P", "D")), Tensor(("B", "H", "P", "D")))))},
               ({"B": 2, "H": 3, "L": 4, "P": 3, "D": 4}, {"B": 1, "H": 2, "L": 1, "P": 6, "D": 4}))  # fmt: skip
PAST = ("k, v = (k, v) if past is None else (torch.cat([past[0], k], 2), torch.cat([past[1], v], 2))",)

# name: (before, after, recipe[, head])
RIGHT = {
    "plain": (naive(), body("return sdpa(q, k, v)"), PLAIN),
    "no scale": (naive(scale=""), body("return sdpa(q, k, v, scale=1.0)"), PLAIN),
    "scale of both": (body("return ((q * q.size(-1) ** -0.25) @ (k * k.size(-1) ** -0.25).mT).softmax(-1) @ v"), body("return sdpa(q, k, v)"), PLAIN),
    "bool mask": (naive("s = s.masked_fill(m, float('-inf'))"), body("return sdpa(q, k, v, attn_mask=~m)"), BOOL),
    "setitem": (naive("s[m] = float('-inf')"), body("return sdpa(q, k, v, attn_mask=~m)"),
                Recipe(QKV | {"m": Mask(SCORES)}, DIMS)),  # as an index whole numbers pick rows: not a mask
    "mask == 0": (naive("s = s.masked_fill(m == 0, float('-inf'))"), body("return sdpa(q, k, v, attn_mask=m != 0)"), BOOL),
    "where": (naive("s = torch.where(m != 0, s, float('-inf'))"), body("return sdpa(q, k, v, attn_mask=m != 0)"), BOOL),
    "optional mask": (naive("s = s if m is None else s.masked_fill(m == 0, float('-inf'))"),
                      body("return sdpa(q, k, v, attn_mask=None if m is None else m != 0)"), OPTIONAL),
    "added mask": (naive("s = s if m is None else s + m"), body("return sdpa(q, k, v, attn_mask=m)"), ADDED),
    "bias inside the scaling": (body("return ((q @ k.mT + m) / 3.0).softmax(-1) @ v"), body("return sdpa(q, k, v, attn_mask=m / 3.0, scale=1 / 3.0)"),
                                Recipe(QKV | {"m": Mask(SCORES, ("additive", "bias"), empty=False)}, DIMS)),
    "finite fill": (naive("s = s.masked_fill(m == 0, -1e9)"), body(*SOME, "return sdpa(q * some, k, v, attn_mask=keep | ~some)"), BOOL),
    "rows set to zero": (naive("s = s.masked_fill(m == 0, -1e9)", softmax="s.softmax(-1).masked_fill(m == 0, 0.0)"),
                         body(*SOME, "return sdpa(q, k, v, attn_mask=keep | ~some).masked_fill(~some, 0.0)"), BOOL),
    "causal": (naive("s = s.masked_fill(torch.ones_like(s).tril() == 0, float('-inf'))"), body("return sdpa(q, k, v, is_causal=True)"), SQUARE),
    "causal of a buffer": (
        "class f(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.register_buffer('bias', torch.tril(torch.ones(9, 9)).view(1, 1, 9, 9))\n"
        "    def forward(self, q, k, v):\n        T = q.size(2)\n        s = q @ k.mT * q.size(-1) ** -0.5\n"
        "        return s.masked_fill(self.bias[:, :, :T, :T] == 0, float('-inf')).softmax(-1) @ v\n",
        "class f(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.register_buffer('bias', torch.tril(torch.ones(9, 9)).view(1, 1, 9, 9))\n"
        "    def forward(self, q, k, v):\n        return sdpa(q, k, v, is_causal=True)\n", SQUARE),
    "temperature": (body("return (q @ k.mT * t).softmax(-1) @ v"), body("return sdpa(q * t, k, v, scale=1.0)"),
                    Recipe(QKV | {"t": Tensor((1,))}, DIMS), "def f(q, k, v, t):"),
    "layout": (body("s = torch.einsum('blhd,bshd->bhls', q, k) / 2.0", "return torch.einsum('bhls,bshd->blhd', s.softmax(-1), v)"),
               body("return sdpa(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), scale=1 / 2.0).transpose(1, 2)"),
               Recipe({"q": Tensor(("B", "L", "H", "D")), "k": Tensor(("B", "S", "H", "D")), "v": Tensor(("B", "S", "H", "D"))}, HEADS)),
    "batch of heads": (body("s = torch.bmm(q, k.transpose(1, 2)) * q.size(-1) ** -0.5", "return torch.bmm(s.masked_fill(m, float('-inf')).softmax(-1), v)"),
                       body("return sdpa(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), attn_mask=~m.unsqueeze(0)).squeeze(0)"),
                       Recipe({"q": Tensor(("N", "L", "D")), "k": Tensor(("N", "S", "D")), "v": Tensor(("N", "S", "D")), "m": Mask(("N", "L", "S"))},
                              ({"N": 6, "L": 5, "S": 7, "D": 4}, {"N": 1, "L": 1, "S": 3, "D": 4}))),
    "bottom-right causal": (body(*PAST, "L, S = q.size(2), k.size(2)", "m = torch.ones(S, S).tril()[S - L : S, :S]",
                                 "return (q @ k.mT / 2.0).masked_fill(m == 0, float('-inf')).softmax(-1) @ v"),
                            body(*PAST, "L, S = q.size(2), k.size(2)", "m = torch.ones(S, S).tril()[S - L : S, :S]",
                                 "return sdpa(q, k, v, attn_mask=m != 0, scale=1 / 2.0)"), CACHE, "def f(q, k, v, past):"),
    "grouped keys": (body("k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)", "return (q @ k.mT / 2.0).softmax(-1) @ v"),
                     body("return sdpa(q, k, v, scale=1 / 2.0, enable_gqa=True)"),
                     Recipe({"q": Tensor(("B", 4, "L", "D")), "k": Tensor(("B", 2, "S", "D")), "v": Tensor(("B", 2, "S", "D"))}, HEADS)),
    "view to reshape": (body("o = (q @ k.mT / 2.0).softmax(-1) @ v", "return o.view(o.size(0) * o.size(1), -1)"),
                        body("o = sdpa(q, k, v, scale=1 / 2.0)", "return o.reshape(o.size(0) * o.size(1), -1)"), SQUARE),
    "later change made out of place": (body("o = (q @ k.mT / 2.0).softmax(-1) @ v", "o *= 2", "return o"),
                                       body("o = sdpa(q, k, v, scale=1 / 2.0)", "o = o * 2", "return o"), SQUARE),
    "softmax in float32": (naive(softmax="s.float().softmax(-1).to(q.dtype)"), body("return sdpa(q, k, v)"), PLAIN),
    "output scaled": (body("return ((q @ k.mT).softmax(-1) * 0.5) @ v"), body("return sdpa(q, k, v, scale=1.0) * 0.5"), PLAIN),
    "negated scores": (body("return (5 - q @ k.mT).softmax(-1) @ v"), body("return sdpa(-q, k, v, scale=1.0)"), PLAIN),
    "weights on request": (body("p = (q @ k.mT / 2.0).softmax(-1)", "return p @ v, p if w else None"),
                           body("if w:", "    p = (q @ k.mT / 2.0).softmax(-1)", "    o = p @ v", "else:", "    p = None",
                                "    o = sdpa(q, k, v, scale=1 / 2.0)", "return o, p"),
                           Recipe(QKV | {"w": optional(Value(True))}, DIMS), "def f(q, k, v, w):"),
    "dropout module": (DROPPED, dropout("self.drop.p if self.drop.training else 0.0"), PLAIN),
    "functional dropout": (FUNCTIONAL.format("self.training"), dropout("0.2 if self.training else 0.0"), PLAIN),
    "functional dropout always": (FUNCTIONAL.format("True"), dropout("0.2"), PLAIN),
}  # fmt: skip

# name: (before, after, part of the reason, recipe[, head])
WRONG = {
    "inverted mask": (RIGHT["bool mask"][0], body("return sdpa(q, k, v, attn_mask=m)"), "differs by", BOOL),
    "inverted mask == 0": (RIGHT["mask == 0"][0], body("return sdpa(q, k, v, attn_mask=m == 0)"), "differs by", BOOL),
    "default scale where there was none": (naive(scale=""), body("return sdpa(q, k, v)"), "differs by", PLAIN),
    "double scale": (naive(), body("return sdpa(q / math.sqrt(q.size(-1)), k, v)"), "differs by", PLAIN),
    "scale of the keys' length": (body("k = k.mT", "return (q @ k / math.sqrt(q.size(-1))).softmax(-1) @ v"),
                                  body("return sdpa(q, k, v, scale=k.mT.size(-1) ** -0.5)"), "differs by", PLAIN),
    "is_causal with a cache": (RIGHT["bottom-right causal"][0], body(*PAST, "return sdpa(q, k, v, is_causal=True, scale=1 / 2.0)"), "differs by", CACHE,
                               "def f(q, k, v, past):"),
    "top-left slice with a cache": (body(*PAST, "T = q.size(2)", "m = torch.ones(9, 9).tril()[:T, :T]", "s = q @ k.mT / 2.0",
                                         "s = s.masked_fill(m == 0, -1e9)", "return s.softmax(-1) @ v"),
                                    body(*PAST, "return sdpa(q, k, v, is_causal=True, scale=1 / 2.0)"), "differs by", CACHE, "def f(q, k, v, past):"),
    "bool mask where a finite fill leaves empty rows": (RIGHT["finite fill"][0], body("return sdpa(q, k, v, attn_mask=m != 0)"), "differs by", BOOL),
    "float fill in place of a bool mask": (RIGHT["finite fill"][0], body("return sdpa(q, k, v, attn_mask=torch.where(m != 0, 0.0, -1e9).to(q.dtype))"),
                                           "differs by", BOOL),
    "bias not divided by the scale": (RIGHT["bias inside the scaling"][0], body("return sdpa(q, k, v, attn_mask=m, scale=1 / 3.0)"), "differs by",
                                      Recipe(QKV | {"m": Mask(SCORES, ("additive", "bias"), empty=False)}, DIMS)),
    "dropout not gated": (DROPPED, dropout("self.drop.p"), "eval", PLAIN),
    "dropout lost": (DROPPED, dropout("0.0"), "train", PLAIN),
    "dropout gated by the wrong flag": (DROPPED, dropout("self.drop.p if self.training else 0.0"), "the dropout modules in", PLAIN),
    "dropout of another p": (FUNCTIONAL.format("self.training"), dropout("0.1 if self.training else 0.0"), "train", PLAIN),
    "dropout on the output": (DROPOUT.format("return self.drop((q @ k.mT / 2.0).softmax(-1) @ v)"),
                              DROPOUT.format("return sdpa(q, k, v, scale=1 / 2.0, dropout_p=self.drop.p if self.drop.training else 0.0)"), "train", PLAIN),
    "dropout before the softmax": (DROPOUT.format("return self.drop(q @ k.mT / 2.0).softmax(-1) @ v"),
                                   DROPOUT.format("return sdpa(q, k, v, scale=1 / 2.0, dropout_p=self.drop.p if self.drop.training else 0.0)"),
                                   "train", PLAIN),
    "softmax over the queries": (naive(softmax="s.softmax(-2)"), body("return sdpa(q, k, v)"), "differs by", PLAIN),
    "3-D mask on the wrong axis": (naive("s = s.masked_fill(m, float('-inf'))"), body("return sdpa(q, k, v, attn_mask=~m.unsqueeze(1))"), "differs by",
                                   Recipe(BHLD | {"m": Mask(("H", "L", "S"))}, ({"B": 3, "H": 3, "L": 5, "S": 6, "D": 4},))),
    "2-D mask given a head axis": (naive("s = s.masked_fill(m, float('-inf'))"), body("return sdpa(q, k, v, attn_mask=~m[:, None, None, :])"), "differs by",
                                   Recipe(BHLD | {"m": Mask(("L", "S"))}, ({"B": 4, "H": 2, "L": 4, "S": 5, "D": 4},))),
    "view of an output that is not contiguous": (RIGHT["view to reshape"][0],
                                                 body("o = sdpa(q, k, v, scale=1 / 2.0)", "return o.view(o.size(0) * o.size(1), -1)"),
                                                 "the rewrite raises", SQUARE),
    "output changed in place": (RIGHT["later change made out of place"][0],
                                body("o = sdpa(q, k, v, scale=1 / 2.0)", "o *= 2", "return o"), "the rewrite raises", SQUARE),
    "float mask changed in place": (body("m = m * 1", "o = (q @ k.mT / 2.0 + m).softmax(-1) @ v", "m += 1", "return o"),
                                    body("m = m * 1", "o = sdpa(q, k, v, attn_mask=m, scale=1 / 2.0)", "m += 1", "return o"), "the rewrite raises",
                                    Recipe(QKV | {"m": Mask(SCORES, ("additive",), empty=False)}, DIMS)),
    "whole numbers inverted": (naive("s = torch.where(m != 0, s, float('-inf'))"), body("return sdpa(q, k, v, attn_mask=~(~m))"), "the rewrite raises", BOOL),
    "None not passed through": (RIGHT["optional mask"][0], body("return sdpa(q, k, v, attn_mask=m != 0)"), "", OPTIONAL),
    "repeat for repeat_interleave": (RIGHT["grouped keys"][0], body("return sdpa(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1), scale=1 / 2.0)"),
                                     "differs by", Recipe(RIGHT["grouped keys"][2].arguments, HEADS)),
    "an argument no longer changed": (body("q *= 0.5", "return (q @ k.mT).softmax(-1) @ v"), body("return sdpa(q, k, v, scale=0.5)"), "after the call",
                                      Recipe({"q": Tensor(Q, grad=False), "k": Tensor(KV), "v": Tensor(KV)}, DIMS)),
    "weights lost": (RIGHT["weights on request"][0], body("return sdpa(q, k, v, scale=1 / 2.0), None"), "output[1]",
                     RIGHT["weights on request"][2], "def f(q, k, v, w):"),
    "result in another dtype": (naive(softmax="s.float().softmax(-1).to(q.dtype)"), body("return sdpa(q.float(), k.float(), v.float())"), "dtype", PLAIN),
    "wrong only under a half type": (naive(), body("return sdpa(q, k, v) if q.dtype is torch.float64 else sdpa(q, k, v).float()"), "dtype", PLAIN),
    "wrong layout": (RIGHT["layout"][0], body("return sdpa(q, k, v, scale=1 / 2.0)"), "",
                     Recipe({name: Tensor(("B", "L", "H", "D")) for name in "qkv"}, HEADS)),
    "gradient of a bias lost": (naive("s = s + m"), body("return sdpa(q, k, v, attn_mask=m.detach())"), "gradient of argument m",
                                Recipe(QKV | {"m": Mask(SCORES, ("bias",))}, DIMS)),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_right_rewrites_are_accepted(name: str) -> None:
    before, after, recipe, *head = RIGHT[name]
    report = pair(before, after, recipe, *head)
    assert report.equal, str(report)
    assert report.compared > 5


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rewrites_are_rejected(name: str) -> None:
    before, after, reason, recipe, *head = WRONG[name]
    report = pair(before, after, recipe, *head)
    assert report.verdict == "differs", str(report)
    assert reason in f"{report.reason} {report.case}", str(report)


def test_code_that_cannot_run_says_why() -> None:
    assert "TypeError" in pair(body("return q + m"), body("return q"), PLAIN).reason
    assert pair(body("return q + m"), body("return q"), PLAIN).verdict == "could not run"
    missing = compare(Source("import no_such_package", "f"), Source("", "f"), PLAIN)
    assert missing.verdict == "could not run" and "no_such_package" in missing.reason
    broken = compare(Source(HEAD + "def f(q, k, v): return q", "f"), Source("def f(q, k, v) return q", "f"), PLAIN)
    assert broken.verdict == "differs" and "SyntaxError" in broken.reason


def test_results_of_any_structure_and_plain_arguments() -> None:
    before = body("return {'out': q * n, 'rest': (None, [k, 'text'])}")
    recipe = Recipe(QKV | {"n": Dim("L")}, DIMS)
    assert pair(before, before, recipe, "def f(q, k, v, n):").equal
    other = body("return {'out': q * n, 'rest': (None, [k, 'other'])}")
    assert "'other'" in pair(before, other, recipe, "def f(q, k, v, n):").reason


def test_state_a_module_keeps_is_compared_and_undone() -> None:
    module = DROPOUT.format(
        "self.last = (q @ k.mT).softmax(-1)\n        self.calls = getattr(self, 'calls', 0) + 1\n        return self.last @ v * self.calls"
    )
    assert pair(module, module, PLAIN).equal
    assert "attribute last" in pair(module, DROPOUT.format("return sdpa(q, k, v, scale=1.0)"), PLAIN).reason


def test_weights_are_the_same_on_both_sides_and_their_gradients_are_compared() -> None:
    before = DROPOUT.format("return q * self.cap")
    assert pair(before, before, Recipe({n: Tensor((2, 3, 5, 4)) for n in "qkv"})).equal
    after = DROPOUT.format("return q * self.cap.detach()")
    assert "gradient of cap" in pair(before, after, Recipe({n: Tensor((2, 3, 5, 4)) for n in "qkv"})).reason


def test_original_in_float32_is_given_room_but_not_more() -> None:
    before = body("return q.float().exp().to(q.dtype)")
    assert pair(before, body("return q.exp()"), PLAIN).equal
    assert not pair(before, body("return q.exp() * 1.001"), PLAIN).equal
