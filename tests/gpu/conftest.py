"""Tests that need a CUDA device, real or simulated; skipped as a whole without one.

Each is marked with what it needs: `semantics`, `values` or `real` (pyproject.toml says what they mean). On a GPU
`make gpu-check` runs all of them, and on the simulated runtime `make fake-gpu` the first two kinds.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

HERE = Path(__file__).resolve().parent
NEEDS = ("semantics", "values", "real")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    unmarked = []
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if sum(item.get_closest_marker(need) is not None for need in NEEDS) != 1:
                unmarked.append(item.nodeid)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))
    if unmarked:
        raise pytest.UsageError(f"mark each test with one of {', '.join(NEEDS)}: {', '.join(unmarked)}")
