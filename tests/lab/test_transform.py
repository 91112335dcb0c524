"""Score changes made in place, and nothing else."""

from __future__ import annotations

import ast

from attn_advisor.lab.transform import in_place


def changed(text: str) -> str | None:
    made = in_place(ast.parse(text).body)
    return "\n".join(ast.unparse(s) for s in made) if made else None


def test_scores_are_changed_in_place():
    text = "s = torch.matmul(q, k)\ns = s * c\ns = s.masked_fill(m, x)\np = torch.softmax(s, -1)\np = p * g\no = p @ v"
    wanted = "s = torch.matmul(q, k)\ns = s.mul_(c)\ns = s.masked_fill_(m, x)\np = torch.softmax(s, -1)\np = p * g\no = p @ v"
    assert changed(text) == wanted


def test_on_the_product_itself():
    assert changed("s = q @ k / c + b") == "s = (q @ k).div_(c).add_(b)"


def test_inputs_and_results_of_the_softmax_are_left_alone():
    assert changed("q = q * c\ns = torch.softmax(q @ k, -1)\ns = s * g") is None
