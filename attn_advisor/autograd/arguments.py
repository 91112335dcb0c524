"""What is known of a function's arguments before it runs: tensors, numbers, containers, and whether a gradient may reach them."""

from __future__ import annotations

import ast
import re

from attn_advisor.autograd.attributes import number_arguments
from attn_advisor.autograd.operations import CREATORS, table, torch_function
from attn_advisor.autograd.values import NUMBER, OBJECT, Memory, State, Value
from attn_advisor.source.module import Class, Function, Module, nodes_in

# Methods and attributes that tensors have and numpy arrays, lists and dictionaries do not.
_TENSOR_ONLY = set(
    "unsqueeze permute masked_fill masked_fill_ contiguous device detach is_cuda requires_grad unbind chunk to float half bfloat16 "
    "new_zeros new_ones new_full new_tensor type_as expand expand_as matmul bmm softmax log_softmax gather scatter scatter_ "
    "add_ mul_ div_ sub_ copy_ clamp_ fill_ zero_ long grad cuda cpu is_floating_point narrow index_select is_contiguous baddbmm "
    "clone sigmoid tanh exp_ norm topk item numel dim masked_scatter index_copy_ unflatten movedim".split()
)
_TENSOR_OPERAND = {
    "masked_fill",
    "masked_fill_",
    "matmul",
    "bmm",
    "baddbmm",
    "expand_as",
    "view_as",
    "type_as",
    "masked_select",
}
# What modules call their tensors.
USUAL_TENSORS = re.compile(
    r"(x|q|k|v|h|query|key|value|hidden|scores|logits|.*(states|mask|bias|embeds|embeddings|features))$"
)
_NOT_FLOATING = re.compile(
    r"mask|(^|_)ids?$|index|indices|(^|_)idx|labels?$|tokens?$|lengths?$|position_ids|input_ids|(^|_)pos$"
)


def parameters_of(function: Function, method: bool) -> list[ast.arg]:
    """Arguments without self or cls."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args]
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list)
    if method and not static:
        named = named[1:]
    return [*named, *arguments.kwonlyargs]


def evidence(module: Module, function: Function) -> set[str]:
    """Names that the function uses as tensors."""
    found: set[str] = set()
    if function.name == "forward":
        found.update(argument.arg for argument in parameters_of(function, True) if USUAL_TENSORS.match(argument.arg))
    for node in nodes_in(function):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in _TENSOR_ONLY:
            found.add(node.value.id)
        elif isinstance(node, ast.Call) and node.args:
            name = module.qualified(node.func) or ""
            short = torch_function(name) or ""
            if short in table() and (short not in CREATORS or short.endswith("_like")):
                for arg in node.args[:3] if not name.endswith("einsum") else node.args[1:]:
                    if isinstance(arg, ast.Name):
                        found.add(arg.id)
                        break
            elif name == "einops.rearrange" and isinstance(node.args[0], ast.Name):
                found.add(node.args[0].id)
            elif isinstance(node.func, ast.Attribute) and node.func.attr in _TENSOR_OPERAND:
                found.update(arg.id for arg in node.args[:1] if isinstance(arg, ast.Name))
            elif isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
                # self.linear(x) inside forward: what goes into a layer is a tensor
                called = node.func.attr
                if (
                    node.func.value.id == "self"
                    and function.name == "forward"
                    and re.search(
                        r"norm|proj|linear|conv|dropout|dense|fc\d?$|embed|attn|attention|mlp|to_qkv|softmax|relu|gelu|act",
                        called,
                    )
                ):
                    found.update(arg.id for arg in node.args[:1] if isinstance(arg, ast.Name))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            found.update(side.id for side in (node.left, node.right) if isinstance(side, ast.Name))
    return found


def argument_values(module: Module, function: Function, cls: Class | None, state: State, gradients: bool) -> set[str]:
    """Binds the function's arguments in the state; gives the names it uses as tensors."""
    seen = evidence(module, function)
    numbers = number_arguments(function)
    if cls is not None and function.args.args:
        state.names[function.args.args[0].arg] = OBJECT
    for argument in parameters_of(function, cls is not None):
        name = argument.arg
        value = _argument(argument, name in numbers, name in seen)
        state.names[name] = value
        annotation = ast.unparse(argument.annotation) if argument.annotation else ""
        if (
            gradients
            and not _NOT_FLOATING.search(name)
            and not re.search(r"LongTensor|BoolTensor|IntTensor", annotation)
        ):
            inner = value.element.memory if value.element else frozenset()
            state.give_gradient(inner | (value.memory if value.kind == "tensor" else frozenset()))
    if function.args.vararg:
        name = function.args.vararg.arg
        element = Value("unknown", frozenset([Memory("argument", name, function.args.vararg)]))
        state.names[name] = Value("sequence", element=element)
    if function.args.kwarg:
        state.names[function.args.kwarg.arg] = OBJECT
    return seen


def _argument(argument: ast.arg, number: bool, used_as_tensor: bool) -> Value:
    annotation = ast.unparse(argument.annotation) if argument.annotation else ""
    memory = frozenset([Memory("argument", argument.arg, argument)])
    if number:
        return NUMBER
    if "Tensor" in annotation:
        if re.search(r"\b(List|Tuple|Sequence|list|tuple|Iterable)\b", annotation):
            return Value(
                "sequence",
                element=Value(
                    "tensor", frozenset([Memory("argument", argument.arg, argument, element=True)]), node=argument
                ),
            )
        if re.search(r"\b(Dict|dict|Mapping|Callable)\b", annotation):
            return OBJECT
        return Value("tensor", memory, node=argument)
    if annotation and re.search(
        r"ndarray|Dict|dict|Callable|Image|str\b|int\b|float\b|bool\b|List|Tuple|list|tuple", annotation
    ):
        return OBJECT
    if used_as_tensor:
        return Value("tensor", memory, node=argument)
    return Value("unknown", memory, node=argument)
