"""memory-growth: tensors that stay alive are reported at the line that stores them; a list of numbers is not."""

from __future__ import annotations

from typing import Any

import msgspec

from perfkit._location import Location
from perfkit.measures.results.measurements import PlannedSteps
from perfkit.measures.results.memory import MemoryGrowth
from perfkit.rules.memory import memory_growth
from perfkit.run.records import KeptTensors, Lines, TracedLine

MS = 1_000_000
AT = Location(file="train.py", line=29, function="main")


def kept(**more: Any) -> KeptTensors:
    return KeptTensors(**{"steps": 40, "grown": 40, "grown_bytes": 40_000_000, "graph": True, **more})


def test_tensors_with_graphs_are_reported_at_the_line_that_stores_them(build: Any) -> None:
    largest = kept(grown=80)
    named = kept(name="previews", places=(AT,))
    rank = msgspec.structs.replace(build.rank(), kept=(largest, named))

    [finding] = build.findings(memory_growth, rank)

    assert (finding.spent, finding.severity) == (AT, "warning")
    assert "3.0 tensors per step (2.0 MB) and their graphs" in finding.message
    assert finding.cost_ns is None


def test_of_two_branches_that_fill_a_list_the_one_that_ran_is_reported(build: Any) -> None:
    other = Location(file="train.py", line=27, function="main")
    rank = msgspec.structs.replace(build.rank(), kept=(kept(name="previews", places=(other, AT)),))
    ran = TracedLine(file="train.py", line=29, function="main", owner="user", phase="forward", runs=1, host_ns=MS)

    for traced, line in (((ran,), 29), ((), 27)):
        lines = Lines(period_ns=MS, steps=1, rows=(), traced=traced)
        [finding] = build.findings(memory_growth, rank, lines)

        assert finding.spent.line == line


def test_a_graph_that_grows_is_reported_without_any_new_tensor(build: Any) -> None:
    rank = msgspec.structs.replace(
        build.rank(), kept=(kept(grown=0, grown_bytes=0, nodes_grown=80, name="total", places=(AT,)),)
    )

    [finding] = build.findings(memory_growth, rank)

    assert "grows by 2 nodes in every step, in total" in finding.message


def test_small_tensors_without_a_graph_are_no_leak(build: Any) -> None:
    history = msgspec.structs.replace(build.rank(), kept=(kept(graph=False, grown_bytes=160),))
    outputs = msgspec.structs.replace(build.rank(), kept=(kept(graph=False, grown_bytes=400_000_000),))

    assert build.findings(memory_growth, history) == []
    assert [finding.severity for finding in build.findings(memory_growth, outputs)] == ["info"]


def test_a_device_that_fills_is_reported_with_the_number_of_steps_until_it_is_full(build: Any) -> None:
    growth = MemoryGrowth(
        device_bytes_per_step=10_000_000, device_readings=9, process_bytes_per_step=None, process_readings=0,
        device_peak_bytes=6_000_000_000,
    )  # fmt: skip
    rank = msgspec.structs.replace(build.rank(), settings={"cuda:0.total_bytes": "16000000000"})

    [finding] = build.findings(memory_growth, rank, growth)

    assert next(evidence.value for evidence in finding.evidence if evidence.name == "full after") == 1_000


def test_a_process_that_grows_is_information_and_a_problem_where_memory_is_full_before_the_run_ends(build: Any) -> None:
    growth = MemoryGrowth(
        device_bytes_per_step=None, device_readings=0, process_bytes_per_step=5_000_000, process_readings=9,
        process_bytes=1_000_000_000,
    )  # fmt: skip
    rank = msgspec.structs.replace(build.rank(), settings={"memory_bytes": "6000000000"})

    for planned, severity in ((500, "info"), (5_000, "warning")):
        [finding] = build.findings(memory_growth, rank, growth, PlannedSteps(count=planned))

        assert finding.severity == severity
        assert "rises by 5.0 MB in every step: full after 1,000 more steps" in finding.message


def test_a_device_that_is_full_before_the_run_ends_is_critical(build: Any) -> None:
    growth = MemoryGrowth(
        device_bytes_per_step=10_000_000, device_readings=9, process_bytes_per_step=None, process_readings=0,
        device_peak_bytes=6_000_000_000,
    )  # fmt: skip
    rank = msgspec.structs.replace(build.rank(), settings={"cuda:0.total_bytes": "16000000000"})

    [late] = build.findings(memory_growth, rank, growth, PlannedSteps(count=900))
    [soon] = build.findings(memory_growth, rank, growth, PlannedSteps(count=9_000))

    assert (late.severity, soon.severity) == ("warning", "critical")
