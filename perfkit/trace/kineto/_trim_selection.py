"""Which events of a trace stay when it is cut to steps or to some time, or loses kinds of events.

Decided event by event, as they stand in the text, by what the columns of the whole trace tell: when the steps were,
and which device work their launches made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation
from enum import IntEnum
from typing import Any

import msgspec
import numpy as np

from perfkit.errors import UsageError
from perfkit.trace.columns import DEVICE_KINDS, STEP_NAME, Kind, Trace
from perfkit.trace.intervals import Bools, Ints
from perfkit.trace.kineto._event_decoding import MEMORY, NOT_JSON
from perfkit.trace.kineto._event_table import KIND_OF

#: Flows from launches to their work, in the three eras of the format: their id is the correlation.
LAUNCH_FLOWS = {"ac2g", "async_cpu_to_gpu", "async"}
#: The profiler's span over the whole recording, which is no longer true of a part.
WHOLE_SPAN = "trace"

#: Letters of flows: their start, steps on the way, their end.
FLOW_LETTERS = ("s", "t", "f")

ENDLESS = 2**62
NO_TIME = -(2**63)
#: Times in us beyond this do not fit ns.
MOST_US = 4_000_000_000_000_000


class TextEvent(msgspec.Struct, gc=False):
    """What decides whether an event of any letter stays; any types, since the file may hold anything."""

    ph: Any = ""
    name: Any = ""
    cat: Any = ""
    pid: Any = ""
    tid: Any = ""
    ts: Any = None
    dur: Any = None
    id: Any = None
    #: Read only where it decides: most of a trace's text is arguments.
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _Linked(msgspec.Struct, gc=False):
    """The argument that links device work to its launch."""

    correlation: Any = None


LINKED = msgspec.json.Decoder(_Linked)


class Selection:
    """Which events stay."""

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
        self.seen: set[str] = set()
        self.rules = _Rules(self)
        # Times as they stand in the file, which the copying compares.
        base = trace.metadata.base_ns or 0
        start, end = trace.start_ns - base, trace.end_ns - base
        self.low, self.high, self.steps = _window(trace, start, end, steps, time_ns)
        calls = np.flatnonzero(trace.is_kind(Kind.RUNTIME) & (trace.correlation > 0))
        inside = self._overlap(start[calls], end[calls])
        #: Correlations of all launches, and of those that stay.
        self.launches = _sorted(trace.correlation[calls])
        self.launched = _sorted(trace.correlation[calls[inside]])
        work = trace.device_rows
        stays = _among(trace.correlation[work], self.launched)
        alone = ~_among(trace.correlation[work], self.launches)
        stays |= (alone | self.by_time) & self._overlap(start[work], end[work])
        self.work_starts = np.sort(start[work[stays]])
        self.work_end = int(end[work[stays]].max()) if stays.any() else self.low
        kinds = trace.kind[work]
        linked = stays & np.isin(kinds, [kind for kind in DEVICE_KINDS if not self._drops_kind(kind)])
        drops_calls = self._drops_kind(Kind.RUNTIME)
        self.flows = _sorted(
            np.zeros(0, np.int64) if drops_calls else _shared(trace.correlation[work[linked]], self.launched)
        )
        self.keeps_ops = not self._drops_kind(Kind.OP)

    def _drops_kind(self, kind: Kind) -> bool:
        """Whether events of a kind are left out, all or some."""
        cats = {cat for cat, of in KIND_OF.items() if of == kind}
        return bool(self.drop & cats) or (bool(self.keep) and not self.keep & cats)

    def _overlap(self, start: Ints, end: Ints) -> Bools:
        # An instant, or an event without length, lies where it begins.
        return np.asarray((start < self.high) & ((end > self.low) | (start >= self.low)), bool)

    def stays(self, events: list[TextEvent]) -> Bools:
        """Which events stay; of flows, which ends."""
        rules = self.rules
        try:
            found = [rules[event.ph, event.cat, event.ph == "i" and event.name == MEMORY] for event in events]
        except TypeError:  # a list or an object where a word should be
            found = [rules[str(event.ph), str(event.cat), False] for event in events]
        rule = np.array(found, np.int8)
        stays = np.asarray(rule == _Rule.NAMING, bool)
        flows = np.flatnonzero(rule == _Rule.LAUNCH_FLOW)
        stays[flows] = _among(_integers(_number(events[i].id) for i in flows.tolist()), self.flows)
        if not self.is_cut:
            stays |= rule > _Rule.LAUNCH_FLOW
            return stays
        timed = np.flatnonzero(rule > _Rule.LAUNCH_FLOW)
        rule = rule[timed]
        start = _integers(_ns(events[i].ts) for i in timed.tolist())
        length = _integers(_ns(events[i].dur) if events[i].ph == "X" else 0 for i in timed.tolist())
        good = (start != NO_TIME) & (length != NO_TIME)
        end = start + np.maximum(length, 0)
        chosen = np.where(rule == _Rule.INSTANT, (start >= self.low) & (start < self.high), self._overlap(start, end))
        chosen &= rule != _Rule.WHOLE
        device = np.flatnonzero(rule == _Rule.DEVICE)
        correlation = _integers(_correlation(events[i].args) for i in timed[device].tolist())
        alone = self.by_time | ~_among(correlation, self.launches)
        chosen[device] = _among(correlation, self.launched) | (alone & chosen[device])
        # Time 0 and no length: the profiler lost it.
        chosen[device] &= (start[device] != 0) | (length[device] != 0)
        for place in np.flatnonzero(rule == _Rule.PROJECTION).tolist():
            chosen[place] = self._keeps_projection(events[int(timed[place])], int(start[place]), int(end[place]))
        of_profiler = rule == _Rule.OVERHEAD
        chosen |= of_profiler & (start < self.work_end) & (end > self.low)
        stays[timed] = chosen & good
        return stays

    def _keeps_projection(self, event: TextEvent, start: int, end: int) -> bool:
        """Whether a range drawn over device work stays: a step's by its number, any other with some of its work."""
        step = STEP_NAME.match(event.name) if isinstance(event.name, str) else None
        if step is not None and self.steps:
            return int(step[1]) in self.steps
        return bool(np.searchsorted(self.work_starts, end, "right") > np.searchsorted(self.work_starts, start))

    def rule_of(self, letter: Any, cat: Any, is_memory: bool) -> _Rule:
        """What decides about events of this letter and kind."""
        if letter == "M":
            return _Rule.NAMING
        word = "memory" if is_memory else cat.lower() if isinstance(cat, str) else ""
        self.seen.add(word)
        if letter in FLOW_LETTERS:
            if word in self.drop:
                return _Rule.NEVER
            if word in LAUNCH_FLOWS:
                return _Rule.LAUNCH_FLOW
            return _Rule.INSTANT if self.keeps_ops else _Rule.NEVER
        if word not in self.keep if self.keep else word in self.drop:
            return _Rule.NEVER
        if letter != "X":
            return _Rule.INSTANT
        if word == WHOLE_SPAN:
            return _Rule.WHOLE
        return _RULE_OF_KIND.get(KIND_OF.get(word, Kind.OTHER), _Rule.OVERLAP)


class _Rule(IntEnum):
    """What decides whether an event stays."""

    NEVER = 0
    #: Names of processes and threads always stay.
    NAMING = 1
    #: By the launch, from here on by time.
    LAUNCH_FLOW = 2
    INSTANT = 3
    OVERLAP = 4
    DEVICE = 5
    PROJECTION = 6
    OVERHEAD = 7
    WHOLE = 8


_RULE_OF_KIND = {
    **dict.fromkeys((*DEVICE_KINDS, Kind.SYNC), _Rule.DEVICE),
    Kind.PROJECTION: _Rule.PROJECTION,
    Kind.OVERHEAD: _Rule.OVERHEAD,
}


class _Rules(dict[tuple[Any, Any, bool], int]):
    """The rule of each letter and kind, asked for once."""

    def __init__(self, choice: Selection) -> None:
        self.choice = choice

    def __missing__(self, key: tuple[Any, Any, bool]) -> int:
        rule = self[key] = int(self.choice.rule_of(*key))
        return rule


def _window(
    trace: Trace,
    start: Ints,
    end: Ints,
    steps: tuple[int | None, int | None] | None,
    time_ns: tuple[int | None, int | None] | None,
) -> tuple[int, int, tuple[int, ...]]:
    """First ns and the one after the last, on the file's clock; and the steps, where they were asked for."""
    if steps is not None:
        known = trace.steps
        first, stop = steps
        chosen = (known.number >= (first or 0)) & (known.number < (ENDLESS if stop is None else stop))
        if not known.row.size:
            raise UsageError(f"{trace.path} has no steps (ProfilerStep ranges); cut it by --time")
        if not chosen.any():
            have = f"steps {known.number.min()} to {known.number.max()}"
            raise UsageError(f"{trace.path} has {have}, none of those asked for")
        rows = known.row[chosen]
        numbers = tuple(sorted(set(known.number[chosen].tolist())))
        return int(start[rows].min()), int(end[rows].max()), numbers
    if time_ns is None:
        return -ENDLESS, ENDLESS, ()
    rows = np.concatenate((trace.host_rows, trace.device_rows))
    rows = rows[start[rows] > 0] if (start[rows] > 0).any() else rows
    if not rows.size:
        raise UsageError(f"{trace.path} holds no events; there is no time to cut")
    origin, whole = int(start[rows].min()), int(end[rows].max())
    low = origin + (time_ns[0] or 0)
    high = ENDLESS if time_ns[1] is None else origin + time_ns[1]
    if low >= min(high, whole):
        raise UsageError(f"{trace.path} holds {(whole - origin) / 1e6:.3f} ms, nothing in the time asked for")
    return low, high, ()


def _sorted(correlations: Ints) -> Ints:
    return np.unique(correlations[correlations > 0])


def _shared(one: Ints, other: Ints) -> Ints:
    return one[_among(one, other)]


def _among(values: Ints, known: Ints) -> Bools:
    if not known.size:
        return np.zeros(values.shape, bool)
    at = np.minimum(np.searchsorted(known, values), known.size - 1)
    return np.asarray(known[at] == values, bool)


def _integers(values: Iterable[int]) -> Ints:
    return np.fromiter(values, np.int64)


def _correlation(args: msgspec.Raw) -> int:
    try:
        return _number(LINKED.decode(args).correlation)
    except NOT_JSON:
        return -1


def _number(value: Any) -> int:
    """A correlation; -1 for anything else."""
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (ValueError, TypeError, OverflowError):
        return -1
    return number if 0 < number < 2**62 else -1


def _ns(value: Any) -> int:
    """A time in us, as it stands in the file, in ns; `NO_TIME` where it is none."""
    if type(value) is int:
        return value * 1000 if abs(value) < MOST_US else NO_TIME
    if not isinstance(value, str) or len(value) > 64:
        return NO_TIME
    whole, _, part = value.partition(".")
    if len(part) == 3 and len(whole) < 16 and whole.isdecimal() and part.isdecimal():
        return int(whole + part)  # as profilers write it
    try:
        us = Decimal(value)
    except InvalidOperation:
        return NO_TIME
    return int((us * 1000).to_integral_value()) if us.is_finite() and abs(us) < MOST_US else NO_TIME
