"""What opens a window outside the schedule: each trigger in a real torch loop, with a clock that the test moves."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader

import perfkit
from perfkit.run.reading import RankFolder, read_run
from perfkit.run.records import Failure, Window
from perfkit.trace import read_trace

NEVER = perfkit.schedule(wait=10**6, warmup=0, active=1)
BEFORE = perfkit.schedule(wait=2, warmup=1, active=2, repeat=1)


class Loop:
    """A loop of real training steps, each of which takes 100 ms on the clock of the test, or what `ms` says."""

    def __init__(self, folder: Path, clock: Any, **options: Any) -> None:
        self.folder = folder
        self.clock = clock
        self.profile = perfkit.profile(folder, quiet=True, **{"schedule": NEVER, **options})
        self.ms: dict[int, float] = {}
        self.at: dict[int, Callable[[], Any]] = {}

    def run(self, steps: int) -> Loop:
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with self.profile as prof:
            for number in prof.steps(range(steps)):
                model(torch.ones(4, 8)).pow(2).mean().backward()
                optimizer.step()
                self.clock.pass_ms(self.ms.get(number, 100))
                self.at.get(number, lambda: None)()
        return self

    @property
    def rank(self) -> RankFolder:
        return next(iter(read_run(self.folder).ranks.values()))

    @property
    def windows(self) -> tuple[Window, ...]:
        assert self.rank.rank is not None
        return self.rank.rank.windows

    @property
    def notes(self) -> str:
        assert self.rank.rank is not None
        return "\n".join((*self.rank.rank.notes, *self.rank.rank.errors))


def spans(loop: Loop) -> list[tuple[int, int, str | None]]:
    return [(window.first_step, window.last_step, window.reason) for window in loop.windows]


# -- a slow step


def test_the_steps_after_a_slow_one_are_recorded_and_nothing_else(tmp_path: Path, clock: Any) -> None:
    loop = Loop(tmp_path / "x", clock, triggers="slow-step")
    loop.ms = {40: 2000}
    loop.run(60)

    assert spans(loop) == [(42, 44, "trigger: slow step 40 (20.0 x the median)")]
    assert read_trace(loop.rank.windows[0]).steps.number.tolist() == [42, 43, 44]
    assert next(row.step for row in loop.rank.steps if row.kind != "timed") == 41
    assert loop.rank.steps[40].wall_ns == 2_000_000_000


def test_a_healthy_run_opens_none(tmp_path: Path, clock: Any) -> None:
    loop = Loop(tmp_path / "x", clock, triggers=("slow-step", "recompile", "signal", "file", "exception"))
    loop.ms = {number: 60 + 37 * number % 100 for number in range(80)}
    loop.run(80)

    assert spans(loop) == []
    assert not (tmp_path / "x/rank-0/failure.json").exists()
    assert "trigger" not in loop.notes


def test_the_limit_is_kept_and_noted(tmp_path: Path, clock: Any) -> None:
    loop = Loop(tmp_path / "x", clock, triggers=perfkit.triggers("slow-step", limit=2, cooldown_s=0, active=1))
    loop.ms = dict.fromkeys((30, 45, 60, 75), 2000)
    loop.run(90)

    assert [window.first_step for window in loop.windows] == [32, 47]
    assert "the trigger 'slow-step' opened 2 windows, its limit" in loop.notes


def test_after_any_window_none_opens_by_itself_for_a_while(tmp_path: Path, clock: Any) -> None:
    loop = Loop(tmp_path / "x", clock, schedule=BEFORE, triggers="slow-step")
    loop.ms = dict.fromkeys((60, 200, 250), 5000)  # the window is over within a second, the cooldown is 30
    loop.run(480)

    assert [(first, reason is not None and reason[:22]) for first, _, reason in spans(loop)] == [
        (3, "schedule"),
        (252, "trigger: slow step 250"),
    ]


def test_a_rank_outside_the_schedule_has_its_own_triggers(
    tmp_path: Path, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    loop = Loop(tmp_path / "x", clock, schedule=BEFORE, triggers="slow-step")
    loop.ms = {40: 2000}
    loop.run(60)

    assert loop.rank.index == 3
    assert spans(loop) == [(42, 44, "trigger: slow step 40 (20.0 x the median)")]
    assert "no window was recorded" not in loop.notes


# -- requested


def test_a_signal_opens_one_window_and_reaches_the_programs_own_handler(tmp_path: Path, clock: Any) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: heard.append(number))
    try:
        own = signal.getsignal(signal.SIGUSR2)
        loop = Loop(tmp_path / "x", clock, triggers="signal")
        loop.at = {20: lambda: os.kill(os.getpid(), signal.SIGUSR2)}
        loop.run(30)

        assert signal.getsignal(signal.SIGUSR2) is own
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert heard == [signal.SIGUSR2]
    assert spans(loop) == [(22, 24, "trigger: signal SIGUSR2")]


def test_a_handler_that_the_program_installs_over_ours_stays(tmp_path: Path, clock: Any) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    try:
        loop = Loop(tmp_path / "x", clock, triggers="signal=SIGUSR1")
        loop.at = {3: lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN)}
        loop.run(6)

        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_outside_the_main_thread_a_signal_is_refused_before_anything_begins(tmp_path: Path) -> None:
    told: list[BaseException] = []

    def start() -> None:
        try:
            perfkit.profile(tmp_path / "x", triggers="signal").start()
        except perfkit.UsageError as error:
            told.append(error)

    thread = threading.Thread(target=start, name="trainer")
    thread.start()
    thread.join()

    assert "needs the profile to start in the main thread, not in 'trainer'" in str(told[0])
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("place", ["trigger", "rank-0/trigger"])
def test_a_touched_file_opens_one_window_each_time_by_default(tmp_path: Path, clock: Any, place: str) -> None:
    loop = Loop(tmp_path / "x", clock)
    file = tmp_path / "x" / place
    loop.at = {20: file.touch, 60: lambda: os.utime(file, (1, 1))}
    loop.run(90)

    assert [reason for _, _, reason in spans(loop)] == ["trigger: file"] * 2
    # Looked at once a second, which is ten of these steps.
    assert 20 < loop.windows[0].first_step <= 32
    assert 60 < loop.windows[1].first_step <= 72


def test_a_file_from_before_the_run_opens_none_and_triggers_can_be_off(tmp_path: Path, clock: Any) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x/trigger").touch()
    old = Loop(tmp_path / "x", clock).run(40)
    off = Loop(tmp_path / "y", clock, triggers=())
    off.at = {5: (tmp_path / "y/trigger").touch}
    off.run(40)

    assert spans(old) == spans(off) == []


def test_the_folder_is_checked_once_per_second_and_not_in_every_step(
    tmp_path: Path, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    stat = os.stat

    def counted(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if str(path).endswith("trigger"):
            looked.append(str(path))
        return stat(path, *arguments, **options)

    loop = Loop(tmp_path / "x", clock)
    loop.at = {9: lambda: monkeypatch.setattr(os, "stat", counted), 209: monkeypatch.undo}
    loop.run(220)

    assert 20 <= len(looked) <= 2 * 21  # two files, 20 seconds, in 200 steps; pauses may be 20 steps apart


def test_a_window_requested_inside_another_comes_after_it(tmp_path: Path, clock: Any) -> None:
    loop = Loop(tmp_path / "x", clock, schedule=BEFORE, triggers="signal")
    loop.at = {3: lambda: os.kill(os.getpid(), signal.SIGUSR2)}
    loop.run(30)

    (first, _, why), (second, _, asked) = spans(loop)
    assert (first, why, asked) == (3, "schedule", "trigger: signal SIGUSR2")
    # The step for lines and those recorded once come between, and one ordinary step.
    assert second == max(row.step for row in loop.rank.steps if row.kind in ("lines", "ops") and row.step < second) + 3


def test_a_window_waits_for_the_programs_own_torch_profiler(tmp_path: Path, clock: Any) -> None:
    theirs = torch.profiler.profile()
    loop = Loop(tmp_path / "x", clock, triggers="signal")
    loop.at = {
        10: theirs.start,
        15: lambda: os.kill(os.getpid(), signal.SIGUSR2),
        25: theirs.stop,
    }
    loop.run(60)

    assert [reason for _, _, reason in spans(loop)] == ["trigger: signal SIGUSR2"]
    assert loop.windows[0].first_step > 25
    assert "another torch profiler" not in loop.notes


def test_a_function_that_is_compiled_again_opens_a_window_and_is_named(tmp_path: Path, clock: Any) -> None:
    def scaled(x: torch.Tensor, by: str) -> torch.Tensor:
        return x * len(by)

    torch._dynamo.reset()
    compiled = torch.compile(scaled, backend="eager")
    x = torch.ones(3)
    loop = Loop(tmp_path / "x", clock, triggers="recompile")
    loop.at = {5: lambda: compiled(x, "once"), 20: lambda: compiled(x, "another")}
    loop.run(60)

    ((first, _, reason),) = spans(loop)
    assert 20 < first <= 32
    assert reason is not None
    assert reason.startswith("trigger: scaled was compiled again: ")


# -- failures


def failure(folder: Path) -> Failure:
    return msgspec.json.decode((folder / "rank-0/failure.json").read_bytes(), type=Failure)


def fail_at(loop: Loop, step: int, error: BaseException) -> None:
    def fail() -> None:
        raise error

    loop.at = {step: fail}
    with pytest.raises(type(error)):
        loop.run(30)


def test_an_exception_that_ends_the_run_is_kept_with_its_step_times_and_lines(tmp_path: Path, clock: Any) -> None:
    loop = Loop(tmp_path / "x", clock, triggers="exception")
    fail_at(loop, 7, ValueError("the sample is empty"))

    kept = failure(tmp_path / "x")
    assert (kept.error, kept.step) == ("ValueError: the sample is empty", 7)
    assert [place.function for place in kept.lines][-1] == "fail_at.<locals>.fail"
    assert kept.lines[-1].file == __file__
    assert not kept.out_of_memory
    assert "the run ended in step 7" in loop.notes
    assert loop.rank.steps[-1].step == 7


def test_the_time_of_an_unfinished_step_until_the_error_is_kept(tmp_path: Path, clock: Any) -> None:
    weight = torch.ones(2, requires_grad=True)

    def train() -> None:
        with perfkit.profile(tmp_path / "x", triggers="exception", quiet=True):
            for number, batch in enumerate(DataLoader(torch.ones(9, 2))):  # type: ignore[arg-type]  # a tensor will do
                (weight * batch).sum().backward()
                torch.optim.SGD([weight]).step()
                clock.pass_ms(100)
                if number == 5:
                    raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        train()

    kept = failure(tmp_path / "x")
    assert (kept.step, kept.in_step_ns) == (5, 100_000_000)


def test_the_phase_of_an_exception_is_that_of_torchs_files_in_its_traceback(tmp_path: Path, clock: Any) -> None:
    loop = Loop(tmp_path / "x", clock, triggers="exception")
    loop.at = {4: lambda: torch.ones(2, requires_grad=True).backward()}
    with pytest.raises(RuntimeError, match="grad can be implicitly created"):
        loop.run(10)

    assert failure(tmp_path / "x").phase == "backward"


def test_a_step_that_an_integration_drops_after_the_error_is_still_the_one_that_failed(
    tmp_path: Path, clock: Any
) -> None:
    prof = perfkit.profile(tmp_path / "x", triggers="exception", quiet=True)
    prof.start()
    for _ in range(5):
        torch.ones(2).sum()
        prof.step()
    prof.drop_step()
    prof.stop(ValueError("mine"))

    assert failure(tmp_path / "x").step == 5


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt()])
def test_exiting_on_purpose_is_no_failure(tmp_path: Path, clock: Any, error: BaseException) -> None:
    fail_at(Loop(tmp_path / "x", clock, triggers=("exception", "out-of-memory")), 3, error)

    assert not (tmp_path / "x/rank-0/failure.json").exists()


def test_out_of_memory_errors_are_distinguished_from_others(tmp_path: Path, clock: Any) -> None:
    loop = Loop(tmp_path / "x", clock, triggers="out-of-memory")
    loop.at = {4: lambda: torch.empty(1 << 50)}
    with pytest.raises(RuntimeError):
        loop.run(10)
    fail_at(Loop(tmp_path / "y", clock, triggers="out-of-memory"), 3, ValueError("another"))

    assert failure(tmp_path / "x").out_of_memory
    assert "only some out-of-memory errors are detected: the program does not use CUDA" in loop.notes
    assert not (tmp_path / "y/rank-0/failure.json").exists()
