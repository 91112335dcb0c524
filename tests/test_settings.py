"""Settings: nearest file, command line above it, unknown keys, torch requirement."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from attn_advisor.settings import KEYS, Overrides, Resolver, SettingsError, matches, torch_requirement


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder


def resolve(folder: Path, **overrides):
    return Resolver(Overrides(**overrides), folder).for_folder(folder)


def test_nearest_configuration_governs_and_is_not_merged(tmp_path):
    write(tmp_path, "pyproject.toml", '[tool.attn-advisor]\nignore = ["ATN101"]\npreview = true\n')
    inner = write(tmp_path / "inner", "attn-advisor.toml", 'ignore = ["ATN102"]\n')
    deeper = write(inner / "deeper", "pyproject.toml", '[project]\nname = "x"\n')
    for folder in (inner, deeper):
        settings = Resolver(cwd=tmp_path).for_folder(folder)
        assert settings.root == inner
        assert "ATN101" in settings.enabled and "ATN102" not in settings.enabled
        assert not settings.preview
    assert "ATN101" not in resolve(tmp_path).enabled


def test_own_file_goes_before_pyproject(tmp_path):
    write(tmp_path, "pyproject.toml", '[tool.attn-advisor]\nignore = ["ATN101"]\n')
    write(tmp_path, "attn-advisor.toml", "")
    assert "ATN101" in resolve(tmp_path).enabled


def test_select_of_the_command_line_replaces_the_file(tmp_path):
    write(tmp_path, "attn-advisor.toml", 'select = ["ATN101"]\nignore = ["ATN102"]\n')
    assert resolve(tmp_path).enabled == {"ATN000", "ATN101"}
    assert resolve(tmp_path, select=("ATN102",)).enabled == {"ATN000", "ATN102"}
    assert resolve(tmp_path, extend_select=("ATN103",)).enabled == {"ATN000", "ATN101", "ATN103"}
    assert resolve(tmp_path, ignore=("ATN",)).enabled == {"ATN000"}


def test_the_longer_prefix_wins(tmp_path):
    assert "ATN102" in resolve(tmp_path, select=("ATN102",), ignore=("ATN1",)).enabled
    assert "ATN102" not in resolve(tmp_path, select=("ATN1",), ignore=("ATN102",)).enabled
    assert "ATN101" not in resolve(tmp_path, select=("ALL",), ignore=("ATN1",)).enabled


def test_isolated_reads_nothing(tmp_path):
    write(tmp_path, "pyproject.toml", '[project]\ndependencies = ["torch>=1.9"]\n[tool.attn-advisor]\nbroken = 1\n')
    settings = resolve(tmp_path, isolated=True)
    assert settings.target_torch is None
    with pytest.raises(SettingsError, match="unknown key `broken`"):
        resolve(tmp_path)


@pytest.mark.parametrize(
    ("dependencies", "version"),
    [
        (["torch"], None),
        ([], None),
        (["torch>=2.1"], (2, 1)),
        (["numpy", "torch >= 1.13.1, <3"], (1, 13)),
        (["torch[opt]~=2.3.0"], (2, 3)),
        (["torch==2.4.*; python_version > '3.9'"], (2, 4)),
        (["torch (>=2)"], (2, 0)),
        (["torch<2.5"], None),
        (["torch!=2.0.1,>=1.12"], (1, 12)),
        (["torchvision>=0.20", "torch-geometric>=2.5", "torch_scatter>=2.1"], None),
        (["torch>=2.5; sys_platform == 'linux'", "torch>=2.2; sys_platform == 'darwin'"], (2, 2)),
        (["torch @ https://example.org/torch-2.1-cp311.whl"], None),
        ("torch>=2", None),
    ],
)
def test_torch_requirement(dependencies, version):
    assert torch_requirement(dependencies) == version


def test_target_torch_comes_from_the_project_then_the_setting_then_the_option(tmp_path):
    write(tmp_path, "pyproject.toml", '[project]\ndependencies = ["torch>=2.1"]\n')
    assert resolve(tmp_path).target_torch == (2, 1)
    write(tmp_path, "attn-advisor.toml", 'torch-version = "2.3"\n')
    assert resolve(tmp_path).target_torch == (2, 3)
    assert resolve(tmp_path, target_torch="2.6.0+cu124").target_torch == (2, 6)


def test_folders_without_configuration_share_settings(tmp_path):
    resolver = Resolver(cwd=tmp_path)
    assert resolver.for_folder(tmp_path / "a") is resolver.for_folder(tmp_path / "b")


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        ("/r/a/test_x.py", "test_*.py", True),
        ("/r/a/x.py", "a/*.py", True),
        ("/r/b/a/x.py", "a/*.py", False),
        ("/r/b/a/x.py", "**/a/*.py", True),
        ("/r/venv", "venv", True),
    ],
)
def test_patterns(path, pattern, expected):
    assert matches(path, pattern, Path("/r")) is expected


def test_per_file_ignores(tmp_path):
    write(tmp_path, "attn-advisor.toml", '[per-file-ignores]\n"tests/*" = ["ATN1"]\n"!src/*" = ["ATN001"]\n')
    settings = resolve(tmp_path)
    assert settings.codes_for(f"{tmp_path}/tests/a.py") & {"ATN001", "ATN101"} == set()
    assert settings.codes_for(f"{tmp_path}/src/a.py") >= {"ATN001", "ATN101"}


def test_the_example_in_the_readme_is_valid(tmp_path):
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    block = readme[readme.index("    [tool.attn-advisor]") :].split("\n\n")[0]
    write(tmp_path, "pyproject.toml", textwrap.dedent(block))
    settings = resolve(tmp_path)
    assert settings.target_torch == (2, 3)
    assert "ATN103" not in settings.enabled
    for key in KEYS:
        assert f"`{key}`" in readme or f"{key} =" in block, f"the README does not name the key {key}"
