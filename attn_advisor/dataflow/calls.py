"""Evaluation of calls: of the library, of builtins, of modules, of methods."""

from __future__ import annotations

import ast

from attn_advisor.dataflow import build
from attn_advisor.dataflow.attributes import class_of, definition, instance_class
from attn_advisor.dataflow.evaluate import Evaluator
from attn_advisor.dataflow.operations import canonical, method
from attn_advisor.dataflow.storage import storage
from attn_advisor.dataflow.values import Frame, Value


class Calls(Evaluator):
    """Calls of functions, methods and modules."""

    def eval_Call(self, node: ast.Call, frame: Frame) -> Value:
        value = self.called(node, frame)
        if value.node is not node:
            frame.calls.setdefault(id(value), node)
        return value

    def called(self, node: ast.Call, frame: Frame) -> Value:
        function = node.func
        args, kwargs = self.arguments(node, frame)
        if isinstance(function, ast.Attribute) and not (
            isinstance(function.value, ast.Call)
            and isinstance(function.value.func, ast.Name)
            and function.value.func.id == "super"
        ):
            base = self.eval(function.value, frame)
            if base.op == "class" and function.attr == "apply":
                applied = self.autograd_function(base, args, kwargs, node, frame)
                if applied is not None:
                    return applied
            known = base.op == "import" or class_of(base) is not None
            if not known:
                return self.method_call(base, function.attr, args, kwargs, node, frame)
            return self.call(self.attribute(base, function.attr, function, frame), args, kwargs, node, frame)
        if isinstance(function, ast.Attribute):  # super().name(...)
            return self.super_call(function.attr, args, kwargs, node, frame)
        return self.call(self.eval(function, frame), args, kwargs, node, frame)

    def autograd_function(
        self, cls_value: Value, args: list[Value], kwargs: dict[str, Value], node: ast.Call, frame: Frame
    ) -> Value | None:
        """`Function.apply(x)` of a torch.autograd.Function: its forward, whose gradient is its own."""
        cls = cls_value.attrs["_cls"]
        found = cls.lookup("forward")
        if found is None or not any(
            isinstance(b, str) and b.startswith("torch.autograd") for c in cls.mro for b in c.bases
        ):
            return None
        context = self.value("opaque", (), node, frame)
        inner = self.inline(found[0], found[1].module, [context, *args], kwargs, node, frame)
        return (
            None if inner is None else self.value("identity", (inner,), node, frame, names=("input",), spelled="apply")
        )

    def arguments(self, node: ast.Call, frame: Frame) -> tuple[list[Value], dict[str, Value]]:
        args: list[Value] = []
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                inner = self.eval(argument.value, frame)
                known = self.items(inner, frame)
                args.extend(known if known is not None else [self.value("starred", (inner,), argument, frame)])
            else:
                args.append(self.eval(argument, frame))
        kwargs = {k.arg or "**": self.eval(k.value, frame) for k in node.keywords}
        return args, kwargs

    def method_call(
        self, base: Value, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST, frame: Frame
    ) -> Value:
        op = method(name)
        inplace = False
        if op is None and name.endswith("_") and not name.startswith("_"):
            op, inplace = method(name[:-1]), True
        if op is None or base.op in ("name", "class"):
            made = self.value(
                "method",
                (base, *args, *kwargs.values()),
                node,
                frame,
                names=("input", *(f"_{i}" for i in range(len(args))), *kwargs),
                name=name,
            )
            if name.endswith("_") and not name.startswith("_"):
                self.changed(base, made, frame)
            return made
        if op == "where" and base.op not in ("const",):  # x.where(condition, other)
            operands = [*args, *kwargs.values()]
            if len(operands) == 2:
                return build.operation("where", [operands[0], base, operands[1]], {}, node, frame)
        made = build.operation(op, [base, *args], kwargs, node, frame, spelled=name)
        if inplace:
            self.changed(base, made, frame)
        return made

    def changed(self, old: Value, new: Value, frame: Frame) -> None:
        """`old` was changed in place and now holds `new`: every name of it sees that, every view of it holds something unknown."""
        new.inplace = True
        root = storage(old)
        scopes: list[Frame] = []
        for start in (frame, *frame.ancestors()):
            scope: Frame | None = start
            while scope is not None and scope not in scopes:
                scopes.append(scope)
                scope = scope.parent
        mutated: dict[Value, Value] = {}
        for scope in scopes:
            for name, held in list(scope.env.items()):
                if held is old:
                    scope.env[name] = new
                elif (
                    held is not new
                    and held.op not in ("const", "self", "shape", "size", "function")
                    and storage(held) is root
                ):
                    if held not in mutated:
                        mutated[held] = self.value("mutated", (held, new), None, frame)
                    scope.env[name] = mutated[held]

    def super_call(self, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST, frame: Frame) -> Value:
        owner, base = frame.cls, frame.self_value
        if owner is not None and base is not None and name != "__init__":
            for cls in owner.mro[1:]:
                if name in cls.methods:
                    inlined = self.inline(
                        cls.methods[name], cls.module, [base, *args], kwargs, node, frame, owner_instance=(base, cls)
                    )
                    if inlined is not None:
                        return inlined
                    break
        return self.value("call", (*args, *kwargs.values()), node, frame, name=f"super.{name}")

    def call(
        self, function: Value, args: list[Value], kwargs: dict[str, Value], node: ast.AST | None, frame: Frame
    ) -> Value:
        result = self.known_call(function, args, kwargs, node, frame)
        if result is not None:
            if function.op == "bound" and result.frame is not frame:
                self.graph.invocations.setdefault(id(result), (function, args, kwargs))
            return result
        names = ("function", *(f"_{i}" for i in range(len(args))), *kwargs)
        last = function.attrs["qualified"].rsplit(".", 1)[-1] if function.op == "import" else ""
        if last.endswith("_") and not last.startswith("_") and args:  # nn.init.ones_(x) and its like
            made = self.value("method", (*args, *kwargs.values()), node, frame, names=("input", *names[2:]), name=last)
            self.changed(args[0], made, frame)
            return made
        if function.op == "import" and function.attrs["qualified"].rsplit(".", 1)[-1][:1].isupper():
            return self.value(
                "construct",
                (*args, *kwargs.values()),
                node,
                frame,
                names=names[1:],
                qualified=function.attrs["qualified"],
            )
        return self.value("call", (function, *args, *kwargs.values()), node, frame, names=names)

    def known_call(
        self, function: Value, args: list[Value], kwargs: dict[str, Value], node: ast.AST | None, frame: Frame
    ) -> Value | None:
        if function.op == "import":
            return self.library_call(function.attrs["qualified"], args, kwargs, node, frame)
        if function.op == "name":
            return self.builtin_call(function.attrs["name"], args, kwargs, node, frame)
        if function.op == "function":
            return self.inline(
                function.attrs["_node"],
                function.attrs["_module"],
                args,
                kwargs,
                node,
                frame,
                closure=function.attrs["_closure"],
            )
        if function.op == "partial":
            return self.call(
                function.args[0],
                [*function.args[1 : 1 + function.attrs["positional"]], *args],
                {
                    **dict(
                        zip(function.attrs["keywords"], function.args[1 + function.attrs["positional"] :], strict=True)
                    ),
                    **kwargs,
                },
                node,
                frame,
            )
        if function.op == "bound":
            given = args if function.attrs["_static"] else [function.args[0], *args]
            instance = None if function.attrs["_static"] else (function.args[0], function.attrs["_cls"])
            return self.inline(
                function.attrs["_node"], function.attrs["_module"], given, kwargs, node, frame, owner_instance=instance
            )
        if function.op == "attribute":
            return self.module_call(function, definition(function), args, kwargs, node, frame)
        if function.op == "construct":  # nn.Softmax(dim=-1)(x)
            return self.module_call(function, function, args, kwargs, node, frame)
        if function.op == "call" and function.args and function.args[0].op == "class":
            return self.module_call(function, function, args, kwargs, node, frame)
        if function.op == "phi":
            return self.phi(
                function.args[0],
                self.call(function.args[1], args, kwargs, node, frame),
                self.call(function.args[2], args, kwargs, node, frame),
                node,
                frame,
            )
        return None

    def library_call(
        self, qualified: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST | None, frame: Frame
    ) -> Value | None:
        if qualified == "functools.partial" and args:
            return self.value(
                "partial", (*args, *kwargs.values()), node, frame, positional=len(args) - 1, keywords=tuple(kwargs)
            )
        op = canonical(qualified)
        if op is None or any(a.op == "starred" for a in args) or "**" in kwargs:
            return None
        spelled = "F" if ".functional." in qualified else qualified.rsplit(".", 1)[-1]
        out = kwargs.pop("out", None)
        inplace = qualified.endswith("_") or (kwargs.get("inplace") is not None and kwargs["inplace"].const is True)
        made = build.operation(op, args, kwargs, node, frame, spelled=spelled)
        if out is not None:
            self.changed(out, made, frame)
        elif inplace and args:
            self.changed(args[0], made, frame)
        return made

    def builtin_call(
        self, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST | None, frame: Frame
    ) -> Value | None:
        if name == "map" and len(args) == 2:
            made = self.value("map", args, node, frame, names=("function", "iterable"))
            known = self.items(args[1], frame)
            return (
                self.value("tuple", [self.one(made, item, frame) for item in known], node, frame)
                if known is not None and len(known) <= 8
                else made
            )
        if name in ("tuple", "list") and len(args) == 1:
            known = self.items(args[0], frame)
            return args[0] if known is not None or args[0].op in ("map", "comprehension", "shape") else None
        if name == "zip" and args:
            columns = [self.items(a, frame) for a in args]
            if all(c is not None for c in columns):
                rows = zip(*columns, strict=False)  # type: ignore[arg-type]
                return self.value("tuple", [self.value("tuple", list(r), node, frame) for r in rows], node, frame)
        if name in ("float", "int") and len(args) == 1:
            if isinstance(args[0].const, (int, float)):
                return self.graph.add(
                    build.constant(float(args[0].const) if name == "float" else int(args[0].const), node, frame)
                )
            if name == "float" and isinstance(args[0].const, str):
                try:
                    return self.graph.add(build.constant(float(args[0].const), node, frame))
                except ValueError:
                    return None
            return self.value("number", args, node, frame, names=("input",), kind=name)
        if name in (
            "min",
            "max",
            "abs",
            "len",
            "isinstance",
            "hasattr",
            "getattr",
            "round",
            "sum",
            "any",
            "all",
            "bool",
            "str",
            "type",
            "range",
            "enumerate",
        ):
            if (
                name == "getattr"
                and len(args) >= 2
                and isinstance(args[1].const, str)
                and class_of(args[0]) is not None
            ):
                return None
            return self.value("py_" + name, (*args, *kwargs.values()), node, frame)
        return None

    def dropped(
        self, function: Value, made: Value, source: Value, node: ast.AST | None, frame: Frame, maybe_identity: bool
    ) -> Value:
        """A dropout module applied; `made` is what its constructor set it to."""
        attrs = {"module": True, "_module": function, "_ctor": made, "maybe_identity": maybe_identity}
        return self.value("dropout", (source,), node, frame, names=("input",), **attrs)

    def module_call(
        self,
        function: Value,
        made: Value | None,
        args: list[Value],
        kwargs: dict[str, Value],
        node: ast.AST | None,
        frame: Frame,
    ) -> Value | None:
        """Calling a module: an attribute set in __init__, or one just made."""
        if made is None:
            return None
        if made.op == "construct":
            kind = made.attrs["qualified"].removeprefix("torch.nn.").removeprefix("modules.")
            own = made.attrs["qualified"].startswith("torch.nn.")
            given = dict(zip(made.names, made.args, strict=True))
            if own and kind == "Softmax" and args:
                dim = given.get("dim") or given.get("_0")
                attrs = {
                    "dim": dim.const if dim is not None and isinstance(dim.const, int) else None,
                    "dim_given": dim is not None and dim.const is not None,
                    "_module": function,
                }
                return self.graph.add(Value("softmax", (args[0],), ("input",), attrs, node, frame))
            if own and kind in ("Dropout", "modules.dropout.Dropout") and args:
                return self.dropped(function, made, args[0], node, frame, maybe_identity=False)
            if own and kind == "Identity" and args:
                return self.value(
                    "identity", (args[0],), node, frame, names=("input",), spelled="Identity", _module=function
                )
            if own and kind == "Sequential" and args and function.op == "attribute":
                value: Value = args[0]
                for index, item in enumerate(made.args):
                    slot = self.value(
                        "getitem", (function, build.constant(index, None, None)), None, frame, names=("input", "index")
                    )
                    value = self.module_call(slot, item, [value], {}, node, frame) or self.value(
                        "apply", (slot, value), node, frame, names=("function", "_0"), _made=item
                    )
                return value
            return None
        if made.op == "phi":
            # a module chosen in __init__: `Dropout(p) if p > 0 else Identity()`
            kinds = {b.attrs["qualified"] for b in made.args[1:] if b.op == "construct"}
            if kinds == {"torch.nn.Dropout", "torch.nn.Identity"} and args:
                return self.dropped(function, made, args[0], node, frame, maybe_identity=True)
            return None
        if made.op in ("function", "partial", "bound", "import"):
            return self.known_call(made, args, kwargs, node, frame)
        cls = instance_class(made)
        if cls is not None:
            found = cls.lookup("forward")
            if found is not None and cls.lookup("__call__") is None:
                return self.inline(
                    found[0], found[1].module, [function, *args], kwargs, node, frame, owner_instance=(function, cls)
                )
        return None
