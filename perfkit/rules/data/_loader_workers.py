"""What background workers of a DataLoader hide of the time that a batch takes, on this machine."""

from __future__ import annotations

from typing import NamedTuple

from perfkit.ledger.step_budget import StepBudget
from perfkit.limits.loader_workers import CONTENTION, HANDOVER_NS
from perfkit.measures.results.measurements import Measurements
from perfkit.rules._settings import number
from perfkit.run.records import Rank

#: More workers than this need measuring and are no first advice: each holds a copy of the dataset.
MAX_WORKERS = 4


class Processor(NamedTuple):
    """The processor that workers share with training.

    ``cpus`` is how many CPUs this process may use, None where unknown; ``threads`` how many the step computes on, None
    where a device computes.
    """

    cpus: int | None
    threads: int | None

    @classmethod
    def from_measurements(cls, found: Measurements) -> Processor:
        """As recorded in the settings of the rank; unknown without them."""
        rank, step = found.get(Rank), StepBudget.from_measurements(found)
        cpus = number(rank, "cpu_affinity") or number(rank, "cpu_count")
        if step is not None and step.on_device:
            return cls(cpus, None)
        return cls(cpus, min(number(rank, "torch.num_threads") or 1, cpus or 1))

    @property
    def workers(self) -> int:
        """How many workers to start with: one CPU is left to the training process."""
        return max(1, min(self.cpus - 1, MAX_WORKERS)) if self.cpus is not None else MAX_WORKERS

    def slowdown(self, rest_ns: int) -> int:
        """By how much workers slow the rest of the step where it computes on the processor that they share."""
        return 0 if self.threads is None else round(CONTENTION * rest_ns)

    def hidden(self, wall_ns: int, work_ns: int) -> tuple[int, str]:
        """How much of ``work_ns`` of a step background workers hide at least, and the assumption behind it."""
        # Any machine can run one background process.
        workers = self.workers if self.cpus is not None else 1
        rest_ns = wall_ns - work_ns
        step_ns = max(rest_ns, work_ns / workers)
        assumption = f"{workers} background worker{'s' if workers > 1 else ''}, the same work per sample"
        if self.cpus is not None:
            threads = self.threads or 1
            step_ns = max(step_ns, (work_ns + rest_ns * threads) / self.cpus)
            assumption += f", {self.cpus} CPUs shared with {threads} thread{'s' if threads > 1 else ''} of training"
        return max(0, round(wall_ns - step_ns - self.slowdown(rest_ns) - HANDOVER_NS)), assumption
