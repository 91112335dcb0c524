"""Applying fixes: order, conflicts, shared edits, the fixed point."""

from __future__ import annotations

import pytest

from attn_advisor.findings import Edit, Finding, Fix
from attn_advisor.fixes.apply import BadFix, apply, until_stable

IMPORT = Edit(0, 0, "import fast\n")


def fix(*edits: Edit, applicability="safe") -> Fix:
    return Fix(applicability, "fix", edits)


def finding(its: Fix | None) -> Finding:
    return Finding("ATN101", "name", "warning", "message", 0, 1, fix=its)


def test_all_edits_of_a_fix_or_none():
    one, two = fix(Edit(0, 1, "A"), Edit(4, 5, "E")), fix(Edit(2, 3, "C"), Edit(4, 6, "x"))
    assert apply("abcdef", [two, one]) == ("AbcdEf", [one])


def test_fixes_that_touch_end_to_end_are_both_made():
    text, applied = apply("abcd", [fix(Edit(0, 2, "x")), fix(Edit(2, 4, "y"))])
    assert (text, len(applied)) == ("xy", 2)


def test_a_shared_import_is_added_once():
    text, applied = apply("ab", [fix(IMPORT, Edit(0, 1, "A")), fix(IMPORT, Edit(1, 2, "B"))])
    assert (text, len(applied)) == ("import fast\nAB", 2)


def test_different_insertions_at_one_place_wait_for_the_next_pass():
    text, applied = apply("ab", [fix(Edit(1, 1, "x")), fix(Edit(1, 1, "y"))])
    assert (text, len(applied)) == ("axb", 1)


def test_insertion_inside_a_replaced_piece_conflicts():
    _, applied = apply("abcd", [fix(Edit(0, 4, "x")), fix(Edit(2, 2, "y"))])
    assert len(applied) == 1


@pytest.mark.parametrize("edits", [(Edit(0, 2, "x"), Edit(1, 3, "y")), (Edit(0, 9, "x"),), (Edit(2, 1, "x"),)])
def test_edits_that_cannot_be_made_are_refused(edits):
    with pytest.raises(BadFix):
        apply("abcd", [fix(*edits)])


def rename(text: str, applicability="safe") -> list[Finding]:
    """One finding for each `a`, whose fix makes it `b`."""
    return [
        finding(fix(Edit(n, n + 1, "b"), applicability=applicability)) for n, char in enumerate(text) if char == "a"
    ]


def test_until_stable():
    result = until_stable("a + a", rename, unsafe=False)
    assert (result.text, len(result.fixed), result.remaining, result.error) == ("b + b", 2, [], "")


def test_unsafe_fixes_wait_to_be_asked_for():
    unsafe = until_stable("a", lambda text: rename(text, "unsafe"), unsafe=False)
    assert (unsafe.text, len(unsafe.remaining)) == ("a", 1)
    assert until_stable("a", lambda text: rename(text, "unsafe"), unsafe=True).text == "b"


def test_a_fix_that_breaks_the_file_is_taken_back():
    result = until_stable("x = 1", lambda text: [finding(fix(Edit(4, 5, "(")))], unsafe=False)
    assert (result.text, result.fixed) == ("x = 1", [])
    assert "does not parse" in result.error
    assert len(result.remaining) == 1


def test_fixes_that_never_end_are_stopped():
    result = until_stable("x", lambda text: [finding(fix(Edit(0, 0, "x")))], unsafe=False)
    assert "passes" in result.error
