"""What torch.compile costs a run: at its start, and again in its steps."""

from __future__ import annotations

from collections.abc import Sequence

from perfkit.measures.results.steps import CompileCost
from perfkit.measures.steps._timed_rows import timed_rows
from perfkit.run.records import Step


def measure_compile_cost(rows: Sequence[Step]) -> CompileCost | None:
    """Compile time of a run; None where Dynamo was not in use, or no step was timed.

    Recompilation that continues is counted in the second half of the timed steps: by then a program has seen what it
    sees for the first time.
    """
    timed, _ = timed_rows(rows)
    if not timed or not any(row.recompiles is not None for row in rows):
        return None
    late = timed[len(timed) // 2 :]
    steps = sum(row.steps for row in late)
    return CompileCost(
        graphs=sum(row.recompiles or 0 for row in rows),
        total_ns=sum(row.compile_ns or 0 for row in rows),
        steps=sum(row.steps for row in rows),
        late_steps=steps,
        late_graphs=sum(row.recompiles or 0 for row in late),
        late_ns=sum(row.compile_ns or 0 for row in late),
        late_wall_ns=sum(row.wall_ns for row in late),
    )
