"""The time in which a device waits because the host launches its kernels late."""

from __future__ import annotations

from typing import NamedTuple

from perfkit._location import Location
from perfkit.ledger.step_budget import MAJORITY, DeviceStepBudget
from perfkit.measures.results.device import LATE_LAUNCHES, DeviceTime, IdleCause

#: What the host did instead of launching in time, in words. Syncs, allocations and data are causes of their own.
WORDS: dict[IdleCause, str] = {
    "operators": "inside operators",
    "python": "in Python",
    "uninstrumented": "in code that was not recorded",
    "launch call": "in launch calls",
    "launch latency": "between launch and start of a kernel",
    "optimizer": "in the optimizer",
}

#: A host that launches late does so again and again: in traces that are launch-bound 80% of the time is in 80 gaps or
#: more. Fewer than two dozen, or one in each step, are single events: something done at first use, or between steps.
_GAPS, _GAPS_PER_STEP = 24, 1


class LateLaunches(NamedTuple):
    """Idle time of the device per step by what the host did, in ns.

    ``gaps`` of the recording hold 80% of that time; ``is_habit`` is whether these are many. ``spent`` is the function
    in which the host was for most of it.
    """

    causes: dict[IdleCause, int]
    gaps: int
    is_habit: bool
    spent: Location | None

    @property
    def cost_ns(self) -> int:
        """The idle time; 0 for a few single gaps."""
        return sum(self.causes.values()) if self.is_habit else 0


def is_habit(device: DeviceTime) -> bool:
    """Whether the host launches late again and again, and not in a few single events."""
    return device.late_gaps >= _GAPS and device.late_gaps > _GAPS_PER_STEP * device.steps


def late_launches(step: DeviceStepBudget) -> LateLaunches:
    """The idle time of the step in which the host was busy launching."""
    device = step.device
    causes = {cause: step.of_device(device.causes.get(cause, 0)) for cause in LATE_LAUNCHES}
    return LateLaunches(causes, device.late_gaps, is_habit(device), _spent(device))


def _spent(device: DeviceTime) -> Location | None:
    late = [one for one in device.idle if one.cause in LATE_LAUNCHES]
    places: dict[Location | None, int] = {}
    for one in late:
        places[one.at] = places.get(one.at, 0) + one.ns
    most = max(places, key=lambda at: places[at], default=None)
    return most if most is not None and places[most] >= MAJORITY * sum(one.ns for one in late) else None
