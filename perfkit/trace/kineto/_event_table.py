"""Events to columns, chunk by chunk, and the tables of several processes joined."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np

from perfkit.trace.columns import CodeTable, Kind
from perfkit.trace.intervals import Ints
from perfkit.trace.kineto._event_decoding import (
    NO_ARGS,
    NO_MEMORY_ARGS,
    ColumnArgs,
    CompleteEvent,
    Event,
    InstantEvent,
    NamingEvent,
    typed,
)
from perfkit.trace.kineto._event_kinds import HAS_DEVICE, KIND_OF, MEMORY
from perfkit.trace.kineto._exact_numbers import ids, signed, times_ns

#: 57 bytes per event.
COLUMNS: dict[str, type] = {
    "start": np.int64,
    "end": np.int64,
    "name": np.int32,
    "track": np.int32,
    "kind": np.int8,
    "correlation": np.int64,
    "sequence": np.int64,
    "stream": np.int32,
    "device": np.int32,
    "bytes": np.int64,
}

#: The text of one event has at least these many bytes.
MIN_EVENT = 128

#: -1 as uint32, which stands for "no stream" and "no device".
MAX_ID = 2**32 - 1

#: Events of the other types are not looked at.
_NOT_ONLY_ROWS = {InstantEvent, NamingEvent, dict}


class ChunkRows(NamedTuple):
    """Where a chunk is in the text, and which rows of the trace its events became."""

    offset: int
    length: int
    first_row: int
    #: Positions of the rows among the chunk's events that can be rows; None where all of them are rows.
    kept: Ints | None


class _KindCodes(dict[Any, int]):
    """The kind of each category."""

    def __missing__(self, cat: Any) -> int:
        kind = self[cat] = int(KIND_OF.get(cat.lower() if isinstance(cat, str) else "", Kind.OTHER))
        return kind


class _GrowingColumn:
    """A column with capacity for more rows: its unused end is address space, not memory."""

    def __init__(self, dtype: type, capacity: int) -> None:
        self.data: Any = np.empty(capacity, dtype)
        self.size = 0

    def append(self, values: Any) -> None:
        end = self.size + values.size
        if end > self.data.size:
            larger = np.empty(2 * end, self.data.dtype)
            larger[: self.size] = self.data[: self.size]
            self.data = larger
        self.data[self.size : end] = values
        self.size = end

    def values(self) -> Any:
        return self.data[: self.size]


class EventCounts(msgspec.Struct):
    """How many events were seen, and how many were lost, by cause."""

    seen: int = 0
    repaired: int = 0
    beyond_repair: int = 0
    without_time: int = 0
    lost_device_events: int = 0
    negative: int = 0

    def add(self, other: EventCounts) -> None:
        """Add the counts of another table."""
        for field in self.__struct_fields__:
            setattr(self, field, getattr(self, field) + getattr(other, field))


class TablePart(NamedTuple):
    """The content of a table, in a form that pickles well."""

    names: list[str]
    tracks: list[tuple[str, str]]
    process_names: dict[str, str]
    thread_names: dict[tuple[str, str], str]
    counts: EventCounts
    chunks: list[ChunkRows]
    columns: dict[str, Any]


class EventTable:
    """The columns while a file is read; times are the file's own, in ns."""

    def __init__(self, text_bytes: int) -> None:
        capacity = text_bytes // MIN_EVENT + 1
        self._columns = {name: _GrowingColumn(dtype, capacity) for name, dtype in COLUMNS.items()}
        self.names = CodeTable()
        self.tracks = CodeTable()
        self._kinds = _KindCodes()
        self.process_names: dict[str, str] = {}
        self.thread_names: dict[tuple[str, str], str] = {}
        self.chunks: list[ChunkRows] = []
        self.counts = EventCounts()
        self.rows = 0

    def columns(self) -> dict[str, Any]:
        """All columns, by the names in `COLUMNS`."""
        return {name: column.values() for name, column in self._columns.items()}

    # -- events ----------------------------------------------------------------------------------------------

    def add(self, offset: int, length: int, events: list[Event]) -> None:
        """Append the events of one chunk.

        Raises:
            NeedsText: their times must be decoded as text.
        """
        complete: list[CompleteEvent] = [event for event in events if event.__class__ is CompleteEvent]
        not_events = 0
        if len(complete) != len(events) and not _NOT_ONLY_ROWS.isdisjoint(map(type, events)):
            complete, not_events = self._sort_out(events, complete)
        columns, kept = self._columns_of(complete)
        self.counts.beyond_repair += not_events
        self.counts.seen += len(events) - not_events
        self.chunks.append(ChunkRows(offset, length, self.rows, kept))
        self._append_columns(columns)

    def _append_columns(self, columns: dict[str, Any]) -> None:
        for name, values in columns.items():
            self._columns[name].append(values)
        self.rows += columns["start"].size

    def _sort_out(self, events: list[Event], complete: list[CompleteEvent]) -> tuple[list[CompleteEvent], int]:
        """What becomes rows, where the events are of several types, and how many are not events."""
        not_events = 0
        rows: list[CompleteEvent] = []
        mixed = False
        for event in events:
            if event.__class__ is dict:
                mixed = True
                not_events += not isinstance(event.get("ph"), str)
                event = typed(event)
            event_type = event.__class__
            if event_type is CompleteEvent:
                rows.append(event)
            elif event_type is InstantEvent:
                if event.name == MEMORY:
                    mixed = True
                    rows.append(_memory_row(event))
            elif event_type is NamingEvent:
                self._add_label(event)
        return rows if mixed else complete, not_events

    def _add_label(self, event: NamingEvent) -> None:
        label = event.args.get("name") if isinstance(event.args, dict) else None
        if not isinstance(label, str):
            return
        if event.name == "process_name":
            self.process_names[text_of(event.pid)] = label
        elif event.name == "thread_name":
            self.thread_names[text_of(event.pid), text_of(event.tid)] = label

    def _columns_of(self, events: list[CompleteEvent]) -> tuple[dict[str, Any], Ints | None]:
        start, usable = times_ns([e.ts for e in events])
        duration, has_duration = times_ns([e.dur for e in events])
        usable &= has_duration
        kept = None
        kinds = self._kinds
        try:
            kind = np.frombuffer(bytes([kinds[e.cat] for e in events]), np.int8)
        except TypeError:
            kind = np.array([kinds[text_of(e.cat)] for e in events], np.int8)
        has_device = HAS_DEVICE[kind]
        # Old versions of Kineto wrote device events that they lost with time 0, which would stretch every window.
        lost = has_device & (start == 0) & (duration == 0) & (kind != Kind.MEMORY) & (kind != Kind.SYNC)
        usable_count = int(usable.sum())
        self.counts.without_time += len(events) - usable_count
        self.counts.negative += int((usable & (duration < 0)).sum())
        if usable_count < len(events) or lost.any():
            self.counts.lost_device_events += int((lost & usable).sum())
            kept = np.flatnonzero(usable & ~lost)
            events = [events[i] for i in kept.tolist()]
            start, duration, kind, has_device = start[kept], duration[kept], kind[kept], has_device[kept]
        args = [e.args or NO_ARGS for e in events]
        columns = {
            "start": start,
            "end": start + np.maximum(duration, 0),
            "name": self._name_codes(events),
            "track": self._track_codes(events),
            "kind": kind,
            "correlation": ids([a.correlation for a in args]),
            "sequence": ids([a.sequence for a in args]),
            **{name: np.full(start.size, -1, COLUMNS[name]) for name in ("stream", "device", "bytes")},
        }
        # Ops and API calls may have a stream too (Triton, HIP): only the kind says what ran on a device.
        rows = np.flatnonzero(has_device)
        if rows.size:
            _fill_device_columns(columns, rows, [args[i] for i in rows.tolist()], events)
        return columns, kept

    def _name_codes(self, events: list[CompleteEvent]) -> Any:
        names = self.names
        try:
            return np.array([names[e.name] for e in events], np.int32)
        except TypeError:  # a list or an object in place of a name
            return np.array([names[text_of(e.name)] for e in events], np.int32)

    def _track_codes(self, events: list[CompleteEvent]) -> Any:
        tracks = self.tracks
        try:
            return np.array([tracks[e.pid, e.tid] for e in events], np.int32)
        except TypeError:
            return np.array([tracks[text_of(e.pid), text_of(e.tid)] for e in events], np.int32)

    # -- processes -------------------------------------------------------------------------------------------

    def part(self) -> TablePart:
        """What another process needs to append this table to its own."""
        return TablePart(
            names=[text_of(name) for name in self.names],
            tracks=[(text_of(pid), text_of(tid)) for pid, tid in self.tracks],
            process_names=self.process_names,
            thread_names=self.thread_names,
            counts=self.counts,
            chunks=self.chunks,
            columns=self.columns(),
        )

    def append(self, part: TablePart) -> None:
        """Append a table that another process read."""
        columns = part.columns
        for codes, keys, column in ((self.names, part.names, "name"), (self.tracks, part.tracks, "track")):
            final = np.array([codes[key] for key in keys] or [0], np.int32)
            columns[column] = final[columns[column]]
        self.chunks += [chunk._replace(first_row=self.rows + chunk.first_row) for chunk in part.chunks]
        self._append_columns(columns)
        self.process_names |= part.process_names
        self.thread_names |= part.thread_names
        self.counts.add(part.counts)


def text_of(value: Any) -> str:
    """A name or an id as text that can be printed."""
    text = value if isinstance(value, str) else str(value)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _fill_device_columns(
    columns: dict[str, Any], rows: Ints, args: list[ColumnArgs], events: list[CompleteEvent]
) -> None:
    """Set stream, device and bytes of the rows of a device; ``args`` are theirs."""
    columns["stream"][rows] = ids([a.stream for a in args], MAX_ID)
    devices = [a.device for a in args]
    if None in devices:
        pids = [events[i].pid for i in rows.tolist()]
        devices = [device if device is not None else pid for device, pid in zip(devices, pids, strict=True)]
    columns["device"][rows] = ids(devices, MAX_ID)
    columns["bytes"][rows] = ids([a.bytes for a in args])
    memory = np.flatnonzero(columns["kind"][rows] == Kind.MEMORY)
    if memory.size:
        columns["bytes"][rows[memory]] = [signed(args[i].bytes) for i in memory.tolist()]


def _memory_row(event: InstantEvent) -> CompleteEvent:
    """An allocation or a free in the form of the other rows."""
    args = event.args or NO_MEMORY_ARGS
    device = -1 if args.device_type == 0 else args.device
    return CompleteEvent(
        name=MEMORY, cat=MEMORY, pid=event.pid, tid=event.tid, ts=event.ts, dur=0,
        args=ColumnArgs(device=-1 if device is None else device, bytes=args.bytes),
    )  # fmt: skip
