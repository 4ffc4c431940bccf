"""An error of the line tracer ends the tracing and nothing else; what a signal's handler raises reaches the program."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Any

import pytest
import torch

from perfkit.record.samplers.constant_calls import ConstantCallLog
from perfkit.record.samplers.line_tracer import LineTracer
from perfkit.record.windows.lines_step import LineTimeline


def _add(a: int, b: int) -> int:
    """A function of the user's."""
    total = a
    total += b
    return total


@pytest.mark.parametrize("method", ["enter", "leave", "spoil"])
def test_an_error_of_perfkits_ends_the_tracing_and_the_program_computes_on(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("broken")

    monkeypatch.setattr(ConstantCallLog, method, fail)
    layer = torch.nn.Linear(2, 2)
    tracer = LineTracer(lambda: "forward")
    tracer.start()
    try:
        results = (_add(1, 2), _add(3, 4), tuple(layer(torch.ones(1, 2)).shape))
        tracing = sys.gettrace()
    finally:
        tracer.stop()

    assert results == (3, 7, (1, 2))
    assert tracing is None
    assert tracer.refused == "OSError: broken"
    assert tracer.rows() == ()


def test_an_error_in_the_timeline_of_lines_ends_it_and_the_program_computes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = LineTimeline()
    timeline.start()
    monkeypatch.setattr(timeline, "_add", None)  # not callable
    try:
        result = _add(1, 2)
    finally:
        monkeypatch.undo()
        timeline.stop()

    assert result == 3
    assert timeline.refused is not None


def test_what_a_signals_handler_raises_while_perfkit_follows_a_line_reaches_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Late(Exception):
        pass

    def stop(number: int, frame: FrameType | None) -> None:
        raise Late

    before = signal.signal(signal.SIGUSR1, stop)
    monkeypatch.setattr(ConstantCallLog, "enter", lambda *_: signal.raise_signal(signal.SIGUSR1))
    tracer = LineTracer(lambda: "forward")
    tracer.start()
    try:
        with pytest.raises(Late):
            _add(1, 2)
    finally:
        tracer.stop()
        signal.signal(signal.SIGUSR1, before)
    assert sys.gettrace() is None
