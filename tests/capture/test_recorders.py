"""What a window records beside torch's trace: the gate for Nsight, the memory snapshot; and how they are driven."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import perfkit
from perfkit import _env
from perfkit.capture import kineto, memory
from perfkit.capture.cuda_profiler import CudaProfilerGate
from perfkit.capture.memory import MemorySnapshot
from perfkit.capture.windows import Recorder, Windows
from perfkit.run.reading import read_run


class Diary(Recorder):
    """Writes down what it is told, and fails where it is told to."""

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


def drive(*recorders: Recorder, steps: int = 12, **schedule: int) -> tuple[Windows, list[str]]:
    told: list[str] = []
    numbers = {"wait": 1, "warmup": 1, "active": 2, "repeat": 2, **schedule}
    windows = Windows(
        perfkit.schedule(**numbers).action,
        recorders,
        trouble=lambda what, error: told.append(f"{what}: {error}"),
        beside=lambda inside: None,
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


def test_windows_that_follow_each_other_without_a_pause_are_two() -> None:
    windows, _ = drive(Diary(), wait=0, warmup=0, active=1, repeat=3)

    assert [(w.first_step, w.last_step) for w in windows.done] == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize("fails", ["open", "activate", "advance", "end"])
def test_a_recorder_that_fails_is_told_once_and_left_out_and_the_others_go_on(fails: str) -> None:
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
    windows = Windows(action, [diary], trouble=lambda what, error: told.append(str(error)), beside=lambda inside: None)
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


def test_the_gate_is_opened_with_the_first_active_step_and_always_closed() -> None:
    gate, cuda = CudaProfilerGate(), FakeCuda()
    gate._cuda = cuda
    drive(gate, steps=3)

    assert cuda.calls == ["start", "stop"]


def test_a_memory_snapshot_is_dumped_once_per_window_and_recording_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    class Memory:
        def _record_memory_history(self, **options: Any) -> None:
            calls.append(options["enabled"])

        def _dump_snapshot(self, path: str) -> None:
            calls.append(Path(path).name)

    monkeypatch.setattr(_env, "cuda_in_use", lambda: True)
    monkeypatch.setattr(memory, "_memory", lambda: Memory())
    snapshot = MemorySnapshot(lambda index: tmp_path / f"memory-{index}.pickle", lambda text: None)
    snapshot._observing = True
    drive(snapshot)

    assert calls == ["all", "memory-0.pickle", None, "all", "memory-1.pickle", None]


def test_without_a_gpu_a_memory_snapshot_is_said_to_be_missing(tmp_path: Path) -> None:
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
    assert "no memory snapshot: there is no CUDA device" in rank.rank.notes[0]
    assert len(rank.windows) == 1


def test_a_window_closed_by_an_early_end_says_so_for_every_recorder() -> None:
    windows, _ = drive(Diary(), steps=3)

    assert [w.problem for w in windows.done] == ["closed early: the run ended inside it"]


def test_a_trace_above_the_limit_is_not_kept_and_the_way_out_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kineto, "MAX_BYTES", 100)
    schedule = perfkit.schedule(wait=1, warmup=0, active=1, repeat=1)
    with perfkit.profile(tmp_path / "x", schedule=schedule, quiet=True) as prof:
        for _ in range(4):
            prof.step()

    assert "record fewer active steps" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "x" / "rank-0").glob("*trace*")] == []
