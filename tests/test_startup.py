"""Start-up time, lazy imports, and imports that go downward only."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

import attn_advisor

PACKAGE = Path(attn_advisor.__file__).parent

# From the ground up; a module may import from its own row and from rows above it here.
LAYERS = [
    {"", "findings"},
    {"source"},
    {"dataflow"},
    {"attention", "autograd", "calls"},
    {"rules", "settings", "files"},
    {
        "fixes",
        "pipeline",
        "cache",
        "lab",
    },  # verifying a fix runs programs of the lab, the lab runs what the pipeline finds
    {"baseline"},
    {"report"},
    {"check", "explain", "server"},
    {"cli"},
]
LEVEL = {name: number for number, names in enumerate(LAYERS) for name in names}


def run(*args: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, check=False)


def test_version_is_immediate():
    best = 1.0
    for _ in range(20):  # the machine may be busy: one quiet moment is enough
        started = time.perf_counter()
        result = run("-m", "attn_advisor.cli", "--version")
        best = min(best, time.perf_counter() - started)
        assert result.stdout == f"attn-advisor {attn_advisor.__version__}\n"
        if best < 0.15:
            break
    assert best < 0.15


def test_check_never_imports_torch_nor_libcst_without_a_candidate(tmp_path):
    (tmp_path / "a.py").write_text("import torch\nx = torch.softmax(torch.ones(3), 0)\n")
    script = (
        "import sys\n"
        "from attn_advisor.cli import cli\n"
        f"cli.main(['check', '--no-cache', '--isolated', {str(tmp_path)!r}], standalone_mode=False)\n"
    )
    probe = f"try:\n    exec({script!r})\nexcept SystemExit: pass\nimport sys; print(sorted({{'torch', 'libcst'}} & set(sys.modules)))"
    assert run("-c", probe).stdout.splitlines()[-1] == "[]"


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_downward(path):
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    level = LEVEL["" if part == "__init__" else part]
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
            if node.module == "attn_advisor":
                names = [f"attn_advisor.{alias.name}" for alias in node.names]
        for name in names:
            first, _, rest = name.partition(".")
            if first == "attn_advisor":
                imported = rest.partition(".")[0]
                assert LEVEL.get(imported, 0) <= level, f"{path.name}:{node.lineno} imports {name}"
