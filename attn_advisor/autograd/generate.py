"""Writes operations.json from torch's own tables: python -m attn_advisor.autograd.generate

derivatives.yaml says what a backward formula reads (and so what forward saves), native_functions.yaml which results share
memory with an argument. Both come with the torch wheel (torchgen/packaged). Operations that torch composes of others have
no formula of their own: COMPOSED names the one that saves. Reading the data file needs no torch; this script does.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

OUT = Path(__file__).with_name("operations.json")

# Operation -> the operation whose formula it ends in; "theirs=ours" where the names of arguments differ, "-theirs" for a tensor
# that is saved but is not ours (an intermediate result), "+ours" for one that another step of the composition saves.
COMPOSED = {
    "softmax": "_softmax",
    "log_softmax": "_log_softmax",
    "softmin": "_softmax self=input",
    "gumbel_softmax": "_softmax self=logits",
    "matmul": "mm mat2=other",
    "inner": "mm mat2=other",
    "tensordot": "mm mat2=other",
    "outer": "mul.Tensor other=vec2",
    "ger": "mul.Tensor other=vec2",
    "multiply": "mul.Tensor",
    "divide": "div.Tensor",
    "true_divide": "div.Tensor",
    "subtract": "sub.Tensor",
    "negative": "neg",
    "absolute": "abs",
    "clip": "clamp",
    "max.other": "maximum",
    "min.other": "minimum",
    "tanhshrink": "tanh self=input -result",
    "softsign": "abs self=input",
    "cosine_similarity": "linalg_vector_norm self=x1 -result +x2",
    "grid_sample": "grid_sampler_2d",
    "fliplr": "flip",
    "flipud": "flip",
    "cross": "linalg_cross",
    "nanmean": "nansum",
    "linalg.norm": "linalg_vector_norm",
    "max_pool1d": "max_pool2d_with_indices",
    "max_pool2d": "max_pool2d_with_indices",
    "max_pool3d": "max_pool3d_with_indices",
    "arccos": "acos",
    "arcsin": "asin",
    "arctan": "atan",
    "square": "pow.Tensor_Scalar",
    "linear": "mm self=input mat2=weight",
    "conv1d": "convolution",
    "conv2d": "convolution",
    "conv3d": "convolution",
    "conv_transpose1d": "convolution",
    "conv_transpose2d": "convolution",
    "conv_transpose3d": "convolution",
    "layer_norm": "native_layer_norm",
    "group_norm": "native_group_norm",
    "batch_norm": "native_batch_norm",
    "instance_norm": "native_batch_norm -weight -bias -running_mean -running_var",
    "rms_norm": "_fused_rms_norm",
    "normalize": "linalg_vector_norm self=input -result",
    "norm": "linalg_vector_norm",
    "std": "std.correction",
    "var": "var.correction",
    "cross_entropy": "nll_loss_forward self=input -self",
    "nll_loss": "nll_loss_forward",
    "l1_loss": "sub.Tensor self=input other=target",
    "prelu": "_prelu_kernel",
    "relu6": "hardtanh",
    "selu": "elu",
    "logsigmoid": "log_sigmoid_forward self=input",
    "scaled_dot_product_attention": "_scaled_dot_product_flash_attention_for_cpu",
    "dropout": "add.Scalar self=input",
    "dropout1d": "add.Scalar self=input",
    "dropout2d": "add.Scalar self=input",
    "dropout3d": "add.Scalar self=input",
    "alpha_dropout": "add.Scalar self=input",
    "feature_dropout": "add.Scalar self=input",
    "pad": "constant_pad_nd",
    "interpolate": "upsample_nearest2d self=input",
    "concat": "cat",
    "concatenate": "cat",
    "hstack": "cat",
    "vstack": "cat",
    "dstack": "cat",
    "column_stack": "cat",
    "tile": "repeat",
    "repeat_interleave": "repeat",
    "diff": "sub.Tensor",
    "take_along_dim": "gather index=indices",
    "msort": "neg",
    "unsafe_chunk": "unsafe_split.Tensor",
    "rsub": "sub.Tensor",
    "greater": "gt.Tensor",
    "less": "lt.Tensor",
    "avg_pool1d": "avg_pool2d",
    "adaptive_avg_pool2d": "_adaptive_avg_pool2d",
    "one_hot": "eq.Scalar",
    "isfinite": "eq.Scalar",
    "isclose": "eq.Scalar",
}
# Result is the argument itself or a view of it only sometimes: same dtype, already contiguous, dropout in eval.
MAYBE_ALIAS = {"reshape", "reshape_as", "contiguous", "to", "flatten", "ravel", "type_as", "pin_memory", "coalesce"}
MAYBE_ALIAS |= {"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout"}
# Several views made by slicing: autograd lets each of them be changed in place.
SLICED = {"tensor_split", "hsplit", "vsplit", "dsplit"}
# Python-level casts that end in Tensor.to.
CASTS = {"byte", "char", "short", "float", "double", "half", "bfloat16", "long", "int", "bool", "cpu", "cuda", "type"}
# Properties and methods with another name in Python than in native_functions.yaml.
RENAMED = {"numpy_T": "T", "matrix_H": "H"}
SKIPPED = re.compile(
    r"^_|backward|sparse|mkldnn|cudnn|miopen|quantize|fbgemm|(?<!index)_copy$|nested|mps_|xnnpack|lstm|gru|thnn"
)
REAL_TRANSFORMS = re.compile(r"fft\.(i?fft|(r|ih)fft[2n]?)$")  # of real input: the formula of _fft_r2c


def public_name(function: Any) -> str:
    """The name under torch, Tensor or torch.nn.functional; linalg.x and special.x keep their module."""
    base = str(function.func.name.name)
    for module in ("linalg", "special", "fft"):
        if base.startswith(module + "_"):
            return base.replace("_", ".", 1)
    return RENAMED.get(base, base)


def tensor_arguments(schema: Any) -> list[str]:
    return [argument.name for argument in schema.arguments.flat_all if "Tensor" in str(argument.type)]


def alias(function: Any, name: str) -> str:
    """'view', 'maybe' (sometimes the same memory), 'views', 'list' (views none of which may be changed in place) or ''."""
    if not function.is_view_op:
        return "maybe" if name in MAYBE_ALIAS else ""
    if str(function.func.returns[0].type).endswith("[]"):
        return "views" if name in SLICED else "list"
    return "maybe" if name in MAYBE_ALIAS else "view"


def saves(info: Any) -> dict[str, list[str]]:
    """Saved tensor ('result', 'result.1' or an argument) -> the arguments one of which must need a gradient for that."""
    schema = info.func.func
    outputs = {f"result{at}": at for at in range(len(schema.returns))} | {"result": 0}
    outputs |= {returned.name: at for at, returned in enumerate(schema.returns) if returned.name}
    tensors = set(tensor_arguments(schema))
    needs: dict[str, list[str]] = {}
    for derivative in info.derivatives:
        for saved in (*derivative.saved_inputs, *derivative.saved_outputs):
            name = saved.nctype.name
            if name in outputs:
                at = outputs[name]
                name = f"result.{at}" if at else "result"
            elif name not in tensors:
                continue
            needs.setdefault(name, []).extend(n for n in derivative.var_names if n not in needs.get(name, ()))
    return needs


def form(function: Any, info: Any, name: str) -> dict[str, Any]:
    schema = function.func
    entry: dict[str, Any] = {"args": [argument.name for argument in schema.arguments.flat_all]}
    entry["tensors"] = tensor_arguments(schema)
    if info is not None and (needs := saves(info)):
        entry["saves"] = needs
    if kind := alias(function, name):
        entry["alias"] = kind
    if len(schema.returns) > 1:
        entry["outputs"] = len(schema.returns)
    differentiable = info is not None and any(info.output_differentiability or [bool(info.derivatives)])
    if not differentiable and not function.has_composite_implicit_autograd_kernel:
        entry["constant"] = True
    return entry


def composed(
    target: str, entry: dict[str, Any], args: list[str], tensors: list[str], outputs: int = 1
) -> dict[str, Any]:
    """The entry of an operation that ends in another one, in its own argument names."""
    words = target.split()[1:]
    dropped = {word[1:] for word in words if word.startswith("-")}
    names = {"self": tensors[0] if tensors else ""} | dict(word.split("=") for word in words if "=" in word)
    own: dict[str, list[str]] = {}
    for saved, needing in entry.get("saves", {}).items():
        if saved.startswith("result") and (saved in dropped or (saved != "result" and int(saved[7:]) >= outputs)):
            continue
        ours = names.get(saved, saved)
        if saved not in dropped and (ours in args or saved.startswith("result")):
            own[ours] = [n for n in (names.get(need, need) for need in needing) if n in args] or tensors[:1]
    result: dict[str, Any] = {"args": args, "tensors": tensors}
    own |= {word[1:]: tensors for word in words if word.startswith("+")}
    if own:
        result["saves"] = own
    if entry.get("constant"):
        result["constant"] = True
    if outputs > 1:
        result["outputs"] = outputs
    return result


def operations() -> dict[str, list[dict[str, Any]]]:
    """Public name -> its forms (overloads that differ in what is saved or aliased)."""
    import torchgen
    from torchgen.gen import parse_native_yaml
    from torchgen.packaged.autograd.load_derivatives import load_derivatives

    packaged = Path(torchgen.__file__).parent / "packaged"
    native = str(packaged / "ATen/native/native_functions.yaml")
    tags = str(packaged / "ATen/native/tags.yaml")
    derivatives, _ = load_derivatives(str(packaged / "autograd/derivatives.yaml"), native, tags)
    formulas = {str(schema.name): info["Default"] for schema, info in derivatives.items() if "Default" in info}
    functions = parse_native_yaml(native, tags).native_functions
    by_schema = {str(f.func.name): f for f in functions}
    primitive = {
        name: form(by_schema[name], info, public_name(by_schema[name]))
        for name, info in formulas.items()
        if name in by_schema
    }
    table: dict[str, list[dict[str, Any]]] = {}

    def add(name: str, entry: dict[str, Any]) -> None:
        forms = table.setdefault(name, [])
        if all({**known, "args": 0} != {**entry, "args": 0} for known in forms):
            forms.append(entry)

    for function in functions:
        name = public_name(function)
        schema = function.func
        if schema.name.name.inplace or schema.is_out_fn() or not schema.returns:
            continue
        if SKIPPED.search(name) or "Tensor" not in str(schema.returns[0].type):
            continue
        if any("Dimname" in str(argument.type) for argument in schema.arguments.flat_all):
            continue
        target = COMPOSED.get(f"{name}.{schema.name.overload_name}") or COMPOSED.get(name)
        if target is None and name.startswith("fft."):
            target = "_fft_r2c" if REAL_TRANSFORMS.match(name) else "neg"
        if target:
            args = [argument.name for argument in schema.arguments.flat_all]
            entry = composed(target, primitive[target.split()[0]], args, tensor_arguments(schema), len(schema.returns))
            if kind := alias(function, name):
                entry["alias"] = kind
            add(name, entry)
        elif not function.has_composite_implicit_autograd_kernel or function.is_view_op or str(schema.name) in formulas:
            add(name, form(function, formulas.get(str(schema.name)), name))
    for name, target in COMPOSED.items():
        if name not in table and not name.startswith(("max.", "min.")):  # Python functions of torch.nn.functional
            entry = primitive[target.split()[0]]
            names = dict(word.split("=") for word in target.split()[1:] if "=" in word)
            args, tensors = ([names.get(a, a) for a in entry[key]] for key in ("args", "tensors"))
            table[name] = [composed(target, entry, args, tensors) | ({"alias": "maybe"} if name in MAYBE_ALIAS else {})]
    for name, info in formulas.items():  # in-place forms with a formula of their own: leaky_relu_ reads its result
        if name.split(".")[0].endswith("_") and not name.startswith("_") and name in by_schema and saves(info):
            add(name.split(".")[0], form(by_schema[name], info, name))
    for name in CASTS:
        table[name] = [{"args": ["self"], "tensors": ["self"], "alias": "maybe"}]
    table["type_as"] = [{"args": ["self", "other"], "tensors": ["self", "other"], "alias": "maybe"}]
    table["einsum"] = [{"args": ["equation", "operands"], "tensors": ["operands"], "saves": {"operands": ["operands"]}}]
    return dict(sorted(table.items()))


def render(table: dict[str, list[dict[str, Any]]], version: str) -> str:
    """One operation a line, so that a change of torch shows as a readable difference."""
    lines = [f"{json.dumps(name)}: {json.dumps(forms, separators=(',', ':'))}" for name, forms in table.items()]
    return f'{{"torch": "{version}", "operations": {{\n' + ",\n".join(lines) + "\n}}\n"


def main() -> None:
    import torch

    OUT.write_text(render(operations(), torch.__version__.split("+")[0]))
    print(f"{OUT.name}: {len(OUT.read_text().splitlines()) - 2} operations", file=sys.stderr)


if __name__ == "__main__":
    main()
