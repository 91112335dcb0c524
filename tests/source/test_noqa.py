"""Comments that silence findings."""

from __future__ import annotations

import pytest

from attn_advisor.findings import Finding
from attn_advisor.fixes.apply import apply
from attn_advisor.source import noqa
from attn_advisor.source.text import SourceText


def at(text: str, needle: str = "slow", code: str = "ATN101") -> Finding:
    start = text.index(needle)
    return Finding(code, "name", "warning", "message", start, start + len(needle))


def silenced(text: str, code: str = "ATN101") -> bool:
    source = SourceText(text)
    finding = at(text, code=code)
    return noqa.may_matter(text, True) and noqa.silence([finding], noqa.directives(source), source) == []


@pytest.mark.parametrize(
    "text",
    [
        "slow(x)  # noqa",
        "slow(x)  # NOQA",
        "slow(x)  #noqa:ATN101",
        "slow(x)  # noqa: F401, ATN101",
        "slow(x)  # noqa: F401 ATN101",
        "slow(x)  # why not  # noqa: ATN101",
        "slow(x)  # noqa: ATN101 since it is a reference",
        "slow(x)  # attn-advisor: ignore[ATN101]",
        "slow(x)  # attn-advisor: ignore",
        "# attn-advisor: ignore[ATN101, ATN102]\nslow(x)",
        "# attn-advisor: ignore[ATN101]\n\n# more\nslow(x)",
        "y = slow(\n    x,\n)  # noqa: ATN101",
        'y = slow("""\n""")  # noqa: ATN101',
        "y = 1 + \\\n    slow(x)  # noqa: ATN101",
        "y = 1\nslow(x)\n# attn-advisor: ignore-file",
        "# attn-advisor: ignore-file[ATN101]\nslow(x)",
        "if y:\n    # attn-advisor: ignore\n    slow(x)\n",
        "slow(x)  # noqa: ATN101\r\nz = 1\r\n",
    ],
)
def test_silences(text):
    assert silenced(text)


@pytest.mark.parametrize(
    "text",
    [
        "slow(x)  # noqa: ATN102",
        "slow(x)  # noqa: because",
        "slow(x)  # noqanda",
        "slow(x); y = '# noqa'",
        "slow(x)\ny = 1  # noqa",
        "# noqa\nslow(x)",
        "slow(x)\n# attn-advisor: ignore",
        "slow(x)  # attn-advisor: ignore[ATN102]",
        "slow(x)  # attn-advisor: ignore[]",
        "# attn-advisor: ignore-file[ATN102]\nslow(x)",
        "def f():\n    slow(x)\n    return 1  # noqa: ATN101",
    ],
)
def test_does_not_silence(text):
    assert not silenced(text)


@pytest.mark.parametrize(
    ("text", "fixed"),
    [
        ("x = 1  # noqa: ATN101\n", "x = 1\n"),
        ("x = 1  # noqa: F401, ATN101\r\n", "x = 1  # noqa: F401\r\n"),
        ("x = 1  # noqa: ATN101, F401, E501\n", "x = 1  # noqa: F401, E501\n"),
        ("x = 1  # noqa: ATN101  # kept\n", "x = 1  # kept\n"),
        ("x = 1  # noqa: ATN101 as agreed\n", "x = 1  # as agreed\n"),
        ("x = 1  # kept  # noqa: ATN101\n", "x = 1  # kept\n"),
        ("# attn-advisor: ignore[ATN101]\nx = 1\n", "x = 1\n"),
        ("    # attn-advisor: ignore-file\nx = 1", "x = 1"),
        ("x = 1  # attn-advisor: ignore", "x = 1"),
        ("é = 1  # noqa: ATN101", "é = 1"),
    ],
)
def test_unused_ones_are_removed(text, fixed):
    source = SourceText(text)
    assert noqa.may_matter(text, False)
    detections = noqa.unused(noqa.directives(source), source, "ATN001", lambda code: code.startswith("ATN"))
    assert apply(text, [d.fix for d in detections])[0] == fixed
    again = SourceText(fixed)
    assert noqa.unused(noqa.directives(again), again, "ATN001", lambda code: code.startswith("ATN")) == []


@pytest.mark.parametrize(
    "text", ["x = 1  # noqa\n", "x = 1  # noqa: F401\n", "x = '# noqa: ATN101'\n", "x = 1  # noqa: ATN001\n"]
)
def test_what_is_not_ours_to_judge_stays(text):
    source = SourceText(text)
    assert noqa.unused(noqa.directives(source), source, "ATN001", lambda code: code.startswith("ATN")) == []


def test_used_codes_stay():
    text = "slow(x)  # noqa: ATN101, ATN102\n"
    source = SourceText(text)
    found = noqa.directives(source)
    assert noqa.silence([at(text)], found, source) == []
    (detection,) = noqa.unused(found, source, "ATN001", lambda code: True)
    assert apply(text, [detection.fix])[0] == "slow(x)  # noqa: ATN101\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("slow(x)\n", "slow(x)  # noqa: ATN101\n"),
        ("slow(x)", "slow(x)  # noqa: ATN101"),
        ("slow(x)   \r\ny = 1\r\n", "slow(x)  # noqa: ATN101\r\ny = 1\r\n"),
        ("slow(x)  # note\n", "slow(x)  # note  # noqa: ATN101\n"),
        ("slow(x)  # noqa: F401\n", "slow(x)  # noqa: F401, ATN101\n"),
        ('slow("""a\nb""")\n', 'slow("""a\nb""")  # noqa: ATN101\n'),
        ("y = slow(x) + \\\n    1\n", "y = slow(x) + \\\n    1  # noqa: ATN101\n"),
        ("y = slow(\n    x)\n", "y = slow(  # noqa: ATN101\n    x)\n"),
    ],
)
def test_add_noqa(text, expected):
    source = SourceText(text)
    new, added = noqa.add_noqa(source, [at(text)])
    assert (new, added) == (expected, 1)
    assert silenced(new)
    again = SourceText(new)
    assert noqa.add_noqa(again, noqa.silence([at(new)], noqa.directives(again), again)) == (new, 0)
