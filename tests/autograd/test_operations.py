"""operations.json against the installed torch: generated anew, and executed."""

from __future__ import annotations

import itertools
import json
import sys
import types
import unittest

import pytest

from attn_advisor.autograd import generate

torch = pytest.importorskip("torch")
pytest.importorskip("torchgen")
TABLE = json.loads(generate.OUT.read_text())

# Where execution and table differ on purpose.
UNLISTED = {
    ("pad", "self"): "only the modes reflect and replicate save the input; the entry is that of constant",
    ("interpolate", "input"): "area and antialias modes average by other kernels",
    ("max_pool1d", "result.1"): "indices are a result only with return_indices=True",
    ("max_pool2d", "result.1"): "as max_pool1d",
    ("max_pool3d", "result.1"): "as max_pool1d",
    ("batch_norm", "bias"): "kept by one of the CPU kernels, not in the formula",
    ("linalg.lu_solve", "result"): "saved for the gradient of LU through a function of its own",
    ("linalg.pinv", "atol"): "a tensor tolerance",
    ("where", "self"): "the samples pass the condition second",
}
NOT_SHOWN = {
    ("batch_norm", "running_var"): "read in eval mode only, where torch keeps its inverse square root instead",
    ("where", "condition"): "the samples pass the condition second",
}
NEW_NAMES = {  # sample operations that are another function than their name says, or share memory without being views
    *("cauchy", "exponential", "geometric", "log_normal", "normal", "uniform"),
    *("unsafe_chunk", "unsafe_split"),
}


def op_infos():
    # torch's own sample inputs; their module wants a package that only its command-line helpers use
    stub = types.ModuleType("expecttest")
    stub.TestCase = unittest.TestCase
    sys.modules.setdefault("expecttest", stub)
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [t for item in value for t in tensors_of(item)]
    return []


def bind(sample, forms):
    """(form, tensor arguments by name): the form that fits with the fewest tensors and arguments; None when none fits."""
    fitting = []
    for form in forms:
        given = dict(zip(form["args"], (sample.input, *sample.args), strict=False)) | sample.kwargs
        bound = {name: value for name, value in given.items() if tensors_of(value)}
        if len(sample.args) < len(form["args"]) and set(bound) <= set(form["tensors"]):
            fitting.append((len(set(given) - set(form["args"])), len(form["tensors"]), len(form["args"]), form, bound))
    return min(fitting, key=lambda fit: fit[:3])[3:] if fitting else None


def breaks(run, sample, pick):
    """Whether backward raises after the tensor that `pick` takes from (inputs, result) was written in place."""
    copy = sample.transform(
        lambda t: t.detach().clone().requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t
    )
    result = run(copy.input, *copy.args, **copy.kwargs)
    out = [t for t in tensors_of(result) if t.requires_grad]
    if not out:
        return None
    target = pick(copy, result)
    with torch.no_grad():
        target.copy_(target.clone())
    try:
        sum(t.abs().sum() for t in [*out]).backward()
    except RuntimeError as error:
        if "modified by an inplace operation" in str(error):
            return True
        return None
    return False


def test_generated_table_is_current():
    if TABLE["torch"] != torch.__version__.split("+")[0]:
        pytest.skip(f"operations.json is of torch {TABLE['torch']}")
    assert generate.render(generate.operations(), TABLE["torch"]) == generate.OUT.read_text()


def picked(name, forms):
    """Takes the tensor called `name` out of a sample and its result."""

    def pick(sample, result):
        if name.startswith("result"):
            return tensors_of(result)[int(name[7:] or 0)]
        return tensors_of(bind(sample, forms)[1][name])[0]

    return pick


def run_samples(name, info, forms):
    """Per sample: (form, saved tensors by the table, {tensor: does backward raise after it changed}, is memory shared)."""
    for sample in itertools.islice(info.sample_inputs("cpu", torch.float64, requires_grad=True), 12):
        fit = bind(sample, forms)
        if fit is None:
            continue
        form, bound = fit
        result = info.op(sample.input, *sample.args, **sample.kwargs)
        outputs = tensors_of(result)
        if not outputs:
            continue
        inputs = [t for value in bound.values() for t in tensors_of(value)]
        shared = any(outputs[0].untyped_storage().data_ptr() == t.untyped_storage().data_ptr() for t in inputs)
        needing = {key for key, value in bound.items() if any(t.requires_grad for t in tensors_of(value))}
        predicted = {key for key, needs in form.get("saves", {}).items() if needing.intersection(needs)}
        names = list(bound)
        if not form.get("alias"):
            names += [f"result.{at}" if at else "result" for at in range(min(len(outputs), 4))]
        seen = {}
        for key in names:
            try:
                seen[key] = breaks(info.op, sample, picked(key, forms))
            except RuntimeError:  # cannot be written in place: expanded memory
                seen[key] = None
        yield form, predicted, seen, shared if outputs[0].numel() else None


@pytest.mark.filterwarnings("ignore")
def test_every_entry_that_has_samples_is_what_torch_does():
    missed, shown, aliasing, executed = {}, {}, {}, set()
    for info in op_infos():
        if torch.float64 not in info.dtypes or not info.supports_autograd:
            continue
        name = info.name.removeprefix("nn.functional.")
        if name not in TABLE["operations"] or name in NEW_NAMES:
            continue
        for form, predicted, seen, shared in run_samples(name, info, TABLE["operations"][name]):
            kind = form.get("alias", "")
            if shared is not None and shared != (kind in ("view", "views", "list")) and kind != "maybe":
                aliasing[name] = kind
            for key, broke in seen.items():
                if broke is None:
                    continue
                executed.add(name)
                if broke and key not in predicted:
                    missed[name, key] = True
                if key in predicted:
                    shown[name, key] = shown.get((name, key), False) or broke
    assert len(executed) >= 300
    assert not aliasing
    assert set(missed) <= set(UNLISTED)
    assert {key for key, broke in shown.items() if not broke} <= set(NOT_SHOWN)
