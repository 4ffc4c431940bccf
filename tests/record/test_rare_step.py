"""The next of a rhythm of long steps is foreseen, and one of them is traced by line, once."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

import perfkit
from perfkit.record.clock.step_sums import ClosedStep
from perfkit.record.windows.rare_step import RareStepForecast, RareStepTracer
from perfkit.run.records import Lines, Phases, Step

MS = 1_000_000


def foreseen(times_ms: list[float], at: int | None = None) -> int:
    """The next step of the rhythm from ``at`` on, after steps of these times that end in several pauses."""
    forecast = RareStepForecast()
    closed = [ClosedStep(n, "train", 0, round(ms * MS), Phases()) for n, ms in enumerate(times_ms)]
    for begin in range(0, len(closed), 7):
        forecast.add(closed[begin : begin + 7])
    return forecast.next_step(len(closed) if at is None else at)


def every(period: int, long_ms: float, count: int) -> list[float]:
    return [long_ms if number % period == 0 and number else 10.0 for number in range(count)]


def test_the_next_long_step_is_foreseen_after_four_of_them_and_after_two_much_longer_ones() -> None:
    assert foreseen(every(16, 40, 64)) == sys.maxsize
    assert foreseen(every(16, 40, 65)) == 80
    assert foreseen(every(16, 400, 33)) == 48
    assert foreseen(every(16, 400, 33), at=70) == 80


def test_two_long_steps_that_are_no_multiples_of_their_distance_foresee_nothing() -> None:
    times = [400.0 if number in (10, 37) else 10.0 for number in range(60)]

    assert foreseen(times) == sys.maxsize


def test_long_steps_at_random_and_those_that_take_little_of_the_time_foresee_nothing() -> None:
    assert foreseen([40.0 if number in (3, 9, 28, 41, 52, 53) else 10.0 for number in range(60)]) == sys.maxsize
    assert foreseen(every(50, 20, 400)) == sys.maxsize


def test_the_longest_steps_are_foreseen_where_others_are_long_at_random() -> None:
    times = every(20, 400, 101)
    for number in (13, 33, 37, 77):
        times[number] = 30.0

    assert foreseen(times) == 120


def test_many_steps_that_are_a_little_long_do_not_hide_the_rhythm_of_the_longest() -> None:
    times = [25.0 if number % 3 else 10.0 for number in range(320)]
    for number in (80, 160, 240):
        times[number] = 2500.0
    times[:40] = [10.0] * 40

    assert foreseen([10.0] * 300 + times) == sys.maxsize  # no multiples of their distance
    assert foreseen([10.0] * 320 + times) == 640
    # Nor does one that took longest of all.
    times[5] = 60_000.0
    times += [25.0 if number % 3 else 10.0 for number in range(240)]
    times[320], times[400], times[480] = 2500.0, 2500.0, 2500.0
    assert foreseen(times) == 560


def test_a_step_of_the_rhythm_that_a_window_took_does_not_end_it() -> None:
    forecast = RareStepForecast()
    for number, ms in enumerate(every(10, 400, 61)):
        if number != 40:
            forecast.add([ClosedStep(number, "train", 0, round(ms * MS), Phases())])

    assert forecast.next_step(61) == 70


def test_steps_that_were_foreseen_and_are_not_long_leave_no_result() -> None:
    tracer = RareStepTracer(lambda: "other")
    closed = [ClosedStep(n, "train", 0, round(ms * MS), Phases()) for n, ms in enumerate(every(10, 400, 31))]
    tracer.add(closed, timed=True)

    for step in (40, 50, 60):
        assert tracer.next_step(step) == step
        assert tracer.advance(step)
        tracer.add([ClosedStep(step, "train", 0, 10 * MS, Phases())], timed=False)
        tracer.close()
        assert tracer.result is None

    assert tracer.next_step(61) == sys.maxsize


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def rows_of(folder: Path) -> list[Step]:
    lines = (folder / "rank-0" / "steps.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Step) for line in lines]


@pytest.mark.parametrize("steps", [120, 45])
def test_one_rare_step_of_a_run_is_traced_by_line(tmp_path: Path, steps: int) -> None:
    policy, scene = Policy(), torch.randn(32, 16)
    optimizer = torch.optim.SGD(policy.parameters())

    def rollout() -> torch.Tensor:
        with torch.no_grad():
            answers = [policy(one.unsqueeze(0)) for one in scene]
        time.sleep(0.15)
        return torch.cat(answers)

    schedule = perfkit.schedule(wait=2, warmup=1, active=1, repeat=1)
    with perfkit.profile(tmp_path / "run", schedule=schedule, quiet=True) as profiler:
        for number in profiler.steps(range(steps)):
            if number % 10 == 9:
                rollout()
            policy(torch.randn(8, 16)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.001)

    lines = msgspec.json.decode((tmp_path / "run" / "rank-0" / "lines.json").read_bytes(), type=Lines)
    assert lines.rare_step is not None
    assert lines.rare_step.step % 10 == 9
    kinds = {row.step: row.kind for row in rows_of(tmp_path / "run")}
    assert kinds[lines.rare_step.step] == "lines"
    [calls] = [
        calls
        for row in lines.rare_step.lines
        for calls in row.modules
        if calls.module == "Policy" and row.function.endswith("rollout")
    ]
    assert (calls.calls, calls.samples, calls.items) == (32, 1, 32)
    assert not any(row.function.endswith("rollout") for row in lines.traced)


def test_without_rare_steps_nothing_more_is_traced(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    schedule = perfkit.schedule(wait=2, warmup=1, active=1, repeat=1)
    with perfkit.profile(tmp_path / "run", schedule=schedule, quiet=True) as profiler:
        for _ in profiler.steps(range(60)):
            model(torch.randn(8, 4)).sum().backward()
            optimizer.step()
            time.sleep(0.002)

    lines = msgspec.json.decode((tmp_path / "run" / "rank-0" / "lines.json").read_bytes(), type=Lines)
    assert lines.rare_step is None


def test_a_traced_step_that_does_what_others_do_not_is_followed_by_another(tmp_path: Path) -> None:
    model, scene = nn.Linear(4, 4), torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters())

    def evaluate() -> None:
        time.sleep(0.2)
        model(scene)

    schedule = perfkit.schedule(wait=2, warmup=1, active=1, repeat=1)
    with perfkit.profile(tmp_path / "run", schedule=schedule, quiet=True) as profiler:
        for number in profiler.steps(range(20)):
            if number == 6:
                evaluate()
            model(scene).sum().backward()
            optimizer.step()
            time.sleep(0.002)

    lines = msgspec.json.decode((tmp_path / "run" / "rank-0" / "lines.json").read_bytes(), type=Lines)
    kinds = {row.step: row.kind for row in rows_of(tmp_path / "run")}
    assert (kinds[6], kinds[7]) == ("lines", "lines")
    assert lines.traced
    assert not any(row.function.endswith("evaluate") for row in lines.traced)
    # What the longer one did is known.
    assert lines.rare_step is not None
    assert (lines.rare_step.step, lines.rare_step.complete) == (6, True)
    assert any(row.function.endswith("evaluate") for row in lines.rare_step.lines)


def test_of_two_traced_steps_that_take_about_as_long_none_is_rare(tmp_path: Path) -> None:
    model, scene = nn.Linear(4, 4), torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters())
    schedule = perfkit.schedule(wait=2, warmup=1, active=1, repeat=1)
    with perfkit.profile(tmp_path / "run", schedule=schedule, quiet=True) as profiler:
        for number in profiler.steps(range(20)):
            model(scene).sum().backward()
            optimizer.step()
            time.sleep(0.2 if number in (6, 7) else 0.002)

    lines = msgspec.json.decode((tmp_path / "run" / "rank-0" / "lines.json").read_bytes(), type=Lines)
    kinds = {row.step: row.kind for row in rows_of(tmp_path / "run")}
    assert (kinds[6], kinds[7]) == ("lines", "lines")
    assert lines.rare_step is None
