"""On a device no time is counted twice: rows sum to the step, claims to rows at most, savings to costs at most."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_suite import PlantedTrace, traces_of
from trace_timeline import GEMM_BF16, Timeline

from perfkit.diagnosis import Diagnosis, diagnose

COMPLETE = [trace for trace in traces_of("tuning") if trace.damage is None]


def check_sums(found: Diagnosis) -> None:
    assert found.ledger is not None
    ledger = found.ledger.ledger
    assert sum(row.ns for row in ledger.rows) == ledger.wall_ns
    for account in found.ledger.accounts():
        assert 0 <= account.claimed_ns <= account.row.ns
    parts = (found.ledger.claimed_ns, found.ledger.at_limit_ns, found.ledger.unexplained_ns)
    assert sum(parts) == ledger.wall_ns
    for finding in found.findings:
        if finding.cost_ns is not None:
            assert (finding.saving_high_ns or 0) <= finding.cost_ns <= ledger.wall_ns, finding.rule
    paid = [one for one in found.findings if one.follows is None and one.quantified]
    assert sum(one.saving_high_ns or 0 for one in paid) <= found.ledger.claimed_ns + len(paid)


@pytest.mark.parametrize("trace", COMPLETE, ids=lambda trace: trace.name)
def test_sums_hold_on_every_planted_trace(trace: PlantedTrace, tmp_path: Path) -> None:
    check_sums(diagnose(trace.build(tmp_path)))


def test_findings_about_one_idle_time_save_no_more_than_it(tmp_path: Path) -> None:
    """Late launches, which a graph would make ahead, and a sync between them."""

    def step(line: Timeline) -> None:
        for i in range(60):
            line.run(GEMM_BF16, 3, op=f"aten::layer_{i}", host=20)
        line.run(GEMM_BF16, 1_000)
        line.read()
        line.spend(700)

    found = diagnose(Timeline(tmp_path).steps(step).write())

    check_sums(found)
    rules = {one.rule for one in found.findings}
    assert {"sync-in-step", "launch-bound"} <= rules
    assert found.ledger is not None
    idle = sum(row.ns for row in found.ledger.ledger.rows if row.owner == "idle")
    assert sum(one.saving_high_ns or 0 for one in found.findings if one.follows is None) <= idle


def test_what_the_device_does_before_and_after_the_steps_is_not_the_steps(tmp_path: Path) -> None:
    def step(line: Timeline) -> None:
        for _ in range(10):
            line.run(GEMM_BF16, 500)

    line = Timeline(tmp_path)
    line.run("copy_of_the_data_set", 400_000)
    line.wait()
    line.steps(step)
    line.spend(200_000)
    line.run("evaluation", 900_000)
    found = diagnose(line.write())

    assert found.figures.wall_ns == pytest.approx(5_000_000, rel=0.01)
    check_sums(found)
