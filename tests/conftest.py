"""Fixtures that all tests may use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from attn_advisor import pipeline
from attn_advisor.rules import registry

TOY_PAGE = """
code = "{code}"
name = "{name}"
group = "toy"
severity = "{severity}"
detector = "toy_rules:calls"
search = ["slow", "crash"]
message = "`{{name}}` is slow"
prescription = "Use `fast`."
what = "Calls of slow functions."
why = "They are slow. Very slow."
fix_safety = "Safe."
preview = {preview}
[[case]]
bad = "slow(1)"
"""

# `slow(x)` has a safe fix, `slow_unsafe(x)` an unsafe one, `slow_info(x)` none and is an info, `crash(x)` makes the detector fail.
TOY_DETECTOR = """
import ast
from pathlib import Path
from attn_advisor.findings import Detection, Edit, Fix

CODES = {"slow": "TOY101", "slow_unsafe": "TOY101", "slow_info": "TOY102", "slow_preview": "TOY103"}

def pages():
    return Path(__file__).parent / "toy_pages"

def calls(module):
    source = module.source
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            name = node.func.id
            if name == "crash":
                raise RuntimeError("toy failure")
            if name in CODES:
                start, end = source.span(node)
                fix = None
                if name in ("slow", "slow_unsafe"):
                    edits = [Edit(start, start + len(name), "fast")]
                    if "import fast" not in source.text:
                        edits.append(Edit(0, 0, "from lib import fast\\n"))
                    fix = Fix("safe" if name == "slow" else "unsafe", "Call fast", tuple(edits))
                yield Detection(CODES[name], start, end, values={"name": name}, fix=fix)
"""


def clear_caches() -> None:
    sys.modules.pop("toy_rules", None)
    registry.registry.cache_clear()
    registry.detector.cache_clear()
    pipeline.detectors_for.cache_clear()
    pipeline.forget_projects()


@pytest.fixture
def toy_rules(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with an installed plug-in of three rules: TOY101 (warning), TOY102 (info), TOY103 (preview)."""
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "toy_rules.py").write_text(TOY_DETECTOR)
    (folder / "toy_pages").mkdir()
    rules = [
        ("TOY101", "slow-call", "warning", "false"),
        ("TOY102", "slow-info", "info", "false"),
        ("TOY103", "slow-preview", "warning", "true"),
    ]
    for code, name, severity, preview in rules:
        page = TOY_PAGE.format(code=code, name=name, severity=severity, preview=preview)
        (folder / "toy_pages" / f"{code}.toml").write_text(page)
    metadata = folder / "toy_rules-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-rules\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[attn_advisor.rules]\ntoy = toy_rules:pages\n")
    monkeypatch.syspath_prepend(folder)
    clear_caches()
    yield folder
    clear_caches()


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs `attn-advisor ARGS` in tmp_path; with `write={name: text}` after writing these files."""
    from attn_advisor.cli import cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTN_ADVISOR_NO_CACHE", "1")

    def run(*args: str, stdin: str | bytes | None = None, write: dict[str, str | bytes] | None = None) -> Result:
        for name, content in (write or {}).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return CliRunner().invoke(cli, args, input=stdin)

    return run
