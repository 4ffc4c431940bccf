"""Reads a Chrome trace as Kineto (torch.profiler) writes it, in one pass and bounded memory.

The text is cut into chunks at event boundaries and each chunk is decoded on its own. A cut is never
guessed: ``[`` + chunk + ``]`` must decode as a JSON array, which it cannot when the cut lies inside a
string (the string would not end) or inside an object or array (the brackets would not balance). What
does not decode is repaired, then taken apart event by event; what was lost is counted and said.
"""

from __future__ import annotations

import gc
import json
import math
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from perfkit.errors import TraceError
from perfkit.trace.columns import (
    DEVICE_KINDS,
    DeviceProperties,
    Kind,
    Metadata,
    Trace,
    Track,
)
from perfkit.trace.intervals import Bools, Ints
from perfkit.trace.text import BLOCK, Progress, Text

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
    **dict.fromkeys(
        (
            *("runtime", "driver", "cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "xpu_driver"),
            *("mtia_runtime", "glow_runtime", "privateuse1_runtime", "privateuse1_driver"),
        ),
        Kind.RUNTIME,
    ),
}

#: Ranges that traces of 2021 and 2022 hold as ops.
RANGE_NAMES = ("ProfilerStep", "enumerate(DataLoader)#", "enumerate(DataPipe)#", "Optimizer.")

#: From here on a float has not three exact decimals, and the text must be read instead.
EXACT_US = 2.0**43

#: Times in us beyond this do not fit int64 ns with room for a base.
MOST_US = 4_000_000_000_000_000

WHAT_TO_GIVE = "give a file that torch.profiler wrote (*.json, *.json.gz) or an nsys export (*.sqlite)"

#: The text before the events, and one event, may be this long (the longest seen: 9 MB).
MOST_TEXT = 64 << 20

#: Times of a file above this (in 2001) are unix times already, and its base must not be added.
ABSOLUTE_NS = 10**18
#: With a time of the file added this still fits int64.
MOST_BASE_NS = 2**62

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


class Args(msgspec.Struct, frozen=True, gc=False):
    """The arguments that become columns; any type, since every one was seen as a string somewhere."""

    correlation: Any = -1
    stream: Any = -1
    device: Any = None
    bytes: Any = -1
    sequence: Any = msgspec.field(name="Sequence number", default=-1)


NO_ARGS = Args()


class Complete(msgspec.Struct, tag_field="ph", tag="X", gc=False):
    """An event with a start and a duration."""

    name: Any = ""
    cat: Any = ""
    pid: Any = ""
    tid: Any = ""
    ts: Any = None
    dur: Any = None
    args: Args | None = NO_ARGS


class CompleteArgs(msgspec.Struct, tag_field="ph", tag="X", gc=False):
    """The same event for its arguments alone."""

    args: msgspec.Raw = msgspec.Raw(b"{}")


class Naming(msgspec.Struct, tag_field="ph", tag="M", gc=False):
    """Names a process or a thread."""

    name: Any = ""
    pid: Any = ""
    tid: Any = ""
    args: Any = None


#: The other letters of the Chrome format, flows above all: skipped by the decoder, at no cost in Python.
SKIPPED = tuple(
    msgspec.defstruct(f"Skipped_{ord(letter)}", [], tag_field="ph", tag=letter, gc=False)
    for letter in "sfiCBEbenNODtPRcvVSTpI"
)
SKIPPED_NAMING = msgspec.defstruct("SkippedNaming", [], tag_field="ph", tag="M", gc=False)


def _decoder(*letters: type, float_hook: Any = None) -> msgspec.json.Decoder[list[Any]]:
    event: Any = letters[0]
    for letter in (*letters[1:], *SKIPPED):
        event = event | letter
    return msgspec.json.Decoder(list[event], float_hook=float_hook)


TYPED = _decoder(Complete, Naming)
TYPED_TEXT = _decoder(Complete, Naming, float_hook=str)
TYPED_ARGS = _decoder(CompleteArgs, SKIPPED_NAMING)


Event = Any  # a Struct of the decoder, or a dict where the text was repaired


class Chunk(NamedTuple):
    """Where a chunk lies in the text, and which rows of the trace its events became."""

    offset: int
    length: int
    first_row: int
    rows: int
    #: Positions of the rows among the chunk's complete events, where some were left out.
    kept: Ints | None


def read_kineto(path: Path, progress: Progress | None = None, *, block: int = BLOCK) -> Trace:
    """Read a Kineto trace: JSON or gzip, whole or damaged.

    Raises:
        TraceError: the file holds no trace events at all.
    """
    was_collecting = gc.isenabled()
    # Millions of small objects come and go here; the collector finds nothing and takes two thirds of the time.
    gc.disable()
    try:
        return _Load(path, Text(path, progress, block)).run()
    finally:
        if was_collecting:
            gc.enable()


# -- cutting -----------------------------------------------------------------------------------------------

EVENTS_BEGIN = re.compile(rb'"traceEvents"\s*:\s*\[')
BOUNDARY = re.compile(rb"\}\s*,\s*\{")
COMMA = re.compile(rb"\s*,")
KINETO_BOUNDARY = b"\n  },\n  {"


def _cut_points(text: bytes) -> Iterator[int]:
    """Where a chunk might end (just after an event's brace), last first."""
    at = text.rfind(KINETO_BOUNDARY)
    if at >= 0:
        yield at + 4
    high, window = len(text), 64 << 10
    while high > 0:
        low = max(0, high - window)
        for match in reversed(list(BOUNDARY.finditer(text, low, min(len(text), high + 64)))):
            if match.start() < high:
                yield match.start() + 1
        high, window = low, window * 16


class _Cutter:
    """Cuts a file's text into chunks of whole events; afterwards holds what stood around them."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self.decoder = TYPED
        self.head = b""
        self.tail = b""
        self.bare_list = False
        self.truncated = False
        self.endless = False
        self.offset = 0  # of the buffer's first byte in the text

    def __iter__(self) -> Iterator[tuple[int, bytes, list[Event] | None]]:
        """(offset, text, events) of each chunk: elements of the array without the brackets; no events if damaged."""
        blocks = iter(self.text)
        buffer = self._begin(blocks)
        wait = 0
        for block in blocks:
            buffer += block
            # After each failure twice the text, so that one endless event is not searched again for every block.
            if len(buffer) < wait:
                continue
            cut, events = self._cut(buffer)
            # Four blocks and no cut that decodes: something in here is damaged, and is repaired later.
            if not cut and len(buffer) >= 4 * self.text.block:
                cut = next(_cut_points(buffer), 0)
            if cut:
                yield self.offset, buffer[:cut], events
                buffer = self._after(buffer, cut)
            elif len(buffer) >= MOST_TEXT:
                self.endless = True
                return
            wait = 0 if cut else min(2 * len(buffer), MOST_TEXT)
        yield from self._end(buffer)

    def _begin(self, blocks: Iterator[bytes]) -> bytes:
        buffer = b""
        for block in blocks:
            buffer += block
            start = buffer.lstrip(b"\xef\xbb\xbf \t\r\n")
            if start.startswith(b"["):
                self.bare_list = True
                self.offset = len(buffer) - len(start) + 1
                return buffer[self.offset :]
            if start and not start.startswith(b"{"):
                break
            if match := EVENTS_BEGIN.search(buffer):
                self.head = buffer[len(buffer) - len(start) : match.start()]
                self.offset = match.end()
                return buffer[match.end() :]
            if len(buffer) > MOST_TEXT:
                break
        start = buffer.lstrip(b"\xef\xbb\xbf \t\r\n")
        if self.text.damage:
            reason = f"{self.text.damage} before its first event"
        elif start.startswith(b"{"):
            reason = "it has no 'traceEvents' array"
        else:
            reason = "it begins neither like JSON nor like an nsys export"
        raise TraceError(f"{self.text.path} is not a trace: {reason}; {WHAT_TO_GIVE}")

    def _cut(self, buffer: bytes) -> tuple[int, list[Event] | None]:
        """Where the chunk ends, and its events; 0 = nowhere yet."""
        for point in islice(_cut_points(buffer), 9):
            events = _strict(buffer[:point], self.decoder)
            if events is not None:
                return point, events
        return 0, None

    def _after(self, buffer: bytes, cut: int) -> bytes:
        comma = COMMA.match(buffer, cut)
        cut = comma.end() if comma else cut
        self.offset += cut
        return buffer[cut:]

    def _end(self, buffer: bytes) -> Iterator[tuple[int, bytes, list[Event] | None]]:
        # The second looks at everything: for files whose text after the events is long, or cut itself.
        for find in (self._find_close, _find_close_from_the_front):
            close = find(buffer)
            if close is None:
                continue
            events = _strict(buffer[:close], self.decoder)
            # What ends there must be a whole event, else the bracket belongs to an event that is cut.
            if events is not None or _is_whole(_last_piece(buffer[:close])):
                self.tail = buffer[close + 1 :]
                self.truncated = not self.bare_list and not _is_rest_of_object(self.tail)
                yield self.offset, buffer[:close], events
                return
        self.truncated = True
        cut, events = self._cut(buffer)
        cut = cut or next(_cut_points(buffer), 0)
        if cut:
            yield self.offset, buffer[:cut], events
            buffer = self._after(buffer, cut)
        # The last event may be whole with nothing after it. Its own last brace is among the last few.
        brace = len(buffer)
        for _ in range(16):
            brace = buffer.rfind(b"}", 0, brace)
            if brace < 0:
                return
            if _is_whole(buffer[: brace + 1]):
                yield self.offset, buffer[: brace + 1], None
                return

    def _find_close(self, buffer: bytes) -> int | None:
        """Position of the array's closing bracket: the first one after which the rest is the object's rest."""
        if self.bare_list:
            stripped = buffer.rstrip()
            return len(stripped) - 1 if stripped.endswith(b"]") else None
        found, close = None, len(buffer)
        # What Kineto writes after the events has few brackets (log lines, process groups) and is below 1 MB.
        for _ in range(200):
            close = buffer.rfind(b"]", max(0, len(buffer) - (1 << 20)), close)
            if close < 0:
                break
            if _is_rest_of_object(buffer[close + 1 :]):
                found = close
        return found


def _is_rest_of_object(text: bytes) -> bool:
    """Whether this is what may follow a value in a JSON object, up to the object's end."""
    try:
        msgspec.json.decode(b"{" + text.lstrip().removeprefix(b","), type=dict[str, msgspec.Raw])
    except NOT_JSON:
        return False
    return True


def _find_close_from_the_front(buffer: bytes) -> int | None:
    """The array's closing bracket, whatever follows it; None if it does not close, or is damaged."""
    # latin-1 maps each byte to one character, so positions stay positions.
    try:
        _, stop = json.JSONDecoder(strict=False).raw_decode("[" + buffer.decode("latin-1"))
    except (ValueError, RecursionError):
        return None
    return stop - 2


def _last_piece(text: bytes) -> bytes:
    """What follows the last place where an event might end."""
    cut = next(_cut_points(text), 0)
    comma = COMMA.match(text, cut)
    return text[comma.end() if comma else cut :]


def _is_whole(text: bytes) -> bool:
    """Whether the text is whole events, repaired where needed."""
    if _strict(text, TYPED_ARGS) is not None:
        return True
    try:
        _repair(text)
    except NOT_JSON:
        return False
    return True


# -- decoding ----------------------------------------------------------------------------------------------

BAD_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
#: A string, or a bare word where only a value can stand.
WORD_OR_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|-?\b(?:NaN|nan|[Ii]nf(?:inity)?|N/A)\b', re.DOTALL)


def _strict(text: bytes, decoder: msgspec.json.Decoder[list[Any]]) -> list[Event] | None:
    """The events of text that is JSON; None if it is not."""
    try:
        return decoder.decode(b"[" + text + b"]")
    except NOT_JSON:
        return None


def _decode(text: bytes, decoder: msgspec.json.Decoder[list[Any]]) -> tuple[list[Event], bool, int]:
    """The events of a chunk, whether it was repaired, and how many events were beyond repair."""
    whole = _strict(text, decoder)
    if whole is not None:
        return whole, False, 0
    parse_float = str if decoder is TYPED_TEXT else float
    # Confine the damage: good pieces decode as they are, and a bad one costs only itself.
    events: list[Event] = []
    lost = 0
    for piece in _pieces(text, 64 << 10):
        good = _strict(piece, decoder)
        if good is not None:
            events += good
            continue
        try:
            events += _repair(piece, parse_float)
            continue
        except NOT_JSON:
            pass
        for single in _pieces(piece, 1):
            try:
                events += _repair(single, parse_float)
            except NOT_JSON:
                lost += 1
    return events, True, lost


def _pieces(text: bytes, size: int) -> Iterator[bytes]:
    """The text cut at possible event boundaries into pieces of at least this size."""
    begin = 0
    for match in BOUNDARY.finditer(text):
        if match.start() + 1 - begin >= size:
            yield text[begin : match.start() + 1]
            begin = match.end() - 1
    yield text[begin:]


def _repair(text: bytes, parse_float: type = float) -> list[dict[str, Any]]:
    """Events of damaged text: bad UTF-8, lone backslashes, control characters, NaN and its like."""
    repaired = BAD_ESCAPE.sub(lambda m: m[0] if m[1] else "\\\\", text.decode("utf-8", "replace"))
    repaired = WORD_OR_STRING.sub(lambda m: m[0] if m[0].startswith('"') else "null", repaired)
    decoded = json.loads(f"[{repaired}]", strict=False, parse_float=parse_float)
    return [event for event in decoded if isinstance(event, dict)]


def _complete(event: dict[str, Any]) -> Complete:
    args = event.get("args")
    if not isinstance(args, dict):
        args = {}
    return Complete(
        name=event.get("name", ""),
        cat=event.get("cat", ""),
        pid=event.get("pid", ""),
        tid=event.get("tid", ""),
        ts=event.get("ts"),
        dur=event.get("dur"),
        args=Args(
            correlation=args.get("correlation", -1),
            stream=args.get("stream", -1),
            device=args.get("device"),
            bytes=args.get("bytes", -1),
            sequence=args.get("Sequence number", -1),
        ),
    )


# -- columns -----------------------------------------------------------------------------------------------


class _Interned(dict[Any, int]):
    """Gives each new key the next code."""

    def __missing__(self, key: Any) -> int:
        code = self[key] = len(self)
        return code


class _NeedsText(Exception):
    """A time has decimals that a float cannot hold."""


def _times(values: list[Any]) -> tuple[Ints, Bools]:
    """Times in us as exact ns, and which of them are usable."""
    try:
        array = np.array(values)
    except ValueError:
        array = np.array(None)
    if array.ndim == 1 and array.dtype == np.int64:
        good = np.abs(array) < MOST_US
        return np.where(good, array, 0) * 1000, good
    if array.ndim == 1 and array.dtype == np.float64:
        good = np.abs(array) < MOST_US  # false for NaN
        us = np.where(good, array, 0.0)
        whole = np.floor(us)
        part = us - whole
        if np.any((part != 0) & (np.abs(us) >= EXACT_US)):
            raise _NeedsText
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
        raise _NeedsText
    whole = math.floor(value)
    return whole * 1000 + round((value - whole) * 1000)


def _ints(values: list[Any], most: int) -> Ints:
    """Small non-negative integers; -1 for anything else (0x numbers are taken)."""
    try:
        array = np.array(values)
    except (ValueError, OverflowError):
        array = np.array(None)
    if array.ndim != 1 or array.dtype != np.int64:
        array = np.fromiter((_int(value) for value in values), np.int64, len(values))
    return np.where((array >= 0) & (array < most), array, -1)


def _int(value: Any) -> int:
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (ValueError, TypeError, OverflowError):
        return -1
    return number if 0 <= number < 2**63 else -1


#: -1 as uint32: how "no stream" and "no device" are written.
MOST_ID = 2**32 - 1


class _Load:
    def __init__(self, path: Path, text: Text) -> None:
        self.path = path
        self.cutter = _Cutter(text)
        self.chunks: list[Chunk] = []
        self.parts: list[dict[str, Any]] = []
        self.names = _Interned()
        self.cats = _Interned()
        self.tracks = _Interned()
        self.process_names: dict[str, str] = {}
        self.thread_names: dict[tuple[str, str], str] = {}
        self.rows = 0
        self.seen = 0
        self.repaired = 0
        self.beyond_repair = 0
        self.without_time = 0
        self.lost_device_events = 0
        self.lost: list[str] = []

    def run(self) -> Trace:
        for offset, text, events in self.cutter:
            try:
                self._add(offset, text, events)
            except _NeedsText:
                # Absolute times with decimals: this file is read digit by digit from here on.
                self.cutter.decoder = TYPED_TEXT
                self._add(offset, text, None)
        if self.cutter.bare_list and not self.seen:
            raise TraceError(f"{self.path} is not a trace: a JSON list without events; {WHAT_TO_GIVE}")
        return self._trace()

    def _add(self, offset: int, text: bytes, events: list[Event] | None) -> None:
        repaired, beyond_repair = False, 0
        if events is None:
            events, repaired, beyond_repair = _decode(text, self.cutter.decoder)
        complete: list[Complete] = []
        no_events = 0
        for event in events:
            if type(event) is Complete:
                complete.append(event)
            elif type(event) is Naming:
                self._name(event.name, event.pid, event.tid, event.args)
            elif type(event) is dict:
                letter = event.get("ph")
                if letter == "X":
                    complete.append(_complete(event))
                elif letter == "M":
                    self._name(*(event.get(key) for key in ("name", "pid", "tid", "args")))
                elif not isinstance(letter, str):
                    no_events += 1
        part, kept = self._columns(complete)
        self.repaired += repaired
        self.beyond_repair += beyond_repair + no_events
        self.seen += len(events) - no_events
        rows = part["start"].size
        self.chunks.append(Chunk(offset, len(text), self.rows, rows, kept))
        self.parts.append(part)
        self.rows += rows

    def _name(self, name: Any, pid: Any, tid: Any, args: Any) -> None:
        label = args.get("name") if isinstance(args, dict) else None
        if not isinstance(label, str):
            return
        if name == "process_name":
            self.process_names[str(pid)] = label
        elif name == "thread_name":
            self.thread_names[str(pid), str(tid)] = label

    def _columns(self, events: list[Complete]) -> tuple[dict[str, Any], Ints | None]:
        start, good = _times([e.ts for e in events])
        duration, good_too = _times([e.dur for e in events])
        good &= good_too
        kept = None
        try:
            cat = np.array([self.cats[e.cat] for e in events], np.int16)
        except TypeError:
            cat = np.array([self.cats[str(e.cat)] for e in events], np.int16)
        kind = self._kinds()[cat]
        device_row = np.isin(kind, DEVICE_KINDS)
        # Old Kineto wrote device events that it lost with time 0: they would stretch every window.
        never_ran = device_row & (start == 0) & (duration == 0)
        self.without_time += int((~good).sum())
        self.lost_device_events += int((never_ran & good).sum())
        good &= ~never_ran
        if not good.all():
            kept = np.flatnonzero(good)
            events = [events[i] for i in kept.tolist()]
            start, duration, kind = start[kept], duration[kept], kind[kept]
        try:
            name = np.array([self.names[e.name] for e in events], np.int32)
        except TypeError:
            name = np.array([self.names[str(e.name)] for e in events], np.int32)
        try:
            track = np.array([self.tracks[e.pid, e.tid] for e in events], np.int32)
        except TypeError:
            track = np.array([self.tracks[str(e.pid), str(e.tid)] for e in events], np.int32)
        args = [e.args or NO_ARGS for e in events]
        part = {
            "start": start,
            "end": start + np.maximum(duration, 0),
            "name": name,
            "track": track,
            "kind": kind,
            "correlation": _ints([a.correlation for a in args], 2**62),
            "sequence": _ints([a.sequence for a in args], 2**62),
        }
        # Ops and API calls may carry a stream too (Triton, HIP): only the kind says what ran on a device.
        on_device = np.flatnonzero(np.isin(kind, (*DEVICE_KINDS, Kind.SYNC)))
        rows = on_device.tolist()
        part["on_device"] = on_device
        part["stream"] = _ints([args[i].stream for i in rows], MOST_ID)
        part["device"] = _ints([args[i].device if args[i].device is not None else events[i].pid for i in rows], MOST_ID)
        part["bytes"] = _ints([args[i].bytes for i in rows], 2**62)
        return part, kept

    def _kinds(self) -> Any:
        return np.array(
            [KIND_OF.get(cat.lower() if isinstance(cat, str) else "", Kind.OTHER) for cat in self.cats] or [Kind.OTHER],
            np.int8,
        )

    def _joined(self, column: str, dtype: type) -> Any:
        # Popped part by part: the parts and the column together are the peak of memory.
        parts = [part.pop(column) for part in self.parts]
        return np.concatenate([np.zeros(0, dtype), *parts], dtype=dtype)

    def _sparse(self, column: str, dtype: type) -> Any:
        dense: Any = np.full(self.rows, -1, dtype)
        for chunk, part in zip(self.chunks, self.parts, strict=True):
            dense[chunk.first_row + part["on_device"]] = part.pop(column)
        return dense

    def _trace(self) -> Trace:
        head = _metadata(self.cutter.head.rstrip().removesuffix(b",") + b"}", self.lost, "before")
        tail = _Facts()
        if self.cutter.tail.strip() and not self.cutter.truncated:
            rest = self.cutter.tail.strip().removeprefix(b",")
            tail = _metadata(b"{" + rest, self.lost, "after") if not self.cutter.bare_list else tail
        facts = {key: new if (new := getattr(tail, key)) is not None else getattr(head, key) for key in FACTS}
        names = tuple(name if isinstance(name, str) else str(name) for name in self.names)
        kind = self._joined("kind", np.int8)
        name = self._joined("name", np.int32)
        as_range = np.array([n.startswith(RANGE_NAMES) for n in names] or [False])
        if name.size:
            kind[(kind == Kind.OP) & as_range[name]] = Kind.RANGE
        start, end = self._joined("start", np.int64), self._joined("end", np.int64)
        base = facts["baseTimeNanoseconds"]
        base_ns = base if type(base) is int and 0 <= base < MOST_BASE_NS else None
        if base_ns and start.size and int(start.max()) > ABSOLUTE_NS:
            base_ns = None
        if base_ns:
            start += base_ns
            end += base_ns
        track, tracks = self._tracks(self._joined("track", np.int32), kind)
        return Trace(
            path=self.path,
            metadata=_describe(facts, base_ns),
            names=names,
            tracks=tracks,
            start_ns=start,
            end_ns=end,
            name=name,
            track=track,
            kind=kind,
            correlation=self._joined("correlation", np.int64),
            sequence=self._joined("sequence", np.int64),
            device=self._sparse("device", np.int64).astype(np.int32),
            stream=self._sparse("stream", np.int64).astype(np.int32),
            bytes=self._sparse("bytes", np.int64),
            lost=tuple(self._what_was_lost()),
            args_reader=_ArgsReader(self.path, tuple(self.chunks), self.cutter.text.block),
        )

    def _tracks(self, code: Any, kind: Any) -> tuple[Any, tuple[Track, ...]]:
        """Tracks by (process, thread) as text, the device's rows apart: a thread's ids may equal a stream's."""
        keys = [(str(pid), str(tid)) for pid, tid in self.tracks]
        on_device = np.isin(kind, (*DEVICE_KINDS, Kind.SYNC, Kind.PROJECTION))
        final: dict[tuple[tuple[str, str], bool], int] = {}
        table = np.full((max(len(keys), 1), 2), -1, np.int32)
        for old in np.unique(code * 2 + on_device).tolist():
            key = (keys[old >> 1], bool(old & 1))
            table[old >> 1, old & 1] = final.setdefault(key, len(final))
        tracks = tuple(
            Track(
                process=process,
                thread=thread,
                device=device,
                process_name=self.process_names.get(process),
                thread_name=self.thread_names.get((process, thread)),
            )
            for (process, thread), device in final
        )
        return table[code, on_device.astype(np.int8)] if code.size else code, tracks

    def _what_was_lost(self) -> Iterator[str]:
        if self.cutter.text.damage:
            yield f"{self.cutter.text.damage}: the trace is read as far as it goes"
        elif self.cutter.truncated:
            yield "the file is cut: the trace is read as far as it goes"
        elif self.cutter.endless:
            yield f"an event is longer than {MOST_TEXT >> 20} MiB, which no profiler writes: the trace is read up to it"
        if self.beyond_repair:
            yield f"{self.beyond_repair} events were damaged beyond reading and are left out"
        if self.repaired:
            yield f"{self.repaired} parts of the file held text that is no JSON, or odd values, and were repaired"
        if self.without_time:
            yield f"{self.without_time} events had no usable time and are left out"
        if self.lost_device_events:
            yield f"{self.lost_device_events} device events were written without their times and are left out"
        yield from self.lost


# -- metadata ----------------------------------------------------------------------------------------------


class _Facts(msgspec.Struct):
    """The keys that are read from the text around the events: a closed list, the rest may hold secrets."""

    deviceProperties: Any = None
    distributedInfo: Any = None
    baseTimeNanoseconds: Any = None
    with_stack: Any = None
    record_shapes: Any = None


FACTS = _Facts.__struct_fields__


def _metadata(text: bytes, lost: list[str], where: str) -> _Facts:
    if text in (b"}", b"{}"):
        return _Facts()
    try:
        return msgspec.json.decode(text, type=_Facts)
    except NOT_JSON:
        pass
    try:
        (repaired,) = _repair(text)
        return _Facts(**{key: repaired.get(key) for key in FACTS})
    except NOT_JSON:
        lost.append(f"the metadata {where} the events could not be read")
        return _Facts()


def _describe(facts: dict[str, Any], base_ns: int | None) -> Metadata:
    properties = facts["deviceProperties"]
    distributed = facts["distributedInfo"]
    if not isinstance(distributed, dict):
        distributed = {}
    devices = []
    for one in properties if isinstance(properties, list) else []:
        if not isinstance(one, dict) or type(one.get("id")) is not int:
            continue
        major, minor = one.get("computeMajor"), one.get("computeMinor")
        devices.append(
            DeviceProperties(
                id=one["id"],
                name=str(one.get("name", "")),
                multiprocessors=_whole(one.get("numSms")),
                memory_bytes=_whole(one.get("totalGlobalMem")),
                capability=(major, minor) if type(major) is int and type(minor) is int else None,
            )
        )
    backend = distributed.get("backend")
    return Metadata(
        format="kineto",
        devices=tuple(devices),
        rank=_whole(distributed.get("rank")),
        world_size=_whole(distributed.get("world_size")),
        backend=backend if isinstance(backend, str) else None,
        base_ns=base_ns,
        with_stack=bool(facts["with_stack"]) if facts["with_stack"] is not None else None,
        record_shapes=bool(facts["record_shapes"]) if facts["record_shapes"] is not None else None,
    )


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


# -- arguments ---------------------------------------------------------------------------------------------


class _ArgsReader:
    """Reads arguments again from the file, chunk by chunk."""

    def __init__(self, path: Path, chunks: tuple[Chunk, ...], block: int) -> None:
        self.path = path
        self.chunks = chunks
        self.block = block
        self.stamp = _stamp(path)

    def __call__(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        if not len(rows):
            return []
        if _stamp(self.path) != self.stamp:
            raise TraceError(f"{self.path} changed since it was read; read it again")
        asked = np.asarray(rows, np.int64)
        found: dict[int, dict[str, Any]] = {}
        firsts = np.array([chunk.first_row for chunk in self.chunks])
        # An empty chunk begins at the same row as its successor: the last of them holds the row.
        owner = np.searchsorted(firsts, asked, side="right") - 1
        needed = sorted(set(owner.tolist()))
        for number, text in self._texts(needed):
            chunk = self.chunks[number]
            events = [
                event
                for event in _decode(text, TYPED_ARGS)[0]
                if type(event) is CompleteArgs or (type(event) is dict and event.get("ph") == "X")
            ]
            for row in set(asked[owner == number].tolist()):
                at = row - chunk.first_row
                found[row] = _args_of(events[int(chunk.kept[at]) if chunk.kept is not None else at])
        return [found[row] for row in asked.tolist()]

    def _texts(self, numbers: list[int]) -> Iterator[tuple[int, bytes]]:
        """The text of chunks, in order of the file; a gzip file is inflated from its start."""
        with self.path.open("rb") as file:
            plain = file.read(2) != b"\x1f\x8b"
            if plain:
                for number in numbers:
                    file.seek(self.chunks[number].offset)
                    yield number, file.read(self.chunks[number].length)
                return
        wanted = iter(numbers)
        number = next(wanted)
        buffer, begin = b"", 0
        for block in Text(self.path, block=self.block):
            buffer += block
            while begin + len(buffer) >= self.chunks[number].offset + self.chunks[number].length:
                chunk = self.chunks[number]
                yield number, buffer[chunk.offset - begin : chunk.offset - begin + chunk.length]
                following = next(wanted, None)
                if following is None:
                    return
                number = following
            drop = min(len(buffer), max(0, self.chunks[number].offset - begin))
            buffer, begin = buffer[drop:], begin + drop


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise TraceError(f"{path} cannot be read any more: {error.strerror}") from None
    return status.st_size, status.st_mtime_ns


def _args_of(event: Event) -> dict[str, Any]:
    if type(event) is dict:
        args = event.get("args")
    else:
        try:
            args = msgspec.json.decode(event.args)
        except NOT_JSON:  # what the decoder skips over may be invalid UTF-8, or too deep to build
            try:
                args = next(iter(_repair(bytes(event.args))), {})
            except NOT_JSON:
                args = {}
    return args if isinstance(args, dict) else {}
