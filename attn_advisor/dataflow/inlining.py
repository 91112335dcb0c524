"""Project functions run where they are called."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from attn_advisor.dataflow import build
from attn_advisor.dataflow.calls import Calls
from attn_advisor.dataflow.evaluate import MAX_DEPTH
from attn_advisor.dataflow.storage import store_key
from attn_advisor.dataflow.values import Condition, Frame, Value
from attn_advisor.source.module import Class, Function, Module

_LARGEST_INLINED = 400  # lines


class Inliner(Calls):
    """Runs project functions where they are called."""

    def exec_block(
        self, body: Sequence[ast.stmt], frame: Frame
    ) -> None:  # pragma: no cover - implemented in statements.py
        raise NotImplementedError

    def inline(
        self,
        function: ast.AST,
        module: Module,
        args: list[Value],
        kwargs: dict[str, Value],
        node: ast.AST | None,
        frame: Frame,
        closure: Frame | None = None,
        owner_instance: tuple[Value, Class] | None = None,
    ) -> Value | None:
        """Run a project function on known arguments; None if it is too deep, recursive, too large or its arguments cannot be matched."""
        if frame.depth >= MAX_DEPTH or any(f.function is function for f in frame.ancestors()) or self.graph.budget < 0:
            return None
        if any(a.op == "starred" for a in args) or "**" in kwargs:
            return None
        assert isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        if not isinstance(function, ast.Lambda):
            if _generator(function, module) or (function.end_lineno or 0) - function.lineno > _LARGEST_INLINED:
                return None
            if any(not _harmless_decorator(d) for d in function.decorator_list):
                return None
        inner = Frame(self.graph, module, function, parent=closure, caller=frame, call=node)
        inner.stmt = frame.stmt
        if owner_instance is not None:
            inner.self_value, inner.cls = owner_instance
            inner.overridden = (
                owner_instance[0].op == "self"
                and not isinstance(function, ast.Lambda)
                and owner_instance[1].overridden(function.name)
            )
            if not isinstance(function, ast.Lambda):
                inner.cls = next(
                    (c for c in owner_instance[1].mro if function in c.methods.values()), owner_instance[1]
                )
                inner.cls = owner_instance[1] if inner.cls is None else inner.cls
            prefix = store_key(owner_instance[0], "")
            scope: Frame | None = frame
            while scope is not None:
                inner.env.update({k: v for k, v in scope.env.items() if "." in k and k not in inner.env})
                scope = scope.parent
        elif closure is not None:
            inner.self_value, inner.cls = closure.self_value, closure.cls
        if not self._match(function.args, args, kwargs, inner, module):
            return None
        if isinstance(function, ast.Lambda):
            return self.eval(function.body, inner)
        effects = len(self.graph.effects)
        self.exec_block(function.body, inner)
        for effect in self.graph.effects[effects:]:
            if effect.kind == "return" and effect.frame is inner:
                effect.kind = "inlined_return"
        if owner_instance is not None:
            frame.env.update({k: v for k, v in inner.env.items() if k.startswith(prefix)})
        return self._returned(inner, frame, node)

    def _match(
        self, arguments: ast.arguments, args: list[Value], kwargs: dict[str, Value], inner: Frame, module: Module
    ) -> bool:
        positional = [*arguments.posonlyargs, *arguments.args]
        names = [a.arg for a in positional]
        given: dict[str, Value] = dict(zip(names, args, strict=False))
        if len(args) > len(names):
            if arguments.vararg is None:
                return False
            given[arguments.vararg.arg] = self.value("tuple", args[len(names) :], inner.call, inner)
        elif arguments.vararg is not None:
            given[arguments.vararg.arg] = self.value("tuple", (), inner.call, inner)
        keyword_names = {*names, *(a.arg for a in arguments.kwonlyargs)}
        for name, value in kwargs.items():
            if name in given and name in keyword_names:
                return False
            if name not in keyword_names:
                if arguments.kwarg is None:
                    return False
                continue
            given[name] = value
        defaults = dict(zip(names[::-1], arguments.defaults[::-1], strict=False))
        defaults.update(
            {a.arg: d for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None}
        )
        outside = Frame(self.graph, module, module.tree, caller=inner.caller)
        outside.stmt = inner.stmt
        for name in keyword_names:
            if name not in given:
                if name not in defaults:
                    return False
                given[name] = self.eval(defaults[name], outside)
        if arguments.kwarg is not None:
            given[arguments.kwarg.arg] = self.value("opaque", tuple(kwargs.values()), inner.call, inner)
        inner.env.update(given)
        inner.given = given
        return True

    def _returned(self, inner: Frame, frame: Frame, node: ast.AST | None) -> Value:
        outer = len(frame.conditions)
        returns = list(inner.returns)
        if not inner.terminated:
            returns.append((build.constant(None, node, frame), inner.conditions))
        if not returns:
            return self.value("opaque", (), node, frame)
        result, _ = returns[-1]
        for value, conditions in reversed(returns[:-1]):
            own = conditions[outer:]
            if not own:
                result = value
                continue
            result = self._choose(own, value, result, node, frame)
        return result

    def _choose(
        self, conditions: tuple[Condition, ...], value: Value, otherwise: Value, node: ast.AST | None, frame: Frame
    ) -> Value:
        test, positive = conditions[0]
        inner = value if len(conditions) == 1 else self._choose(conditions[1:], value, otherwise, node, frame)
        return (
            self.phi(test, inner, otherwise, node, frame) if positive else self.phi(test, otherwise, inner, node, frame)
        )


def _generator(function: Function, module: Module) -> bool:
    cached = function.__dict__.get("_yields")
    if cached is None:
        text = module.source.lines(function)
        cached = ("yield" in text or "await" in text) and any(
            isinstance(n, (ast.Yield, ast.YieldFrom, ast.Await)) for n in ast.walk(function)
        )
        function.__dict__["_yields"] = cached
    return cached


def _harmless_decorator(node: ast.expr) -> bool:
    text = ast.unparse(node)
    return text.rsplit(".", 1)[-1].split("(")[0] in (
        "staticmethod",
        "classmethod",
        "property",
        "cached_property",
        "no_grad",
        "export",
        "unused",
        "script_if_tracing",
        "jit_ignore",
        "ignore",
        "beartype",
        "typecheck",
    )
