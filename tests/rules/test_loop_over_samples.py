"""loop-over-samples: a model that is called once per sample, and no other loop over modules."""

from __future__ import annotations

from typing import Any

from perfkit.findings import Finding
from perfkit.rules.python import loop_over_samples
from perfkit.run.records import Lines, ModuleCalls, TracedLine

MS = 1_000_000


def line(ms: float, phase: Any = "forward", **fields: Any) -> TracedLine:
    calls = {"module": "Net", "calls": 32, "host_ns": round(ms * MS), "sliced": True, **fields}
    return TracedLine(
        file="train.py",
        line=38,
        function="scores_of",
        owner="user",
        phase=phase,
        runs=32,
        host_ns=round(ms * MS),
        modules=(ModuleCalls(**calls),),
    )


def found(build: Any, *traced: TracedLine) -> list[Finding]:
    step = build.step(40, forward=16, backward=16, other=8)
    return build.findings(loop_over_samples, step, Lines(period_ns=MS, steps=40, traced=traced))


def test_a_model_called_per_sample_is_found_with_its_backward(build: Any) -> None:
    [finding] = found(build, line(20))

    assert (finding.spent.line, finding.spent.function) == (38, "scores_of")
    assert finding.cost_ns == 31 * MS  # all rounds but one
    assert finding.saving_low_ns == 20.15 * MS
    assert "Net is called 32 times per step" in finding.message


def test_recurrences_few_calls_and_loaders_are_not_reported(build: Any) -> None:
    assert not found(build, line(20, sliced=False))
    assert not found(build, line(20, calls=7))
    assert not found(build, line(20, phase="data"))
    assert not build.findings(loop_over_samples, build.step(40))
    assert not build.findings(loop_over_samples)
