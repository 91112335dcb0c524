"""Two rewrites of syntax trees for measuring: score changes done in place, and a marker around each statement."""

from __future__ import annotations

import ast
import copy
from typing import Any

OPERATORS: dict[type[ast.operator], str] = {ast.Mult: "mul_", ast.Div: "div_", ast.Add: "add_", ast.Sub: "sub_"}
METHODS = {"masked_fill": "masked_fill_", "mul": "mul_", "div": "div_", "add": "add_", "sub": "sub_", "clamp": "clamp_"}
PRODUCTS = ("matmul", "bmm", "einsum", "baddbmm")

MARK = "__attn_advisor_line__"
CAPTURE = "__attn_advisor_capture__"


class InPlace(ast.NodeTransformer):
    """Makes every change of a score tensor made in these statements an in-place one.

    A score tensor is the result of a matrix product made here, or of such a change of one: autograd does not need its old
    value, so the change is allowed. The softmax's result, inputs and views of inputs are left alone.
    """

    def __init__(self) -> None:
        self.fresh: set[str] = set()
        self.changes = 0

    def _is_fresh(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self.fresh
        if isinstance(node, ast.BinOp):
            return isinstance(node.op, ast.MatMult)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            return name in PRODUCTS or (name in METHODS.values() and self._is_fresh(node.func.value))
        return False

    def _is_product(self, node: ast.expr) -> bool:
        return not isinstance(node, ast.Name) and self._is_fresh(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        method = OPERATORS.get(type(node.op))
        if method and self._is_product(node.left):
            self.changes += 1
            return ast.copy_location(ast.Call(ast.Attribute(node.left, method, ast.Load()), [node.right], []), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS and self._is_product(node.func.value):
            node.func.attr = METHODS[node.func.attr]
            self.changes += 1
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        node.value = self.visit(node.value)
        target = node.targets[0]
        if len(node.targets) == 1 and isinstance(target, ast.Name):
            node.value = self._rebind(target.id, node.value)
            (self.fresh.add if self._is_fresh(node.value) else self.fresh.discard)(target.id)
        return node

    def _rebind(self, name: str, value: ast.expr) -> ast.expr:
        """`x = x * s` with x a score tensor, which dies here: in place."""
        if (
            isinstance(value, ast.BinOp)
            and isinstance(value.left, ast.Name)
            and value.left.id == name
            and name in self.fresh
        ):
            method = OPERATORS.get(type(value.op))
            if method:
                self.changes += 1
                return ast.copy_location(
                    ast.Call(ast.Attribute(value.left, method, ast.Load()), [value.right], []), value
                )
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and name in self.fresh:
            owner = value.func.value
            if value.func.attr in METHODS and isinstance(owner, ast.Name) and owner.id == name:
                value.func.attr = METHODS[value.func.attr]
                self.changes += 1
        return value


def in_place(statements: list[ast.stmt]) -> list[ast.stmt] | None:
    """The statements with their score changes in place; None if there is nothing to change."""
    transformer = InPlace()
    made = [transformer.visit(copy.deepcopy(statement)) for statement in statements]
    for statement in made:
        ast.fix_missing_locations(statement)
    return made if transformer.changes else None


def replaced(tree: ast.Module, old: list[ast.stmt], new: list[ast.stmt]) -> ast.Module:
    """A copy of the tree with one run of statements replaced by another."""

    class Replace(ast.NodeTransformer):
        def generic_visit(self, node: ast.AST) -> ast.AST:
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list) and old[0] in block:
                    at = block.index(old[0])
                    block[at : at + len(old)] = new
                    return node
            return super().generic_visit(node)

    memo: dict[int, Any] = {
        id(statement): statement for statement in old
    }  # kept as they are, so that they are found again
    return ast.fix_missing_locations(Replace().visit(copy.deepcopy(tree, memo)))


def capturing(tree: ast.Module, statements: list[ast.stmt], *more: str) -> ast.Module:
    """A copy of the tree that calls `CAPTURE(locals(), *more)` before the statements."""
    call = ast.parse(f"{CAPTURE}(locals(), *{more!r})").body[0]
    for node in ast.walk(call):
        if hasattr(node, "lineno"):
            ast.copy_location(node, statements[0])
    return replaced(tree, statements[:1], [call, statements[0]])


class _Marks(ast.NodeTransformer):
    """Wraps every simple statement of every function in `with MARK(row):`."""

    def __init__(self) -> None:
        self.depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.depth += 1
        node.body = self._block(node.body)
        self.depth -= 1
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def _block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for statement in body:
            if isinstance(statement, (ast.Return, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)) and self.depth:
                mark = ast.Call(ast.Name(MARK, ast.Load()), [ast.Constant(statement.lineno)], [])
                wrapped = ast.With([ast.withitem(mark)], [statement])
                made.append(ast.fix_missing_locations(ast.copy_location(wrapped, statement)))
            else:
                made.append(self.visit(statement))
        return made

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                setattr(node, name, self._block(block))
        for handler in getattr(node, "handlers", []):
            handler.body = self._block(handler.body)
        return node


def marked(tree: ast.Module) -> ast.Module:
    """A copy whose functions announce each statement's row by calling `MARK(row)`, which must be in the module's names."""
    return ast.fix_missing_locations(_Marks().visit(copy.deepcopy(tree)))


def marked_function(function: ast.FunctionDef) -> ast.FunctionDef:
    """The same for one function."""
    return ast.fix_missing_locations(_Marks().visit(copy.deepcopy(function)))
