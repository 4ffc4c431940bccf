"""What a window records next to torch's trace (Nsight's capture range, memory snapshots), and how it is driven."""

from __future__ import annotations

import gzip
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import perfkit
from perfkit import _env
from perfkit.record.windows import kineto, memory_snapshot, torch_profiler
from perfkit.record.windows.cuda_profiler import CudaProfilerRecorder
from perfkit.record.windows.memory_snapshot import MemoryRecorder, OutOfMemoryWatch
from perfkit.record.windows.window_controller import WindowController, WindowRecorder
from perfkit.run.reading import read_run

ONCE = perfkit.schedule(wait=1, warmup=0, active=1, repeat=1)


class Diary(WindowRecorder):
    """Lists its calls, and fails in the one that it is given."""

    def __init__(self, name: str = "diary", fails: str = "") -> None:
        self.name = name
        self.fails = fails
        self.days: list[str] = []

    def _write(self, what: str) -> None:
        self.days.append(what)
        if what.split()[0] == self.fails:
            raise RuntimeError(f"{what} failed")

    def open(self, index: int, step: int) -> str | None:
        self._write(f"open {index} at {step}")
        return None

    def activate(self, index: int) -> None:
        self._write("activate")

    def advance(self) -> None:
        self._write("advance")

    def end(self, index: int, *, early: bool) -> None:
        self._write("end early" if early else "end")


def drive(*recorders: WindowRecorder, steps: int = 12, **schedule: int) -> tuple[WindowController, list[str]]:
    told: list[str] = []
    numbers = {"wait": 1, "warmup": 1, "active": 2, "repeat": 2, **schedule}
    windows = WindowController(
        perfkit.schedule(**numbers).action,
        recorders,
        trouble=lambda what, error: told.append(f"{what}: {error}"),
        on_change=lambda inside: None,
    )
    for step in range(steps):
        windows.advance(step)
    windows.close(steps - 1)
    return windows, told


def test_a_recorder_is_opened_activated_advanced_and_ended_by_the_schedule() -> None:
    diary = Diary()
    windows, _ = drive(diary)

    once = ["activate", "advance", "end"]
    assert diary.days == ["open 0 at 1", "advance", *once, "open 1 at 5", "advance", *once]
    assert [(w.first_step, w.last_step, w.complete) for w in windows.done] == [(2, 3, True), (6, 7, True)]


def test_without_warm_up_a_window_is_active_at_once() -> None:
    diary = Diary()
    drive(diary, warmup=0, active=1, repeat=1)

    assert diary.days == ["open 0 at 1", "activate", "end"]


def test_windows_that_would_follow_each_other_at_once_have_a_step_between_them() -> None:
    windows, _ = drive(Diary(), wait=0, warmup=0, active=1, repeat=3)

    assert [(w.first_step, w.last_step) for w in windows.done] == [(0, 0), (2, 2)]


@pytest.mark.parametrize("fails", ["open", "activate", "advance", "end"])
def test_a_recorder_that_fails_is_reported_once_and_dropped_and_the_others_continue(fails: str) -> None:
    broken, sound = Diary("broken", fails), Diary("sound")
    windows, told = drive(broken, sound)

    assert len(told) == 1
    assert "broken" in told[0]
    assert sound.days.count("end") == 2
    assert len(windows.done) == 2
    assert not windows.refused


def test_a_schedule_that_raises_ends_the_windows_and_not_the_training() -> None:
    told: list[str] = []

    def action(step: int) -> Any:
        if step == 3:
            raise ValueError("my schedule")
        return "record"

    diary = Diary()
    windows = WindowController(
        action, [diary], trouble=lambda what, error: told.append(str(error)), on_change=lambda inside: None
    )
    for step in range(6):
        windows.advance(step)

    assert told == ["my schedule"]
    assert diary.days[-1] == "end early"
    assert windows.refused


class FakeCuda:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def cudaProfilerStart(self) -> None:
        self.calls.append("start")

    def cudaProfilerStop(self) -> None:
        self.calls.append("stop")


def test_the_capture_range_is_opened_with_the_first_active_step_and_always_closed() -> None:
    gate, cuda = CudaProfilerRecorder(), FakeCuda()
    gate._cudart = cuda
    drive(gate, steps=3)

    assert cuda.calls == ["start", "stop"]


class FakeAllocator:
    """Stands in for torch's history of device memory: lists its calls."""

    def __init__(self, fails: str = "", recording: bool = False) -> None:
        self.calls: list[str] = []
        self.fails = fails
        self.somebody_records = recording
        self.observer: Any = None

    def _call(self, what: str) -> None:
        self.calls.append(what)
        if what.split()[0] == self.fails:
            raise RuntimeError(f"no {what}")

    def problem(self) -> str | None:
        return None

    def recording(self) -> bool:
        return self.somebody_records

    def record(self, on: bool) -> None:
        self._call("record" if on else "off")

    def dump(self, path: Path) -> None:
        self._call(f"dump {path.name}")

    def observe(self, observer: Any) -> bool:
        self.observer = observer
        return True


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> FakeAllocator:
    fake = FakeAllocator()
    monkeypatch.setattr(_env, "cuda_in_use", lambda: True)
    monkeypatch.setattr(memory_snapshot, "_Allocator", lambda: fake)
    monkeypatch.setattr(memory_snapshot, "_observing", False)
    return fake


def snapshot_of(folder: Path, notes: list[str] | None = None) -> MemoryRecorder:
    return MemoryRecorder(lambda index: folder / f"memory-{index}.pickle", (notes if notes is not None else []).append)


def test_a_memory_snapshot_is_written_once_per_window_and_recording_is_switched_off(
    tmp_path: Path, allocator: FakeAllocator
) -> None:
    drive(snapshot_of(tmp_path))

    assert allocator.calls == ["record", "dump memory-0.pickle", "off", "record", "dump memory-1.pickle", "off"]


@pytest.mark.parametrize("fails", ["record", "dump"])
def test_a_memory_history_that_fails_is_switched_off_and_reported_once(
    tmp_path: Path, allocator: FakeAllocator, fails: str
) -> None:
    allocator.fails = fails
    _, told = drive(snapshot_of(tmp_path))

    assert allocator.calls[-1] == "off"
    assert len(told) == 1
    assert f"no {fails}" in told[0]


def test_the_programs_own_memory_history_continues(tmp_path: Path, allocator: FakeAllocator) -> None:
    allocator.somebody_records = True
    notes: list[str] = []
    drive(snapshot_of(tmp_path, notes))

    assert allocator.calls == []
    assert notes[0] == "no memory snapshot: the program records the memory history itself"


def test_an_out_of_memory_error_inside_a_window_leaves_a_snapshot_of_its_own(
    tmp_path: Path, allocator: FakeAllocator
) -> None:
    snapshot = snapshot_of(tmp_path)
    snapshot.activate(3)
    allocator.observer(0, 2**30, 0, 0)
    snapshot.end(3, early=True)
    allocator.observer(0, 2**30, 0, 0)  # outside of a window: nothing to dump

    assert allocator.calls == ["record", "dump memory-3.oom.pickle", "dump memory-3.pickle", "off"]


def test_the_first_out_of_memory_error_of_a_run_leaves_the_allocators_state_and_each_is_counted(
    tmp_path: Path, allocator: FakeAllocator
) -> None:
    watch, snapshot = OutOfMemoryWatch(tmp_path / "memory-oom.pickle"), snapshot_of(tmp_path)
    assert watch.attach() is None
    snapshot.activate(0)
    allocator.observer(0, 2**30, 0, 0)
    allocator.observer(0, 2**30, 0, 0)
    watch.detach()
    snapshot.end(0, early=False)
    allocator.observer(0, 2**30, 0, 0)

    dumped = [call.removeprefix("dump ") for call in allocator.calls if call.startswith("dump")]
    assert dumped == ["memory-oom.pickle", "memory-0.oom.pickle", "memory-0.oom.pickle", "memory-0.pickle"]
    assert watch.count == 2


def test_an_observer_that_fails_does_not_replace_the_programs_own_error(
    tmp_path: Path, allocator: FakeAllocator
) -> None:
    snapshot = snapshot_of(tmp_path)
    snapshot.activate(0)
    allocator.fails = "dump"
    allocator.observer(0, 2**30, 0, 0)

    assert allocator.calls[-1] == "dump memory-0.oom.pickle"


def test_torchs_private_functions_for_device_memory_exist() -> None:
    # What a torch without CUDA lacks is what the observer and the question need; both have a way out.
    assert memory_snapshot._Allocator().problem() is None
    if torch.cuda.is_available() or not torch.backends.cuda.is_built():  # a build for CUDA asks the device
        assert memory_snapshot._Allocator().recording() is False


def test_without_a_gpu_a_note_explains_the_missing_memory_snapshot(tmp_path: Path) -> None:
    with perfkit.profile(
        tmp_path / "x",
        schedule=perfkit.schedule(wait=1, warmup=0, active=1, repeat=1),
        recorders=("kineto", "memory", "cuda_profiler"),
        quiet=True,
    ) as prof:
        for _ in range(4):
            prof.step()

    rank = read_run(tmp_path / "x").ranks[0]
    assert rank.rank is not None
    assert "no memory snapshot: the program does not use CUDA" in rank.rank.notes[0]
    assert len(rank.windows) == 1


class Follower(Diary):
    """Uses the step after a window too."""

    def begin_extra(self, index: int, step: int) -> bool:
        self._write(f"extra {index} at {step}")
        return True

    def end_extra(self, index: int, *, whole: bool) -> None:
        self._write("followed" if whole else "abandoned")


def test_a_step_after_a_window_is_offered_once_after_a_pause_and_both_belong_to_that_window() -> None:
    follower, told, seen = Follower(), [], []
    windows = WindowController(
        perfkit.schedule(wait=2, warmup=0, active=1, repeat=2).action,
        [follower],
        trouble=lambda what, error: told.append(what),
        on_change=lambda inside: None,
    )
    for step in range(8):
        windows.advance(step)
        seen.append((windows.index, windows.kind))
    windows.close(7)

    after = [(0, "lines"), (0, "lines")]
    assert seen == [(None, "timed"), (None, "timed"), (0, "window"), *after, (1, "window"), *[(1, "lines")] * 2]
    window = ["activate", "end"]
    assert follower.days == [
        *("open 0 at 2", *window, "extra 0 at 4", "followed"),
        *("open 1 at 5", *window, "extra 1 at 7", "abandoned"),  # the run ended when it had only begun
    ]
    assert told == []
    assert windows.index is None


def test_no_recorder_begins_to_record_where_another_window_has_just_ended() -> None:
    # Between two steps an optimizer's record_function may be open, which torch then ends in the wrong profiler.
    diary, told = Diary(), []
    windows = WindowController(
        perfkit.schedule(wait=0, warmup=0, active=2, repeat=2).action,
        [diary],
        trouble=lambda what, error: told.append(what),
        on_change=lambda inside: None,
    )
    for step in range(5):
        windows.advance(step)
    windows.close(4)

    assert [(window.first_step, window.last_step) for window in windows.done] == [(0, 1), (3, 3)]
    assert told == []


@pytest.mark.slow
def test_a_loop_whose_steps_end_inside_the_optimizer_survives_many_windows(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import sys, torch, perfkit\n"
        "weight = torch.ones(4, requires_grad=True)\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "many = perfkit.schedule(wait=3, warmup=1, active=2, repeat=12)\n"
        "with perfkit.profile('x', schedule=many, quiet=True):\n"
        "    for _ in range(90):\n"
        "        rows = [[i % 7 for i in range(12)] for _ in range(300)]\n"
        "        optimizer.zero_grad()\n"
        "        (weight * torch.tensor(rows).float().mean()).sum().backward()\n"
        "        optimizer.step()\n"
    )
    for _ in range(4):
        done = subprocess.run([sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done.returncode, done.stderr)


@pytest.mark.parametrize("fails", ["extra", "followed"])
def test_a_failing_step_after_a_window_loses_no_later_window(fails: str) -> None:
    follower = Follower(fails=fails)
    windows, told = drive(follower)

    assert len(told) == 1
    assert "the extra step of diary after a window" in told[0]
    assert "abandoned" in follower.days
    assert len(windows.done) == 2
    assert sum(day.startswith("extra") for day in follower.days) == 1


def test_a_recorder_that_fails_to_open_is_switched_off() -> None:
    broken = Diary(fails="open")
    drive(broken, Diary())

    assert broken.days == ["open 0 at 1", "end early"]


@pytest.mark.parametrize("method", ["start", "step", "stop"])
@pytest.mark.parametrize("error", [RuntimeError("torch's own"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_no_torch_profiler_stays_on_when_one_of_its_methods_fails(
    tmp_path: Path, method: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(torch.profiler.profile, method)

    def broken(profiler: Any) -> None:
        if method == "start":
            real(profiler)  # on already when it fails
        raise error

    monkeypatch.setattr(torch.profiler.profile, method, broken)
    schedule = perfkit.schedule(wait=1, warmup=0, active=2, repeat=1)
    expected = pytest.raises(KeyboardInterrupt) if isinstance(error, KeyboardInterrupt) else nullcontext()
    with expected, perfkit.profile(tmp_path / "x", schedule=schedule, quiet=True) as prof:
        for _ in prof.steps(range(6)):
            torch.ones(2).sum()
    monkeypatch.undo()

    assert not torch_profiler.running()
    with torch.profiler.profile() as theirs:
        torch.ones(2).sum()
    assert theirs.key_averages()


def test_a_full_disk_loses_the_window_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*anything: Any, **more: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gzip, "open", full)
    with perfkit.profile(tmp_path / "x", schedule=ONCE, quiet=True) as prof:
        for _ in prof.steps(range(6)):
            torch.ones(2).sum()

    rank = read_run(tmp_path / "x").ranks[0]
    assert rank.rank is not None
    assert not rank.rank.windows[0].complete
    assert "No space left" in (rank.rank.windows[0].problem or "")
    assert list((tmp_path / "x").rglob("*.part*")) == []
    assert capsys.readouterr().err.count("a window's trace: window-0.pt.trace.json.gz: OSError: [Errno 28]") == 1
    assert not torch_profiler.running()


def test_a_window_closed_by_an_early_end_has_that_problem_for_every_recorder() -> None:
    windows, _ = drive(Diary(), steps=3)

    assert [w.problem for w in windows.done] == ["closed early: the run ended inside it"]


def test_a_trace_above_the_limit_is_not_kept_and_the_problem_has_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kineto, "MAX_BYTES", 100)
    schedule = perfkit.schedule(wait=1, warmup=0, active=1, repeat=1)
    with perfkit.profile(tmp_path / "x", schedule=schedule, quiet=True) as prof:
        for _ in range(4):
            prof.step()

    assert "record fewer active steps" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "x" / "rank-0").glob("*trace*")] == []
