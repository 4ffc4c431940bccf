"""exposed-communication: on a device what nothing hides; on the host many small collectives, at their line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trace_timeline import GEMM_BF16, Timeline

from perfkit._location import Location
from perfkit.diagnosis import diagnose
from perfkit.measures.results.patterns import HostCollective, RepeatedReductions
from perfkit.measures.results.steps import Ranks
from perfkit.rules.ranks import exposed_communication

MS = 1_000_000


def allreduce(**fields: Any) -> HostCollective:
    """98 calls of 4 KiB, 40 ms in all."""
    defaults: dict[str, Any] = {
        "name": "allreduce",
        "count": 98.0,
        "waited_ns": 40 * MS,
        "bytes": 98 * 4096,
        "at": Location(file="train.py", line=23, function="average_gradients"),
    }
    return HostCollective(**defaults | fields)


def test_a_call_per_parameter_is_reported_at_its_line(build: Any) -> None:
    patterns = build.patterns(step_ms=100, collectives=(allreduce(),))

    [finding] = build.findings(exposed_communication, build.step(100), patterns)

    assert (finding.spent.file, finding.spent.line) == ("train.py", 23)
    assert (finding.saving_low_ns, finding.saving_high_ns) == (30 * MS, 50 * MS)
    assert finding.message.startswith("98 allreduce calls per step are waited for one by one, 40% of the step")


def test_the_waiting_for_a_late_rank_is_not_what_fewer_collectives_would_save(build: Any) -> None:
    patterns = build.patterns(step_ms=100, collectives=(allreduce(),))

    def found(transfer_ms: int) -> list[Any]:
        ranks = Ranks(
            steps=60, wall_ns=100 * MS, waiting_ns=0, ranks=(), blocked_ns=40 * MS, transfer_ns=transfer_ms * MS
        )
        return build.findings(exposed_communication, build.step(100), patterns, ranks)

    [finding] = found(20)
    assert (finding.cost_ns, finding.saving_high_ns) == (20 * MS, 25 * MS)
    assert found(4) == []


def test_few_or_large_collectives_and_short_waits_are_not_reported(build: Any) -> None:
    for healthy in (allreduce(count=3.0), allreduce(bytes=98 * 25 * 2**20), allreduce(waited_ns=2 * MS)):
        patterns = build.patterns(step_ms=100, collectives=(healthy,))

        assert build.findings(exposed_communication, build.step(100), patterns) == []


def test_gradients_averaged_in_each_backward_of_an_update_are_reported_with_no_sync(build: Any) -> None:
    repeated = RepeatedReductions(backwards=8, count=16, waited_share=0.2, running_share=0.4)
    rare = RepeatedReductions(backwards=2, count=2, waited_share=0.0, running_share=0.04)

    [finding] = build.findings(exposed_communication, build.step(100), repeated)

    assert (finding.cost_ns, finding.saving_low_ns) == (40 * MS, 20 * MS)
    assert finding.message.startswith("Each of the 8 backwards of an update averages the gradients between ranks")
    assert "no_sync" in finding.advice
    assert build.findings(exposed_communication, build.step(100), rare) == []


def test_without_a_device_and_patterns_nothing_is_reported(build: Any) -> None:
    assert build.findings(exposed_communication, build.step(100)) == []


def test_long_communication_without_overlap_is_exposed(build: Any) -> None:
    device = build.device(1000, compute=500, communication=450, exposed_communication=450, causes={"operators": 50})

    [finding] = build.findings(exposed_communication, build.traced_step(100, forward=100), device)

    assert finding.cost_ns == 45 * MS
    assert finding.message == "Exposed communication takes 45% of the step; 0% is hidden."


def test_well_overlapped_communication_is_not_reported(build: Any) -> None:
    device = build.device(1000, compute=950, communication=800, exposed_communication=30, causes={"operators": 20})

    assert build.findings(exposed_communication, device) == []


def test_a_late_rank_is_reported_apart_from_transfer(tmp_path: Path) -> None:
    """Four all-reduces of 20 ms per step, the first of which waits 60 ms for another rank."""

    def step(line: Timeline) -> None:
        for _ in range(100):
            line.run(GEMM_BF16, 1_000)
        for i in range(4):
            line.all_reduce(80_000 if i == 0 else 20_000, elements=25_000_000)
        line.join()

    line = Timeline(tmp_path, world_size=2)
    found = diagnose(line.steps(step, count=3).write())

    late, transfer = sorted(found.findings, key=lambda one: one.message)
    assert late.message.startswith("Another rank is late: collectives, most of all allreduce, wait for it 60.0 ms")
    assert late.cost_ns == pytest.approx(60 * MS, rel=0.01)
    assert (late.saving_high_ns or 0) <= (late.cost_ns or 0)
    assert transfer.cost_ns == pytest.approx(80 * MS, rel=0.01)
    owners = {row.owner: row.ns for row in found.ledger.ledger.rows} if found.ledger is not None else {}
    assert owners["waiting for ranks"] == pytest.approx(60 * MS, rel=0.01)
    assert owners["communication"] == pytest.approx(80 * MS, rel=0.01)


def test_communication_is_no_computing_of_other_rules(tmp_path: Path) -> None:
    """200 collectives of 40 us per step with small grids: not a loop of small ops, nor small kernels."""

    def step(line: Timeline) -> None:
        for _ in range(10):
            line.run(GEMM_BF16, 500)
        for _ in range(200):
            line.all_reduce(40, elements=20_000)
        line.join()

    found = diagnose(Timeline(tmp_path, world_size=8).steps(step).write())

    assert {finding.rule for finding in found.findings} == {"exposed-communication"}
