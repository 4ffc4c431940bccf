"""Where the forward begins: where the program first calls its model in a step.

The step clock knows fetches, backwards and optimizers, and no calls of modules, which would cost too much to watch. So
it counts as forward what leads to a backward: also a replay buffer, rewards, and batches made in the loop. The step
that was traced by line shows which lines run before the model, and samples how long they take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from perfkit.measures.results.host import HostWork
from perfkit.measures.results.steps import MeanStep, StepBreakdown

_Breakdown = TypeVar("_Breakdown", bound=StepBreakdown)


def without_preparation(step: _Breakdown | None, works: Sequence[HostWork], mean: MeanStep | None) -> _Breakdown | None:
    """The step with the time of lines that run before the model, and call no ops, in ``other`` instead of ``forward``.

    ``works`` are of the mean step.
    """
    if step is None or mean is None or mean.wall_ns <= 0:
        return step
    before_ns = sum(line.host_ns for work in works for line in work.lines if line.before_model)
    scale = min(1.0, step.wall_ns / mean.wall_ns)
    moved = min(step.phases_ns.forward or 0, round(before_ns * scale))
    if not moved:
        return step
    phases = msgspec.structs.replace(
        step.phases_ns,
        forward=(step.phases_ns.forward or 0) - moved,
        other=(step.phases_ns.other or 0) + moved,
    )
    return msgspec.structs.replace(step, phases_ns=phases)
