"""Processor time of steps, and waiting for a core."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from perfkit.record.watchers import processor_time
from perfkit.record.watchers.own_cost import OwnCost, OwnTime
from perfkit.record.watchers.processor_time import ProcessorTime

_TWO_BUSY_PROCESSES = """
import os, sys, time
from perfkit.record.watchers.processor_time import ProcessorTime

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
other = os.fork()
if not other:
    while True:
        pass
watch = ProcessorTime()
begin = time.perf_counter_ns()
watch.read(0, timed=True)
while time.perf_counter_ns() - begin < 1e9:
    pass
watch.read(10, timed=True)
wall = time.perf_counter_ns() - begin
os.kill(other, 9)
facts = watch.facts
print(facts["core_wait_share"], 10 * facts["thread_ns_per_step"] / wall)
"""


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, tuple[int, int] | None]]:
    """(clock, processor time of the process, (thread ran, thread waited)) of the next readings."""
    values: list[tuple[int, int, tuple[int, int] | None]] = []
    monkeypatch.setattr(processor_time.time, "perf_counter_ns", lambda: values[0][0])
    monkeypatch.setattr(processor_time.time, "process_time_ns", lambda: values[0][1])

    def thread_times() -> Any:
        thread = values.pop(0)[2]
        return processor_time._Thread(*thread) if thread is not None else None

    monkeypatch.setattr(processor_time, "_thread_times", thread_times)
    return values


def test_times_are_those_of_ordinary_steps(readings: list[Any]) -> None:
    readings += [(0, 0, (0, 0)), (2000, 1000, (900, 100)), (9000, 9000, (7000, 900)), (10_000, 9500, (7300, 1400))]
    watch = ProcessorTime()

    for step, timed in ((0, True), (10, True), (20, False), (30, True)):
        watch.read(step, timed=timed)

    assert watch.facts == {"cpu_ns_per_step": 75, "thread_ns_per_step": 60, "core_wait_share": 0.2}


def test_windows_cost_what_their_steps_took_beyond_ordinary_ones(readings: list[Any]) -> None:
    readings += [(0, 0, None), (2000, 1000, None), (9000, 9000, None), (10_000, 9500, None)]
    watch = ProcessorTime()
    assert watch.windows_ns is None

    for step, timed in ((0, True), (10, True), (20, False), (30, True)):
        watch.read(step, timed=timed)

    assert watch.windows_ns == 8000 - 10 * 75


def test_waiting_for_a_core_is_not_known_where_the_system_does_not_count_it(readings: list[Any]) -> None:
    readings += [(0, 0, None), (5000, 1000, None)]
    watch = ProcessorTime()

    for step in (0, 10):
        watch.read(step, timed=True)

    assert watch.facts == {"cpu_ns_per_step": 100, "thread_ns_per_step": None, "core_wait_share": None}


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the system does not count waiting for a core")
def test_a_thread_that_shares_its_core_waits_for_it_while_it_does_not_run() -> None:
    ran = subprocess.run([sys.executable, "-c", _TWO_BUSY_PROCESSES], capture_output=True, text=True, check=True)

    waited, used = map(float, ran.stdout.split())
    assert waited > 0.3
    assert waited + used == pytest.approx(1, abs=0.15)


def test_what_perfkit_does_between_steps_is_no_steps_time(readings: list[Any]) -> None:
    readings += [(0, 0, (0, 0)), (2000, 1700, (1500, 100)), (3000, 3000, (2500, 100))]
    own = iter((OwnTime(0, 0), OwnTime(600, 700), OwnTime(600, 1000)))
    watch = ProcessorTime(lambda: next(own))

    for step in (0, 10, 20):
        watch.read(step, timed=True)

    assert (watch.facts["cpu_ns_per_step"], watch.facts["thread_ns_per_step"]) == (100, 95)


def test_a_pause_counts_for_what_it_was_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr("perfkit.record.watchers.own_cost.time.thread_time_ns", lambda: now[0])
    cost = OwnCost()

    for part, took in (("windows", 5), (None, 7), ("checks", 11)):
        cost.begin_pause()
        now[0] += took
        assert cost.own_time.thread_ns >= took  # also of the pause that runs
        cost.end_pause(part)  # type: ignore[arg-type]

    assert cost.own_time.thread_ns == 23
    assert cost.parts(100) == {"windows": 105, "checks": 11}


def test_what_was_written_across_the_end_makes_no_part_negative() -> None:
    cost = OwnCost()
    cost.add("end", -5)

    assert cost.parts(None) == {}
