"""A full garbage collection counts for the user's line in which it began, and no interrupt is lost in one."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader

import perfkit
from perfkit.record.watchers import garbage_collections
from perfkit.record.watchers.garbage_collections import GarbageWatch
from perfkit.run.records import Lines

#: Collects, from the middle of the first step on, until a signal that another process sends stops it.
INTERRUPTED = """
import functools, gc, os, signal, subprocess, sys, time
import perfkit

class Stopped(Exception):
    pass

def stop(number, frame):
    raise Stopped

class Wish:
    def __call__(self, number, frame):
        raise Stopped

    def stop(self, number, frame):
        raise Stopped

signals = {"INT": signal.default_int_handler, "TERM": stop, "USR1": Wish(), "ALRM": Wish().stop}
signals["USR2"] = functools.partial(stop)
kept = [[number] for number in range(2_000_000)]
reached = []
with perfkit.profile("run", schedule=None, triggers=None) as prof:
    for name, handler in prof.steps(list(signals.items())):
        signal.signal(getattr(signal, "SIG" + name), handler)
        sender = subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -{name} {os.getpid()}"])
        try:
            while sender.poll() is None:
                gc.collect()
            time.sleep(10)
        except (KeyboardInterrupt, Stopped) as error:
            reached.append(type(error).__name__)
        sender.wait()
print(*reached)
"""


def test_full_collections_have_their_line_and_young_ones_have_none(tmp_path: Path) -> None:
    with perfkit.profile(tmp_path / "run", schedule=None, quiet=True) as prof:
        for _ in prof.steps(range(4)):
            gc.collect(0)
            gc.collect()

    lines = msgspec.json.decode((tmp_path / "run" / "rank-0" / "lines.json").read_bytes(), type=Lines)
    source = Path(__file__).read_text().splitlines()
    mine = {source[row.line - 1].strip(): row for row in lines.collected if row.file == __file__}

    assert mine["gc.collect()"].count == 4
    assert mine["gc.collect()"].total_ns > 0
    assert "gc.collect(0)" not in mine


def test_an_interrupt_that_comes_during_a_collection_reaches_the_program(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(INTERRUPTED)

    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert done.stdout.split() == ["KeyboardInterrupt", *["Stopped"] * 4], done.stderr
    assert "Exception ignored" not in done.stderr
    rows = [json.loads(row) for row in (tmp_path / "run" / "rank-0" / "steps.jsonl").read_text().splitlines()]
    assert all(row["gc_ns"] > 0 for row in rows)


@pytest.fixture
def watch() -> Iterator[tuple[GarbageWatch, list[str]]]:
    """A watch whose clock raises an error, and what it reported."""
    said: list[str] = []

    class NoStep:
        starts = 0
        step_num = 0

        @property
        def running(self) -> bool:
            raise ValueError("no step is running")

    watch = GarbageWatch(NoStep(), lambda what, error: said.append(f"{what}: {error}"))
    watch.attach()
    yield watch, said
    watch.detach()


def test_an_error_of_perfkit_is_reported_and_the_next_collection_is_timed(
    watch: tuple[GarbageWatch, list[str]],
) -> None:
    listening, said = watch
    gc.collect()
    gc.collect()

    assert said[:2] == ["timing garbage collections: no step is running"] * 2

    listening.detach()
    heard = len(said)
    gc.collect()
    assert len(said) == heard


def test_an_interrupt_that_comes_while_another_one_is_sent_again_is_sent_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(Exception):
        pass

    def stop(number: int, frame: object) -> None:
        raise Stopped

    class Interrupting:
        starts = step_num = 0
        asked = 0

        @property
        def running(self) -> bool:
            self.asked += 1
            if self.asked == 1:
                signal.raise_signal(signal.SIGUSR1)
            return True

    sent: list[int] = []

    def start(function: object, arguments: tuple[int]) -> None:
        sent.append(*arguments)
        if len(sent) == 1:
            signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(garbage_collections, "_thread", SimpleNamespace(start_new_thread=start))
    troubles: list[BaseException] = []
    watch = GarbageWatch(Interrupting(), lambda what, error: troubles.append(error))
    before = signal.signal(signal.SIGUSR1, stop)
    watch.attach()
    try:
        gc.collect()
        gc.collect()
    finally:
        watch.detach()
        signal.signal(signal.SIGUSR1, before)

    assert sent == [signal.SIGUSR1, signal.SIGUSR1]
    assert troubles == []
    assert watch.take(1)[0] > 0  # the second collection was timed


def test_collections_before_the_loop_between_two_steps_and_after_the_last_one_are_in_no_step() -> None:
    clock = SimpleNamespace(step_num=0, running=True, starts=1)
    watch = GarbageWatch(clock, lambda what, error: None)

    def collect() -> None:
        watch._begin(0)
        watch._end()

    collect()  # set-up: the first fetch then starts step 0 anew
    clock.starts = 2
    assert watch.take(1) == {}
    collect()
    clock.step_num = 1
    collect()
    assert list(watch.take(1)) == [0]
    clock.step_num, clock.running = 2, False
    collect()  # a window opens
    clock.running, clock.starts = True, 3
    assert watch.take(3) == {}
    collect()
    assert watch.take(2) == {}  # the step never ends


def test_a_full_collection_before_the_loop_is_not_charged_to_its_first_step(tmp_path: Path) -> None:
    kept = [[number] for number in range(200_000)]
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with perfkit.profile(tmp_path / "run", schedule=None, quiet=True):
        for _ in range(5):
            gc.collect()
        for batch in DataLoader(torch.ones(6, 2)):  # type: ignore[arg-type]  # a tensor is a dataset
            model(batch).sum().backward()
            optimizer.step()
        gc.collect()
    assert kept

    rows = [json.loads(row) for row in (tmp_path / "run" / "rank-0" / "steps.jsonl").read_text().splitlines()]
    lines = msgspec.json.decode((tmp_path / "run" / "rank-0" / "lines.json").read_bytes(), type=Lines)

    assert [row["gc_ns"] < row["wall_ns"] for row in rows] == [True] * 6
    assert not [row for row in lines.collected if row.file == __file__]
