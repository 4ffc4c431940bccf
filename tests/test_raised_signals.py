"""What a handler of the program's signals raises reaches the program, also where it interrupts work of perfkit's."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import perfkit
from perfkit._raised_signals import errors_dropped, signal_of
from perfkit.run.rank_recording import RankRecording


class Late(Exception):
    """What the program's handler raises."""


def late(number: int, frame: Any) -> None:
    raise Late


class Handler:
    def __call__(self, number: int, frame: Any) -> None:
        raise Late

    def method(self, number: int, frame: Any) -> None:
        raise Late


@pytest.fixture
def handled() -> Iterator[Callable[[Any], None]]:
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, handler)
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    "handler",
    [late, Handler(), Handler().method, functools.partial(late)],
    ids=["function", "object", "method", "partial"],
)
def test_an_error_of_a_handler_of_any_kind_is_told_from_perfkits_own(handler: Any, handled: Any) -> None:
    handled(handler)

    with pytest.raises(Late) as raised, errors_dropped():
        signal.raise_signal(signal.SIGUSR1)
    assert signal_of(raised.value) == signal.SIGUSR1
    with errors_dropped():
        raise Late


def test_guarded_work_reports_its_own_errors_and_raises_those_of_handlers(
    handled: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handled(late)
    recording = RankRecording(tmp_path, "launch", lambda: None)  # type: ignore[arg-type,return-value]  # nothing is written

    recording.guarded("its work", lambda: int("one"))
    assert "its work: ValueError" in capsys.readouterr().err
    with pytest.raises(Late):
        recording.guarded("its other work", lambda: signal.raise_signal(signal.SIGUSR1))
    assert recording.errors == ["its work: ValueError: invalid literal for int() with base 10: 'one'"]


def test_a_signal_between_two_steps_ends_the_loop_and_the_run_is_written(handled: Any, tmp_path: Path) -> None:
    handled(late)
    model = torch.nn.Linear(4, 1)
    done: list[int] = []

    def train() -> None:
        with perfkit.profile(tmp_path / "run", quiet=True) as prof:
            prof._live.recording.pair_clocks = lambda: signal.raise_signal(signal.SIGUSR1)  # type: ignore[union-attr]
            for number in prof.steps(range(100)):
                model(torch.ones(2, 4)).sum().backward()
                done.append(number)

    with pytest.raises(Late):
        train()
    assert 0 < len(done) < 100
    assert perfkit.diagnose(tmp_path / "run") is not None
