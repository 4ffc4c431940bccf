"""waiting-in-step: what the step waits for that is not the device, with its line."""

from __future__ import annotations

from typing import Any

from perfkit._location import Location
from perfkit.rules.python import python_bound, waiting_in_step
from perfkit.run.records import HeldLock, Lines, TracedLine

MS = 1_000_000


def test_a_wait_is_found_at_its_line_with_what_it_waits_for(build: Any) -> None:
    step, sleep = build.step(20, forward=20), build.work("waiting", 8, waits_for="time.sleep(0.008)")

    [finding] = build.findings(waiting_in_step, step, sleep)

    assert (finding.spent.file, finding.spent.line) == ("train.py", 12)
    assert "waits 8.0 ms of the 20.0 ms step (40%), most of it for time.sleep(0.008)" in finding.message
    assert (finding.cost_ns, finding.saving_low_ns) == (8 * MS, round(6.8 * MS))
    assert not build.findings(python_bound, step, sleep)


def test_a_wait_inside_a_library_names_the_library(build: Any) -> None:
    work = build.work("waiting", 8, within="requests > urllib3 > socket")

    [finding] = build.findings(waiting_in_step, build.step(20, forward=20), work)

    assert "most of it for socket" in finding.message


def test_short_waits_few_samples_and_python_are_not_reported(build: Any) -> None:
    step = build.step(20, forward=20)

    assert not build.findings(waiting_in_step, step, build.work("waiting", 0.9))
    assert not build.findings(waiting_in_step, step, build.work("waiting", 8, samples=9))
    assert not build.findings(waiting_in_step, step, build.work("python", 8))


def test_the_call_in_the_loop_is_to_be_edited_and_a_generator_is_not_called_by_the_loop(build: Any) -> None:
    called = Location(file="train.py", line=40, function="main")

    def traced(line: int, phase: Any, loop_line: int) -> TracedLine:
        return TracedLine(
            file="train.py", line=line, function="main", owner="user", phase=phase, runs=1, host_ns=MS,
            loop_line=loop_line,
        )  # fmt: skip

    def change(loop_line: int) -> Any:
        lines = Lines(
            period_ns=MS, steps=40, traced=(traced(40, "forward", loop_line), traced(42, "backward", loop_line))
        )
        sleep = build.work("waiting", 8, called_from=called)
        [finding] = build.findings(waiting_in_step, build.step(20, forward=20), sleep, lines)
        return finding.change

    assert change(loop_line=38).line == 40
    assert change(loop_line=40) is None


def test_a_sleep_in_a_loop_of_its_own_is_changed_there(build: Any) -> None:
    def found(loop_line: int | None) -> Any:
        """A step that did not enter the loop: its statement alone was traced."""
        test = TracedLine(
            file="train.py", line=11, function="prepare", owner="user", phase="other", runs=1, host_ns=MS,
            loop_line=loop_line,
        )  # fmt: skip
        sleep = build.work("waiting", 8, waits_for="time.sleep(0.03)")
        [finding] = build.findings(
            waiting_in_step, build.step(20, forward=20), sleep, Lines(period_ns=MS, steps=40, traced=(test,))
        )
        return finding

    assert found(loop_line=11).change is None
    assert found(loop_line=11).advice.startswith("Wait for an event")
    assert found(loop_line=None).advice.startswith("Start time.sleep(0.03) earlier")


def test_of_a_lock_the_line_that_holds_it_is_to_be_edited(build: Any) -> None:
    wait = build.work("waiting", 8)
    holder = Location(file="bench.py", line=138, function=None)
    held = HeldLock(file=wait.lines[0].file, line=wait.lines[0].line, function="step", owner="user", held_at=holder)

    [finding] = build.findings(
        waiting_in_step, build.step(20, forward=20), wait, Lines(period_ns=MS, steps=40, held_locks=(held,))
    )

    assert finding.change == holder
    assert "line 138" in finding.advice
