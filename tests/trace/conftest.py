"""Small traces, and the real ones next to the checkout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfkit.trace import Trace, read_trace

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "traces"


@pytest.fixture
def shared_traces() -> Path:
    """The folder of real traces."""
    if not SHARED.is_dir():
        pytest.skip("shared traces are not next to the checkout")
    return SHARED


@pytest.fixture
def trace_of(tmp_path: Path) -> Callable[..., Trace]:
    """Reads a list of complete events (``ph`` may be absent), with the given keys next to them."""

    def write_and_read(events: list[dict[str, Any]], **around: Any) -> Trace:
        file = tmp_path / "t.json"
        blank = {"ph": "X", "cat": "cpu_op", "name": "x", "pid": 1, "tid": 1, "dur": 1}
        file.write_text(json.dumps({**around, "traceEvents": [{**blank, **one} for one in events]}))
        return read_trace(file)

    return write_and_read
