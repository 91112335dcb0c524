"""Fixing whole public packages: files stay valid, a second run changes nothing, enough of the attention is rewritten."""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import tokenize
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

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


def comments(path: Path) -> Counter[str]:
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    return Counter(token.string for token in tokens if token.type == tokenize.COMMENT)


@pytest.mark.parametrize(("name", "unsafe"), COPIES)
def test_no_comment_is_lost(name: str, unsafe: bool, fixed_copy: Callable[[str, bool], Fixed]) -> None:
    copy = fixed_copy(name, unsafe)
    lost = {file: comments(copy.before / file) - comments(copy.root / file) for file in copy.changed}
    assert not {file: list(missing) for file, missing in lost.items() if missing}


def name_faults(root: Path, files: tuple[str, ...]) -> Counter[tuple[str, str, str]]:
    """Undefined, unused and redefined names, as ruff sees them: (file, code, message)."""
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--select",
        "F811,F821,F841",
        "--no-cache",
    ]
    paths = [str(root / file) for file in files]
    run = subprocess.run([*command, "--exit-zero", "--output-format", "json", *paths], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return Counter(
        (Path(fault["filename"]).relative_to(root.resolve()).as_posix(), fault["code"], fault["message"])
        for fault in json.loads(run.stdout)
    )


@pytest.mark.parametrize(("name", "unsafe"), COPIES)
def test_names_stay_in_order(name: str, unsafe: bool, fixed_copy: Callable[[str, bool], Fixed]) -> None:
    pytest.importorskip("ruff")
    copy = fixed_copy(name, unsafe)
    if copy.changed:
        new = name_faults(copy.root, copy.changed) - name_faults(copy.before, copy.changed)
        assert not new
