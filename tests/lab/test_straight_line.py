"""The straight-line script that `profile` is compared with: its calls compute one function, and every one of them is timed."""

from __future__ import annotations

import pytest

from tests.lab.jobs import straight_line

torch = pytest.importorskip("torch")
SHAPE = (2, 3, 24, 8)


@pytest.mark.parametrize("train", [False, True])
def test_calls_of_one_input_agree(train):
    calls = straight_line().calls(SHAPE, torch.float64, "cpu", train)
    assert {"naive", "in_place", "sdpa_mask", "sdpa_causal", "FLASH_ATTENTION_mask", "MATH_causal"} <= calls.keys()
    for wanted in ("naive", "sdpa_causal"):
        same = [c for c in calls.values() if c.leaves[0] is calls[wanted].leaves[0]]
        outputs = []
        for call in same:
            with call.context():
                outputs.append(call.run())
        assert len(same) >= 3 and all(o.requires_grad == train for o in outputs)
        for other in outputs[1:]:
            torch.testing.assert_close(other, outputs[0])
    a, b, c = calls["sdpa_causal"].leaves
    keep = torch.ones(SHAPE[2], SHAPE[2], dtype=torch.bool).tril()
    torch.testing.assert_close(calls["sdpa_causal"].run(), straight_line().naive(a, b, c, ~keep))


def test_every_call_is_timed(monkeypatch):
    script = straight_line()
    monkeypatch.setattr(script, "ROUNDS", 1)
    row = script.row(SHAPE, torch.float32, "cpu", True)
    assert all(row[name] > 0 for name in script.calls(SHAPE, torch.float32, "cpu", True))
