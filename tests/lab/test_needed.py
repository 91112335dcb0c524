"""The part of a file that one definition needs, without the script around it."""

from __future__ import annotations

import ast

from attn_advisor.lab.needed import names_around, needed

SCRIPT = """\
import math
import sys
from torch import nn
from helpers import *

SIZE = int(sys.argv[1])
UNUSED = open("nowhere").read()
table = {}
table["a"] = SIZE

def scale(d):
    return math.sqrt(d) * table["a"]

class Base(nn.Module):
    keep = SIZE

class Attention(Base):
    def forward(self, x, optimizer):
        step = scale(x)
        return step

class Other(Base):
    pass

optimizer = object()
for step in range(3):
    optimizer.step()
if __name__ == "__main__":
    train()
"""


def kept(*names: str) -> str:
    return ast.unparse(needed(ast.parse(SCRIPT), set(names)))


def test_a_class_with_its_bases_helpers_and_constants():
    text = kept("Attention")
    for wanted in ("class Base", "def scale", "import math", "table['a'] = SIZE", "SIZE = int", "import sys"):
        assert wanted in text
    for left in ("optimizer = ", "for step", "class Other", "UNUSED", "train()"):
        assert left not in text, left


def test_order_and_star_imports_stay():
    text = kept("scale")
    assert text.index("import math") < text.index("from helpers import *") < text.index("def scale")
    assert "Base" not in text


def test_the_statement_that_holds_a_definition():
    tree = ast.parse("if True:\n    class A:\n        pass\n    b = 1\nc = 2\n")
    assert names_around(tree, "A") == {"A", "b"}
