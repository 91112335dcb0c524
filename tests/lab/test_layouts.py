"""Layouts of query, key and value from the axes that the detection found."""

from __future__ import annotations

import pytest

from attn_advisor.lab.layouts import before, layouts, letters


def facts(query: str, key: str, value: str, output: str, names: tuple[str, str, str] = ("q", "k", "v")) -> dict:
    axes = {"query": query, "key": key, "value": value, "output": output}
    return {"query": names[0], "key": names[1], "value": names[2], "axes": axes}


@pytest.mark.parametrize(
    ("given", "layout"),
    [
        (facts("b0 b1 i c", "b0 b1 j c", "b0 b1 j e", "b0 b1 i e"), ("bhld", "bhsd", "bhsd")),
        (facts("b i h d", "b j h d", "b j h e", "b i h e"), ("blhd", "bshd", "bshd")),
        (facts("i b n d", "j b n d", "j b n e", "i b n e"), ("lbhd", "sbhd", "sbhd")),
        (facts("h b i c", "h b j c", "h b j e", "h b i e"), ("hbld", "hbsd", "hbsd")),
        (facts("b0 i c", "b0 j c", "b0 j e", "b0 i e"), ("nld", "nsd", "nsd")),
        (facts("b0 b1 b2 i c", "b0 b1 b2 j c", "b0 b1 b2 j e", "b0 b1 b2 i e"), ("b1hld", "b1hsd", "b1hsd")),
        (facts("... i c", "... j c", "... j e", "... i e"), ("bhld", "bhsd", "bhsd")),
        (facts("i c", "j c", "j e", "i e"), ("ld", "sd", "sd")),
        (facts("b0 b1 i c", "b0 b1 c j", "b0 b1 e j", "b0 b1 e i"), ("bhld", "bhds", "bhds")),
        (
            facts("b0 b1 i c", "b0 b1 c j", "b0 b1 j e", "b0 b1 i e", ("q.transpose(-2, -1)", "k.mT", "v.float()")),
            ("bhdl", "bhsd", "bhsd"),
        ),
    ],
)
def test_layouts_by_the_axes_found(given, layout):
    assert layouts(given)[0] == layout


def test_without_axes_the_usual_comes_first():
    assert letters({}) == {}
    assert layouts({})[0] == ("bhld", "bhsd", "bhsd")


def test_axes_of_the_name_inside_an_operand():
    assert before("k", "bhsd") == "bhsd"
    assert before("k.permute(0, 2, 3, 1)", "bhds") == "bshd"
    assert before("k.transpose(1, 2).transpose(-2, -1)", "bhds") == "bshd"
    assert before("k[0]", "bhsd") == before("f(k)", "bhsd") == before("k +", "bhsd") == ""
