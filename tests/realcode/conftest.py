"""Originals and fixed copies of the public packages, shared by the processes of a test run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.realcode.packages import Fixed


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "realcode: fixes copies of public packages, which are downloaded, and runs them")


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this run see."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if base.name.startswith("popen-") else base) / "realcode"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def fixed_copy(shared: Path) -> Callable[[str, bool], Fixed]:
    """(package, unsafe) -> its fixed copy; skips the test where the package cannot be had."""
    from tests.realcode.packages import PACKAGES, Unavailable, fixed

    def copy(name: str, unsafe: bool) -> Fixed:
        note = shared / f"{name}.unavailable"  # trying again for every test would take minutes
        if note.exists():
            pytest.skip(note.read_text())
        try:
            return fixed(PACKAGES[name], unsafe, shared)
        except Unavailable as missing:
            note.write_text(str(missing))
            pytest.skip(str(missing))

    return copy
