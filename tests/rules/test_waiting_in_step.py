"""waiting-in-step: what the step waits for that is not the device, with its line."""

from __future__ import annotations

from typing import Any

from perfkit.rules.python import python_bound, waiting_in_step

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
