"""The ops of the trace, counted per step."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.host import Ops, OpTime
from perfkit.measures.results.measurements import Measurements


class OpsInStep(msgspec.Struct, frozen=True):
    """The ops of a trace as parts of ``step``; ``source`` is where their numbers come from."""

    step: StepBudget
    rows: tuple[OpTime, ...]
    steps: int
    source: str

    @classmethod
    def from_measurements(cls, found: Measurements) -> OpsInStep | None:
        """None without a trace of the host."""
        step, ops = StepBudget.from_measurements(found), found.get(Ops)
        if step is None or ops is None or not ops.steps:
            return None
        return cls(step, ops.rows, ops.steps, f"trace, {ops.steps} steps")

    def count(self, counts: Iterable[int]) -> float:
        """A sum of counts, per step."""
        return sum(counts) / self.steps

    def time(self, times_ns: Iterable[int]) -> float:
        """A sum of host times, per step and by their share of the traced step."""
        return sum(times_ns) / self.steps * self.step.trace_scale
