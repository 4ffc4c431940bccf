"""Which events of a trace are kept when it is cut to some steps or some time, or loses kinds of events.

Decided event by event, in the order of the text, from the columns of the whole trace: when the steps ran, and which
device work their launches made.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from typing import Any

import msgspec
import numpy as np

from perfkit.errors import UsageError
from perfkit.trace.columns import DEVICE_KINDS, STEP_NAME, Kind, Trace, positions_in
from perfkit.trace.intervals import Bools, Ints
from perfkit.trace.kineto._event_decoding import NOT_JSON
from perfkit.trace.kineto._event_kinds import KIND_OF, MEMORY
from perfkit.trace.kineto._exact_numbers import ids, times_ns

#: Flows from launches to their work, in the three versions of the format: their id is the correlation.
LAUNCH_FLOWS = {"ac2g", "async_cpu_to_gpu", "async"}
#: The category of the profiler's span over the whole recording, which is not true of a part.
WHOLE_SPAN = "trace"

#: Event types of flows: the start, steps on the way, the end.
FLOW_TYPES = ("s", "t", "f")

#: Later than any time in ns.
NEVER_NS = 2**62


class TextEvent(msgspec.Struct, gc=False):
    """The part of an event that decides whether it is kept; of any type, because a file may hold anything."""

    ph: Any = ""
    name: Any = ""
    cat: Any = ""
    pid: Any = ""
    tid: Any = ""
    ts: Any = None
    dur: Any = None
    id: Any = None
    #: Decoded only where it decides: most of the text of a trace is arguments.
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _LinkArgs(msgspec.Struct, gc=False):
    """The argument that links device work to its launch."""

    correlation: Any = None


LINK_DECODER = msgspec.json.Decoder(_LinkArgs)


class TrimSelection:
    """Decides which events are kept; the arguments are those of `perfkit.trace.kineto.trimming.trim_trace`."""

    def __init__(
        self,
        trace: Trace,
        steps: tuple[int | None, int | None] | None,
        time_ns: tuple[int | None, int | None] | None,
        drop: Sequence[str],
        keep: Sequence[str],
    ) -> None:
        self.is_cut = steps is not None or time_ns is not None
        self.by_time = time_ns is not None
        self.drop = {word.lower() for word in drop}
        self.keep = {word.lower() for word in keep}
        self.kinds_seen: set[str] = set()
        #: The criterion of each event type and category, worked out once.
        self._criterion = cache(self._criterion_of)
        # Times as they are in the file, which the copy compares.
        base = trace.metadata.base_ns or 0
        start, end = trace.start_ns - base, trace.end_ns - base
        self.low, self.high, self.steps = _window(trace, start, end, steps, time_ns)
        calls = np.flatnonzero(trace.is_kind(Kind.RUNTIME) & (trace.correlation > 0))
        inside = self._overlap(start[calls], end[calls])
        # Correlations of all launches, and of the launches that are kept.
        self._launches = np.unique(trace.correlation[calls])
        self._kept_launches = np.unique(trace.correlation[calls[inside]])
        work = trace.device_rows
        correlation = trace.correlation[work]
        kept = _among(correlation, self._kept_launches)
        unlinked = ~_among(correlation, self._launches)
        kept |= (unlinked | self.by_time) & self._overlap(start[work], end[work])
        self._work_starts = np.sort(start[work[kept]])
        self._work_end = int(end[work[kept]].max()) if kept.any() else self.low
        # A flow is kept with both its ends: the launch and the work.
        linked = kept & np.isin(trace.kind[work], [kind for kind in DEVICE_KINDS if not self._drops_kind(kind)])
        linked &= _among(correlation, self._kept_launches) & (not self._drops_kind(Kind.RUNTIME))
        self._flows = np.unique(correlation[linked])
        self._keeps_ops = not self._drops_kind(Kind.OP)

    def _drops_kind(self, kind: Kind) -> bool:
        """Whether events of a kind are dropped, all or some."""
        cats = {cat for cat, of in KIND_OF.items() if of == kind}
        return bool(self.drop & cats) or (bool(self.keep) and not self.keep & cats)

    def _overlap(self, start: Ints, end: Ints) -> Bools:
        # An instant, or an event of zero length, is where it begins.
        return np.asarray((start < self.high) & ((end > self.low) | (start >= self.low)), bool)

    def keeps(self, events: list[TextEvent]) -> Bools:
        """Which events are kept; of flows, which ends."""
        criterion_of = self._criterion
        try:
            found = [criterion_of(event.ph, event.cat, event.ph == "i" and event.name == MEMORY) for event in events]
        except TypeError:  # a list or an object in place of a word
            found = [criterion_of(str(event.ph), str(event.cat), False) for event in events]
        criterion = np.array(found, np.int8)
        keeps: Bools = criterion == _Criterion.ALWAYS
        flows = np.flatnonzero(criterion == _Criterion.LAUNCH_FLOW)
        keeps[flows] = _among(ids([events[i].id for i in flows.tolist()]), self._flows)
        timed = np.flatnonzero(criterion > _Criterion.LAUNCH_FLOW)
        keeps[timed] = self._keeps_timed([events[i] for i in timed.tolist()], criterion[timed]) if self.is_cut else True
        return keeps

    def _keeps_timed(self, events: list[TextEvent], criterion: Any) -> Bools:
        """Which of the events that are kept by their time are kept."""
        start, has_start = times_ns([event.ts for event in events])
        length, has_length = times_ns([event.dur if event.ph == "X" else 0 for event in events])
        end = start + np.maximum(length, 0)
        keeps = self._overlap(start, end)
        keeps &= criterion != _Criterion.WHOLE
        device = np.flatnonzero(criterion == _Criterion.DEVICE)
        correlation = ids([_correlation(events[i].args) for i in device.tolist()])
        unlinked = self.by_time | ~_among(correlation, self._launches)
        keeps[device] = _among(correlation, self._kept_launches) | (unlinked & keeps[device])
        # Device events with time 0 and no length are those that the profiler lost.
        keeps[device] &= (start[device] != 0) | (length[device] != 0)
        for i in np.flatnonzero(criterion == _Criterion.PROJECTION).tolist():
            keeps[i] = self._keeps_projection(events[i], int(start[i]), int(end[i]))
        keeps |= (criterion == _Criterion.OVERHEAD) & (start < self._work_end) & (end > self.low)
        return keeps & has_start & has_length

    def _keeps_projection(self, event: TextEvent, start: int, end: int) -> bool:
        """Whether a range drawn over device work is kept: a step by its number, any other with some of its work."""
        step = STEP_NAME.match(event.name) if isinstance(event.name, str) else None
        if step is not None and self.steps:
            return int(step[1]) in self.steps
        return bool(np.searchsorted(self._work_starts, end, "right") > np.searchsorted(self._work_starts, start))

    def _criterion_of(self, event_type: Any, cat: Any, is_memory: bool) -> _Criterion:
        """What decides about events of this type and category."""
        if event_type == "M":
            return _Criterion.ALWAYS
        kind = "memory" if is_memory else cat.lower() if isinstance(cat, str) else ""
        self.kinds_seen.add(kind)
        if event_type in FLOW_TYPES:
            if kind in self.drop:
                return _Criterion.NEVER
            if kind in LAUNCH_FLOWS:
                return _Criterion.LAUNCH_FLOW
            return _Criterion.OVERLAP if self._keeps_ops else _Criterion.NEVER
        if kind not in self.keep if self.keep else kind in self.drop:
            return _Criterion.NEVER
        if event_type != "X":
            return _Criterion.OVERLAP
        if kind == WHOLE_SPAN:
            return _Criterion.WHOLE
        return _CRITERION_OF_KIND.get(KIND_OF.get(kind, Kind.OTHER), _Criterion.OVERLAP)


class _Criterion(IntEnum):
    """What decides whether an event is kept."""

    NEVER = 0
    #: Names of processes and threads.
    ALWAYS = 1
    #: By the launch; all that follow, by time.
    LAUNCH_FLOW = 2
    OVERLAP = 3
    DEVICE = 4
    PROJECTION = 5
    OVERHEAD = 6
    WHOLE = 7


_CRITERION_OF_KIND = {
    **dict.fromkeys((*DEVICE_KINDS, Kind.SYNC), _Criterion.DEVICE),
    Kind.PROJECTION: _Criterion.PROJECTION,
    Kind.OVERHEAD: _Criterion.OVERHEAD,
}


def _window(
    trace: Trace,
    start: Ints,
    end: Ints,
    steps: tuple[int | None, int | None] | None,
    time_ns: tuple[int | None, int | None] | None,
) -> tuple[int, int, tuple[int, ...]]:
    """First ns and the one after the last, on the file's clock; and the steps, where steps were requested."""
    if steps is not None:
        known = trace.steps
        first, stop = steps
        chosen = (known.number >= (first or 0)) & (known.number < (NEVER_NS if stop is None else stop))
        if not known.row.size:
            raise UsageError(f"{trace.path} has no steps (ProfilerStep ranges); cut it by --time")
        if not chosen.any():
            raise UsageError(
                f"{trace.path} has steps {known.number.min()} to {known.number.max()}, none of the requested steps"
            )
        rows = known.row[chosen]
        numbers = tuple(sorted(set(known.number[chosen].tolist())))
        return int(start[rows].min()), int(end[rows].max()), numbers
    if time_ns is None:
        return -NEVER_NS, NEVER_NS, ()
    rows = np.concatenate((trace.host_rows, trace.device_rows))
    rows = rows[start[rows] > 0] if (start[rows] > 0).any() else rows
    if not rows.size:
        raise UsageError(f"{trace.path} has no events, so it cannot be cut by time")
    origin, last = int(start[rows].min()), int(end[rows].max())
    low = origin + (time_ns[0] or 0)
    high = NEVER_NS if time_ns[1] is None else origin + time_ns[1]
    if low >= min(high, last):
        raise UsageError(f"{trace.path} is {(last - origin) / 1e6:.3f} ms long, with nothing in the requested time")
    return low, high, ()


def _among(correlations: Ints, known: Ints) -> Bools:
    """Which of these are in ``known``, which is sorted."""
    return positions_in(known, correlations) >= 0


def _correlation(args: msgspec.Raw) -> Any:
    try:
        return LINK_DECODER.decode(args).correlation
    except NOT_JSON:
        return None
