"""Events to columns, chunk by chunk, and the columns of several processes to one table."""

from __future__ import annotations

import math
from array import array
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import msgspec
import numpy as np

from perfkit.trace.columns import DEVICE_KINDS, Kind
from perfkit.trace.intervals import Bools, Ints
from perfkit.trace.kineto._event_decoding import (
    MEMORY,
    NO_ARGS,
    NO_MEMORY_ARGS,
    Args,
    Complete,
    Event,
    Instant,
    Naming,
    complete_of,
    instant_of,
)

KIND_OF = {
    "cpu_op": Kind.OP,
    "operator": Kind.OP,
    "user_annotation": Kind.RANGE,
    "python_function": Kind.PYTHON,
    "python": Kind.PYTHON,
    "kernel": Kind.KERNEL,
    "concurrent_kernel": Kind.KERNEL,
    "mtia_ccp_events": Kind.KERNEL,
    "gpu_memcpy": Kind.COPY,
    "memcpy": Kind.COPY,
    "gpu_memset": Kind.MEMSET,
    "memset": Kind.MEMSET,
    "cuda_sync": Kind.SYNC,
    "cuda_event": Kind.SYNC,
    "xpu_sync": Kind.SYNC,
    "gpu_user_annotation": Kind.PROJECTION,
    "overhead": Kind.OVERHEAD,
    MEMORY: Kind.MEMORY,
    **dict.fromkeys(
        (
            *("runtime", "driver", "cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "xpu_driver"),
            *("mtia_runtime", "glow_runtime", "privateuse1_runtime", "privateuse1_driver"),
        ),
        Kind.RUNTIME,
    ),
}

#: From here on a float has not three exact decimals, and the text must be read instead.
EXACT_US = 2.0**43

#: Times in us beyond this do not fit int64 ns with room for a base.
MOST_US = 4_000_000_000_000_000

#: -1 as uint32: how "no stream" and "no device" are written.
MOST_ID = 2**32 - 1

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


#: Text of one event, at the least that profilers write.
LEAST_EVENT = 128


class NeedsText(Exception):
    """A time has decimals that a float cannot hold."""


class Chunk(NamedTuple):
    """Where a chunk lies in the text, and which rows of the trace its events became."""

    offset: int
    length: int
    first_row: int
    rows: int
    #: Positions of the rows among the chunk's events that can be rows, where some were left out.
    kept: Ints | None


class Codes(dict[Any, int]):
    """Gives each new key the next code."""

    def __missing__(self, key: Any) -> int:
        code = self[key] = len(self)
        return code


class _Kinds(dict[Any, int]):
    """The kind of each category."""

    def __missing__(self, cat: Any) -> int:
        kind = self[cat] = int(KIND_OF.get(cat.lower() if isinstance(cat, str) else "", Kind.OTHER))
        return kind


class _Growing:
    """A column of more room than rows: its unused end is address space, not memory."""

    def __init__(self, dtype: type, room: int) -> None:
        self.data: Any = np.empty(room, dtype)
        self.size = 0

    def append(self, values: Any) -> None:
        end = self.size + values.size
        if end > self.data.size:
            larger = np.empty(2 * end, self.data.dtype)
            larger[: self.size] = self.data[: self.size]
            self.data = larger
        self.data[self.size : end] = values
        self.size = end

    def done(self) -> Any:
        return self.data[: self.size]


class Counts(msgspec.Struct):
    """What was seen, and what was lost."""

    seen: int = 0
    repaired: int = 0
    beyond_repair: int = 0
    without_time: int = 0
    lost_device_events: int = 0


class Header(msgspec.Struct):
    """A table without its columns, to go from one process to another."""

    names: list[str]
    tracks: list[tuple[str, str]]
    process_names: dict[str, str]
    thread_names: list[tuple[str, str, str]]
    counts: Counts
    #: (offset, length, first row, rows, the kept ones as bytes of int64)
    chunks: list[tuple[int, int, int, int, bytes | None]]
    rows: int


class Table:
    """The columns while they are read; times are the file's own, in ns."""

    def __init__(self, text_bytes: int) -> None:
        room = text_bytes // LEAST_EVENT + 1
        self.columns = {name: _Growing(dtype, room) for name, dtype in COLUMNS.items()}
        self.names = Codes()
        self.tracks = Codes()
        self.kinds = _Kinds()
        self.process_names: dict[str, str] = {}
        self.thread_names: dict[tuple[str, str], str] = {}
        self.chunks: list[Chunk] = []
        self.counts = Counts()
        self.rows = 0

    # -- events ----------------------------------------------------------------------------------------------

    def add(self, offset: int, length: int, events: list[Event]) -> None:
        """Append the events of one chunk.

        Raises:
            NeedsText: they must be decoded with their times as text.
        """
        complete: list[Complete] = [event for event in events if event.__class__ is Complete]
        no_events = 0
        if len(complete) != len(events) and not TOLD_APART.isdisjoint(map(type, events)):
            complete, no_events = self._sort_out(events, complete)
        columns, kept = self._columns(complete)
        self.counts.beyond_repair += no_events
        self.counts.seen += len(events) - no_events
        self._append(Chunk(offset, length, self.rows, columns["start"].size, kept), columns)

    def _append(self, chunk: Chunk, columns: dict[str, Any]) -> None:
        self.chunks.append(chunk)
        for name, values in columns.items():
            self.columns[name].append(values)
        self.rows += chunk.rows

    def _sort_out(self, events: list[Event], complete: list[Complete]) -> tuple[list[Complete], int]:
        """What becomes rows, where the events are of several classes; and how many were no events."""
        no_events = 0
        rows: list[Complete] = []
        mixed = False
        for event in events:
            letter = event.__class__
            if letter is Complete:
                rows.append(event)
            elif letter is Instant:
                if event.name == MEMORY:
                    mixed = True
                    rows.append(_memory(event))
            elif letter is Naming:
                self._name(event.name, event.pid, event.tid, event.args)
            elif letter is dict:
                mixed = True
                what = event.get("ph")
                if what == "X":
                    rows.append(complete_of(event))
                elif what == "i" and event.get("name") == MEMORY:
                    rows.append(_memory(instant_of(event)))
                elif what == "M":
                    self._name(*(event.get(key) for key in ("name", "pid", "tid", "args")))
                elif not isinstance(what, str):
                    no_events += 1
        return rows if mixed else complete, no_events

    def _name(self, name: Any, pid: Any, tid: Any, args: Any) -> None:
        label = args.get("name") if isinstance(args, dict) else None
        if not isinstance(label, str):
            return
        if name == "process_name":
            self.process_names[text_of(pid)] = label
        elif name == "thread_name":
            self.thread_names[text_of(pid), text_of(tid)] = label

    def _columns(self, events: list[Complete]) -> tuple[dict[str, Any], Ints | None]:
        start, good = _times([e.ts for e in events])
        duration, good_too = _times([e.dur for e in events])
        good &= good_too
        kept = None
        kinds = self.kinds
        try:
            kind = np.frombuffer(bytes([kinds[e.cat] for e in events]), np.int8)
        except TypeError:
            kind = np.array([kinds[text_of(e.cat)] for e in events], np.int8)
        on_device = ON_DEVICE[kind]
        # Old Kineto wrote device events that it lost with time 0: they would stretch every window.
        never_ran = on_device & (start == 0) & (duration == 0) & (kind != Kind.MEMORY) & (kind != Kind.SYNC)
        good_count = int(good.sum())
        self.counts.without_time += len(events) - good_count
        if good_count < len(events) or never_ran.any():
            self.counts.lost_device_events += int((never_ran & good).sum())
            kept = np.flatnonzero(good & ~never_ran)
            events = [events[i] for i in kept.tolist()]
            start, duration, kind, on_device = start[kept], duration[kept], kind[kept], on_device[kept]
        args = [e.args or NO_ARGS for e in events]
        columns = {
            "start": start,
            "end": start + np.maximum(duration, 0),
            "name": self._name_codes(events),
            "track": self._track_codes(events),
            "kind": kind,
            "correlation": _ints([a.correlation for a in args], 2**62),
            "sequence": _ints([a.sequence for a in args], 2**62),
            **{name: np.full(start.size, -1, COLUMNS[name]) for name in ("stream", "device", "bytes")},
        }
        # Ops and API calls may carry a stream too (Triton, HIP): only the kind says what ran on a device.
        rows = np.flatnonzero(on_device)
        if rows.size:
            places = rows.tolist()
            theirs = [args[i] for i in places]
            columns["stream"][rows] = _ints([a.stream for a in theirs], MOST_ID)
            devices = [a.device for a in theirs]
            if None in devices:
                devices = [
                    device if device is not None else events[i].pid for i, device in zip(places, devices, strict=True)
                ]
            columns["device"][rows] = _ints(devices, MOST_ID)
            columns["bytes"][rows] = _ints([a.bytes for a in theirs], 2**62)
            memory = np.flatnonzero(kind == Kind.MEMORY)
            if memory.size:
                columns["bytes"][memory] = [_signed(args[i].bytes) for i in memory.tolist()]
        return columns, kept

    def _name_codes(self, events: list[Complete]) -> Any:
        names = self.names
        try:
            return np.array([names[e.name] for e in events], np.int32)
        except TypeError:  # a list or an object where a name should stand
            return np.array([names[text_of(e.name)] for e in events], np.int32)

    def _track_codes(self, events: list[Complete]) -> Any:
        tracks = self.tracks
        try:
            return np.array([tracks[e.pid, e.tid] for e in events], np.int32)
        except TypeError:
            return np.array([tracks[text_of(e.pid), text_of(e.tid)] for e in events], np.int32)

    # -- processes -------------------------------------------------------------------------------------------

    def header(self) -> Header:
        """What another process needs beside `columns` to append this table to its own."""
        return Header(
            names=[text_of(name) for name in self.names],
            tracks=[(text_of(pid), text_of(tid)) for pid, tid in self.tracks],
            process_names=self.process_names,
            thread_names=[(*key, label) for key, label in self.thread_names.items()],
            counts=self.counts,
            chunks=[(*chunk[:4], chunk.kept.tobytes() if chunk.kept is not None else None) for chunk in self.chunks],
            rows=self.rows,
        )

    def append(self, header: Header, columns: dict[str, Any]) -> None:
        """Append a table that another process read."""
        for codes, table, column in ((self.names, header.names, "name"), (self.tracks, header.tracks, "track")):
            final = np.array([codes[key] for key in table] or [0], np.int32)
            columns[column] = final[columns[column]]
        for offset, length, first_row, rows, kept in header.chunks:
            positions = np.frombuffer(kept, np.int64) if kept is not None else None
            self.chunks.append(Chunk(offset, length, self.rows + first_row, rows, positions))
        for name, values in columns.items():
            self.columns[name].append(values)
        self.rows += header.rows
        self.process_names |= header.process_names
        self.thread_names |= {(pid, tid): label for pid, tid, label in header.thread_names}
        for field in Counts.__struct_fields__:
            setattr(self.counts, field, getattr(self.counts, field) + getattr(header.counts, field))


#: Of what else is decoded nothing is kept.
TOLD_APART = {Instant, Naming, dict}

#: By kind: whether the event has a device.
ON_DEVICE = np.zeros(max(Kind) + 1, bool)
ON_DEVICE[[*DEVICE_KINDS, Kind.SYNC, Kind.MEMORY]] = True


def text_of(value: Any) -> str:
    """A name or an id as text that can be printed."""
    text = value if isinstance(value, str) else str(value)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _memory(event: Instant) -> Complete:
    """A memory event in the shape of the others."""
    args = event.args or NO_MEMORY_ARGS
    device = -1 if args.device_type == 0 else args.device
    return Complete(
        name=MEMORY, cat=MEMORY, pid=event.pid, tid=event.tid, ts=event.ts, dur=0,
        args=Args(device=-1 if device is None else device, bytes=args.bytes),
    )  # fmt: skip


def _times(values: list[Any]) -> tuple[Ints, Bools]:
    """Times in us as exact ns, and which of them are usable."""
    # Arrays are stricter and faster than numpy's own: no text becomes a number, no fraction is cut off.
    for of in "qd" if values and type(values[0]) is int else "d":
        try:
            us: Any = np.array(array(of, values))
        except (TypeError, OverflowError):
            continue
        good = (us > -MOST_US) & (us < MOST_US)  # false for NaN
        if not good.all():
            us = np.where(good, us, 0)
        if of == "q":
            return us * 1000, good
        whole = np.floor(us)
        part = us - whole
        if np.any((part != 0) & (np.abs(us) >= EXACT_US)):
            raise NeedsText
        # Not round(us * 1000): that product loses the last bit long before the sum does.
        return whole.astype(np.int64) * 1000 + np.rint(part * 1000).astype(np.int64), good
    single = [_time(value) for value in values]
    good = np.fromiter((ns is not None for ns in single), bool, len(single))
    return np.fromiter((ns or 0 for ns in single), np.int64, len(single)), good


def _time(value: Any) -> int | None:
    if isinstance(value, str) and len(value) < 64:
        try:
            us = Decimal(value)
        except InvalidOperation:
            return None
        if not us.is_finite() or abs(us) >= MOST_US:
            return None
        return int((us * 1000).to_integral_value())
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not abs(value) < MOST_US:  # too long, infinite, or not a number
        return None
    if isinstance(value, float) and abs(value) >= EXACT_US and value != math.floor(value):
        raise NeedsText
    whole = math.floor(value)
    return whole * 1000 + round((value - whole) * 1000)


def _ints(values: list[Any], most: int) -> Ints:
    """Small non-negative integers; -1 for anything else (0x numbers are taken)."""
    try:
        numbers: Ints = np.array(array("q", values))
    except (TypeError, OverflowError):
        numbers = np.fromiter(map(_int, values), np.int64, len(values))
    return np.where((numbers >= 0) & (numbers < most), numbers, -1)


def _int(value: Any) -> int:
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (ValueError, TypeError, OverflowError):
        return -1
    return number if 0 <= number < 2**63 else -1


def _signed(value: Any) -> int:
    return value if type(value) is int and abs(value) < 2**62 else 0
