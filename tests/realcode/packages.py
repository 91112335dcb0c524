"""The public packages the tests read: pinned, downloaded once, copied and fixed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from tests.realcode.stubs import STUBBED
from tests.realcode.trees import Tree

CHECKOUT = Path(__file__).resolve().parents[2]


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


def tree_of(name: str, corpus: Path) -> Tree:
    """The package as it lies in a folder of unpacked packages."""
    package = PACKAGES[name]
    return Tree(corpus / package.folder, package.bare, package.hidden, STUBBED | package.stubbed)
