"""One thread and a frozen heap for the lab's tests, as in its workers: several processes share the machine, and experiments collect often."""

from __future__ import annotations

import gc
import importlib.util
import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def worker_like() -> Iterator[None]:
    """What is loaded by now is left out of collections."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    if before is None:
        del os.environ["OMP_NUM_THREADS"]
    else:
        os.environ["OMP_NUM_THREADS"] = before
