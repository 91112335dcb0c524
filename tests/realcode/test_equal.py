"""Attention classes and whole models of public packages compute the same before and after their files were fixed."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("einops")

from attn_advisor.pipeline import check_text
from tests.realcode.compare import Version, equal
from tests.realcode.packages import PACKAGES, Fixed
from tests.realcode.recipe import Recipe
from tests.realcode.recipes import small, timm, transformers_decoders, transformers_encoders, vit_pytorch
from tests.realcode.trees import Tree

pytestmark = [pytest.mark.realcode, pytest.mark.filterwarnings("ignore")]
ENOUGH = 50  # different attention classes whose code the fixes change and that are then run
RECIPES = [
    *transformers_encoders.RECIPES,
    *transformers_decoders.RECIPES,
    *timm.RECIPES,
    *vit_pytorch.RECIPES,
    *small.RECIPES,
]
NAMES = [f"{recipe.module}::{recipe.name}" for recipe in RECIPES]


@cache
def tree_at(package: str, root: Path) -> Tree:
    return PACKAGES[package].tree(root)


def loaded_files(tree: Tree) -> set[str]:
    """Files of the tree that its modules were loaded from, relative to it."""
    files = (getattr(module, "__file__", None) for module in tree.modules.values())
    return {Path(f).relative_to(tree.root).as_posix() for f in files if f and Path(f).is_relative_to(tree.root)}


def expected(copy: Fixed, recipe: Recipe, differences: list[str]) -> bool:
    """Whether an unsafe fix says of itself that fully masked rows change, and nothing else did."""
    if not all(difference.startswith("empty row") for difference in differences):
        return False
    file = recipe.module.replace(".", "/") + ".py"
    path = copy.before / file
    found = check_text(path.read_text(encoding="utf-8"), str(path)) if path.exists() else []
    return any("row" in blocker for finding in found for blocker in finding.blockers)


@pytest.mark.parametrize("unsafe", [False, True], ids=["safe", "unsafe"])
@pytest.mark.parametrize("recipe", RECIPES, ids=NAMES)
def test_same_values_and_gradients(recipe: Recipe, unsafe: bool, fixed_copy: Callable[[str, bool], Fixed]) -> None:
    copy = fixed_copy(recipe.package, unsafe)
    before, after = tree_at(recipe.package, copy.before), tree_at(recipe.package, copy.root)
    original = Version(before, recipe)
    fixed = Version(after, recipe, original.state)
    calls = recipe.calls
    if loaded_files(after).isdisjoint(copy.changed):
        calls = {}  # the code is the same
    differences = equal(original, fixed, calls)
    assert not differences or (unsafe and expected(copy, recipe, differences)), "\n".join(differences)


@cache
def classes(path: Path) -> dict[str, str]:
    """Every definition at the top of a file, as its syntax."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        body = ast.parse(path.read_text(encoding="utf-8")).body
    return {node.name: ast.dump(node) for node in body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}


def test_enough_classes_are_rewritten(fixed_copy: Callable[[str, bool], Fixed]) -> None:
    rewritten = set()
    for recipe in RECIPES:
        copy = fixed_copy(recipe.package, True)
        name = recipe.name.partition(" ")[0]
        file = next(
            f
            for f in (recipe.module.replace(".", "/") + end for end in (".py", "/__init__.py"))
            if (copy.before / f).exists()
        )
        if file in copy.changed and classes(copy.before / file)[name] != classes(copy.root / file)[name]:
            rewritten.add((file, name))
    assert len(rewritten) >= ENOUGH
