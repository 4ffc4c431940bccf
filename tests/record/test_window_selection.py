"""Which windows of a long run are kept, and what a disk that is slow or full does to them: nothing to the training."""

from __future__ import annotations

import json
import math
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import perfkit
from perfkit.record.clock.step_clock import StepClock
from perfkit.record.windows import lines_due, torch_profiler, window_controller, window_selection
from perfkit.record.windows.lines_due import MAX_STEPS, LinesDue
from perfkit.record.windows.window_controller import WindowController, WindowRecorder
from perfkit.record.windows.window_selection import BY_SCHEDULE, RecordedWindow, WindowSelection
from perfkit.run.reading import RankFolder, read_run

ENDLESS = perfkit.schedule(wait=1, warmup=0, active=1)


def window(index: int, step_ns: float, reason: str = BY_SCHEDULE) -> RecordedWindow:
    return RecordedWindow(index, 10 * index, 10 * index + 2, reason, step_ns)


def keep_of(selection: WindowSelection, times: list[float], *, writing_ns: int = 0, size: int = 0) -> list[int]:
    for index, step_ns in enumerate(times):
        if selection.add(window(index, step_ns), writing_ns):
            while selection.take_surplus(size, lambda index: False) is not None:
                pass
    return [one.index for one in selection.kept]


def test_of_an_endless_schedule_the_slowest_the_newest_and_typical_windows_stay(clock: Any) -> None:
    times = [100.0] * 50
    times[7], times[20], times[30] = 900.0, 300.0, 500.0
    kept = keep_of(WindowSelection(), times, writing_ns=-1)  # writing has cost nothing: the newest is always kept

    assert {7, 20, 30} < set(kept)
    assert kept[-4:] == [46, 47, 48, 49]
    assert len(kept) == window_selection.KEEP


def test_where_writing_is_expensive_only_slower_windows_are_still_written(clock: Any) -> None:
    selection = WindowSelection()
    kept = keep_of(selection, [100.0] * 20 + [300.0] + [290.0] * 20, writing_ns=10**12)

    assert 20 in kept
    assert max(kept) == 20
    assert selection.dropped == 8 + 20
    assert "29 windows were not kept" in (selection.sentence or "")


def test_a_run_that_becomes_slower_and_slower_does_not_write_every_window(clock: Any) -> None:
    selection = WindowSelection()
    keep_of(selection, [100.0 + index for index in range(1000)], writing_ns=10**12)

    assert len(selection.kept) + selection.removed < 80


def test_a_window_of_a_trigger_stays_and_a_schedule_that_says_how_many_is_believed(clock: Any) -> None:
    selection = WindowSelection(keep=40)
    assert selection.add(window(0, 1.0, "trigger: file"), 0)

    assert keep_of(selection, [100.0] * 40) == [0, *range(40)]
    assert selection.sentence is None


def test_files_above_the_limit_leave_only_the_newest_window(clock: Any) -> None:
    assert keep_of(WindowSelection(), [100.0] * 5, size=window_selection.MAX_BYTES + 1) == [4]


def test_windows_that_could_not_be_written_go_first(clock: Any) -> None:
    selection = WindowSelection(keep=3)
    for index in range(4):
        selection.add(window(index, 100.0), -1)

    assert selection.take_surplus(0, lambda index: index == 1) == window(1, 100.0)


def test_lines_come_after_the_first_window_a_change_a_slow_one_and_a_trigger_and_not_for_ever() -> None:
    state = 0
    due = LinesDue(lambda: state)

    assert [due.after(window(index, 100.0)) for index in range(3)] == [True, False, False]
    assert due.after(window(3, 250.0))
    assert not due.after(window(4, 250.0))
    assert due.after(window(5, 100.0, "trigger: file"))
    state = 1
    assert due.after(window(6, 100.0))
    for state in range(2, 100):
        due.after(window(state, 100.0))
    assert due._count == MAX_STEPS


# -- a whole run


def record(folder: Path, steps: int, **options: Any) -> RankFolder:
    with perfkit.profile(folder, quiet=True, **{"schedule": ENDLESS, **options}) as prof:
        prof.diagnoses = False
        for _ in range(steps):
            torch.ones(2).sum()
            prof.step()
    return read_run(folder).ranks[0]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often torch's profiler was started, and exported a trace."""
    counts = {"starts": 0, "exports": 0}
    start, export = torch.profiler.profile.start, torch_profiler.export

    def start_(*arguments: Any, **more: Any) -> Any:
        counts["starts"] += 1
        return start(*arguments, **more)

    def export_(*arguments: Any, **more: Any) -> Any:
        counts["exports"] += 1
        return export(*arguments, **more)

    monkeypatch.setattr(torch.profiler.profile, "start", start_)
    monkeypatch.setattr(torch_profiler, "export", export_)
    return counts


def test_a_cycle_starts_torchs_profiler_once_and_only_kept_windows_are_exported(
    tmp_path: Path, counted: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_selection, "_WRITING_SHARE", 0.0)
    monkeypatch.setattr(window_selection, "_SLOWER", 1e9)
    monkeypatch.setattr(window_controller, "PATIENCE_S", 60.0)
    monkeypatch.setattr("perfkit.record.windows.lines_due._SLOWER", 1e9)
    rank = record(tmp_path / "x", 400, schedule=perfkit.schedule(wait=6, warmup=1, active=1))

    assert rank.rank is not None
    cycles = 400 // 8
    # The step for lines is one more start, and one more export.
    assert counted["starts"] == cycles + 1
    assert counted["exports"] == window_selection.KEEP + 1
    assert len(rank.windows) == len(rank.rank.windows) == window_selection.KEEP
    assert f"{cycles - window_selection.KEEP} windows were not kept" in " ".join(rank.rank.notes)
    assert not rank.rank.errors


def test_a_window_writes_little_more_than_its_own_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_due, "_SLOWER", math.inf)  # steps of some microseconds take twice as long at times
    rank = record(tmp_path / "x", 120, schedule=perfkit.schedule(wait=6, warmup=1, active=1, repeat=12))

    traces = sum(path.stat().st_size for path in rank.windows)
    other = sum(path.stat().st_size for path in rank.folder.rglob("*") if path.is_file()) - traces
    few = record(tmp_path / "y", 120, schedule=perfkit.schedule(wait=6, warmup=1, active=1, repeat=2))
    before = sum(path.stat().st_size for path in few.folder.rglob("*") if path.is_file())
    before -= sum(path.stat().st_size for path in few.windows)
    # Ten more windows: a row each in rank.json, and no files but their traces.
    assert (other - before) / 10 < 1_000


def test_a_disk_slower_than_the_windows_loses_windows_and_not_the_trainings_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_controller, "PATIENCE_S", 0.05)
    export, running, most = torch_profiler.export, [0], [0]
    slow = threading.Event()

    def export_(*arguments: Any, **more: Any) -> Any:
        running[0] += 1
        most[0] = max(most[0], running[0])
        slow.wait(30)
        running[0] -= 1
        return export(*arguments, **more)

    monkeypatch.setattr(torch_profiler, "export", export_)
    waited_s = 0.0
    with perfkit.profile(tmp_path / "x", schedule=ENDLESS, quiet=True) as prof:
        prof.diagnoses = False
        for _ in range(100):
            torch.ones(2).sum()
            began = time.perf_counter()
            prof.step()
            waited_s += time.perf_counter() - began
        slow.set()

    rank = read_run(tmp_path / "x").ranks[0]
    assert rank.rank is not None
    assert waited_s < 10  # the first export alone would take 30
    assert most[0] == 1
    assert len(rank.windows) == 1
    assert "windows were not recorded: the one before was still being written" in " ".join(rank.rank.notes)
    assert rank.rank.steps == 100


def test_a_disk_that_becomes_full_loses_windows_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*anything: Any, **more: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch_profiler, "export", full)
    rank = record(tmp_path / "x", 60)

    assert rank.rank is not None
    assert rank.windows == ()
    assert 0 < len(rank.rank.windows) <= window_selection.KEEP
    assert all("No space left" in (one.problem or "") for one in rank.rank.windows)
    assert capsys.readouterr().err.count("No space left") == 1
    assert rank.rank.steps == 60


def test_a_schedule_that_records_every_step_has_windows_of_bounded_length_and_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_controller, "MAX_STEPS", 20)
    action = torch.profiler.ProfilerAction
    for_ever = record(tmp_path / "x", 80, schedule=lambda step: action.RECORD)
    each = record(tmp_path / "y", 80, schedule=lambda step: action.RECORD_AND_SAVE)

    assert for_ever.rank is not None
    assert each.rank is not None
    ((first, last, problem),) = [(one.first_step, one.last_step, one.problem) for one in for_ever.rank.windows]
    assert last - first + 1 == 20
    assert problem == "ended after 20 steps: the schedule did not end it"
    assert len(for_ever.windows) == 1
    assert 0 < len(each.windows) <= window_selection.KEEP
    assert (for_ever.rank.errors, each.rank.errors) == ((), ())


def test_a_callable_schedule_is_asked_once_per_step_and_adds_no_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    pauses = []
    pause = StepClock._pause

    def mine(step: int) -> Any:
        asked.append(step)
        return torch.profiler.ProfilerAction.NONE

    def counted(clock: Any, began: int) -> None:
        pauses.append(began)
        pause(clock, began)

    monkeypatch.setattr(StepClock, "_pause", counted)
    record(tmp_path / "x", 2000, schedule=mine)
    with_mine = len(pauses)
    record(tmp_path / "y", 2000, schedule=torch.profiler.schedule(wait=10**6, warmup=1, active=1))

    assert asked == list(range(2001))
    # How many there are depends on how fast the machine is: one per 20 ms, and one per 250 steps.
    assert with_mine <= 3 * (len(pauses) - with_mine) + 20
    assert with_mine < 500


@pytest.mark.parametrize("answer", ["RECORD", None, 1, [], torch.zeros(3), ValueError("mine")], ids=repr)
def test_a_callable_schedule_that_raises_or_returns_nonsense_ends_the_windows_and_not_the_training(
    tmp_path: Path, answer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    action = torch.profiler.ProfilerAction

    def mine(step: int) -> Any:
        if step < 5:
            return action.RECORD if step == 4 else action.NONE
        if isinstance(answer, Exception):
            raise answer
        return answer

    rank = record(tmp_path / "x", 20, schedule=mine)

    assert rank.rank is not None
    assert rank.rank.steps == 20
    ((error),) = rank.rank.errors
    assert error.startswith("calling the schedule: ")
    assert "ValueError: mine" in error or "schedule(5) must return a torch.profiler.ProfilerAction, got" in error
    assert [(one.first_step, one.last_step) for one in rank.rank.windows] == [(4, 4)]
    assert not torch_profiler.running()
    assert capsys.readouterr().err.count("calling the schedule") == 1


class Slow(WindowRecorder):
    """Is never done with its first window."""

    name = "slow"

    def __init__(self) -> None:
        self.opened: list[int] = []
        self.done = True

    def open(self, index: int, step: int) -> str | None:
        self.opened.append(step)
        return None

    def write(self, index: int) -> None:
        self.done = False

    def wait(self, timeout_s: float | None = None) -> bool:
        return self.done


def test_a_cycle_that_begins_while_the_window_before_is_written_is_left_out_as_a_whole() -> None:
    slow = Slow()
    windows = WindowController(
        perfkit.schedule(wait=1, warmup=1, active=2).action,
        [slow],
        trouble=lambda what, error: pytest.fail(f"{what}: {error}"),
        on_change=lambda inside: None,
    )
    kinds = []
    for step in range(16):
        slow.done = slow.done or step == 7  # in the middle of the second cycle
        windows.advance(step)
        kinds.append(windows.kind)

    assert slow.opened == [1, 9]
    assert set(kinds[4:9]) <= {"timed", "lines"}
    assert windows.selection.skipped == 2
    assert json.dumps(windows.selection.sentence).count("2 windows were not recorded")
