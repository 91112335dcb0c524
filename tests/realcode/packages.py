"""The public packages the tests read: pinned, downloaded once, copied and fixed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock

from tests.realcode.stubs import STUBBED
from tests.realcode.trees import Tree

CHECKOUT = Path(__file__).resolve().parents[2]
DOWNLOADED = CHECKOUT / ".cache" / "packages"
ENVIRONMENT = "ATTN_ADVISOR_CORPUS"  # a folder of unpacked packages to use instead of downloading
DOWNLOAD_SECONDS, FIX_SECONDS = 120, 300


class Unavailable(Exception):
    """A package that can neither be found nor downloaded."""


@dataclass(frozen=True)
class Package:
    """A pinned requirement, what it is imported as, and which of its packages are entered without their `__init__`."""

    requirement: str
    name: str
    bare: dict[str, dict[str, object]] = field(default_factory=dict)
    hidden: dict[str, dict[str, object]] = field(default_factory=dict)
    stubbed: frozenset[str] = frozenset()

    @property
    def folder(self) -> str:
        return self.requirement.replace("-", "_").replace("==", "-")

    def tree(self, root: Path) -> Tree:
        return Tree(root, self.bare, self.hidden, stubbed=STUBBED | self.stubbed)


PACKAGES = {
    package.name: package
    for package in (
        Package(
            "transformers==4.30.2",
            "transformers",
            {"transformers": {"__version__": "4.30.2"}, "transformers.models": {}},
            {"transformers.dependency_versions_check": {"dep_version_check": lambda *args, **kwargs: None}},
        ),
        Package("timm==0.6.13", "timm", {"timm": {"__version__": "0.6.13"}, "timm.models": {}}),
        Package("vit-pytorch==1.26.11", "vit_pytorch", {"vit_pytorch": {}}),
        Package("labml-nn==0.5.1", "labml_nn", {"labml_nn": {}}),
        Package("pytorch-pretrained-bert==0.6.2", "pytorch_pretrained_bert", {"pytorch_pretrained_bert": {}}),
        Package("bert-pytorch==0.0.1a4", "bert_pytorch", {"bert_pytorch": {}}),
        Package(
            "diffusers==0.11.1",
            "diffusers",
            {
                "diffusers": {"__version__": "0.11.1"},
                "diffusers.models": {},
                "diffusers.pipelines": {},
                "diffusers.pipelines.latent_diffusion": {},
            },
            stubbed=frozenset({"transformers"}),
        ),
        Package("open-clip-torch==2.20.0", "open_clip", {"open_clip": {}}),
        Package("litgpt==0.5.13", "litgpt", {"litgpt": {}}),
    )
}


def original(package: Package) -> Path:
    """The folder that holds the unpacked package. Raises Unavailable."""
    given = os.environ.get(ENVIRONMENT)
    if given:
        folder = Path(given) / package.folder
        if not folder.is_dir():
            raise Unavailable(f"{folder} is not there ({ENVIRONMENT} is set)")
        return folder
    folder = DOWNLOADED / package.folder
    DOWNLOADED.mkdir(parents=True, exist_ok=True)
    with FileLock(DOWNLOADED / f"{package.folder}.lock"):
        if not folder.is_dir():
            download(package, folder)
    return folder


def download(package: Package, folder: Path) -> None:
    """Downloads the wheel and unpacks it; nothing is installed or run."""
    with tempfile.TemporaryDirectory(dir=DOWNLOADED) as temporary:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--retries=1",
            "--timeout=15",
        ]
        try:
            subprocess.run(
                [*command, "--dest", temporary, package.requirement],
                check=True,
                capture_output=True,
                text=True,
                timeout=DOWNLOAD_SECONDS,
            )
        except (subprocess.SubprocessError, OSError) as error:
            reason = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
            raise Unavailable(f"{package.requirement} cannot be downloaded: {' '.join(reason)}") from error
        unpacked = Path(temporary, "unpacked")
        for wheel in Path(temporary).glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(unpacked)
        unpacked.rename(folder)


@dataclass(frozen=True)
class Fixed:
    """A copy of a package after `check --fix`, and its files (relative paths) that the fixes changed."""

    package: Package
    before: Path
    root: Path
    changed: tuple[str, ...]


def fixed(package: Package, unsafe: bool, shared: Path) -> Fixed:
    """The fixed copy under `shared`, made by the first process that asks for it.

    Safe fixes are those of every rule. Unsafe ones are of the attention rules alone: those of the rules about
    mistakes change what is computed on purpose.
    """
    before = original(package)
    root = shared / ("unsafe" if unsafe else "safe") / package.folder
    done = root.with_suffix(".json")
    root.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(root.with_suffix(".lock")):
        if not done.exists():
            shutil.rmtree(root, ignore_errors=True)
            shutil.copytree(before, root, ignore=shutil.ignore_patterns("__pycache__", "*.dist-info"))
            (root / "pyproject.toml").write_text('[project]\nname = "copy"\nversion = "0"\n')
            try:
                fix([root], unsafe)
                changed = [
                    path.relative_to(root).as_posix()
                    for path in sorted(root.rglob("*.py"))
                    if path.read_bytes() != (before / path.relative_to(root)).read_bytes()
                ]
                done.write_text(json.dumps({"changed": changed}))
            except AssertionError as error:
                done.write_text(json.dumps({"error": str(error)}))
    outcome = json.loads(done.read_text())
    assert "error" not in outcome, outcome["error"]
    return Fixed(package, before, root, tuple(outcome["changed"]))


def fix(paths: list[Path], unsafe: bool) -> str:
    """Runs the command; raises AssertionError on an internal error of it."""
    options = ["--unsafe-fixes", "--select", "ATN1"] if unsafe else []
    command = [sys.executable, "-m", "attn_advisor.cli", "check", "--fix", *options, "--isolated", "--no-cache"]
    run = subprocess.run(
        [*command, "--exit-zero", "--output-format", "concise", *map(str, paths)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=FIX_SECONDS,
    )
    assert run.returncode == 0, f"exit status {run.returncode}: {run.stderr[-2000:] or run.stdout[-2000:]}"
    return run.stdout
