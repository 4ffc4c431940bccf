"""thread-counts: more threads than CPUs, over all ranks of a machine."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit._location import Location
from perfkit.rules.settings import thread_counts

MS = 1_000_000


def test_threads_beyond_the_cpus_cost_what_was_measured_for_each_split_operation(build: Any) -> None:
    at = Location(file="train.py", line=7, function="main")
    settings = {"threads.beyond_ns": "100000"}
    many = build.rank(cpus=2, threads=16, settings=settings, calls={"set_num_threads": (at,)})
    ops = build.ops(("aten::mm", 100, 60, 60), ("aten::t", 500, 1, 1))

    [finding] = build.findings(thread_counts, build.step(40, forward=40), many, ops)

    assert (finding.saving_low_ns, finding.saving_high_ns) == (round(3.5 * MS), 7 * MS)
    assert finding.advice.startswith("torch.set_num_threads(2)")
    assert finding.spent == at


@pytest.mark.parametrize(
    ("cpus", "threads", "local", "reported"), [(2, 2, "1", 0), (8, 4, "2", 0), (8, 8, "2", 1), (1, 1, "4", 0)]
)
def test_threads_are_counted_over_the_ranks_of_a_machine(
    cpus: int, threads: int, local: str, reported: int, build: Any
) -> None:
    rank = build.rank(cpus=cpus, threads=threads, settings={"LOCAL_WORLD_SIZE": local})

    assert len(build.findings(thread_counts, build.step(40, forward=40), rank)) == reported


def test_threads_of_a_run_on_a_device_are_not_reported(build: Any) -> None:
    rank = build.rank(cpus=2, threads=16, devices=("A100",))

    assert build.findings(thread_counts, build.step(40, forward=40), rank) == []
