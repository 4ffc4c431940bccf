"""python-bound: the user's own Python, with its line."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from perfkit._location import Location
from perfkit.measures.results.device import IdleTime
from perfkit.measures.results.loop import LoopPart, LoopTime
from perfkit.rules.python import python_bound
from perfkit.run.records import LineRow, Lines, ModuleCalls, StepInterval, TracedLine

MS = 1_000_000


def test_python_in_the_step_is_found_at_its_line(build: Any) -> None:
    [finding] = build.findings(python_bound, build.step(20, forward=20), build.work("python", 8))

    assert (finding.spent.file, finding.spent.line, finding.spent.function) == ("train.py", 12, "prepare")
    assert finding.severity == "critical"
    assert "8.0 ms of the 20.0 ms step (40%)" in finding.message


def test_the_saving_allows_for_the_error_of_sampling(build: Any) -> None:
    [few] = build.findings(python_bound, build.step(20), build.work("python", 8, samples=16))
    [many] = build.findings(python_bound, build.step(20), build.work("python", 8, samples=1600))

    assert few.cost_ns == many.cost_ns == 8 * MS
    assert few.saving_high_ns == round(8 * (1 + math.hypot(1 / 4, 0.25, 0.15)) * MS)
    assert many.saving_high_ns == round(8 * (1 + math.hypot(1 / 40, 0.25, 0.15)) * MS)
    assert many.saving_low_ns == round(6.8 * MS)


@pytest.mark.parametrize(
    ("samples", "total", "shown"),
    [(10, 1000, True), (9, 1000, False), (9, 40, True), (4, 12, True), (4, 20, False), (3, 3, False)],
)
def test_few_samples_are_enough_where_they_are_certainly_a_tenth(
    build: Any, samples: int, total: int, shown: bool
) -> None:
    found = build.findings(python_bound, build.step(20), build.work("python", 8, samples=samples, total=total))

    assert bool(found) == shown


def test_the_saving_of_few_samples_is_wide_to_both_sides(build: Any) -> None:
    [finding] = build.findings(python_bound, build.step(20), build.work("python", 8, samples=4, total=10))

    assert finding.saving_low_ns == round(6.8 * (1 - 1 / 2) * MS)
    assert finding.saving_high_ns == round(8 * (1 + math.hypot(1 / 2, 0.25, 0.15)) * MS)


def idle_once_per_step(build: Any, *, ns: int = 40 * MS, gaps: int = 10, late_gaps: int = 10, **fields: Any) -> Any:
    """A device that is idle for a part of 100 ms, in ten steps, while the host is in Python."""
    at = Location(file="train.py", line=24, function="free_memory", owner="user")
    idle = IdleTime(**{"cause": "python", "ns": 10 * ns, "gaps": gaps, "at": at, **fields})
    device = build.device(1000, compute=600, causes={"python": 10 * ns / MS}, late_gaps=late_gaps)
    return msgspec.structs.replace(device, idle=(idle,))


def test_a_device_that_is_idle_once_per_step_waits_for_the_function_that_runs(build: Any) -> None:
    [finding] = build.findings(python_bound, build.traced_step(100), idle_once_per_step(build))

    assert (finding.cost_ns, finding.saving_low_ns, finding.saving_high_ns) == (40 * MS, 0, 40 * MS)
    assert finding.spent.line == 24
    assert "waits 40.0 ms of the 100 ms step (40%) while the host is in Python, in free_memory, and" in finding.message


def test_samples_of_a_run_stand_before_the_frames_of_a_trace(build: Any) -> None:
    lines = Lines(period_ns=MS, steps=40, rows=())

    assert build.findings(python_bound, build.traced_step(100), idle_once_per_step(build), lines) == []


@pytest.mark.parametrize(
    "other",
    [
        {"gaps": 3},
        {"late_gaps": 500},
        {"cause": "operators"},
        {"at": None},
        {"ns": 4 * MS},
    ],
    ids=["in few of the steps", "a habit of launching late", "not in Python", "of no line", "a short wait"],
)
def test_other_idle_time_of_a_device_is_not_python(build: Any, other: dict[str, Any]) -> None:
    assert build.findings(python_bound, build.traced_step(100), idle_once_per_step(build, **other)) == []


def test_noise_of_other_programs_in_the_mean_step_is_removed(build: Any) -> None:
    [finding] = build.findings(python_bound, build.step(20), build.mean_step(40), build.work("python", 8))

    assert finding.cost_ns == 4 * MS


def test_little_python_few_samples_and_other_work_are_not_reported(build: Any) -> None:
    step = build.step(20, forward=20)

    assert not build.findings(python_bound, step, build.work("python", 0.9))
    assert not build.findings(python_bound, step, build.work("python", 8, samples=9))
    assert not build.findings(python_bound, step, build.work("logging", 8))
    assert not build.findings(python_bound, step)
    assert not build.findings(python_bound, build.work("python", 8))


def test_the_python_of_a_rollout_that_training_reads_is_information(build: Any) -> None:
    at = Location(file="train.py", line=12, function="prepare")
    typical = LoopPart(use="typical", total_ns=800 * MS, steps=40)

    def severity(for_training: bool) -> str:
        rollout = LoopPart(use="rare", total_ns=400 * MS, steps=4, every=10, called=at, for_training=for_training)
        loop = LoopTime(total_ns=1200 * MS, steps=40, typical_ns=20 * MS, parts=(typical, rollout))
        [finding] = build.findings(python_bound, build.step(20), build.work("python", 8), loop)
        return str(finding.severity)

    assert (severity(True), severity(False)) == ("info", "critical")


def place(line: int, function: str) -> Location:
    return Location(file="train.py", line=line, function=function)


def sampled(line: int, function: str, phase: Any, called_from: Location | None) -> LineRow:
    return LineRow(
        file="train.py",
        line=line,
        function=function,
        owner="user",
        phase=phase,
        samples=50,
        host_ns=MS,
        called_from=called_from,
    )


def test_python_below_a_function_is_changed_where_the_training_loop_calls_that_function(build: Any) -> None:
    rows = (
        sampled(80, "main", "backward", place(99, "<module>")),
        sampled(12, "prepare", "other", place(30, "errors")),
        sampled(30, "errors", "other", place(85, "main")),
    )
    lines = Lines(period_ns=10 * MS, steps=50, rows=rows)

    def change(called_from: Location, **fields: Any) -> Location | None:
        [finding] = build.findings(
            python_bound, build.step(20), build.work("python", 8, called_from=called_from, **fields), lines
        )
        found: Location | None = finding.change
        return found

    assert change(place(30, "errors")) == place(85, "main")
    assert change(place(30, "errors"), before_model=True) is None
    assert change(place(50, "Net.forward")) is None
    assert change(place(99, "<module>"), function="main") is None


def test_a_loop_over_many_elements_is_changed_itself_and_not_the_call_of_its_function(build: Any) -> None:
    def traced(line: int, runs: int, loop_line: int | None) -> TracedLine:
        return TracedLine(
            file="train.py",
            line=line,
            function="prepare",
            owner="user",
            phase="other",
            runs=runs,
            host_ns=MS,
            loop_line=loop_line,
        )

    rows = (
        sampled(80, "main", "backward", place(99, "<module>")),
        sampled(12, "prepare", "other", place(85, "main")),
    )

    def change(runs: int, *intervals: StepInterval) -> Location | None:
        lines = Lines(
            period_ns=10 * MS,
            steps=50,
            rows=rows,
            traced=(traced(10, 2, None), traced(12, runs, 11)),
            intervals=intervals,
        )
        work = build.work("python", 8, called_from=place(85, "main"))
        [finding] = build.findings(python_bound, build.step(20), work, lines)
        found: Location | None = finding.change
        return found

    assert change(runs=4) == place(85, "main")
    assert change(runs=64) is None
    # The program says how often it is called.
    every = StepInterval(file="train.py", line=85, function="main", owner="user", set_at=place(70, "main"))
    assert change(64, every) == change(4, every) == place(70, "main")


@pytest.mark.parametrize(
    ("loop_line", "builds_graph", "severity"),
    [(20, False, "info"), (20, True, "critical"), (None, False, "critical")],
    ids=["a rollout", "a forward", "no loop"],
)
def test_the_python_of_a_simulator_in_a_loop_that_asks_a_model_is_information(
    build: Any, loop_line: int | None, builds_graph: bool, severity: str
) -> None:
    def traced(line: int, function: str, loop: int | None, *callers: int, **fields: Any) -> TracedLine:
        return TracedLine(
            file="train.py",
            line=line,
            function=function,
            owner="user",
            phase="other",
            runs=9,
            host_ns=MS,
            loop_line=loop,
            callers=tuple(Location(file="train.py", line=one, function="rollout") for one in callers),
            **fields,
        )

    model = ModuleCalls(module="Agent", calls=9, host_ns=MS, builds_graph=builds_graph)
    update = ModuleCalls(module="Agent", calls=1, host_ns=MS, builds_graph=True)
    lines = Lines(
        period_ns=MS,
        steps=40,
        traced=(
            traced(12, "prepare", None, 22),
            traced(21, "rollout", loop_line, 40, modules=(model,)),
            traced(22, "rollout", loop_line, 40),
            # The loop over all updates is around it, in the same function.
            traced(30, "rollout", 10, 40, modules=(update,)),
        ),
    )

    [finding] = build.findings(python_bound, build.step(20, forward=20), build.work("python", 8), lines)

    assert finding.severity == severity
