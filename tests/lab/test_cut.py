"""Cutting statements out of a function, and finding them again in the fixed text."""

from __future__ import annotations

import ast

import pytest

from attn_advisor.lab.cut import CannotCut, cut, moved, without_views
from attn_advisor.source.text import SourceText


def cut_between(text: str, first: str, last: str):
    start, end = text.index(first), text.index(last) + len(last)
    return cut(SourceText(text), ast.parse(text), start, end)


METHOD = """
class A:
    def forward(self, x, mask=None):
        q, k, v = self.split(x)
        scale = q.size(-1) ** -0.5
        scores = q @ k.mT * scale
        if mask is not None:
            scores = scores + mask
        probs = [f(s) for s in scores]
        out = probs @ v
        other = out * 2
        return self.proj(out)
"""


def test_free_names_self_and_output():
    found = cut_between(METHOD, "scores = q @", "out = probs @ v")
    assert found.free == ["q", "k", "scale", "mask", "v"]
    assert found.self_name is None and found.class_name == "A"
    assert found.output == "out"
    assert found.rows == (6, 10)


def test_attributes_make_self_an_argument():
    text = METHOD.replace("* scale", "* self.scale")
    assert cut_between(text, "scores = q @", "out = probs @ v").self_name == "self"


def test_inside_a_branch():
    text = """
def attention(q, k, v, fast):
    if fast:
        out = other(q)
    else:
        w = softmax(q @ k.mT)
        out = w @ v
    return out
"""
    found = cut_between(text, "w = softmax", "out = w @ v")
    assert len(found.statements) == 2 and found.free == ["q", "k", "v"] and found.output == "out"


def test_a_name_assigned_in_one_branch_only_stays_free():
    text = """
def attention(q, k, v, m, flag):
    s = q @ k.mT
    if flag:
        m = m * 2
    s = s + m
    return s.softmax(-1) @ v
"""
    found = cut_between(text, "s = q @", "return s.softmax(-1) @ v")
    assert found.free == ["q", "k", "flag", "m", "v"] and found.output is None


def test_a_name_of_one_branch_is_not_free():
    text = """
def attention(q, k, v, mask_fn):
    s = q @ k.mT
    if mask_fn is not None:
        m = mask_fn(q)
        s = s + m
    return s.softmax(-1) @ v
"""
    assert cut_between(text, "s = q @", "return s.softmax(-1) @ v").free == ["q", "k", "mask_fn", "v"]


def test_views_at_the_end_can_be_left_out():
    text = """
def attention(q, k, v, B, N):
    s = (q @ k.mT).softmax(-1)
    out = (s @ v).transpose(1, 2).flatten(2).reshape(B, N, -1)
    return out
"""
    found = cut_between(text, "s = (q @", "reshape(B, N, -1)")
    shorter, views = without_views(found)
    assert found.free == ["q", "k", "v", "B", "N"] and shorter.free == ["q", "k", "v"]
    assert views == ".flatten(2).reshape(B, N, -1)"
    assert ast.unparse(shorter.statements[-1]) == "out = (s @ v).transpose(1, 2)"
    assert ast.unparse(found.statements[-1]).endswith("reshape(B, N, -1)"), "the cut itself is unchanged"
    again, nothing = without_views(shorter)
    assert nothing == "" and again is shorter


def test_outside_a_function():
    with pytest.raises(CannotCut, match="outside any function"):
        cut_between("s = q @ k\no = s @ v\n", "s = q", "o = s @ v")


def test_offsets_move_with_edits():
    edits = [(0, 0, "import x\n"), (10, 20, "ab"), (30, 31, "")]
    assert moved(5, edits, after=False) == 14
    assert moved(25, edits, after=False) == 25 + 9 - 8
    assert moved(15, edits, after=False) == 19 and moved(15, edits, after=True) == 21
    assert moved(40, edits, after=False) == 40 + 9 - 8 - 1
