"""The window of a trace as lanes: steps, ranges, each device's idle time by cause and its streams, the host's threads.

A page cannot hold 2 million events. Each lane keeps its longest events and merges the short ones between them into
buckets of time, with their count, the sum of their times, and the longest of them. No time disappears, and the longest
event is always drawn by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from perfkit._text import clean
from perfkit.measures.device._device_work import DeviceWork, device_work
from perfkit.measures.device._idle import CAUSES, idle_of_devices
from perfkit.measures.results.device import IdleCause
from perfkit.measures.steps._trace_steps import whole_steps
from perfkit.reports.figures.columns import packed
from perfkit.reports.figures.data import Items, Lane, Timeline
from perfkit.trace.columns import Kind, ProfilerSteps, Trace
from perfkit.trace.intervals import Bools, Ints
from perfkit.trace.nesting import find_parents

#: Items of a timeline: 8 to 12 letters each, so 2.4 to 3.6 MB of a page. Few windows have as many events.
_ITEMS = 300_000
#: Letters of all names together: a range that names its input has as many names as calls.
_LETTERS = 600_000
#: Share of a lane's items that are single events; the rest are buckets.
_SINGLE = 2 / 3
#: Lanes of a kind; more do not fit a screen. The busiest stay, and a note has the number of the others.
_STREAMS, _DEVICES, _THREADS, _DEPTH = 12, 8, 6, 9

#: Cause of idle time -> family of causes with one colour.
_FAMILY: dict[IdleCause, str] = {
    "data loading": "data",
    "sync": "sync",
    "allocation": "allocation",
    "first use": "allocation",
    "recompiling": "allocation",
    "copy call": "copy",
    "launch call": "launch",
    "launch latency": "launch",
    "inside a graph": "launch",
    "before a graph": "launch",
    "unrecorded graph": "launch",
    "communication call": "communication",
    "collective": "communication",
    "optimizer": "host",
    "python": "host",
    "operators": "host",
    "OS call": "host",
    "uninstrumented": "host",
    "other host work": "host",
    "queued back to back": "device",
    "another stream": "device",
    "dependency": "device",
    "no launch in the trace": "unknown",
    "profiler": "profiler",
}


def idle_kind(cause: str) -> str:
    """The kind (colour) of idle time with this cause."""
    return f"idle-{next((family for name, family in _FAMILY.items() if name == cause), 'unknown')}"


class _Draft(NamedTuple):
    """A lane before its events are limited; ``code`` are codes of (name, kind), coded later."""

    group: str
    label: str
    role: str
    start: Ints
    length: Ints
    code: Ints
    during: Ints | None = None


class _Columns(NamedTuple):
    """The columns of `Items`, not yet packed; ``start`` in ns from the window's begin, ``during`` -1 for none."""

    start: Ints
    length: Ints
    code: Ints
    events: Ints | None = None
    busy: Ints | None = None
    longest: Ints | None = None
    during: Ints | None = None

    def items(self, new: Ints) -> Items:
        """Packed, with codes of names replaced by ``new[code]``."""
        optional = {
            "count": self.events,
            "busy": self.busy,
            "longest": self.longest,
            "during": new[self.during] + 1 if self.during is not None else None,
        }
        return Items(
            start=packed(np.diff(self.start, prepend=0)),
            length=packed(self.length),
            name=packed(new[self.code]),
            **{name: packed(column) for name, column in optional.items() if column is not None},
        )


class _Split(NamedTuple):
    """A lane whose events are divided into single ones and buckets of the others."""

    draft: _Draft
    single: _Columns
    merged: _Columns | None


class _Names:
    """Names with their kinds, in the order of their first use."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], int] = {}

    def code(self, name: str, kind: str) -> int:
        return self._codes.setdefault((name, kind), len(self._codes))

    def codes(self, trace: Trace, rows: Ints, kinds: dict[int, str], special: Bools | None = None) -> Ints:
        """Codes of the rows' names; ``kinds`` by Kind, "communication" for the special ones."""
        key = trace.name[rows].astype(np.int64) * 64 + trace.kind[rows] * 2
        if special is not None:
            key = key + special
        unique, place = np.unique(key, return_inverse=True)
        table = [
            self.code(trace.names[one // 64], "communication" if one % 2 else kinds[one % 64 // 2])
            for one in unique.tolist()
        ]
        return np.asarray(np.array(table, np.int64)[place.reshape(-1)] if table else np.zeros(0, np.int64), np.int64)

    def used(self, splits: list[_Split]) -> tuple[list[Lane], tuple[str, ...], tuple[str, ...]]:
        """The lanes with codes counted again over the names that are kept, and those names and kinds.

        The names of the longest events are kept; beyond `_LETTERS` of them the others are one name per kind.
        """
        known = list(self._codes)
        longest = np.zeros(len(known), np.int64)
        for split in splits:
            for columns in (split.single, split.merged):
                if columns is not None:
                    np.maximum.at(longest, columns.code, columns.length)
                if columns is not None and columns.during is not None:
                    there = columns.during >= 0
                    np.maximum.at(longest, columns.during[there], columns.length[there])
        kept: dict[tuple[str, str], int] = {}
        new = np.full(len(known) + 1, -1, np.int64)  # the last one stays: code -1 is no name
        letters_left = _LETTERS
        for code in np.argsort(-longest, kind="stable").tolist():
            if not longest[code]:
                break
            name, kind = clean(known[code][0]), known[code][1]
            letters_left -= len(name)
            new[code] = kept.setdefault((name if letters_left >= 0 else "(one of many other names)", kind), len(kept))
        lanes = [
            Lane(
                group=split.draft.group,
                label=split.draft.label,
                role=split.draft.role,  # type: ignore[arg-type]  # a draft's role is one of the lane's
                events=int(split.draft.start.size),
                items=split.single.items(new),
                merged=split.merged.items(new) if split.merged is not None else None,
            )
            for split in splits
        ]
        return lanes, tuple(name for name, _ in kept), tuple(kind for _, kind in kept)


_OF_DEVICE = {int(Kind.KERNEL): "compute", int(Kind.COPY): "copy", int(Kind.MEMSET): "memset"}
_OF_HOST = {int(Kind.OP): "op", int(Kind.RANGE): "range", int(Kind.RUNTIME): "api"}


def timeline_of(trace: Trace) -> Timeline | None:
    """The window as lanes of a bounded number of items; None if nothing in the trace takes time."""
    works = device_work(trace)
    low, high = _window(trace, works)
    if high <= low:
        return None
    names = _Names()
    notes: list[str] = []
    drafts = [
        *_steps(whole_steps(trace), names),
        *_device_lanes(trace, works, names, notes),
        *_host_lanes(trace, low, high, names, notes),
    ]
    drafts = [_clipped(draft, low, high) for draft in drafts]
    drafts = [draft for draft in drafts if draft.start.size]
    if not drafts:
        return None
    splits = [_split(draft, limit, high - low) for draft, limit in zip(drafts, _item_limits(drafts), strict=True)]
    lanes, used, kinds = names.used(splits)
    drawn = [split for split in splits if split.draft.role != "idle"]  # idle time is no event
    events = sum(split.draft.start.size for split in drawn)
    shown = sum(split.single.start.size for split in drawn)
    if shown < events:
        notes.append(
            f"{events:,} events: the {shown:,} longest are drawn one by one, shorter neighbours together; "
            "a click on them zooms in."
        )
    return Timeline(
        title=trace.path.name,
        start_ns=low,
        span_ns=high - low,
        events=events,
        shown=shown,
        names=used,
        kinds=kinds,
        lanes=tuple(lanes),
        notes=tuple(notes),
    )


def _window(trace: Trace, works: tuple[DeviceWork, ...]) -> tuple[int, int]:
    steps = whole_steps(trace)
    lows, highs = [work.low for work in works], [work.high for work in works]
    if steps.row.size:
        lows.append(int(steps.start_ns[0]))
        highs.append(int(steps.end_ns[-1]))
    elif not works and trace.host_rows.size:
        lows.append(int(trace.start_ns[trace.host_rows].min()))
        highs.append(int(trace.end_ns[trace.host_rows].max()))
    return (min(lows), max(highs)) if lows else (0, 0)


def _steps(steps: ProfilerSteps, names: _Names) -> Iterator[_Draft]:
    if steps.row.size:
        code = np.array([names.code(f"step {number}", "step") for number in steps.number.tolist()], np.int64)
        yield _Draft("", "steps", "steps", steps.start_ns, steps.end_ns - steps.start_ns, code)


def _device_lanes(trace: Trace, works: tuple[DeviceWork, ...], names: _Names, notes: list[str]) -> Iterator[_Draft]:
    if not works:
        return
    if len(works) > _DEVICES:
        notes.append(f"{len(works) - _DEVICES} of {len(works)} devices are not drawn.")
    cause_codes = np.array([names.code(cause, idle_kind(cause)) for cause in CAUSES], np.int64)
    for work, charged in zip(works[:_DEVICES], idle_of_devices(trace)[:_DEVICES], strict=True):
        group, idle = f"device {work.device}", charged.pieces
        during = np.full(idle.row.size, -1, np.int64)
        known = np.flatnonzero((idle.row >= 0) & np.isin(trace.kind[idle.row], list(_OF_HOST)))
        during[known] = names.codes(trace, idle.row[known], _OF_HOST)
        order = np.argsort(idle.starts, kind="stable")
        start, length = idle.starts[order], (idle.ends - idle.starts)[order]
        yield _Draft(group, "idle", "idle", start, length, cause_codes[idle.cause[order]], during[order])
        rows, is_communication = work.rows, work.is_communication
        length = trace.end_ns[rows] - trace.start_ns[rows]
        code = names.codes(trace, rows, _OF_DEVICE, is_communication)
        streams, place = np.unique(trace.stream[rows], return_inverse=True)
        busy = np.bincount(place.reshape(-1), weights=length)
        chosen = np.sort(np.argsort(-busy, kind="stable")[:_STREAMS])
        if streams.size > chosen.size:
            notes.append(f"{group}: the {chosen.size} busiest of {streams.size} streams are drawn.")
        for i in chosen.tolist():
            mine = np.flatnonzero(place.reshape(-1) == i)
            yield _Draft(group, f"stream {streams[i]}", "stream", trace.start_ns[rows[mine]], length[mine], code[mine])


def _host_lanes(trace: Trace, low: int, high: int, names: _Names, notes: list[str]) -> Iterator[_Draft]:
    rows = np.flatnonzero(trace.is_kind(Kind.OP, Kind.RANGE, Kind.RUNTIME))
    rows = rows[(trace.end_ns[rows] > low) & (trace.start_ns[rows] < high)]
    is_step = np.zeros(len(trace), bool)
    is_step[trace.steps.row] = True
    rows = rows[~is_step[rows]]
    if not rows.size:
        return
    parent = find_parents(trace.track, trace.start_ns, trace.end_ns, rows)
    tops = rows[parent[rows] < 0]
    busy = np.bincount(
        trace.track[tops], weights=trace.end_ns[tops] - trace.start_ns[tops], minlength=len(trace.tracks)
    )
    threads = [code for code in np.argsort(-busy, kind="stable").tolist() if busy[code] > 0]
    if len(threads) > _THREADS:
        notes.append(f"The {_THREADS} busiest of {len(threads)} host threads are drawn.")
    depth = np.full(len(trace) + 1, -1, np.int64)
    waiting, level = rows, tops
    for at in range(_DEPTH):
        depth[level] = at
        waiting = waiting[depth[waiting] < 0]
        level = waiting[depth[parent[waiting]] == at]
    if level.size:
        notes.append(f"Host events below {_DEPTH} levels of calls are not drawn; the flame graph has them.")
    code = names.codes(trace, rows, _OF_HOST)
    for track in threads[:_THREADS]:
        about = trace.tracks[track]
        named = about.thread_name or about.thread
        group = named if named.startswith("thread") else f"thread {named}"
        mine = np.flatnonzero(trace.track[rows] == track)
        for at in range(_DEPTH):
            here = mine[depth[rows[mine]] == at]
            here = here[np.argsort(trace.start_ns[rows[here]], kind="stable")]
            if here.size:
                start = trace.start_ns[rows[here]]
                yield _Draft(group, f"level {at + 1}", "host", start, trace.end_ns[rows[here]] - start, code[here])


def _clipped(draft: _Draft, low: int, high: int) -> _Draft:
    """The draft inside the window, with starts counted from its begin."""
    start = np.maximum(draft.start, low)
    end = np.minimum(draft.start + draft.length, high)
    kept = end > start
    return draft._replace(
        start=start[kept] - low,
        length=(end - start)[kept],
        code=draft.code[kept],
        during=draft.during[kept] if draft.during is not None else None,
    )


def _item_limits(drafts: list[_Draft]) -> list[int]:
    """How many items each lane may have; lanes with few events leave their rest to the others."""
    limits = [0] * len(drafts)
    left = _ITEMS
    by_size = sorted(range(len(drafts)), key=lambda i: drafts[i].start.size)
    for done, i in enumerate(by_size):
        limits[i] = min(drafts[i].start.size, left // (len(drafts) - done))
        left -= limits[i]
    return limits


def _split(draft: _Draft, limit: int, span: int) -> _Split:
    start, length, code, during = draft.start, draft.length, draft.code, draft.during
    if start.size <= limit:
        return _Split(draft, _Columns(start, length, code, during=during), None)
    by_length = np.argsort(-length, kind="stable")
    count = max(1, int(limit * _SINGLE))
    single, short = np.sort(by_length[:count]), np.sort(by_length[count:])
    alone = during[single] if during is not None else None
    return _Split(
        draft,
        _Columns(start[single], length[single], code[single], during=alone),
        _merged(start[short], length[short], code[short], max(1, limit // 3), span),
    )


def _merged(start: Ints, length: Ints, code: Ints, buckets: int, span: int) -> _Columns:
    bucket = start * buckets // max(1, span)
    first = np.flatnonzero(np.append(True, bucket[1:] != bucket[:-1]))
    end = np.maximum.reduceat(start + length, first)
    # The longest of each bucket stands first in this order.
    order = np.lexsort((-length, bucket))
    longest = order[first]
    return _Columns(
        start=start[first],
        length=end - start[first],
        code=code[longest],
        events=np.diff(np.append(first, start.size)),
        busy=np.add.reduceat(length, first),
        longest=length[longest],
    )
