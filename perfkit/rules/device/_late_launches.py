"""The time in which a device waits because the host launches its kernels late."""

from __future__ import annotations

from typing import NamedTuple

from perfkit.ledger.step_budget import DeviceStepBudget
from perfkit.measures.results.device import IdleCause

#: What the host did instead of launching in time, in words. Syncs, allocations and data are causes of their own.
LATE: dict[IdleCause, str] = {
    "operators": "inside operators",
    "python": "in Python",
    "launch call": "in launch calls",
    "launch latency": "between launch and start of a kernel",
    "optimizer": "in the optimizer",
}


#: A host that launches late does so again and again: in traces that are launch-bound 80% of the time is in 80 gaps or
#: more. Fewer than this many are single events: a module loaded or an algorithm searched at first use.
_GAPS = 12


class LateLaunches(NamedTuple):
    """Idle time of the device per step by what the host did, and by how much recording slowed the step, in ns.

    ``gaps`` hold 80% of the time of the largest cause.
    """

    causes: dict[IdleCause, int]
    slowdown_ns: int
    gaps: int

    @property
    def cost_ns(self) -> int:
        """The idle time without the slowdown: a profiler slows the host and not the device. 0 for a few single gaps."""
        return 0 if self.gaps < _GAPS else max(0, sum(self.causes.values()) - self.slowdown_ns)


def late_launches(step: DeviceStepBudget) -> LateLaunches:
    """The idle time of the step in which the host was busy launching."""
    slowdown = max(0, step.traced.wall_ns - step.typical.wall_ns) if step.typical and step.traced else 0
    causes = {cause: step.of_device(step.device.causes.get(cause, 0)) for cause in LATE}
    return LateLaunches(causes, slowdown, step.device.gaps.get(max(causes, key=lambda cause: causes[cause]), 0))
