"""How a file names torch.nn.functional."""

from __future__ import annotations

import ast

from attn_advisor.attention.editor import FUNCTIONAL
from attn_advisor.dataflow.values import Frame
from attn_advisor.source.module import Module, nodes_in


def functional_name(module: Module, frame: Frame) -> tuple[str, bool]:
    """(how the file names torch.nn.functional, whether an import must be added)."""
    local = names_of(frame.function)
    nodes = nodes_in(frame.function)
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} | {
        a.arg for a in nodes if isinstance(a, ast.arg)
    }
    for name, value in frame.env.items():
        if value.op == "import" and value.attrs["qualified"] == FUNCTIONAL and "." not in name:
            return name, False
    missing = _missing_at_runtime(module.tree)
    candidates = [
        (name, imported.qualified) for name, imported in module.imports.items() if name not in stored | missing
    ]
    for wanted, suffix in ((FUNCTIONAL, ""), ("torch.nn", ".functional"), ("torch", ".nn.functional")):
        for name, qualified in candidates:
            if qualified == wanted:
                return name + suffix, False
    free = (
        "F" not in module.imports
        and "F" not in local
        and "F" not in module.functions
        and "F" not in module.classes
        and "F" not in module.constants
    )
    return ("F" if free else "torch.nn.functional"), True


def _missing_at_runtime(tree: ast.Module) -> set[str]:
    """Names that the file imports for type checkers only, or deletes again."""
    missing: set[str] = set()
    present: set[str] = set()
    for stmt in tree.body:
        if isinstance(stmt, ast.If) and "TYPE_CHECKING" in ast.unparse(stmt.test):
            missing |= {
                (a.asname or a.name).split(".")[0]
                for n in stmt.body
                if isinstance(n, (ast.Import, ast.ImportFrom))
                for a in n.names
            }
        elif isinstance(stmt, ast.Delete):
            missing |= {t.id for t in stmt.targets if isinstance(t, ast.Name)}
            present -= missing
        elif isinstance(stmt, (ast.Import, ast.ImportFrom)):
            present |= {(a.asname or a.name).split(".")[0] for a in stmt.names}
    return missing - present


def names_of(function: ast.AST) -> set[str]:
    return {
        n.id if isinstance(n, ast.Name) else n.arg for n in nodes_in(function) if isinstance(n, (ast.Name, ast.arg))
    }
