"""Traces that are read once for several who ask."""

from __future__ import annotations

import json
from pathlib import Path

from perfkit.diagnosis import diagnose
from perfkit.measures.gathering import measure
from perfkit.reports.figures import figures_of
from perfkit.trace import Trace
from perfkit.trace.cached_reader import CachedTraceReader
from perfkit.trace.file_text import Progress


def write(file: Path, *names: str) -> Path:
    """A trace with one op of each name."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 10 * i, "dur": 5}
        for i, name in enumerate(names)
    ]
    file.write_text(json.dumps({"traceEvents": events}))
    return file


def test_a_file_is_read_once_and_again_when_it_has_changed(tmp_path: Path) -> None:
    file = write(tmp_path / "t.json", "aten::mm")
    read = CachedTraceReader()

    first = read(file)
    assert read(tmp_path / "." / "t.json") is first

    write(file, "aten::mm", "aten::add")
    assert read(file).names == ("aten::mm", "aten::add")


def test_a_page_draws_from_the_trace_that_was_measured(tmp_path: Path) -> None:
    file = write(tmp_path / "t.json", "aten::mm")
    read = CachedTraceReader()
    given: list[Trace] = []

    def noting(path: Path, progress: Progress | None = None) -> Trace:
        given.append(read(path, progress))
        return given[-1]

    figures = figures_of(diagnose(measure(file, read=noting)), read=noting)

    assert figures.timeline is not None
    assert len(given) == 2
    assert given[0] is given[1]
