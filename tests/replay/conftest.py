"""Traces with known dependencies, on the timeline of the planted traces; times in µs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "planted_traces"))

from trace_timeline import Timeline

from perfkit.replay.results import WhatIf
from perfkit.replay.what_if import what_if
from perfkit.trace import Trace, read_trace

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "traces"

Step = Callable[[Timeline], object]


class Made:
    """Writes traces of equal steps and asks what-ifs of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def line(self, **how: object) -> Timeline:
        return Timeline(self.folder, **how)  # type: ignore[arg-type]  # a test gives what Timeline takes

    def trace(self, step: Step, *, sync: bool = False, count: int = 5) -> Trace:
        return read_trace(self.line().steps(step, sync=sync, count=count).write())

    def ask(self, step: Step, *, sync: bool = False, count: int = 5, **changes: object) -> WhatIf:
        return what_if(self.trace(step, sync=sync, count=count), **changes)  # type: ignore[arg-type]  # see above


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


@pytest.fixture
def shared() -> Callable[[str], Path]:
    """The path of one of the real traces."""

    def path(name: str) -> Path:
        if not SHARED.is_dir():
            pytest.skip("shared traces are not next to the checkout")
        return SHARED / name

    return path
