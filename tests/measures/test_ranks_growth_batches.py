"""What rows of steps tell beyond their phases: ranks beside each other, levels that rise, time that follows size."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.measures.memory.memory_growth import measure_memory_growth
from perfkit.measures.ranks.rank_times import measure_rank_times
from perfkit.measures.steps.batch_time import measure_batch_time
from perfkit.measures.steps.compile_cost import measure_compile_cost
from perfkit.run.records import LineRow, Lines, NodeHealth, Padding, Phases, Rank, Step

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
    assert [(rank.rank, rank.own_ns, rank.slowest_share, rank.cpu_ns) for rank in found.ranks] == [
        (0, 2 * MS, 0.0, 5),
        (1, 12 * MS, 1.0, 9),
    ]
    assert (found.wall_ns, found.waiting_ns) == (30 * MS, 5 * MS)
    assert found.ranks[1].line is not None
    assert found.ranks[1].line.line == 31
    assert [rank.size_per_step for rank in found.ranks] == [None, 640.0]
    assert found.waited_for == found.ranks[1]
    # What is known of GPUs is kept of the rank that the others wait for.
    assert [(rank.host, rank.node.uuid if rank.node else None) for rank in found.ranks] == [
        ("node0", None),
        ("node1", "GPU 1"),
    ]


def test_steps_in_which_one_rank_recorded_count_on_none() -> None:
    first = [row(step, 2, 28, kind="window" if 10 <= step < 20 else "timed") for step in range(40)]
    other = [row(step, 90 if 10 <= step < 20 else 2, 28) for step in range(40)]

    found = measure_rank_times([(0, first, None, None), (1, other, None, None)])

    assert found is not None
    assert [rank.own_ns for rank in found.ranks] == [2 * MS, 2 * MS]
    assert found.steps == 28


def test_ranks_that_take_turns_follow_their_data() -> None:
    def of(rank: int) -> list[Step]:
        long = [step % 2 == rank for step in range(40)]
        return [row(step, 20 if long[step] else 10, tokens=200 if long[step] else 100) for step in range(40)]

    found = measure_rank_times([(rank, of(rank), None, None) for rank in (0, 1)])

    assert found is not None
    assert found.follows_size == pytest.approx(1.0)
    assert {rank.slowest_share for rank in found.ranks} == {0.5}
    assert found.waited_for is None
    assert found.waiting_ns == 5 * MS


def test_one_rank_or_few_common_steps_are_not_compared() -> None:
    assert measure_rank_times([(0, [row(step) for step in range(40)], None, None)]) is None
    apart = [(rank, [row(step) for step in range(40 * rank, 40 * rank + 40)], None, None) for rank in (0, 1)]
    assert measure_rank_times(apart) is None


def levels(*values: int | None, field: str = "rss_bytes") -> list[Step]:
    return [row(50 * (number + 1) - 1, **{field: value}) for number, value in enumerate(values)]


def test_a_level_that_rises_steadily_grows_by_its_median_rise() -> None:
    # 100 MB in 50 steps, with one jump of a cache.
    growth = measure_memory_growth(levels(*(n * 10**8 + (n > 3) * 10**9 for n in range(10))))

    assert growth is not None
    assert growth.process_bytes_per_step == 2_000_000
    assert growth.device_bytes_per_step is None


@pytest.mark.parametrize("values", [(5, 5, 5, 5), (5, 9, 4, 9, 5), (9, 8, 7, 6)])
def test_a_level_that_does_not_rise_steadily_does_not_grow(values: tuple[int, ...]) -> None:
    growth = measure_memory_growth(levels(*(value * 10**8 for value in values), field="memory_bytes"))

    assert growth is not None
    assert growth.device_bytes_per_step == 0
    assert measure_memory_growth(levels(None, 10**8)) is None


def test_compiling_is_counted_for_the_second_half_of_the_timed_steps() -> None:
    rows = [row(step, recompiles=1, compile_ns=4 * MS) for step in range(42)]
    once = [row(step, recompiles=1 if step < 3 else 0, compile_ns=4 * MS if step < 3 else 0) for step in range(42)]

    found, healthy = measure_compile_cost(rows), measure_compile_cost(once)

    assert found is not None
    assert (found.late_steps, found.late_graphs, found.late_ns, found.graphs) == (20, 20, 80 * MS, 42)
    assert healthy is not None
    assert (healthy.late_graphs, healthy.total_ns) == (0, 12 * MS)
    assert measure_compile_cost([row(step) for step in range(42)]) is None


def test_the_time_of_an_element_is_the_median_slope() -> None:
    sizes = [1000 + 100 * (step % 9) for step in range(42)]
    rows = [row(step, 5 + size / 100, 0, batch_elements=size) for step, size in enumerate(sizes)]
    rows[20] = row(20, 500, 0, batch_elements=1000)  # a neighbour

    found = measure_batch_time(rows, Padding(batches=4, elements=1000, padded=250))

    assert found is not None
    assert found.ns_per_element == pytest.approx(10_000)
    assert found.follows > 0.85
    assert found.padded_share == 0.25
    assert measure_batch_time([row(step, batch_elements=64) for step in range(42)], None) is None
