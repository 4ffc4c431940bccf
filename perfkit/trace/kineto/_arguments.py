"""Reads arguments of events again from the file: all arguments of a few events, or a few arguments of many."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np

from perfkit.trace.columns import CodeTable, Field
from perfkit.trace.file_text import FileText, file_stamp
from perfkit.trace.intervals import Ints
from perfkit.trace.kineto._event_decoding import NOT_JSON, SKIPPED_NAMING, Decoder, Event, decoder_of, strict
from perfkit.trace.kineto._event_kinds import MEMORY
from perfkit.trace.kineto._event_table import ChunkRows
from perfkit.trace.kineto._json_repair import lenient, repair

_NO_TEXT = msgspec.Raw(b"")
#: Keys that JSON text can hold in one other form only: with "\\u" escapes.
_PLAIN_KEY = re.compile(r"[A-Za-z0-9 _]+")


class _ArgumentDecoder(NamedTuple):
    """A decoder of events that keeps only their arguments, and the types that it builds."""

    decoder: Decoder
    complete: Any
    instant: Any

    def rows(self, events: list[Event]) -> list[Event]:
        """The events that are rows of a trace."""
        rows = [event for event in events if event.__class__ is self.complete]
        if len(rows) < len(events) and self.instant in set(map(type, events)):
            instant, complete = self.instant, self.complete
            rows = [e for e in events if e.__class__ is complete or (e.__class__ is instant and e.name == MEMORY)]
        return rows


def _argument_decoder(args_type: Any, default: Any) -> _ArgumentDecoder:
    field = ("args", args_type, default)
    complete = msgspec.defstruct("CompleteArguments", [field], tag_field="ph", tag="X", gc=False)
    # An instant is a row or not by its name.
    instant = msgspec.defstruct("InstantArguments", [("name", Any, ""), field], tag_field="ph", tag="i", gc=False)
    return _ArgumentDecoder(decoder_of(complete, instant, SKIPPED_NAMING), complete, instant)


_ALL_ARGUMENTS = _argument_decoder(msgspec.Raw, _NO_TEXT)


@lru_cache(maxsize=32)
def _fields_decoder(keys: tuple[str, ...]) -> tuple[_ArgumentDecoder, Any]:
    """A decoder for these arguments as JSON text, and the arguments of an event that has none of them."""
    names = {f"field_{i}": key for i, key in enumerate(keys)}
    fields: Any = msgspec.defstruct(
        "Fields", [(name, msgspec.Raw, _NO_TEXT) for name in names], rename=names, gc=False, frozen=True
    )
    no_fields = fields()
    return _argument_decoder(fields | None, no_fields), no_fields


@contextmanager
def no_collection() -> Iterator[None]:
    """Switch the garbage collector off: it finds nothing among millions of small objects, in two thirds of the time."""
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_collecting:
            gc.enable()


class ArgumentsReader:
    """Reads arguments chunk by chunk; where the chunks are was noted while the trace was read."""

    def __init__(self, text: FileText, chunks: Sequence[ChunkRows]) -> None:
        self.text = text
        self._chunks = tuple(chunks)
        self._stamp = file_stamp(text.path)

    def args(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """All arguments of each row."""
        rows_asked = np.asarray(rows, np.int64)
        found: list[dict[str, Any]] = [{}] * rows_asked.size
        with no_collection():
            for places, events in self._events(rows_asked, _ALL_ARGUMENTS):
                for place, event in zip(places.tolist(), events, strict=True):
                    found[place] = _args_of(event)
        return found

    def fields(self, rows: Ints, keys: Sequence[str]) -> dict[str, Field]:
        """A few arguments of many rows."""
        keys = tuple(dict.fromkeys(keys))
        codes = [np.full(rows.size, -1, np.int32) for _ in keys]
        # Code -1 is that of the empty text, which no value has.
        tables = [CodeTable({b"": -1}) for _ in keys]
        decoder, no_fields = _fields_decoder(keys)
        with no_collection():
            for places, events in self._events(rows, decoder, keys):
                args = [event.args or no_fields for event in events]
                for i, table in enumerate(tables):
                    field = attrgetter(f"field_{i}")
                    codes[i][places] = [table[text] for text in map(bytes, map(field, args))]
        found = {}
        for key, code, table in zip(keys, codes, tables, strict=True):
            del table[b""]
            found[key] = Field(np.where(code > 0, code - 1, -1).astype(np.int32), tuple(map(_value, table)))
        return found

    def _events(
        self, rows: Ints, decoder: _ArgumentDecoder, keys: Sequence[str] = ()
    ) -> Iterator[tuple[Ints, list[Event]]]:
        """Places in ``rows``, with the events there, chunk by chunk; chunks without any of ``keys`` are left out."""
        if not rows.size:
            return
        file_stamp(self.text.path, self._stamp)
        # An empty chunk begins at the same row as the next one: the last of them holds the row.
        first_rows = np.array([chunk.first_row for chunk in self._chunks])
        owner = np.searchsorted(first_rows, rows, side="right") - 1
        order = np.argsort(owner, kind="stable")
        needed, begin = np.unique(owner[order], return_index=True)
        bounds = np.append(begin, rows.size).tolist()
        chunks = [self._chunks[number] for number in needed.tolist()]
        texts = self.text.spans([(chunk.offset, chunk.length) for chunk in chunks])
        for (i, text), chunk in zip(enumerate(texts), chunks, strict=True):
            if keys and _lacks(text, keys):
                continue  # searched in a tenth of the time that decoding takes; a trace without shapes has none
            events = strict(text, decoder.decoder)
            if events is None:
                events = [_decoded(event, decoder.decoder) for event in lenient(text, decoder.decoder)[0]]
            events = decoder.rows(events)
            places = order[bounds[i] : bounds[i + 1]]
            at = rows[places] - chunk.first_row
            if chunk.kept is not None:
                at = chunk.kept[at]
            yield places, [events[i] for i in at.tolist()]


def _lacks(text: bytes, keys: Sequence[str]) -> bool:
    """Whether none of these keys can be in the text."""
    if b"\\u" in text or not all(map(_PLAIN_KEY.fullmatch, keys)):
        return False
    return not any(key.encode() in text for key in keys)


def _decoded(event: Event, decoder: Decoder) -> Event:
    """A repaired event as the decoder would have built it; None if it is not a row."""
    if event.__class__ is not dict:
        return event
    if event.get("ph") not in ("X", "i"):
        return None
    for attempt in (event, {"ph": event["ph"], "name": event.get("name")}):
        try:
            return decoder.decode(msgspec.json.encode([attempt]))[0]
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
    except NOT_JSON:  # the decoder skips over invalid UTF-8, and over what is nested too deeply to build
        pass
    try:
        return next(iter(repair(text)), None)
    except NOT_JSON:
        return None
