"""Making inputs in the step is told with its line and its library; what workers hide is the least that goes."""

from __future__ import annotations

from typing import Any

from perfkit.rules.data.cpu_preprocessing import check

MS = 1_000_000


def test_decoding_in_the_step_is_found_with_its_library(build: Any) -> None:
    work = build.work("preprocessing", 12, function="decode", within="PIL")

    [finding] = check(build.measured(step=build.step(20, forward=20), host=(work,), rank=build.rank()))

    assert (finding.line, finding.function) == (12, "decode")
    assert "decode (in PIL)" in finding.message
    assert "num_workers=4" in (finding.advice or "")


def test_the_least_gain_is_what_workers_hide_and_never_less_than_most_of_it(build: Any) -> None:
    step = build.step(20, forward=20)
    [hidden] = check(build.measured(step=step, host=(build.work("preprocessing", 12),), rank=build.rank()))
    [alone] = check(build.measured(step=step, host=(build.work("preprocessing", 12),), rank=build.rank(cpus=1)))

    # 8 CPUs: the step is its rest, 8 ms; handing over costs 1.3 ms, sharing the processor a quarter of the rest.
    assert hidden.saving_low_ns == round((12 - 1.3 - 2) * MS)
    assert alone.saving_low_ns == round(0.7 * 12 * MS)
    assert hidden.saving_low_ns <= hidden.cost_ns <= hidden.saving_high_ns <= 20 * MS


def test_little_of_it_and_absent_parts_are_silent(build: Any) -> None:
    assert not list(check(build.measured(step=build.step(20), host=(build.work("preprocessing", 0.9),))))
    assert not list(check(build.measured(step=build.step(20))))
    assert not list(check(build.measured()))
