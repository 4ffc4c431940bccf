"""Shared by the tests of ranges: a recorder that is always stopped, and programs run in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perfkit.ranges import installed, start_recorder
from perfkit.ranges.recorder import RangeRecorder
from perfkit.run.records import RangeRow

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _nothing_left_listening() -> Iterator[None]:
    assert [line for line in installed() if line.startswith("now:")] == []
    yield
    assert [line for line in installed() if line.startswith("now:")] == []


@pytest.fixture
def recorder() -> Iterator[RangeRecorder]:
    """A running recorder, stopped after the test."""
    started = start_recorder()
    yield started
    started.stop()


@pytest.fixture
def row() -> Callable[[RangeRecorder, str], RangeRow]:
    """The one row of a range."""

    def find(recorder: RangeRecorder, name: str) -> RangeRow:
        (found,) = [row for row in recorder.rows() if row.name == name]
        return found

    return find


@pytest.fixture
def annotations(tmp_path: Path) -> Callable[[Any], list[str]]:
    """The names of the annotations in what a torch profiler has recorded, as its trace has them."""

    def names(prof: Any) -> list[str]:
        trace = tmp_path / "annotations.json"
        prof.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
        return [event["name"] for event in events if event.get("cat") == "user_annotation"]

    return names


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a program in a process of its own, with environment variables added; it must end with 0."""

    def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "program.py"
        script.write_text(textwrap.dedent(program))
        done = subprocess.run(
            [sys.executable, str(script)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done

    return run
