"""Execution of statements: assignments, branches, loops and returns."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from attn_advisor.dataflow import build
from attn_advisor.dataflow.attributes import class_of
from attn_advisor.dataflow.evaluate import BINARY
from attn_advisor.dataflow.inlining import Inliner
from attn_advisor.dataflow.storage import store_key
from attn_advisor.dataflow.values import Frame, Graph, Value
from attn_advisor.source.module import Class, Function, Module, import_bindings, nodes_in


class Interpreter(Inliner):
    """Runs one root function over symbols. Every branch is taken; loops run once."""

    def run(self, module: Module, function: Function, cls: Class | None) -> Frame:
        """Evaluate a whole function with unknown arguments."""
        frame = Frame(self.graph, module, function)
        frame.cls = cls
        self._parameters(function.args, frame, method=cls is not None and not _is_static(function))
        self.exec_block(function.body, frame)
        return frame

    def _parameters(self, arguments: ast.arguments, frame: Frame, method: bool) -> None:
        every = [
            *arguments.posonlyargs,
            *arguments.args,
            *([arguments.vararg] if arguments.vararg else []),
            *arguments.kwonlyargs,
            *([arguments.kwarg] if arguments.kwarg else []),
        ]
        defaults = dict(
            zip(
                [a.arg for a in [*arguments.posonlyargs, *arguments.args]][::-1], arguments.defaults[::-1], strict=False
            )
        )
        defaults.update(
            {a.arg: d for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None}
        )
        for index, argument in enumerate(every):
            if index == 0 and method and frame.cls is not None:
                value = self.value("self", (), argument, frame, _cls=frame.cls)
                frame.self_value = value
            else:
                value = self.value(
                    "param",
                    (),
                    argument,
                    frame,
                    name=argument.arg,
                    annotation=ast.unparse(argument.annotation) if argument.annotation is not None else "",
                    _default=defaults.get(argument.arg),
                    star=argument is arguments.vararg or argument is arguments.kwarg,
                )
            frame.env[argument.arg] = value

    # -- blocks ---------------------------------------------------------------------------------------------------------------------------
    def exec_block(self, body: Sequence[ast.stmt], frame: Frame) -> None:
        before = frame.conditions
        for stmt in body:
            if frame.terminated:
                break
            frame.stmt = stmt
            frame.env_at[stmt] = dict(frame.env)
            frame.contexts_at[stmt] = (frame.contexts, frame.loops)
            visit = getattr(self, "exec_" + type(stmt).__name__, None)
            if visit is not None:
                visit(stmt, frame)
            else:
                for child in ast.iter_child_nodes(stmt):
                    if isinstance(child, ast.expr):
                        self.effect("unknown", self.eval(child, frame), frame, stmt)
        frame.conditions = before

    def exec_Expr(self, stmt: ast.Expr, frame: Frame) -> None:
        if isinstance(stmt.value, ast.Constant):
            return
        value = self.eval(stmt.value, frame)
        if not value.inplace:
            self.effect("expression", value, frame, stmt)
        self._register_buffer(stmt.value, frame)

    def _register_buffer(self, node: ast.expr, frame: Frame) -> None:
        """`self.register_buffer("name", tensor)` sets an attribute."""
        if not (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("register_buffer", "register_parameter")
        ):
            return
        if not node.args or not isinstance(node.args[0], ast.Constant) or frame.self_value is None:
            return
        name = node.args[0].value
        if not isinstance(name, str):
            return
        value = (
            node.args[1]
            if len(node.args) > 1
            else next((k.value for k in node.keywords if k.arg in ("tensor", "param")), None)
        )
        if value is not None:
            persistent = next(
                (k.value for k in node.keywords if k.arg == "persistent"), node.args[2] if len(node.args) > 2 else None
            )
            kept = not (isinstance(persistent, ast.Constant) and persistent.value is False)
            frame.env[f"self.{name}"] = self.value(
                "buffer", (self.eval(value, frame),), node, frame, names=("input",), persistent=kept
            )

    def exec_Return(self, stmt: ast.Return, frame: Frame) -> None:
        value = self.eval(stmt.value, frame) if stmt.value is not None else build.constant(None, stmt, frame)
        frame.returns.append((value, frame.conditions))
        if frame.caller is None:
            self.effect("return", value, frame, stmt)
        frame.terminated = True

    def exec_Raise(self, stmt: ast.Raise, frame: Frame) -> None:
        if stmt.exc is not None:
            self.effect("raise", self.eval(stmt.exc, frame), frame, stmt)
        frame.terminated = True

    def exec_Assert(self, stmt: ast.Assert, frame: Frame) -> None:
        self.effect("assert", self.eval(stmt.test, frame), frame, stmt)
        if stmt.msg is not None:
            self.effect("assert", self.eval(stmt.msg, frame), frame, stmt)

    def exec_Continue(self, stmt: ast.stmt, frame: Frame) -> None:
        frame.terminated = True

    exec_Break = exec_Continue

    def exec_Pass(self, stmt: ast.stmt, frame: Frame) -> None:
        pass

    exec_Global = exec_Nonlocal = exec_Pass

    # -- bindings -------------------------------------------------------------------------------------------------------------------------
    def exec_Assign(self, stmt: ast.Assign, frame: Frame) -> None:
        value = self.eval(stmt.value, frame)
        for target in stmt.targets:
            self.assign(target, value, frame)

    def exec_AnnAssign(self, stmt: ast.AnnAssign, frame: Frame) -> None:
        if stmt.value is not None:
            self.assign(stmt.target, self.eval(stmt.value, frame), frame)

    def exec_AugAssign(self, stmt: ast.AugAssign, frame: Frame) -> None:
        target = stmt.target
        load: ast.expr = ast.copy_location(_as_load(target), target)
        old = self.eval(load, frame)
        if isinstance(target, ast.Name):
            frame.name_values[target] = old
        operand = self.eval(stmt.value, frame)
        new = self.binary(BINARY.get(type(stmt.op)), old, operand, stmt, frame)
        if isinstance(target, ast.Subscript):
            self._set_item(target, new, frame)
            return
        if new.op != "const" and old.op not in ("const", "size", "number", "shape", "tuple"):
            new.attrs["_augmented"] = True
            self.changed(old, new, frame)
        if isinstance(target, ast.Name):
            self.bind_name(target.id, new, frame)
        else:
            self.assign(target, new, frame)

    def assign(self, target: ast.expr, value: Value, frame: Frame) -> None:
        if isinstance(target, ast.Name):
            frame.name_values[target] = value
            self.bind_name(target.id, value, frame)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target.elts, value, frame)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, value, frame)
        elif isinstance(target, ast.Attribute):
            base = self.eval(target.value, frame)
            self._store(base, target.attr, value, frame)
        elif isinstance(target, ast.Subscript):
            self._set_item(target, value, frame)

    def _unpack(self, targets: list[ast.expr], value: Value, frame: Frame) -> None:
        starred = next((i for i, t in enumerate(targets) if isinstance(t, ast.Starred)), None)
        if starred is None:
            for target, item in zip(targets, self.unpack(value, len(targets), frame), strict=True):
                self.assign(target, item, frame)
            return
        known = self.items(value, frame)
        if known is not None and len(known) >= len(targets) - 1:
            after = len(targets) - starred - 1
            middle = self.value("tuple", known[starred : len(known) - after], value.node, frame)
            items = [*known[:starred], middle, *known[len(known) - after :]]
        else:
            items = []
            for i in range(len(targets)):
                if value.op == "shape" and i != starred:
                    items.append(
                        self.value(
                            "size",
                            value.args,
                            value.node,
                            frame,
                            names=("input",),
                            axis=i if i < starred else i - len(targets),
                        )
                    )
                elif i == starred:
                    items.append(
                        self.value(
                            "rest",
                            (value,),
                            value.node,
                            frame,
                            names=("input",),
                            start=starred,
                            after=len(targets) - starred - 1,
                        )
                    )
                else:
                    items.append(
                        self.value(
                            "part",
                            (value,),
                            value.node,
                            frame,
                            names=("input",),
                            index=i if i < starred else i - len(targets),
                        )
                    )
        for target, item in zip(targets, items, strict=True):
            self.assign(target, item, frame)

    def _store(self, base: Value, name: str, value: Value, frame: Frame) -> None:
        assert frame.stmt is not None
        key = store_key(base, name)
        frame.env[key] = value
        self.effect("store", value, frame, frame.stmt, name=key)

    def _set_item(self, target: ast.Subscript, value: Value, frame: Frame) -> None:
        base, index = self.eval(target.value, frame), self.eval(target.slice, frame)
        new = self.value("setitem", (base, index, value), target, frame, names=("input", "index", "value"))
        self.changed(base, new, frame)
        if base.op == "attribute" or class_of(base) is not None:
            self.effect("store", new, frame, frame.stmt, name="item")  # type: ignore[arg-type]

    def exec_Delete(self, stmt: ast.Delete, frame: Frame) -> None:
        for target in stmt.targets:
            if isinstance(target, ast.Name):
                value = frame.env.pop(target.id, None)
                if value is not None:
                    frame.name_values[target] = value

    def exec_FunctionDef(self, stmt: Function, frame: Frame) -> None:
        value = self.value(
            "function",
            (),
            stmt,
            frame,
            qualified=stmt.name,
            _node=stmt,
            _module=frame.module,
            _cls=frame.cls,
            _closure=frame,
        )
        if stmt.decorator_list:
            value = self.value("opaque", (value,), stmt, frame)
        self.bind_name(stmt.name, value, frame)

    exec_AsyncFunctionDef = exec_FunctionDef

    def exec_ClassDef(self, stmt: ast.ClassDef, frame: Frame) -> None:
        self.bind_name(stmt.name, self.value("opaque", (), stmt, frame), frame)

    def exec_Import(self, stmt: ast.Import | ast.ImportFrom, frame: Frame) -> None:
        for name, imported in import_bindings(stmt).items():
            self.bind_name(name, self.value("import", (), stmt, frame, qualified=imported.qualified), frame)

    exec_ImportFrom = exec_Import

    # -- control flow ---------------------------------------------------------------------------------------------------------------------
    def exec_If(self, stmt: ast.If, frame: Frame) -> None:
        test = self.eval(stmt.test, frame)
        self.effect("condition", test, frame, stmt)
        before, start = frame.conditions, dict(frame.env)
        frame.conditions = (*before, (test, True))
        self.exec_block(stmt.body, frame)
        body_env, body_ended = frame.env, frame.terminated
        frame.env, frame.terminated = start, False
        frame.conditions = (*before, (test, False))
        self.exec_block(stmt.orelse, frame)
        orelse_env, orelse_ended = frame.env, frame.terminated
        frame.conditions, frame.stmt = before, stmt
        if body_ended and orelse_ended:
            frame.terminated = True
        elif body_ended:
            frame.env, frame.terminated = orelse_env, False
            if not _raises(stmt.body):
                frame.conditions = (*before, (test, False))
        elif orelse_ended:
            frame.env, frame.terminated = body_env, False
            if not _raises(stmt.orelse):
                frame.conditions = (*before, (test, True))
        else:
            frame.terminated = False
            self._join(test, body_env, orelse_env, stmt, frame)

    def _join(
        self, test: Value, body: dict[str, Value], orelse: dict[str, Value], stmt: ast.stmt, frame: Frame
    ) -> None:
        joined: dict[str, Value] = {}
        for name in {**body, **orelse}:
            a, b = body.get(name), orelse.get(name)
            if a is not None and a is b:
                joined[name] = a
                continue
            if a is None or b is None:
                if name.startswith("self.") or "." in name:
                    continue
                missing = self.value("undefined", (), stmt, frame)
                a, b = a or missing, b or missing
            joined[name] = self.phi(test, a, b, stmt, frame)
        frame.env = joined

    def _assigned(self, body: Sequence[ast.stmt]) -> set[str]:
        names: set[str] = set()
        for stmt in body:
            for node in (stmt, *nodes_in(stmt)):
                if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
                    names.add(node.id)
        return names

    def _forget(self, names: set[str], stmt: ast.stmt, frame: Frame) -> None:
        for name in names:
            if name in frame.env:
                frame.env[name] = self.value("loop", (frame.env[name],), stmt, frame, name=name)

    def exec_For(self, stmt: ast.For | ast.AsyncFor, frame: Frame) -> None:
        iterable = self.eval(stmt.iter, frame)
        self.effect("loop", iterable, frame, stmt)
        changed = self._assigned(stmt.body)
        self._forget(changed, stmt, frame)
        start = dict(frame.env)
        known = self.items(iterable, frame)
        if iterable.op in ("map", "comprehension"):
            item = self.value("element", (iterable,), stmt.iter, frame)
        else:
            item = known[0] if known and len(known) == 1 else self.value("element", (iterable,), stmt.iter, frame)
        self.assign(stmt.target, item, frame)
        self._loop_body(stmt, start, frame, changed)

    exec_AsyncFor = exec_For

    def exec_While(self, stmt: ast.While, frame: Frame) -> None:
        changed = self._assigned(stmt.body)
        self._forget(changed, stmt, frame)
        start = dict(frame.env)
        self.effect("condition", self.eval(stmt.test, frame), frame, stmt)
        self._loop_body(stmt, start, frame, changed)

    def _loop_body(
        self, stmt: ast.For | ast.AsyncFor | ast.While, start: dict[str, Value], frame: Frame, changed: set[str]
    ) -> None:
        loops, conditions = frame.loops, frame.conditions
        frame.loops = (*loops, stmt)
        self.exec_block(stmt.body, frame)
        frame.loops, frame.conditions, frame.terminated = loops, conditions, False
        frame.stmt = stmt
        ran = self.value("opaque", (), stmt, frame)
        # what the body leaves reaches its own next turn too
        for name in changed:
            left, carried = frame.env.get(name), start.get(name)
            if (
                left is not None
                and carried is not None
                and left is not carried
                and any(u.op != "phi" for u in carried.users)
            ):
                self.effect("loop", left, frame, stmt, name=name)
        self._join(ran, frame.env, start, stmt, frame)
        self.exec_block(stmt.orelse, frame)

    def exec_With(self, stmt: ast.With | ast.AsyncWith, frame: Frame) -> None:
        for item in stmt.items:
            value = self.eval(item.context_expr, frame)
            self.effect("context", value, frame, stmt)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, self.value("opaque", (value,), stmt, frame), frame)
        contexts = frame.contexts
        frame.contexts = (*contexts, stmt)
        self.exec_block(stmt.body, frame)
        frame.contexts = contexts

    exec_AsyncWith = exec_With

    def exec_Try(self, stmt: ast.Try, frame: Frame) -> None:
        start = dict(frame.env)
        self.exec_block([*stmt.body, *stmt.orelse], frame)
        body_env, body_ended = frame.env, frame.terminated
        failed = self.value("opaque", (), stmt, frame)
        for handler in stmt.handlers:
            frame.env, frame.terminated = dict(start), False
            self._forget(self._assigned(stmt.body), stmt, frame)
            if handler.name:
                frame.env[handler.name] = self.value("opaque", (), handler, frame)
            before = frame.conditions
            frame.conditions = (*before, (failed, True))
            self.exec_block(handler.body, frame)
            frame.conditions = before
            if not frame.terminated:
                if body_ended:
                    body_env, body_ended = frame.env, False
                else:
                    self._join(failed, frame.env, body_env, stmt, frame)
                    body_env = frame.env
        frame.env, frame.terminated = body_env, body_ended
        frame.stmt = stmt
        if stmt.finalbody:
            ended, frame.terminated = frame.terminated, False
            self.exec_block(stmt.finalbody, frame)
            frame.terminated = frame.terminated or ended


def interpret(module: Module, function: Function, cls: Class | None) -> tuple[Interpreter, Frame]:
    """The value graph of one function."""
    interpreter = Interpreter(Graph())
    return interpreter, interpreter.run(module, function, cls)


def _as_load(target: ast.expr) -> ast.expr:
    if isinstance(target, ast.Name):
        return ast.Name(target.id, ast.Load())
    if isinstance(target, ast.Attribute):
        return ast.copy_location(ast.Attribute(target.value, target.attr, ast.Load()), target)
    if isinstance(target, ast.Subscript):
        return ast.copy_location(ast.Subscript(target.value, target.slice, ast.Load()), target)
    return target


def _is_static(function: Function) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list)


def _raises(body: Sequence[ast.stmt]) -> bool:
    """Whether a block ends by raising (an input that is refused, not another path)."""
    return bool(body) and isinstance(body[-1], ast.Raise)
