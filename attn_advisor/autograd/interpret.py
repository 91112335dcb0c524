"""Runs one function over abstract values and finds the in-place changes that are unsafe."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from attn_advisor.autograd import calls
from attn_advisor.autograd.arguments import USUAL_TENSORS, argument_values
from attn_advisor.autograd.evaluate import Evaluator
from attn_advisor.autograd.expressions import Attributes
from attn_advisor.autograd.operations import AUGMENTED, table
from attn_advisor.autograd.reads import used_later
from attn_advisor.autograd.values import OBJECT, Memory, Saved, State, Value, merged, replace
from attn_advisor.source.module import Class, Function, Module

Kind = Literal["result", "outputs", "leaf", "input", "silent", "alias", "argument"]
_ORDER: tuple[Kind, ...] = ("outputs", "leaf", "result", "input", "silent", "argument", "alias")
_CHECKPOINT = re.compile(r"checkpoint\((?<!\wcheckpoint\()\s*(?:self\.)?(\w+)")
_NO_MODE = re.compile(r"(^|\.)(no_grad|inference_mode)$")


@dataclass
class Hazard:
    """One in-place change that is unsafe.

    node: the statement or call that writes; target: the expression written to; op: what it does ("mul", "setitem", ...).
    saved: what backward keeps; memory: whose memory is changed; through: the operation that perhaps shares it (kind "alias").
    aliases: other names of the function that share the memory. sure: backward is certain to pass here when the module is trained.
    """

    kind: Kind
    node: ast.AST
    stmt: ast.stmt
    target: ast.expr
    op: str
    value: Value
    memory: Memory | None = None
    saved: Saved | None = None
    through: str = ""
    part_of: ast.AST | None = None
    operands: tuple[Value, ...] = ()
    sure: bool = False
    perhaps: bool = False
    aliases: set[str] = field(default_factory=set)
    exposed: bool = False  # others than this function's names can see the memory
    loops: tuple[ast.stmt, ...] = ()


@dataclass(frozen=True)
class Context:
    """Where a function stands: what is known before its first line."""

    name: str
    no_grad: bool = False
    quiet: bool = False  # initialisation, weight loading, optimizers, autograd.Function: in-place changes are the point
    documented: bool = False  # says that it changes its argument
    checkpointed: bool = False  # torch.utils.checkpoint runs it again during backward


@lru_cache(maxsize=1)
def checkpointed(text: str) -> frozenset[str]:
    """Names of the functions that a file hands to checkpoint."""
    return frozenset(_CHECKPOINT.findall(text))


def context_of(module: Module, function: Function, cls: Class | None, name: str) -> Context:
    decorators = [
        module.qualified(d.func if isinstance(d, ast.Call) else d) or ast.unparse(d) for d in function.decorator_list
    ]
    bases = [] if cls is None else [b for c in cls.mro for b in c.bases if isinstance(b, str)]
    short = function.name
    quiet = any(
        re.search(
            r"^(_*init|_?reset|_?load|_?from_|_?convert|_?resize|_?tie_)|init_?weights?|initiali[sz]e|state_dict", part
        )
        for part in name.split(".")
    )
    quiet = quiet or any(b.endswith(("autograd.Function", "Function", "Optimizer", "LRScheduler")) for b in bases)
    # what computes with gradients is an optimizer or a hook: nothing of it is differentiated
    quiet = quiet or any(
        re.search(r"(^|_)grads?($|_)|^gradients?$|^exp_avg", argument.arg) for argument in function.args.args
    )
    quiet = quiet or (cls is None and optimizes(module))
    quiet = quiet or any("triton" in d or "custom_fwd" in d or "tl.jit" in d for d in decorators)
    text = ast.get_docstring(function, clean=False) or ""
    documented = (short.endswith("_") and not short.startswith("__")) or bool(
        re.search(r"\bin[- ]?place\b", text, re.IGNORECASE)
    )
    no_grad = any(_NO_MODE.search(d) for d in decorators)
    again = "checkpoint(" in module.source.text and short in checkpointed(module.source.text)
    return Context(name, no_grad, quiet, documented, again)


def optimizes(module: Module) -> bool:
    """Whether the file defines an optimizer."""
    return any(isinstance(b, str) and b.endswith("Optimizer") for c in module.classes.values() for b in c.bases)


class Interpreter(Evaluator):
    """One function. `hazards` holds what was found, at most one for each place."""

    def __init__(
        self, module: Module, function: Function, cls: Class | None, attributes: Attributes, context: Context
    ) -> None:
        super().__init__(module, cls, attributes, not context.no_grad and not context.quiet)
        self.function_node = function
        self.context = context
        # Other classes than modules (logits processors, samplers, transforms) see few tensors that need a gradient.
        self.trained = cls is not None and any(
            "forward" in c.methods or any(isinstance(b, str) and b.endswith("Module") for b in c.bases) for c in cls.mro
        )
        self.hazards: dict[ast.AST, Hazard] = {}
        self.stmt: ast.stmt = function.body[0]
        self.loops: list[ast.stmt] = []
        self.evaluating = False  # in a branch that is taken in eval mode only
        self.leaving: list[list[State]] = []
        # functions of a file without anything of torch.nn (metrics, boxes, signals) are given what needs no gradient
        differentiable = "torch.nn" in module.source.text or "torch import nn" in module.source.text
        self.tensor_names = argument_values(module, function, cls, self.state, self.gradients and differentiable)

    def run(self) -> list[Hazard]:
        self.block(self.function_node.body)
        return sorted(self.hazards.values(), key=lambda h: (h.node.lineno, h.node.col_offset))  # type: ignore[attr-defined]

    # Statements

    def block(self, body: list[ast.stmt]) -> None:
        for stmt in body:
            if self.state.ended:
                return
            self.stmt = stmt
            handler = getattr(self, f"_do_{type(stmt).__name__.lower()}", None)
            if handler is not None:
                handler(stmt)

    def _do_expr(self, stmt: ast.Expr) -> None:
        self.evaluate(stmt.value)

    def _do_return(self, stmt: ast.Return) -> None:
        self.evaluate(stmt.value)
        self.state.ended = True

    def _do_raise(self, stmt: ast.Raise) -> None:
        self.state.ended = True

    def _do_assert(self, stmt: ast.Assert) -> None:
        self.evaluate(stmt.test)

    def _do_assign(self, stmt: ast.Assign) -> None:
        value = self.evaluate(stmt.value)
        for target in stmt.targets:
            self.assign(target, value, stmt)

    def _do_annassign(self, stmt: ast.AnnAssign) -> None:
        if stmt.value is not None:
            self.assign(stmt.target, self.evaluate(stmt.value), stmt)

    def assign(self, target: ast.expr, value: Value, stmt: ast.stmt) -> None:
        if isinstance(target, ast.Subscript):
            self.set_item(target, value, stmt)
        elif isinstance(target, (ast.Tuple, ast.List)) and any(isinstance(t, ast.Subscript) for t in target.elts):
            for item in target.elts:
                self.assign(item, Value("unknown"), stmt)
        else:
            self.bind(target, value)

    def set_item(self, target: ast.Subscript, value: Value, stmt: ast.stmt) -> None:
        base = self.evaluate(target.value)
        if base.kind == "tensor" or self.array(base, target, value):
            self.indexing(target.slice)
            self.write(stmt, target.value, base, "setitem", [value], {})
        elif base.tensorlike:
            self.evaluate(target.slice)
        else:
            path = self.path(target)
            if path:
                self.state.names[path] = value

    def array(self, base: Value, target: ast.Subscript, value: Value) -> bool:
        """Whether something unknown that is indexed like an array is a tensor, and no array of numpy."""
        if base.kind != "unknown" or not self.array_index(target.slice):
            return False
        named = isinstance(target.value, ast.Name) and bool(USUAL_TENSORS.match(target.value.id))
        return value.kind == "tensor" or self.trained or named

    @staticmethod
    def array_index(index: ast.expr) -> bool:
        """x[:, 0], x[..., 1:]: only arrays are indexed so."""
        parts = index.elts if isinstance(index, ast.Tuple) else []
        return any(
            isinstance(part, ast.Slice) or (isinstance(part, ast.Constant) and part.value is ...) for part in parts
        )

    def _do_augassign(self, stmt: ast.AugAssign) -> None:
        operator = type(stmt.op).__name__
        op = AUGMENTED[operator]
        operand = self.evaluate(stmt.value)
        if isinstance(stmt.target, ast.Subscript):
            base = self.evaluate(stmt.target.value)
            if base.kind == "tensor" or self.array(base, stmt.target, operand):
                self.indexing(stmt.target.slice)
                self.write(stmt, stmt.target.value, base, op, [operand], {}, part=True)
            elif base.kind == "sequence":
                member = self.member(base, stmt)
                if member.kind == "tensor" and op != "matmul":
                    self.write(stmt, stmt.target, member, op, [operand], {})
            return
        value = self.evaluate(stmt.target)
        if (
            value.tensorlike
            and op != "matmul"
            and (value.kind == "tensor" or operand.kind == "tensor" or operand.kind == "unknown")
        ):
            if value.kind == "unknown" and operand.kind == "unknown":
                return  # numbers, lists, tuples: most of them are no tensors
            result = self.write(stmt, stmt.target, value, op, [operand], {})
            if isinstance(stmt.target, ast.Name) and value.kind == "tensor":
                self.state.names[stmt.target.id] = result
            return
        self.bind(stmt.target, self.arithmetic(operator, value, operand, stmt))

    def _do_if(self, stmt: ast.If) -> None:
        self.evaluate(stmt.test)
        before = self.state
        ends = []
        for body in (stmt.body, stmt.orelse):
            self.state = before.copy()
            self.guards.append(stmt.test)
            kept = self.evaluating
            self.evaluating = kept or in_eval_mode(stmt.test, body is stmt.body)
            self.block(body)
            self.evaluating = kept
            self.guards.pop()
            ends.append(self.state)
        self.state = merged(ends)

    def _do_for(self, stmt: ast.For | ast.AsyncFor) -> None:
        item = self.loop_item(stmt.iter)
        self.loop(stmt, lambda: self.bind(stmt.target, self.another(item)))

    _do_asyncfor = _do_for

    def another(self, item: Value) -> Value:
        """The item of one more pass: members of a list of new tensors do not share memory."""
        if item.items:
            return replace(item, items=tuple(map(self.another, item.items)))
        if item.outputs is not None or not item.memory or any(m.origin != "new" for m in item.memory):
            return item
        memory = frozenset(Memory("new", m.name, m.node) for m in item.memory)
        if self.state.needs_gradient(item):
            self.state.give_gradient(memory, self.state.is_trained([item]))
        return replace(item, memory=memory)

    def _do_while(self, stmt: ast.While) -> None:
        self.loop(stmt, lambda: self.evaluate(stmt.test))

    def loop(self, stmt: ast.For | ast.AsyncFor | ast.While, start: Any) -> None:
        """The body twice: what the first pass keeps, the second may change. After it, the loop has run."""
        before = self.state.copy()
        ends = [before]
        self.loops.append(stmt)
        self.leaving.append([])
        for _ in range(2):
            self.state = merged(ends)
            start()
            self.block(stmt.body)
            ends = [self.state, *self.leaving[-1]]
            self.leaving[-1] = []
        self.leaving.pop()
        self.loops.pop()
        self.state = merged(ends)
        if self.state.ended:  # every pass returns: what follows runs when there is none
            self.state = before.copy()
        self.block(stmt.orelse)

    def _do_break(self, stmt: ast.stmt) -> None:
        if self.leaving:
            self.leaving[-1].append(self.state.copy())
        self.state.ended = True

    _do_continue = _do_break

    def _do_with(self, stmt: ast.With | ast.AsyncWith) -> None:
        kept = self.gradients
        for item in stmt.items:
            call = item.context_expr
            name = self.module.qualified(call.func if isinstance(call, ast.Call) else call) or ""
            value = self.evaluate(call)
            if _NO_MODE.search(name):
                self.gradients = False
            elif name.endswith("set_grad_enabled") and isinstance(call, ast.Call):
                off = bool(call.args) and isinstance(call.args[0], ast.Constant) and call.args[0].value is False
                self.gradients = kept and not off
            elif name.endswith("enable_grad"):
                self.gradients = not self.context.quiet
            if item.optional_vars is not None:
                self.bind(item.optional_vars, value)
        self.block(stmt.body)
        self.gradients = kept

    _do_asyncwith = _do_with

    def _do_try(self, stmt: ast.Try) -> None:
        before = self.state.copy()
        self.block(stmt.body)
        ends = [self.state]
        for handler in stmt.handlers:
            self.state = merged([before, ends[0]]).copy()
            self.block(handler.body)
            ends.append(self.state)
        self.state = ends[0]
        self.block(stmt.orelse)
        self.state = merged([self.state, *ends[1:]])
        self.block(stmt.finalbody)

    _do_trystar = _do_try

    def _do_delete(self, stmt: ast.Delete) -> None:
        for target in stmt.targets:
            path = self.path(target)
            if path:
                self.forget(path)
                self.state.names.pop(path, None)

    def _do_match(self, stmt: Any) -> None:
        self.evaluate(stmt.subject)
        before, ends = self.state, []
        for case in stmt.cases:
            self.state = before.copy()
            self.block(case.body)
            ends.append(self.state)
        self.state = merged([*ends, before])

    def _do_functiondef(self, stmt: ast.FunctionDef) -> None:
        self.state.names[stmt.name] = OBJECT

    # In-place changes

    def write(
        self,
        node: ast.AST,
        target: ast.expr,
        value: Value,
        op: str,
        args: list[Value],
        kwargs: dict[str, Value],
        part: bool = False,
    ) -> Value:
        """Notes an in-place change of `value`; gives the value after it."""
        operands = [t for arg in [*args, *kwargs.values()] for t in calls.tensors(arg)]
        flows = self.gradients and (self.state.needs_gradient(value) or any(map(self.state.needs_gradient, operands)))
        self.keep_operands(node, value, op, args, kwargs)
        hazard = self.judge(node, target, value, op, operands, flows)
        if hazard is not None and not self.chained(hazard):
            known = self.hazards.get(node)
            if known is None or _ORDER.index(hazard.kind) < _ORDER.index(known.kind):
                self.hazards[node] = hazard
        if flows and (value.outputs is None or self.state.needs_gradient(value) or self.computed(operands)):
            sure = self.state.is_trained([value, *operands])
            self.state.give_gradient(value.memory | {m for m, _ in value.maybe}, sure)
            if not part:
                self.keep_result(node, value, op)
        after = replace(value, kind="tensor", detached=value.detached and not flows, node=node)
        path = self.path(target)
        if path and path in self.state.names and not part and self.state.names[path] == value:
            self.state.names[path] = after
        return after

    def chained(self, hazard: Hazard) -> bool:
        """Whether it is a later link of `x.mul_(a).add_(b)`, whose first link was found."""
        links: list[ast.AST] = []
        at: ast.expr | None = hazard.target
        while isinstance(at, ast.Call):
            links.append(at)
            at = at.func.value if isinstance(at.func, ast.Attribute) else None
        return any(link in self.hazards for link in links)

    def keep_operands(self, node: ast.AST, value: Value, op: str, args: list[Value], kwargs: dict[str, Value]) -> None:
        """What the in-place operation keeps of its operands (of its own old value it keeps a copy)."""
        if op in table() and self.gradients:
            form, bound = calls.bind(table()[op], [value, *args], kwargs)
            own = form.args[0] if form.args else ""
            needing = {
                name for name, given in bound.items() if any(map(self.state.needs_gradient, calls.tensors(given)))
            }
            sure = self.state.is_trained(t for given in bound.values() for t in calls.tensors(given))
            for kept, needs in form.saves.items():
                if kept != own and kept in bound and needing.intersection(needs):
                    for tensor in calls.tensors(bound[kept]):
                        self.state.keep(tensor, Saved(op, kept, node, sure=sure))

    def keep_result(self, node: ast.AST, value: Value, op: str) -> None:
        forms = table().get(f"{op}_") or table().get(op)
        if forms:
            form, _ = calls.bind(forms, [value], {})
            if "result" in form.saves and self.state.needs_gradient(value):
                self.state.keep(value, Saved(op, "result", node, sure=self.state.is_trained([value])))

    def judge(
        self, node: ast.AST, target: ast.expr, value: Value, op: str, operands: list[Value], flows: bool
    ) -> Hazard | None:
        if self.context.quiet or any("inplace" in ast.unparse(guard) for guard in self.guards):
            return None

        def found(kind: Kind, **known: Any) -> Hazard:
            hazard = Hazard(kind, node, self.stmt, target, op, value, operands=tuple(operands), **known)
            hazard.sure = hazard.saved.sure if hazard.saved else kind == "leaf" or self.state.is_trained([value])
            hazard.sure = hazard.sure and not self.evaluating
            self.note_aliases(hazard)
            return hazard

        if value.outputs is not None and flows and (self.state.needs_gradient(value) or self.computed(operands)):
            return found("outputs")
        if value.leaf and self.gradients and any(m.origin == "parameter" for m in value.memory):
            return found("leaf")
        if self.context.checkpointed and value.kind == "tensor":
            own = next((m for m in value.memory if m.origin in ("attribute", "buffer")), None)
            if own is not None:
                return found("silent", memory=own, through="checkpoint")
        if value.data:
            return self.silent(found, value, op)
        if parts := self.parts_of(value, operands, flows):
            return found("outputs", through=parts[0], part_of=parts[1])
        argument = next((m for m in value.memory if m.origin == "argument"), None)
        if argument is not None and self.cls is not None and not self.trained and self.reportable(argument, op):
            return found("argument", memory=argument)
        kept = [(m, saved) for m in value.memory for saved in self.state.saved.get(m, ())]
        kept.sort(key=lambda pair: (bool(pair[1].through), pair[1].role != "result"))
        if kept and not kept[0][1].through:
            memory, saved = kept[0]
            return found("result" if saved.role == "result" else "input", memory=memory, saved=saved)
        perhaps = self.perhaps(value, kept, operands, flows)
        if not self.gradients or value.detached:
            silent = self.silent(found, value, op)
            if silent is not None:
                silent.perhaps = bool(perhaps)
                return silent
        if argument is not None and self.reportable(argument, op):
            return found("argument", memory=argument, perhaps=bool(perhaps))
        if perhaps:
            return found("alias", **perhaps, perhaps=True)
        for memory, through in value.maybe:
            if (
                memory.origin == "argument"
                and self.reportable(memory, op)
                and through in ("dropout", "Identity", "to", "contiguous", "type_as")
            ):
                return found("alias", memory=memory, through=through)
        return None

    def perhaps(
        self, value: Value, kept: list[tuple[Memory, Saved]], operands: list[Value], flows: bool
    ) -> dict[str, Any]:
        """What backward keeps of this memory if an operation in between gave back the same tensor."""
        if kept:
            return {"memory": kept[0][0], "saved": kept[0][1], "through": kept[0][1].through}
        for memory, through in value.maybe:
            for saved in self.state.saved.get(memory, ()):
                return {"memory": memory, "saved": saved, "through": through}
        parts = self.parts_of(value, operands, flows, maybe=True)
        return {"through": parts[0], "part_of": parts[1]} if parts else {}

    def parts_of(
        self, value: Value, operands: list[Value], flows: bool, maybe: bool = False
    ) -> tuple[str, ast.AST] | None:
        """A result of chunk, split or unbind that lives in this memory and is read later: it cannot be used after the change."""
        wanted = flows and self.computed(operands)
        touched = shared(value) if maybe else value.memory
        for name, other in self.state.names.items():
            for part in (other, *other.items, other.element):
                if part is None or part.outputs is None or not (wanted or self.state.needs_gradient(part)):
                    continue
                if touched & (shared(part) if maybe else part.memory):
                    if used_later(re.split(r"[.\[]", name)[0], self.stmt, self.function_node, tuple(self.loops)):
                        return name, part.outputs
        return None

    def computed(self, operands: list[Value]) -> bool:
        """Whether an operand is likely to need a gradient.

        Members of a list of tensors that is handed in need none more often than not: DETR pads its images so.
        """
        return any(self.state.needs_gradient(o) and not any(m.element for m in o.memory) for o in operands)

    def silent(self, found: Any, value: Value, op: str) -> Hazard | None:
        """A change that autograd does not see, of a tensor whose gradient is being recorded."""
        if self.context.no_grad or (op == "masked_fill" and value.data):
            return None  # masked scores before a softmax get no gradient anyway
        own = [m for m in value.memory if m in self.state.graph and m.origin == "new"]
        live = [v for v in self.state.names.values() if not v.detached and v.kind == "tensor"]
        recorded = next((m for m in own if any(m in v.memory for v in live)), None)
        return found("silent", memory=recorded) if recorded else None

    def reportable(self, memory: Memory, op: str) -> bool:
        """Whether changing this argument is news to the caller."""
        if self.context.documented or not self.gradients:
            return False
        cachelike = re.search(
            r"cache|past|buffer|(^|_)out(put)?s?(_|$)|^states?$|(recurrent|ssm|conv|rnn|cell|prev|model)_states?$|workspace|(^|_)kv",
            memory.name,
        )
        return not (cachelike and op in ("setitem", "copy", "index_copy", "scatter", "index_put", "fill", "zero"))

    def note_aliases(self, hazard: Hazard) -> None:
        touched = shared(hazard.value)
        own = self.path(hazard.target)
        for name, value in self.state.names.items():
            held = [v for v in (value, *value.items, value.element) if v is not None and not disjoint(v, hazard.value)]
            if name != own and any(touched & shared(v) for v in held):
                hazard.aliases.add(name)
        hazard.exposed = any(m.origin in ("argument", "attribute", "buffer", "parameter") for m in touched)
        hazard.loops = tuple(self.loops)


def in_eval_mode(test: ast.expr, taken: bool) -> bool:
    """Whether a branch of `if self.training` (or `not self.training`) is that of eval mode."""
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, taken = test.operand, not taken
    return isinstance(test, ast.Attribute) and test.attr == "training" and not taken


def shared(value: Value) -> frozenset[Memory]:
    """All memory the value may live in."""
    return value.memory | {memory for memory, _ in value.maybe}


def disjoint(one: Value, other: Value) -> bool:
    """Whether they are different results of one chunk, split or unbind."""
    return one.outputs is other.outputs is not None and None not in (one.part, other.part) and one.part != other.part
