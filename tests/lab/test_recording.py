"""Values on their way from a user's script to a worker: nothing of them changes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from attn_advisor.lab import recording  # noqa: E402

CPU = torch.device("cpu")


def back(value):
    return recording.read(recording.write(value), lambda name: None, CPU)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(2, 3, 4, 5),
        torch.randn(2, 4, 3, 5).transpose(1, 2),
        torch.randn(2, 4, 45).split(15, dim=2)[1].view(2, 4, 3, 5).transpose(1, 2),
        torch.randn(1, 1, 4).expand(2, 3, 4),
        torch.rand(3, 4) > 0.5,
        torch.arange(5),
        torch.tensor(0.5),
        torch.randn(2, 0, 3),
        torch.randn(3, 4, requires_grad=True) * 2,
    ],
    ids=["dense", "heads", "packed", "expanded", "bool", "ints", "number", "empty", "graph"],
)
def test_tensors_keep_values_strides_and_gradient(tensor):
    made = back(tensor)
    assert torch.equal(made, tensor) and made.dtype == tensor.dtype and made.is_leaf
    assert made.stride() == tensor.stride() and made.requires_grad == tensor.requires_grad


def test_a_slice_of_a_large_cache_is_kept_without_the_cache():
    cache = torch.randn(1, 2, 4096, 8)
    view = cache[:, :, :4]
    made = back(view)
    assert torch.equal(made, view) and made.untyped_storage().nbytes() < cache.untyped_storage().nbytes() / 100


def test_what_was_kept_does_not_follow_later_changes():
    tensor = torch.zeros(3)
    data = recording.write(tensor)
    tensor.add_(1)
    assert torch.equal(recording.read(data, lambda name: None, CPU), torch.zeros(3))


def test_containers_and_modules():
    first, (second, third) = back((torch.ones(2), [torch.zeros(1), None]))
    assert torch.equal(first, torch.ones(2)) and torch.equal(second, torch.zeros(1)) and third is None
    assert back(torch.nn.Dropout(0.25).eval()).p == 0.25
    parameter = back(torch.nn.Parameter(torch.ones(2)))
    assert isinstance(parameter, torch.nn.Parameter) and parameter.requires_grad


def test_what_cannot_be_kept_says_so():
    with pytest.raises(recording.NotKept, match="a generator cannot be kept"):
        recording.write(n for n in range(3))
