"""Kernels of a report of Nsight Compute that a rule is about: told once for each name, whatever its grids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from perfkit._format import ms, percent
from perfkit.findings import Evidence
from perfkit.measures.results.kernel_profiles import KernelProfile, KernelProfiles, short_name
from perfkit.measures.results.measured import Measured
from perfkit.rules._step_budget import NEGLIGIBLE

#: Why no such finding has a price.
ALONE = Evidence(
    "cost per step",
    None,
    "ns",
    "ncu runs each kernel alone, with clocks held and caches emptied, so its report holds no step",
)
#: A name in a sentence; the whole of it is in the table.
_LONGEST = 60


class Named(NamedTuple):
    """The launches of one kernel for which a rule's condition holds; ``longest`` stands for them."""

    name: str
    rows: list[KernelProfile]
    profiles: KernelProfiles

    @property
    def longest(self) -> KernelProfile:
        """The grid and block that took most time."""
        return self.rows[0]

    @property
    def share(self) -> float:
        """Their part of all profiled time, or of all launches."""
        return sum(row.share or 0.0 for row in self.rows)

    @property
    def part(self) -> str:
        """The share in words."""
        of = "profiled time" if self.profiles.total_ns is not None else "profiled launches"
        return f"{percent(self.share, 1)} of the {of}"

    def evidence(self) -> Iterator[Evidence]:
        """What was looked at: which launches, and how long one took."""
        row = self.longest
        launches = sum(each.launches for each in self.rows)
        shape = f"grid {row.grid}, block {row.block}"
        yield Evidence("launches", launches, "", f"{shape}{' and others' if len(self.rows) > 1 else ''}")
        if row.mean_ns is not None:
            first = f"launch {row.id} of the report" if row.id is not None else "the longest launch"
            yield Evidence("time of a launch", round(row.mean_ns / 1e3, 3), "µs", f"{ms(row.mean_ns)}, alone; {first}")


def kernels_where(measured: Measured, holds: Callable[[KernelProfile], bool]) -> list[Named]:
    """The kernels with launches for which a condition holds that take 5% of what was profiled, longest first."""
    profiles = measured.kernel_profiles
    if profiles is None:
        return []
    by_name: dict[str, list[KernelProfile]] = {}
    for row in profiles.rows:
        if row.share is not None and holds(row):
            by_name.setdefault(row.name, []).append(row)
    found = [Named(_cut(short_name(name)), rows, profiles) for name, rows in by_name.items()]
    return sorted((one for one in found if one.share >= NEGLIGIBLE), key=lambda one: -one.share)


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
