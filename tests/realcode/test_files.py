"""Fixing whole public packages: files stay valid, a second run changes nothing, enough of the attention is rewritten."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable

import pytest

pytest.importorskip("torch")
pytest.importorskip("einops")

from tests.realcode.packages import PACKAGES, Fixed, fix

pytestmark = pytest.mark.realcode
# The largest first, so that the processes of a parallel run share the work evenly.
COPIES = [(name, unsafe) for name in PACKAGES for unsafe in (False, True)]


@pytest.mark.parametrize(("name", "unsafe"), COPIES)
def test_fixed_files_parse_and_stay(name: str, unsafe: bool, fixed_copy: Callable[[str, bool], Fixed]) -> None:
    copy = fixed_copy(name, unsafe)
    texts = {}
    for relative in copy.changed:
        texts[relative] = (copy.root / relative).read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(texts[relative], relative)
    if texts:
        fix([copy.root / relative for relative in texts], unsafe)
    again = [relative for relative in texts if (copy.root / relative).read_bytes() != texts[relative]]
    assert not again, "changed by a second run"
