"""What torch.compile costs in the steps of a run."""

from __future__ import annotations

from typing import Any

from perfkit.measures.steps.compile_cost import measure_compile_cost
from perfkit.run.records import Phases, Step

MS = 1_000_000


def row(step: int, forward: float = 10, backward: float = 20, **more: Any) -> Step:
    phases = Phases(forward=round(forward * MS), backward=round(backward * MS))
    wall_ns = round((forward + backward) * MS)
    return Step(**{"step": step, "start_ns": step, "wall_ns": wall_ns, "phases_ns": phases, **more})


def test_compiling_is_counted_for_the_second_half_of_the_timed_steps() -> None:
    rows = [row(step, recompiles=1, compile_ns=4 * MS) for step in range(42)]
    once = [row(step, recompiles=1 if step < 3 else 0, compile_ns=4 * MS if step < 3 else 0) for step in range(42)]

    found, healthy = measure_compile_cost(rows), measure_compile_cost(once)

    assert found is not None
    assert (found.late_steps, found.late_graphs, found.late_ns, found.graphs) == (20, 20, 80 * MS, 42)
    assert healthy is not None
    assert (healthy.late_graphs, healthy.total_ns) == (0, 12 * MS)
    assert measure_compile_cost([row(step) for step in range(42)]) is None
