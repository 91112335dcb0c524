"""The detector of SDPA calls that could be cheaper: ATN401 and ATN402."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from attn_advisor.calls.causal_mask import dense_causal_mask
from attn_advisor.calls.rank import not_4d
from attn_advisor.calls.sdpa import calls_in
from attn_advisor.findings import Detection
from attn_advisor.source.module import Module


def sdpa_calls(module: Module) -> Iterator[Detection]:
    """What there is to say about each call of scaled_dot_product_attention. Calls that group heads (enable_gqa) are left alone."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 5000))
    try:
        for call in calls_in(module):
            grouped = call.value.get("enable_gqa")
            if grouped is not None and grouped.const is not False:
                continue
            causal = dense_causal_mask(call)
            if causal is not None:
                yield causal
            rank = not_4d(call, mask_goes=causal is not None and causal.fix is not None)
            if rank is not None:
                yield rank
    finally:
        sys.setrecursionlimit(limit)
