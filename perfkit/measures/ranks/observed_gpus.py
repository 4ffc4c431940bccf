"""Which of the GPUs that DCGM observed a rank trained on, and what it did during the run.

A GPU is found by its UUID where the run recorded that of the rank's device. Else ranks of a host are taken to use its
GPUs in order, as torchrun starts them, and a sentence says so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import NamedTuple

import numpy as np

from perfkit._text import printable
from perfkit.errors import UsageError
from perfkit.run.records import NodeHealth, Rank, Step
from perfkit.trace.dcgm import NodeMetrics, ObservedGpu

#: Names that a sentence lists.
_LISTED = 8


class RankPlace(NamedTuple):
    """Where a rank ran: its host, its number, and the UUID of its device; empty where unknown."""

    rank: int
    host: str
    uuid: str = ""

    @classmethod
    def of_record(cls, rank: Rank) -> RankPlace:
        """That of a rank's record."""
        return cls(rank.rank, rank.host, rank.node.uuid if rank.node is not None else "")


class ObservedGpus:
    """The GPUs of some ranks; ``notes`` has a sentence for each thing that is assumed or missing.

    Raises:
        UsageError: no rank's GPU is among them.
    """

    def __init__(self, metrics: NodeMetrics, ranks: Iterable[RankPlace]) -> None:
        self.metrics = metrics
        self.notes = [*metrics.notes]
        self._gpus: dict[int, ObservedGpu] = {}
        self._by_uuid = {gpu.name.uuid.removeprefix("GPU-"): gpu for gpu in metrics.gpus if gpu.name.uuid}
        self._by_host: dict[str, list[ObservedGpu]] = {}
        for observed in metrics.gpus:
            self._by_host.setdefault(_short(observed.name.host), []).append(observed)
        of_host: dict[str, list[int]] = {}
        places = sorted(ranks)
        for place in places:
            of_host.setdefault(place.host, []).append(place.rank)
        hosts = [*of_host]
        assumed: list[str] = []
        without: list[str] = []
        for place in places:
            gpu, by_uuid = self._find(place, of_host[place.host], alone=len(hosts) == 1)
            if gpu is None:
                without.append(str(place.rank))
                continue
            self._gpus[place.rank] = gpu
            if not by_uuid:
                assumed.append(f"rank {place.rank} {gpu.shown}")
        if not self._gpus:
            raise UsageError(_no_gpu_of(metrics, hosts))
        if assumed:
            self.notes.append(f"which device a rank used was not recorded; taken by number: {_some(assumed)}")
        if without:
            self.notes.append(f"{metrics.source} has no GPU of rank(s) {_some(without)}")

    def _find(self, place: RankPlace, of_host: Sequence[int], *, alone: bool) -> tuple[ObservedGpu | None, bool]:
        """The rank's GPU, and whether its UUID showed it."""
        if place.uuid and (found := self._by_uuid.get(place.uuid.removeprefix("GPU-"))) is not None:
            return found, True
        near = [one for one in self._by_host.get(_short(place.host), ()) if _is_host(one.name.host, place.host)]
        if not near and alone:  # a file that names no host, or traces that name none
            only = [*self.metrics.gpus] if not place.host and len(self._by_host) == 1 else []
            near = self._by_host.get("", only)
        # A GPU with another UUID than the rank's is not its GPU.
        near = [gpu for gpu in near if not (place.uuid and gpu.name.uuid)]
        if len(near) == 1 and len(of_host) == 1:
            return near[0], False
        position = of_host.index(place.rank)
        return next((gpu for gpu in near if gpu.name.number == position), None), False

    def gpu_of(self, rank: int) -> ObservedGpu | None:
        """The GPU of a rank, with all its readings; None where none was found."""
        return self._gpus.get(rank)

    def health_of(self, rank: Rank, rows: Sequence[Step]) -> NodeHealth | None:
        """What a rank's GPU did during its steps; None where its GPU was not observed then, which is noted."""
        gpu = self._gpus.get(rank.rank)
        if gpu is None:
            return None
        clock = _RunClock(rank, rows)
        if gpu.has_times and clock.known:
            inside = gpu.between(clock.start_unix_ns, clock.end_unix_ns)
            if not inside.readings:
                self.notes.append(
                    f"{gpu.shown} was observed {_span(gpu)}, not during the steps of rank {rank.rank}, "
                    f"{_times(clock.start_unix_ns, clock.end_unix_ns)}"
                )
                return None
            return inside.health({one: clock.at(one) for one in (r.unix_ns for r in inside.readings) if one})
        return gpu.health()


class _RunClock:
    """Unix time -> a rank's clock and the number of its steps that have begun."""

    def __init__(self, rank: Rank, rows: Sequence[Step]) -> None:
        self._pairs = sorted(rank.clock_pairs, key=lambda pair: pair.unix_ns)
        self._rows = sorted(rows, key=lambda row: row.start_ns)
        self._starts = [row.start_ns for row in self._rows]
        self.known = bool(self._pairs and self._rows)
        if self.known:
            offset = self._pairs[0].unix_ns - self._pairs[0].perf_ns
            self.start_unix_ns = self._starts[0] + offset
            self.end_unix_ns = max(row.start_ns + row.wall_ns for row in self._rows) + offset

    def at(self, unix_ns: int) -> tuple[int, int]:
        first = self._pairs[0].unix_ns - self._pairs[0].perf_ns
        # Differences between the pairs are small, and exact as floats; the offsets themselves are not.
        drift = np.interp(
            unix_ns - self._pairs[0].unix_ns,
            [pair.unix_ns - self._pairs[0].unix_ns for pair in self._pairs],
            [pair.unix_ns - pair.perf_ns - first for pair in self._pairs],
        )
        at_ns = unix_ns - first - round(float(drift))
        row = self._rows[max(0, bisect_right(self._starts, at_ns) - 1)]
        inside = min(max(0, at_ns - row.start_ns), row.wall_ns)
        return max(0, at_ns), row.step + (row.steps * inside // row.wall_ns if row.wall_ns else 0)


def gpu_of_trace(metrics: NodeMetrics, devices: Sequence[int]) -> tuple[ObservedGpu, list[str]]:
    """The GPU that a trace without a run was recorded on, and a sentence for each thing that is assumed.

    Raises:
        UsageError: which one it is cannot be told.
    """
    of_trace = [gpu for gpu in metrics.gpus if gpu.name.number in devices] if len(metrics.gpus) > 1 else metrics.gpus
    if not of_trace or len({gpu.name.host for gpu in metrics.gpus}) > 1:
        observed = _some([gpu.shown for gpu in metrics.gpus])
        used = _some([f"device {one}" for one in devices]) or "no device"
        raise UsageError(
            f"{metrics.source} must have the GPU of the trace, which used {used}; it has {observed}. "
            "Take the file of that host, or of that GPU alone (dcgmi dmon -i)"
        )
    gpu = of_trace[0]
    notes = [*metrics.notes, f"the trace has no UUID of its device, which is taken to be {gpu.shown}"]
    if gpu.has_times:
        notes.append(f"a trace has no times that DCGM's could be compared with: all values of {metrics.source} count")
    return gpu, [*notes, *errors_of(gpu)]


def errors_of(gpu: ObservedGpu) -> list[str]:
    """A sentence for each error that a GPU reported."""
    health, found = gpu.health(), []
    if health.xid:
        found.append(
            f"{gpu.shown} reports XID {health.xid} as its last error; docs.nvidia.com/deploy/xid-errors has its meaning"
        )
    if health.ecc_errors:
        found.append(f"{gpu.shown} reports {health.ecc_errors:,} double-bit error(s) of its memory")
    return found


def _short(host: str) -> str:
    return host.partition(".")[0].lower()


def _is_host(observed: str, host: str) -> bool:
    """Whether two names whose first parts are equal are one host: one of them may lack its domain."""
    both = "." in observed and "." in host
    return bool(observed and host) and (observed.lower() == host.lower() or not both)


def _no_gpu_of(metrics: NodeMetrics, hosts: Sequence[str]) -> str:
    observed = _some([gpu.shown + (f" ({gpu.name.uuid})" if gpu.name.uuid else "") for gpu in metrics.gpus])
    return printable(
        f"{metrics.source} must have a GPU of the run, whose ranks were on {_some(hosts) or 'hosts without a name'}; "
        f"it has {observed}. Take the file of that host; of several hosts, a folder with one file for each, named "
        "after its host (node7.txt)"
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _span(gpu: ObservedGpu) -> str:
    times = [one.unix_ns for one in gpu.readings if one.unix_ns is not None]
    return _times(min(times), max(times))


def _times(start_ns: int, end_ns: int) -> str:
    start, end = (datetime.fromtimestamp(ns / 1e9, timezone.utc) for ns in (start_ns, end_ns))
    return f"from {start:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} UTC"
