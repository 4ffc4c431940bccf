"""The rows of the ledger, and how a time is divided into them without loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from perfkit._location import Location
from perfkit.measures.results.device import LATE_LAUNCHES
from perfkit.run.records import Phase

#: What a nanosecond of the step goes to.
Owner = Literal[
    "computing",
    "op overhead",
    "copies",
    "communication",
    "waiting for ranks",
    "idle",
    "data",
    "python",
    "waiting",
    "collection",
    "callbacks",
    "logging",
    "checkpoint",
    "validation",
    "other programs",
    "unrecorded",
]


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the step: ``ns`` that belongs to ``owner``.

    ``name`` is the op, the kernels' class, or the cause of idle time; ``count`` its calls, kernels or gaps per step.
    ``limit_ns`` is what the row would take at the limit of this machine, None where that is not known; ``bound`` is
    which limit that is: "overhead" is what so many calls cost at least, whatever they compute.
    """

    owner: Owner
    name: str
    ns: int
    phase: Phase | None = None
    at: Location | None = None
    limit_ns: int | None = None
    bound: Literal["arithmetic", "memory", "overhead"] | None = None
    count: float | None = None

    @property
    def part(self) -> str:
        """The row in a sentence: ``computing in forward``, ``idle (sync)``, ``computing (aten::mm)`` without shapes."""
        if self.owner in ("idle", "unrecorded"):
            return f"{self.owner} ({self.name})"
        if self.owner == "computing" and self.phase is None and self.at is None:
            return f"{self.owner} ({self.name.partition(' ')[0]})"
        return f"{self.owner} in {self.phase}" if self.phase is not None and self.phase != self.owner else self.owner


class Selector(NamedTuple):
    """Rows that a rule may claim: those that match every field that is not None; ``names`` lists what a name may be.

    ``phase`` "none" is that of rows without one, as those of a device's work. ``prefix`` is how a name begins: rows of
    ops have their shapes in it.
    """

    owner: Owner | None = None
    phase: Phase | Literal["none"] | None = None
    names: tuple[str, ...] | None = None
    prefix: str = ""

    def matches(self, row: LedgerRow) -> bool:
        """Whether a row is one of these."""
        return (
            (self.owner is None or row.owner == self.owner)
            and (self.phase is None or self.phase == (row.phase or "none"))
            and (self.names is None or row.name in self.names)
            and row.name.startswith(self.prefix)
        )


#: Ops: what they compute, and what each costs apart from that.
COMPUTING = (Selector(owner="computing"), Selector(owner="op overhead"))

#: What a device computes.
ON_DEVICE = Selector(owner="computing", phase="none")

#: Idle time of a device that waits for the host to launch.
LATE = Selector(owner="idle", names=LATE_LAUNCHES)

#: Python, for which a device waits where one computes.
PYTHON = (Selector(owner="python"), LATE)


class Partition(NamedTuple):
    """Rows that sum to the step, where their limits come from, and why limits are missing."""

    rows: list[LedgerRow]
    limits: str | None
    unknown: str | None


def apportion(total_ns: int, weights: Sequence[float]) -> list[int]:
    """Whole numbers in proportion to the weights that sum to ``total_ns`` exactly (largest remainders)."""
    whole = sum(weights)
    if whole <= 0:
        return [0] * len(weights)
    exact = [total_ns * weight / whole for weight in weights]
    parts = [int(value) for value in exact]
    by_remainder = sorted(range(len(parts)), key=lambda at: parts[at] - exact[at])
    left = total_ns - sum(parts)
    for at in range(abs(left)):
        parts[by_remainder[at % len(parts)]] += 1 if left > 0 else -1
    return parts
