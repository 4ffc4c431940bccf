"""Memory before and after: the peak of a step, and what is held at it, against the noise between steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from perfkit._format import relative_change, size
from perfkit.diagnosis import Diagnosis
from perfkit.measures.results.peak_memory import PeakMemory
from perfkit.run.records import HOLDINGS

#: Its name in ``--max-more memory=5%``; the budget is a share of the peak before.
MEMORY = "memory"
#: Kinds that changed by less than this share of the larger peak are left out, as in the comparison of times.
_LEAST = 0.05

MemoryChanged = Literal["more", "less", "no difference", "not tested"]


class MemoryDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One amount of a device's memory, in bytes: of the ``peak`` of a step, what is ``held at its end``, or one kind of
    what is held at the peak.

    ``low_bytes`` to ``high_bytes`` is how far two steps of both sides are apart at least and at most; where that
    contains 0, the difference is within the noise of the steps. None where single steps were not recorded.
    """

    device: str
    what: str
    before_bytes: int
    after_bytes: int
    low_bytes: int | None = None
    high_bytes: int | None = None
    change: MemoryChanged = "not tested"

    @property
    def changed(self) -> str:
        """The relative change as text; "new" where there was nothing before."""
        if not self.before_bytes:
            return "new" if self.after_bytes else ""
        return relative_change(self.before_bytes, self.after_bytes)

    @property
    def sentence(self) -> str:
        """``cpu peak: 21 MB → 17 MB (-19%), less``."""
        change = f" ({self.changed})" if self.changed else ""
        return f"{self.device} {self.what}: {size(self.before_bytes)} → {size(self.after_bytes)}{change}, {self.change}"


def memory_differences(first: Diagnosis, second: Diagnosis) -> tuple[MemoryDifference, ...]:
    """The devices that both sides recorded for memory; else the peaks that the allocator counts itself."""
    before, after = ({one.device: one for one in side.figures.peak_memory} for side in (first, second))
    found = [row for device in before if device in after for row in _of_device(before[device], after[device])]
    if found:
        return tuple(found)
    was, is_ = (side.step.memory_peak_bytes if side.step is not None else None for side in (first, second))
    if was is None or is_ is None:
        return ()
    return (MemoryDifference(device="device", what="peak", before_bytes=was, after_bytes=is_),)


def broken_memory_budget(found: tuple[MemoryDifference, ...], share: float) -> str | None:
    """A sentence where a peak rose by more than this share, or where none can be compared."""
    peaks = [one for one in found if one.what == "peak"]
    if not peaks:
        return "memory was not recorded on both sides (perfkit run --memory), so its budget cannot be kept"
    broken = [
        one for one in peaks if one.change != "no difference" and one.after_bytes > one.before_bytes * (1 + share)
    ]
    return f"memory: {broken[0].sentence}; at most +{share:.3g} is allowed" if broken else None


def _of_device(before: PeakMemory, after: PeakMemory) -> Iterator[MemoryDifference]:
    peaks = [[one.peak_bytes for one in side.steps] for side in (before, after)]
    ends = [[one.end_bytes for one in side.steps] for side in (before, after)]
    for what, (was, is_) in (("peak", peaks), ("held at its end", ends)):
        if was and is_:
            low, high = min(is_) - max(was), max(is_) - min(was)
            change: MemoryChanged = "less" if high < 0 else "more" if low > 0 else "no difference"
            yield MemoryDifference(
                device=before.device,
                what=what,
                before_bytes=max(was),
                after_bytes=max(is_),
                low_bytes=low,
                high_bytes=high,
                change=change,
            )
    least = _LEAST * max(before.peak_bytes, after.peak_bytes)
    for kind in HOLDINGS:
        was_held, is_held = before.holding.get(kind, 0), after.holding.get(kind, 0)
        if abs(is_held - was_held) >= least:
            yield MemoryDifference(
                device=before.device, what=f"{kind} at the peak", before_bytes=was_held, after_bytes=is_held
            )
