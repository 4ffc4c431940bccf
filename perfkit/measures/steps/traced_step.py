"""Where the host time of a trace's steps goes."""

from __future__ import annotations

import numpy as np

from perfkit.measures.results.steps import TracedStep
from perfkit.measures.steps._phase_times import phase_times
from perfkit.measures.steps._trace_steps import fetches, whole_steps
from perfkit.run.records import Phases
from perfkit.trace.columns import Trace


def measure_traced_step(trace: Trace) -> TracedStep | None:
    """Host time per phase of the trace's steps (see `phase_times`); None where it has none.

    ``other`` is the rest, so that the phases sum to the wall time exactly.
    """
    steps = whole_steps(trace)
    n = steps.row.size
    if not n:
        return None
    walls = steps.end_ns - steps.start_ns
    wall_ns = int(walls.sum()) // n
    phases: dict[str, int] = {phase: of.length_ns // n for phase, of in phase_times(trace).items()}
    phases["other"] = wall_ns - sum(phases.values())
    marked = trace.steps.row.size
    left_out = marked - n if marked else fetches(trace).size - 1 - n
    reason = "empty, or of another thread" if marked else "warm-up"
    marks = "ProfilerStep ranges" if marked else "DataLoader fetches, since it has no ProfilerStep ranges,"
    return TracedStep(
        steps=n,
        wall_ns=wall_ns,
        median_ns=int(np.percentile(walls, 50)),
        p10_ns=int(np.percentile(walls, 10)),
        p90_ns=int(np.percentile(walls, 90)),
        phases_ns=Phases(**phases),
        source=f"{marks} in {trace.path.name}",
        excluded={reason: left_out} if left_out else {},
    )
