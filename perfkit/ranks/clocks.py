"""How far the clocks of the hosts are apart, from the ends of collectives.

A blocking collective ends on all ranks at once (6 µs apart on eight ranks of one host, measured), so its ends are the
same instant on different clocks. Each rank's clock is a line over that of the reference, whose slope is the median of
slopes between distant pairs (Theil 1950, Sen 1968; here each row with the one half of the recording later) and whose
offset is the median of what remains: up to a quarter of the ends may be anything. Ranks that share no group with the
reference are reached through those that share one with both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from perfkit.ranks._rank_statistics import spread_of
from perfkit.ranks.collectives import Meetings
from perfkit.trace.intervals import Bools, Ints

#: Minimum of shared ends: with fewer one wrong end decides.
_MIN_ENDS = 4
#: A slope is believed if over the recording it makes more than this many residuals: below, it is chance.
_BELIEVED = 3.0
#: A clock is not aligned if its residual is larger: a fifth of what a rank must be late to be named in a step of 50 ms.
MAX_RESIDUAL_NS = 300_000

Floats = npt.NDArray[np.float64]


class HostClock(msgspec.Struct, frozen=True, kw_only=True):
    """The clock of one host beside that of the reference.

    Attributes:
        ranks: How many of its ranks were aligned, each by itself.
        offset_ns: What its clock is behind the reference's in the middle of the recording (median of its ranks).
        drift_ppm: What it loses in addition, in millionths of the time.
        residual_ns: What is left between ends of one collective, one standard deviation, of its worst rank.
    """

    host: str
    ranks: int
    offset_ns: int
    drift_ppm: float
    residual_ns: int


@dataclass(frozen=True, eq=False)
class AlignedClocks:
    """For each rank that was read, what turns its clock into the reference's; NaN where it could not be aligned.

    The time of the reference is ``time + offset + drift * (time - origin)``.
    """

    origin_ns: Ints
    offset_ns: Floats
    drift: Floats
    residual_ns: Floats

    @property
    def aligned(self) -> Bools:
        """Which ranks' times can be compared."""
        return np.nan_to_num(self.residual_ns, nan=np.inf) <= MAX_RESIDUAL_NS

    def on_reference(self, position: int, times_ns: Ints) -> Ints:
        """Times of a rank as the reference's clock would have shown them."""
        since = times_ns - self.origin_ns[position]
        ahead: Ints = np.rint(self.offset_ns[position] + self.drift[position] * since).astype(np.int64)
        return times_ns + ahead

    def by_host(self, hosts: Sequence[str]) -> tuple[HostClock, ...]:
        """The clocks of the hosts; ``hosts`` has the host of each rank, in order."""
        found = []
        names, of_rank = np.unique(np.array(hosts, str), return_inverse=True)
        for code, name in enumerate(names.tolist()):
            rows = np.flatnonzero((of_rank == code) & np.isfinite(self.offset_ns))
            if rows.size:
                found.append(
                    HostClock(
                        host=name,
                        ranks=rows.size,
                        offset_ns=round(float(np.median(self.offset_ns[rows]))),
                        drift_ppm=round(float(np.median(self.drift[rows])) * 1e6, 3),
                        residual_ns=round(float(self.residual_ns[rows].max())),
                    )
                )
        return tuple(found)


def align_clocks(meetings: Meetings, ranks: int) -> AlignedClocks:
    """Align the clocks of ``ranks`` ranks by the ends of what they did together."""
    clocks = AlignedClocks(np.zeros(ranks, np.int64), *(np.full(ranks, np.nan) for _ in range(3)))
    rows = np.flatnonzero(meetings.meeting >= 0)
    rank, meeting, end = meetings.rank[rows], meetings.meeting[rows], meetings.end_ns[rows]
    if not rows.size:
        return clocks
    reference = int(np.bincount(rank).argmax())
    by_rank = np.argsort(rank, kind="stable")
    bounds = np.searchsorted(rank[by_rank], np.arange(ranks + 1))
    _set(clocks, reference, int(end[by_rank[bounds[reference]]]), 0.0, 0.0, 0.0)
    common = np.full(int(meeting.max()) + 1, -1)  # the end of each meeting on the reference's clock
    new = [reference]
    while new:
        for one in new:
            mine = by_rank[bounds[one] : bounds[one + 1]]
            unknown = mine[common[meeting[mine]] < 0]
            common[meeting[unknown]] = clocks.on_reference(one, end[unknown])
        reached = np.unique(rank[common[meeting] >= 0])
        new = []
        for one in reached[np.isnan(clocks.offset_ns[reached])].tolist():
            mine = by_rank[bounds[one] : bounds[one + 1]]
            shared = mine[common[meeting[mine]] >= 0]
            if shared.size >= _MIN_ENDS:
                shared = shared[np.argsort(end[shared], kind="stable")]
                _fit(clocks, one, end[shared], common[meeting[shared]])
                new.append(one)
    return clocks


def _fit(clocks: AlignedClocks, position: int, own: Ints, reference: Ints) -> None:
    origin = int(own[own.size // 2])
    along, apart = (own - origin).astype(float), (reference - own).astype(float)
    base = float(np.median(apart))
    apart -= base  # small numbers, so that no digit is lost
    half = own.size // 2
    run = along[half:] - along[: own.size - half]
    usable = run > 0
    rise = apart[half:] - apart[: own.size - half]
    drift = float(np.median(rise[usable] / run[usable])) if usable.any() else 0.0
    left = apart - drift * along
    residual = spread_of(left)
    if abs(drift) * (along[-1] - along[0]) < _BELIEVED * residual:
        drift, left = 0.0, apart
        residual = spread_of(left)
    _set(clocks, position, origin, base + float(np.median(left)), drift, residual)


def _set(clocks: AlignedClocks, position: int, origin: int, offset: float, drift: float, residual: float) -> None:
    clocks.origin_ns[position] = origin
    clocks.offset_ns[position] = offset
    clocks.drift[position] = drift
    clocks.residual_ns[position] = residual
