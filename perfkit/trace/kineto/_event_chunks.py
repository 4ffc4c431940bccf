"""Cuts the text of a trace into chunks of whole events, and keeps the text around them.

A cut is never guessed: ``[`` + chunk + ``]`` must decode as a JSON array, which it cannot where the cut is inside a
string (the string would not end) or inside an object or array (the brackets would not balance).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import msgspec

from perfkit.errors import TraceError
from perfkit.trace.file_text import FileText
from perfkit.trace.kineto._event_decoding import NOT_JSON, TYPED, Decoder, Event, strict, strict_array
from perfkit.trace.kineto._json_repair import BOUNDARY, repair

EXPECTED_FILE = "give a file that torch.profiler wrote (*.json, *.json.gz) or an nsys export (*.sqlite)"

#: Maximum length of the text before the events, and of one event (the longest seen: 9 MB).
MAX_TEXT = 64 << 20

EVENTS_BEGIN = re.compile(rb'"traceEvents"\s*:\s*\[')
#: Only keys can follow the array's closing bracket: a bracket before another event is damage.
MORE_EVENTS = re.compile(rb"\s*,?\s*\{")
COMMA = re.compile(rb"\s*,")
KINETO_BOUNDARY = b"\n  },\n  {"
BLANK = b"\xef\xbb\xbf \t\r\n"


class TraceHeader(NamedTuple):
    """The text before the events."""

    text: bytes
    #: Position of the first event.
    events_at: int
    bare_list: bool


class EventChunk(NamedTuple):
    """Elements of the array without the brackets; ``text`` is valid until the next chunk is requested."""

    offset: int
    text: memoryview
    #: None where the text does not decode.
    events: list[Event] | None


def find_cuts(text: bytes | bytearray, size: int) -> Iterator[int]:
    """Where a chunk might end (just after an event's brace) in the first ``size`` bytes, last first."""
    at = text.rfind(KINETO_BOUNDARY, 0, size)
    if at >= 0:
        yield at + 4
    high, window = size, 64 << 10
    while high > 0:
        low = max(0, high - window)
        for match in reversed(list(BOUNDARY.finditer(text, low, min(size, high + 64)))):
            if match.start() < high:
                yield match.start() + 1
        high, window = low, window * 16


def last_boundary(text: bytes | bytearray) -> tuple[int, int] | None:
    """Where the last event might begin: the end of the event before it, and its own start."""
    cut = next(find_cuts(text, len(text)), 0)
    comma = COMMA.match(text, cut) if cut else None
    return (cut, comma.end()) if comma else None


def read_header(text: FileText) -> TraceHeader:
    """Read the text up to the first event.

    Raises:
        TraceError: there is no event.
    """
    buffer = b""
    for block in text:
        buffer += block
        start = buffer.lstrip(BLANK)
        if start.startswith(b"["):
            return TraceHeader(b"", len(buffer) - len(start) + 1, True)
        if start and not start.startswith(b"{"):
            break
        if match := EVENTS_BEGIN.search(buffer):
            return TraceHeader(buffer[len(buffer) - len(start) : match.start()], match.end(), False)
        if len(buffer) > MAX_TEXT:
            break
    start = buffer.lstrip(BLANK)
    if text.damage:
        reason = f"{text.damage} before its first event"
    elif start.startswith(b"{"):
        reason = "it has no 'traceEvents' array"
    else:
        reason = "it begins neither like JSON nor like an nsys export"
    raise TraceError(f"{text.path} is not a trace: {reason}; {EXPECTED_FILE}")


class ChunkCutter:
    """Cuts text that begins at the first event; afterwards ``tail`` is the text behind the last one."""

    def __init__(self, offset: int, block: int, bare_list: bool) -> None:
        self.decoder: Decoder = TYPED
        self.block = block
        self.bare_list = bare_list
        self.tail = b""
        self.truncated = False
        self.endless = False
        self.offset = offset  # of the buffer's second byte in the text
        # The first byte is the array's bracket, so that a chunk decodes where it lies; room for the last one. It grows
        # with the text: megabytes of zeros take as long as reading a small file.
        self.buffer = bytearray(b"[]")
        self.filled = 1

    def cut(self, blocks: Iterator[bytes]) -> Iterator[EventChunk]:
        """The chunks of a text that comes in blocks, up to the end of the array or of the text."""
        wait = 0
        for block in blocks:
            self._append(block)
            # Wait for twice the text after each failure, so that an endless event is not searched for each block.
            if self.filled < wait:
                continue
            cut, events = self._cut()
            # No cut decodes within four blocks: the text is damaged, and is repaired later.
            if not cut and self.filled >= 4 * self.block:
                cut = next(find_cuts(self.buffer, self.filled), 0)
            if cut:
                yield self._chunk(cut, events)
                self._drop(cut)
            elif self.filled >= MAX_TEXT:
                self.endless = True
                return
            wait = 0 if cut else min(2 * self.filled, MAX_TEXT)
        yield from self._end()

    def cut_whole(self, blocks: Iterator[bytes]) -> Iterator[EventChunk]:
        """The same for text that should hold whole events up to its end."""
        for block in blocks:
            self._append(block)
            cut, events = self._cut()
            if cut:
                yield self._chunk(cut, events)
                self._drop(cut)
        yield self._chunk(self.filled, self._decode(self.filled))

    def _append(self, block: bytes) -> None:
        end = self.filled + len(block)
        if end >= len(self.buffer):  # one byte more than the text, for the closing bracket
            larger = bytearray(2 * end)
            larger[: self.filled] = self.buffer[: self.filled]
            self.buffer = larger
        self.buffer[self.filled : end] = block
        self.filled = end

    def _chunk(self, cut: int, events: list[Event] | None) -> EventChunk:
        return EventChunk(self.offset, memoryview(self.buffer)[1:cut], events)

    def _cut(self) -> tuple[int, list[Event] | None]:
        """Where in the buffer the chunk ends, and its events; 0 where no cut decodes yet."""
        for point in islice(find_cuts(self.buffer, self.filled), 9):
            events = self._decode(point)
            if events is not None:
                return point, events
        return 0, None

    def _decode(self, end: int) -> list[Event] | None:
        """The events up to here, if this is a place between two events."""
        kept = self.buffer[end]
        self.buffer[end] = ord("]")
        events = strict_array(memoryview(self.buffer)[: end + 1], self.decoder)
        self.buffer[end] = kept
        return events

    def _drop(self, cut: int) -> None:
        comma = COMMA.match(self.buffer, cut, self.filled)
        cut = comma.end() if comma else cut
        rest = self.buffer[cut : self.filled]
        self.buffer[1 : 1 + len(rest)] = rest
        self.filled = 1 + len(rest)
        self.offset += cut - 1

    def _end(self) -> Iterator[EventChunk]:
        text = bytes(self.buffer[1 : self.filled])
        # The second searches everything, for files whose text after the events is long, or cut.
        for find in (self._find_close, _find_close_from_the_front):
            close = find(text)
            if close is None or MORE_EVENTS.match(text, close + 1):
                continue
            events = self._decode(1 + close)
            # An event must end there, else the bracket belongs to an event that is cut.
            if events is not None or _is_whole(_last_event(text[:close])):
                self.tail = text[close + 1 :]
                self.truncated = not self.bare_list and not _is_rest_of_object(self.tail)
                yield self._chunk(1 + close, events)
                return
        self.truncated = True
        cut, events = self._cut()
        cut = cut or next(find_cuts(self.buffer, self.filled), 0)
        if cut:
            yield self._chunk(cut, events)
            self._drop(cut)
        # The last event may be whole with nothing after it. Its closing brace is among the last few.
        text = bytes(self.buffer[1 : self.filled])
        brace = len(text)
        for _ in range(16):
            brace = text.rfind(b"}", 0, brace)
            if brace < 0:
                return
            if _is_whole(text[: brace + 1]):
                yield self._chunk(brace + 2, None)
                return

    def _find_close(self, text: bytes) -> int | None:
        """Position of the array's closing bracket: the first one with only the rest of the object after it."""
        if self.bare_list:
            stripped = text.rstrip()
            return len(stripped) - 1 if stripped.endswith(b"]") else None
        found, close = None, len(text)
        # Kineto writes few brackets after the events (log lines, process groups), in less than 1 MB.
        for _ in range(200):
            close = text.rfind(b"]", max(0, len(text) - (1 << 20)), close)
            if close < 0:
                break
            if _is_rest_of_object(text[close + 1 :]):
                found = close
        return found


def _is_rest_of_object(text: bytes) -> bool:
    """Whether this text may follow a value in a JSON object, up to the end of the object."""
    try:
        msgspec.json.decode(b"{" + text.lstrip().removeprefix(b","), type=dict[str, msgspec.Raw])
    except NOT_JSON:
        return False
    return True


def _find_close_from_the_front(text: bytes) -> int | None:
    """Position of the array's closing bracket, whatever follows; None if the array does not close, or is damaged."""
    # latin-1 maps each byte to one character, so positions stay positions.
    try:
        _, stop = json.JSONDecoder(strict=False).raw_decode("[" + text.decode("latin-1"))
    except (ValueError, RecursionError):
        return None
    return stop - 2


def _last_event(text: bytes) -> bytes:
    """The text behind the last place where an event might end."""
    cut = next(find_cuts(text, len(text)), 0)
    comma = COMMA.match(text, cut)
    return text[comma.end() if comma else cut :]


def _is_whole(text: bytes) -> bool:
    """Whether the text consists of whole events, repaired where needed."""
    if strict(text, TYPED) is not None:
        return True
    try:
        repair(text)
    except NOT_JSON:
        return False
    return True
