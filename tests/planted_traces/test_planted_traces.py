"""Traces with a known cause, none, or a part missing: the right verdict for each of the tuning half."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_judging import TraceAnswer, compare, judge, table
from trace_suite import TRACES, PlantedTrace, traces_of

from perfkit.diagnosis import Diagnosis, diagnose
from perfkit.findings import Finding
from perfkit.rules._engine import find_rules

TUNING = traces_of("tuning")


@pytest.mark.parametrize("trace", TUNING, ids=lambda trace: trace.name)
def test_the_verdict_on_a_planted_trace_is_right(trace: PlantedTrace) -> None:
    answer = judge(trace)

    assert answer.right, f"{answer.outcome}, first {answer.first}"
    if not trace.accepted and trace.damage is None:
        assert answer.alarms == ()


def test_where_the_host_runs_ahead_the_step_is_the_devices(tmp_path: Path) -> None:
    (trace,) = (trace for trace in TUNING if trace.name == "host_ahead_of_the_device")

    found = diagnose(trace.build(tmp_path))

    # Twenty products and an update; the host launches them in less than a tenth of a millisecond.
    assert found.figures.wall_ns == pytest.approx(20 * 560_000 + 150_000, rel=0.01)
    assert "11.4 ms step" in found.verdict


@pytest.mark.parametrize("trace", traces_of("judging"), ids=lambda trace: trace.name)
def test_a_trace_of_the_judging_half_is_built(trace: PlantedTrace, tmp_path: Path) -> None:
    """It is only built: what is said of it is measured, by `make bench-verdict`."""
    assert trace.build(tmp_path).stat().st_size > 0


def test_labels_name_rules_and_traces_that_exist() -> None:
    rules = {rule.id for rule in find_rules()}
    names = {trace.name for trace in TRACES}

    assert not {rule for trace in TRACES for rule in trace.accepted} - rules
    assert not {trace.of for trace in TRACES if trace.of is not None and trace.damage is None} - names
    assert len(names) == len(TRACES)
    assert len(TUNING) >= 30


def test_a_planted_cause_called_healthy_is_a_false_all_clear_and_a_warning_on_a_healthy_trace_an_alarm() -> None:
    planted = PlantedTrace(name="a", half="tuning", accepted=("launch-bound",))
    healthy = PlantedTrace(name="b", half="tuning")
    warning = Finding(rule="pageable-copy", severity="warning", message="", advice="", cost_ns=1)

    answers = [
        compare(planted, Diagnosis(source="", verdict="", outcome="healthy")),
        compare(healthy, Diagnosis(source="", verdict="", outcome="findings", findings=(warning,))),
    ]

    assert [answer.right for answer in answers] == [False, False]
    assert counted(answers, "false all-clears") == "1 of 2"
    assert counted(answers, "false alarms") == "1 of 1"
    assert counted(answers, "cause first") == "0 of 1"


def counted(answers: list[TraceAnswer], name: str) -> str:
    return dict(table(answers))[name]
