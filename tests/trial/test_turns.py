"""Two programs in turns: one runs while the other is stopped, and the steps are timed without the stops."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean

import pytest

from perfkit.errors import UsageError
from perfkit.trial import turns as turns_module
from perfkit.trial.processes import family_of, send
from perfkit.trial.shift import MIN_PAIRS, decided, shift_of
from perfkit.trial.turns import (
    WARMUP_STEPS,
    Turns,
    blocks_of_turns,
    compared_steps,
    extra_start_ns,
    run_in_turns,
    running_times,
)

#: Steps of a given length, as `steps.jsonl` has them, until it is ended or has made all. A child of it writes too.
PROGRAM = """
import json, os, sys, time
folder, step_s, steps = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
is_child = os.fork() == 0
os.makedirs(folder + "/rank-0", exist_ok=True)
rows = open(folder + ("/child" if is_child else "/rank-0/steps.jsonl"), "w", buffering=1)
for step in range(steps):
    began = time.perf_counter_ns()
    time.sleep(step_s)
    wall = time.perf_counter_ns() - began
    print(json.dumps({"step": step, "start_ns": began, "wall_ns": wall, "phases_ns": {"other": wall}}), file=rows)
"""


class Started(list[subprocess.Popen[bytes]]):
    """Programs of this test, ended with it."""

    def program(self, folder: Path, step_s: float, steps: int = 10_000) -> subprocess.Popen[bytes]:
        child = subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder), str(step_s), str(steps)])
        self.append(child)
        while not all((folder / name).exists() for name in ("child", "rank-0/steps.jsonl")):
            time.sleep(0.02)
        return child


@pytest.fixture
def started() -> Iterator[Started]:
    children = Started()
    yield children
    for child in children:
        send(family_of(child.pid), signal.SIGKILL)
        child.wait()


def ends_of(file: Path) -> list[int]:
    rows = [json.loads(line) for line in file.read_text().splitlines()[:-1]]
    return [row["start_ns"] + row["wall_ns"] for row in rows]


def share_within(ends: list[int], spans: list[tuple[int, int]], until_ns: int) -> float:
    ends = [end for end in ends if spans[0][0] < end < until_ns]
    return fmean(any(since <= end <= until for since, until in spans) for end in ends)


def test_one_program_runs_while_the_other_is_stopped_with_its_workers(tmp_path: Path, started: Started) -> None:
    folders = tmp_path / "a", tmp_path / "b"
    heard: list[float] = []

    turns = run_in_turns(
        [started.program(folder, 0.01) for folder in folders], turn_s=0.1, limit_s=3, progress=heard.append
    )

    for folder, spans in zip(folders, turns.running, strict=True):
        assert len(spans) >= 5
        for file in ("rank-0/steps.jsonl", "child"):
            assert share_within(ends_of(folder / file), spans, turns.ended_ns) > 0.9
    assert heard == sorted(heard)
    assert heard[-1] == pytest.approx(3, abs=1.5)
    first, second = turns.running
    assert not any(a < d and c < b for a, b in first for c, d in second)


def test_steps_are_timed_without_the_stops(tmp_path: Path, started: Started) -> None:
    folders = tmp_path / "a", tmp_path / "b"

    turns = run_in_turns([started.program(folder, 0.05) for folder in folders], turn_s=0.2, limit_s=4)

    for folder, spans in zip(folders, turns.running, strict=True):
        rows = compared_steps(folder)
        times = running_times(rows, spans, turns.ended_ns)
        stops_ns = [row.wall_ns - time.ns for row, time in zip(rows, times, strict=False) if time.stopped]
        # Stops are as long as the other one's turns.
        assert sum(stop_ns > 150_000_000 for stop_ns in stops_ns) >= 2
    assert len(blocks_of_turns(folders, turns).first) >= 3


def test_the_first_program_that_is_ready_waits_for_the_other_one(tmp_path: Path, started: Started) -> None:
    children = [started.program(tmp_path / name, 0.01) for name in "ab"]
    asked: list[int] = []
    held: list[int] = []

    def is_ready(which: int) -> bool:
        asked.append(which)
        if which == 1 and asked.count(1) == 10:
            held.append(len(ends_of(tmp_path / "a" / "child")))
        if which == 1 and asked.count(1) == 20:
            held.append(len(ends_of(tmp_path / "a" / "child")))
        return which == 0 or len(held) == 2

    turns = run_in_turns(children, turn_s=0.1, limit_s=4, is_ready=is_ready)

    assert asked.count(0) == 1
    assert held[0] == held[1]
    assert share_within(ends_of(tmp_path / "b" / "child"), turns.running[1], turns.ended_ns) > 0.9


def test_turns_end_with_the_first_program_and_the_other_runs_on(tmp_path: Path, started: Started) -> None:
    short, long = started.program(tmp_path / "a", 0.01, steps=100), started.program(tmp_path / "b", 0.01)

    turns = run_in_turns([short, long], turn_s=0.1, limit_s=30)
    steps = len(ends_of(tmp_path / "b" / "child"))
    time.sleep(0.5)

    assert turns.ended_ns < time.perf_counter_ns()
    assert short.poll() is not None
    assert long.poll() is None
    assert len(ends_of(tmp_path / "b" / "child")) > steps


def test_programs_run_on_after_ctrl_c(tmp_path: Path, started: Started) -> None:
    children = [started.program(tmp_path / name, 0.01) for name in "ab"]

    def interrupt(elapsed_s: float) -> None:
        if elapsed_s > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_in_turns(children, turn_s=0.1, limit_s=30, progress=interrupt)
    steps = [len(ends_of(tmp_path / name / "child")) for name in "ab"]
    time.sleep(0.5)

    assert all(len(ends_of(tmp_path / name / "child")) > n for name, n in zip("ab", steps, strict=True))


def test_a_system_that_cannot_stop_programs_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "can_stop_programs", lambda: False)

    with pytest.raises(UsageError, match="which this system lacks"):
        run_in_turns([], limit_s=1)


def write_steps(folder: Path, spans: list[tuple[int, int]]) -> Path:
    """Steps from ``WARMUP_STEPS`` on, after some that do not count; ns."""
    (folder / "rank-0").mkdir(parents=True)
    rows = [(-10 + step, 1) for step in range(WARMUP_STEPS)] + [(since, until - since) for since, until in spans]
    (folder / "rank-0" / "steps.jsonl").write_text(
        "".join(
            json.dumps({"step": step, "start_ns": since, "wall_ns": wall, "phases_ns": {}}) + "\n"
            for step, (since, wall) in enumerate(rows)
        )
    )
    return folder


def test_a_step_belongs_to_the_turn_in_which_it_ended_and_pairs_have_steps_of_both(tmp_path: Path) -> None:
    # The second step of a began at 60, was stopped from 100 to 200, and ended at 220.
    a = write_steps(tmp_path / "a", [(0, 60), (60, 220), (220, 290), (290, 450), (450, 700)])
    b = write_steps(tmp_path / "b", [(100, 350), (350, 380), (550, 560), (560, 580)])
    turns = Turns(([(0, 100), (200, 300), (400, 500)], [(100, 200), (300, 400), (500, 600)]), ended_ns=600)

    assert [tuple(one) for one in running_times(compared_steps(a), turns.running[0], 600)] == [
        (0, 60, False), (1, 60, True), (1, 70, False), (2, 60, True),
    ]  # fmt: skip
    blocks = blocks_of_turns([a, b], turns)

    # A step with a stop in it counts where it is the longest, and where the turn has no other.
    assert blocks.first == [70, 60]
    assert blocks.second == [(150 + 30) / 2, 15]


def test_a_step_that_ran_while_its_program_was_listed_as_stopped_is_left_out(tmp_path: Path) -> None:
    # Stopping takes a moment: the step from 110 to 120 ran after the turn had ended, and no other ended in it.
    a = write_steps(tmp_path / "a", [(0, 90), (110, 120)])
    b = write_steps(tmp_path / "b", [(130, 190), (310, 380)])
    turns = Turns(([(0, 100), (200, 300)], [(101, 200), (300, 400)]), ended_ns=400)

    assert blocks_of_turns([a, b], turns) == ([90], [60], False)


def run_of_both(tmp_path: Path, extra: Callable[[int], int]) -> tuple[list[Path], Turns]:
    """Two programs with steps of 10, ten in a turn; the first one's step ``n`` takes ``extra(n)`` longer."""
    turns: Turns = Turns(([], []), ended_ns=10**6)
    rows: list[list[tuple[int, int]]] = [[], []]
    now = 0
    for turn in range(80):
        for which in (0, 1):
            began = now
            for step in range(10 * turn, 10 * turn + 10):
                rows[which].append((now, now + 10 + (extra(step) if which == 0 else 0)))
                now = rows[which][-1][1]
            turns.running[which].append((began, now))
    return [write_steps(tmp_path / name, each) for name, each in zip("ab", rows, strict=True)], turns


def test_steps_that_are_rare_and_long_are_a_part_of_what_is_compared(tmp_path: Path) -> None:
    blocks = blocks_of_turns(*run_of_both(tmp_path, lambda step: 100 if step % 30 == 29 else 0))
    shift = shift_of([blocks])

    assert (blocks.long_steps, len(blocks.first)) == (True, MIN_PAIRS)
    assert shift is not None
    assert shift.saved == pytest.approx(1 - 10 / (10 + 100 / 30), abs=0.01)
    assert 0 < shift.low < shift.saved < shift.high < 0.5


def test_a_single_long_step_is_no_saving_of_the_other_program(tmp_path: Path) -> None:
    blocks = blocks_of_turns(*run_of_both(tmp_path, lambda step: 2000 if step == 405 else 0))
    shift = shift_of([blocks])

    assert blocks.long_steps
    assert shift is not None
    assert shift.low < 0 < shift.saved
    assert decided(shift, floor=0.0, look=2) == "undecided"


def test_inference_has_steps_to_compare_and_a_training_only_its_own(tmp_path: Path) -> None:
    for name, modes in (("inference", ["predict"]), ("training", ["train", "validation"])):
        (tmp_path / name / "rank-0").mkdir(parents=True)
        rows = [
            {"step": step, "start_ns": step, "wall_ns": 1, "phases_ns": {}, "mode": modes[step % len(modes)]}
            for step in range(WARMUP_STEPS, WARMUP_STEPS + 10)
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / name / "rank-0" / "steps.jsonl").write_text(text)

    assert len(compared_steps(tmp_path / "inference")) == 10
    assert [row.mode for row in compared_steps(tmp_path / "training")] == ["train"] * 5


def test_what_compiling_takes_is_the_extra_time_of_the_first_steps_without_the_stops(tmp_path: Path) -> None:
    plain, compiled = tmp_path / "plain", tmp_path / "compiled"
    write_first_steps(plain, [10] * WARMUP_STEPS)
    # The first one is stopped from 100 to 200.
    write_first_steps(compiled, [300, *[10] * (WARMUP_STEPS - 1)])
    turns = Turns(([(0, 1000)], [(0, 100), (200, 1000)]), ended_ns=1000)

    assert extra_start_ns([plain, compiled], turns) == 190
    assert extra_start_ns([plain, compiled], turns._replace(ended_ns=200)) is None


def write_first_steps(folder: Path, walls: list[int]) -> None:
    (folder / "rank-0").mkdir(parents=True)
    rows = [
        {"step": at, "start_ns": sum(walls[:at]), "wall_ns": wall, "phases_ns": {}} for at, wall in enumerate(walls)
    ]
    (folder / "rank-0" / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
