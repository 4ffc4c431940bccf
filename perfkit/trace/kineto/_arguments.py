"""Reads arguments of events again from the file: all of a few events, or a few of all."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from perfkit.errors import TraceError
from perfkit.trace.columns import Field
from perfkit.trace.file_text import FileText
from perfkit.trace.intervals import Ints
from perfkit.trace.kineto._event_decoding import (
    MEMORY,
    NOT_JSON,
    SKIPPED_NAMING,
    Decoder,
    Event,
    decoder_of,
    lenient,
    repair,
    strict,
)
from perfkit.trace.kineto._event_table import Chunk, Codes


class _Complete(msgspec.Struct, tag_field="ph", tag="X", gc=False):
    """An event for its arguments alone; subclasses say which."""


class _Instant(msgspec.Struct, tag_field="ph", tag="i", gc=False):
    """The same of an instant, which is a row by its name."""

    name: Any = ""


class _CompleteArgs(_Complete, tag="X"):
    args: msgspec.Raw = msgspec.Raw(b"")


class _InstantArgs(_Instant, tag="i"):
    args: msgspec.Raw = msgspec.Raw(b"")


class _Shape(NamedTuple):
    """A decoder of events for some of their arguments, and what it makes of those that are rows."""

    decoder: Decoder
    complete: Any
    instant: Any

    def rows(self, events: list[Event]) -> list[Event]:
        """The events that are rows of a trace."""
        rows = [event for event in events if event.__class__ is self.complete]
        if len(rows) < len(events) and self.instant in set(map(type, events)):
            rows = [e for e in events if e.__class__ is self.complete or self._is_memory(e)]
        return rows

    def _is_memory(self, event: Event) -> bool:
        return bool(event.__class__ is self.instant and event.name == MEMORY)


ALL_ARGS = _Shape(decoder_of(_CompleteArgs, _InstantArgs, SKIPPED_NAMING), _CompleteArgs, _InstantArgs)


@lru_cache(maxsize=32)
def _fields_shape(keys: tuple[str, ...]) -> tuple[_Shape, Any]:
    """The shape of events for these arguments as JSON text, and the arguments of an event without them."""
    names = {f"field_{i}": key for i, key in enumerate(keys)}
    args = msgspec.defstruct(
        "Fields", [(name, msgspec.Raw, msgspec.Raw(b"")) for name in names], rename=names, gc=False, frozen=True
    )
    none = args()
    optional: Any = args | None
    field = ("args", optional, none)
    complete = msgspec.defstruct("CompleteFields", [field], bases=(_Complete,), tag="X", gc=False)
    instant = msgspec.defstruct("InstantFields", [field], bases=(_Instant,), tag="i", gc=False)
    return _Shape(decoder_of(complete, instant, SKIPPED_NAMING), complete, instant), none


@contextmanager
def no_collection() -> Iterator[None]:
    """Millions of small objects come and go here; the collector finds nothing and takes two thirds of the time."""
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_collecting:
            gc.enable()


class ArgumentsReader:
    """Reads arguments chunk by chunk; where the chunks lie was noted while the trace was read."""

    def __init__(self, text: FileText, chunks: Sequence[Chunk]) -> None:
        self.text = text
        self.chunks = tuple(chunks)
        self.stamp = _stamp(text.path)

    def args(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """All arguments of each row."""
        asked = np.asarray(rows, np.int64)
        found: list[dict[str, Any]] = [{}] * asked.size
        with no_collection():
            for places, events in self._events(asked, ALL_ARGS):
                for place, event in zip(places.tolist(), events, strict=True):
                    found[place] = _args_of(event)
        return found

    def fields(self, rows: Ints, keys: Sequence[str]) -> dict[str, Field]:
        """A few arguments of many rows."""
        keys = tuple(dict.fromkeys(keys))
        codes = [np.full(rows.size, -1, np.int32) for _ in keys]
        # The empty text, which no value has, stands for none.
        tables = [Codes({b"": -1}) for _ in keys]
        shape, no_fields = _fields_shape(keys)
        with no_collection():
            for places, events in self._events(rows, shape):
                args = [event.args or no_fields for event in events]
                for i, table in enumerate(tables):
                    of = attrgetter(f"field_{i}")
                    codes[i][places] = [table[text] for text in map(bytes, map(of, args))]
        found = {}
        for key, code, table in zip(keys, codes, tables, strict=True):
            del table[b""]
            found[key] = Field(np.where(code > 0, code - 1, -1).astype(np.int32), tuple(map(_value, table)))
        return found

    def _events(self, asked: Ints, shape: _Shape) -> Iterator[tuple[Ints, list[Event]]]:
        """Places in what was asked for, with the events that stand there, chunk by chunk."""
        if not asked.size:
            return
        if _stamp(self.text.path) != self.stamp:
            raise TraceError(f"{self.text.path} changed since it was read; read it again")
        # An empty chunk begins at the same row as its successor: the last of them holds the row.
        firsts = np.array([chunk.first_row for chunk in self.chunks])
        owner = np.searchsorted(firsts, asked, side="right") - 1
        order = np.argsort(owner, kind="stable")
        needed, begin = np.unique(owner[order], return_index=True)
        bounds = np.append(begin, asked.size).tolist()
        chunks = [self.chunks[number] for number in needed.tolist()]
        texts = self.text.spans([(chunk.offset, chunk.length) for chunk in chunks])
        for (i, text), chunk in zip(enumerate(texts), chunks, strict=True):
            events = strict(text, shape.decoder)
            if events is None:
                events = [_typed(event, shape.decoder) for event in lenient(text, shape.decoder)[0]]
            rows = shape.rows(events)
            places = order[bounds[i] : bounds[i + 1]]
            at = asked[places] - chunk.first_row
            if chunk.kept is not None:
                at = chunk.kept[at]
            yield places, [rows[i] for i in at.tolist()]


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise TraceError(f"{path} cannot be read any more: {error.strerror}") from None
    return status.st_size, status.st_mtime_ns


def _typed(event: Event, decoder: Decoder) -> Event:
    """A repaired event as the decoder would have built it; None if it is no row."""
    if event.__class__ is not dict:
        return event
    if event.get("ph") not in ("X", "i"):
        return None
    for again in (event, {"ph": event["ph"], "name": event.get("name")}):
        try:
            return decoder.decode(msgspec.json.encode([again]))[0]
        except (*NOT_JSON, OverflowError, TypeError):  # numbers of thousands of digits
            pass
    return None


def _args_of(event: Event) -> dict[str, Any]:
    text = bytes(event.args)
    args = _value(text) if text else None
    return args if isinstance(args, dict) else {}


def _value(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except NOT_JSON:  # what the decoder skips over may be invalid UTF-8, or too deep to build
        pass
    try:
        return next(iter(repair(text)), None)
    except NOT_JSON:
        return None
