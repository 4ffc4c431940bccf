"""Ranks are compared by how long they wait for others, and where that is not known, by the time of their own."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.measures.ranks.rank_times import measure_rank_times
from perfkit.run.records import Collected, LineRow, Lines, NodeHealth, Phases, Rank, Step, Waits

MS = 1_000_000


def row(step: int, forward: float = 10, backward: float = 20, **more: Any) -> Step:
    phases = Phases(forward=round(forward * MS), backward=round(backward * MS))
    wall_ns = round((forward + backward) * MS)
    return Step(**{"step": step, "start_ns": step, "wall_ns": wall_ns, "phases_ns": phases, **more})


def lines(line: int) -> Lines:
    usual = {"file": "train.py", "function": "main", "owner": "user", "host_ns": 1}
    rows = (
        LineRow(line=99, phase="backward", samples=90, **usual),
        LineRow(line=line, phase="forward", samples=9, **usual),
    )
    return Lines(period_ns=1, steps=1, rows=rows)


def facts(rank: int, cpu_ns: int) -> Rank:
    node = NodeHealth(uuid=f"GPU {rank}", taken=3)
    return Rank(rank=rank, launch_id="a", host=f"node{rank}", pid=1, start_ns=0, cpu_ns_per_step=cpu_ns, node=node)


def test_a_rank_with_more_work_of_its_own_is_the_slowest_in_every_step() -> None:
    fast = [row(step, 2, 28) for step in range(40)]
    slow = [row(step, 12, 18, batch_elements=640) for step in range(40)]

    found = measure_rank_times([(0, fast, None, facts(0, 5)), (1, slow, lines(31), facts(1, 9))])

    assert found is not None
    assert [(rank.rank, rank.own_ns, rank.caused_share, rank.cpu_ns) for rank in found.ranks] == [
        (0, 2 * MS, 0.0, 5),
        (1, 12 * MS, 1.0, 9),
    ]
    assert (found.wall_ns, found.waiting_ns) == (30 * MS, 5 * MS)
    assert found.ranks[1].line is not None
    assert found.ranks[1].line.line == 31
    assert [rank.size_per_step for rank in found.ranks] == [None, 640.0]
    assert found.waited_for == found.ranks[1]
    # The health of a GPU is kept only for the rank that the others wait for.
    assert [(rank.host, rank.node.uuid if rank.node else None) for rank in found.ranks] == [
        ("node0", None),
        ("node1", "GPU 1"),
    ]


def waiting(step: int, data: float, backward: float, waited: float, **more: Any) -> Step:
    """A row of 60 ms, of whose backward ``waited`` ms are in collectives."""
    phases = Phases(data=round(data * MS), backward=round(backward * MS), other=round((60 - data - backward) * MS))
    waits = Waits(backward=round(waited * MS))
    return Step(step=step, start_ns=step, wall_ns=60 * MS, phases_ns=phases, waited_phases_ns=waits, **more)


def test_the_rank_that_waits_least_is_the_one_that_the_others_wait_for_also_inside_the_backward() -> None:
    # Both have 50 ms of backward: rank 1 works in it, rank 0 is done after 10 ms and waits.
    first = [waiting(step, 2, 50, 40) for step in range(40)]
    second = [waiting(step, 2, 50, 2, gc_ns=MS) for step in range(40)]
    collected = Collected(file="train.py", line=8, function="main", owner="user", count=3, total_ns=9)
    sampled = Lines(period_ns=1, steps=1, rows=lines(31).rows, collected=(collected,))

    found = measure_rank_times([(0, first, None, None), (1, second, sampled, None)])

    assert found is not None
    late = found.waited_for
    assert late is not None
    assert (late.rank, late.caused_share, late.late_steps, late.late_ns) == (1, 1.0, 38, 38 * MS)
    assert (found.waiting_ns, found.blocked_ns, found.transfer_ns) == (19 * MS, 21 * MS, 2 * MS)
    assert [(rank.own_ns, rank.waited_ns, rank.phases_ns.backward) for rank in found.ranks] == [
        (20 * MS, 40 * MS, 10 * MS),
        (58 * MS, 2 * MS, 48 * MS),
    ]
    assert (late.gc_ns, late.collected, late.lines["backward"].line) == (MS, collected.at, 99)


def test_a_rank_that_is_late_in_a_few_steps_only_is_not_the_one_that_the_others_wait_for() -> None:
    def of(rank: int, late: range) -> list[Step]:
        # Rank 1 comes very late in some steps; in all others the two take turns.
        last = [step in late if step in late else step % 2 == 0 for step in range(60)]
        return [
            waiting(step, 2, 50, 2 if last[step] == (rank == 1) else 30 if step in late else 8) for step in range(60)
        ]

    found = measure_rank_times([(rank, of(rank, range(20, 26)), None, None) for rank in (0, 1)])
    assert found is not None
    assert found.waited_for is None
    # Six steps are left out of the mean: 22 ms is the rest of each.
    assert found.waiting_ns == 3 * MS
    often = measure_rank_times([(rank, of(rank, range(10, 50)), None, None) for rank in (0, 1)])
    assert often is not None
    assert often.waited_for is not None


def test_steps_in_which_one_rank_recorded_count_on_none() -> None:
    first = [row(step, 2, 28, kind="window" if 10 <= step < 20 else "timed") for step in range(40)]
    other = [row(step, 90 if 10 <= step < 20 else 2, 28) for step in range(40)]

    found = measure_rank_times([(0, first, None, None), (1, other, None, None)])

    assert found is not None
    assert [rank.own_ns for rank in found.ranks] == [2 * MS, 2 * MS]
    assert found.steps == 28


def test_of_all_steps_of_a_rank_the_same_measure_is_its_size() -> None:
    first = [row(step, 2, 28, tokens=100 if step % 2 else None, batch_elements=9000) for step in range(40)]
    second = [row(step, 12, 18, batch_elements=9000) for step in range(40)]

    found = measure_rank_times([(0, first, None, None), (1, second, None, None)])

    # The tokens of half the steps are not known; their mean with the elements of the others would be that of nothing.
    assert found is not None
    assert [rank.size_per_step for rank in found.ranks] == [None, 9000.0]


def test_ranks_that_take_turns_follow_their_data() -> None:
    def of(rank: int) -> list[Step]:
        long = [step % 2 == rank for step in range(40)]
        return [row(step, 20 if long[step] else 10, tokens=200 if long[step] else 100) for step in range(40)]

    found = measure_rank_times([(rank, of(rank), None, None) for rank in (0, 1)])

    assert found is not None
    assert found.follows_size == pytest.approx(1.0)
    assert {rank.caused_share for rank in found.ranks} == {0.5}
    assert found.waited_for is None
    assert found.waiting_ns == 5 * MS


def test_one_rank_or_few_common_steps_are_not_compared() -> None:
    assert measure_rank_times([(0, [row(step) for step in range(40)], None, None)]) is None
    apart = [(rank, [row(step) for step in range(40 * rank, 40 * rank + 40)], None, None) for rank in (0, 1)]
    assert measure_rank_times(apart) is None
