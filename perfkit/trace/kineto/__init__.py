"""Reads a Chrome trace as Kineto (torch.profiler) writes it, in one pass and bounded memory.

The text is cut into chunks at event boundaries (`_event_chunks`), each chunk is decoded on its own (`_event_decoding`)
and becomes rows (`_event_table`), in this process or, for a long file, in several (`_parallel_reading`). A chunk that
does not decode is repaired event by event (`_json_repair`); what is lost is counted and reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from perfkit.errors import TraceError
from perfkit.trace.columns import Kind, Metadata, Trace, Track
from perfkit.trace.file_text import BLOCK, FileText, Progress
from perfkit.trace.kineto._arguments import ArgumentsReader, no_collection
from perfkit.trace.kineto._event_chunks import (
    EXPECTED_FILE,
    MAX_TEXT,
    ChunkCutter,
    EventChunk,
    TraceHeader,
    read_header,
)
from perfkit.trace.kineto._event_decoding import TYPED_TEXT, strict
from perfkit.trace.kineto._event_kinds import ON_DEVICE_TRACK, RANGE_PREFIXES
from perfkit.trace.kineto._event_table import EventTable, text_of
from perfkit.trace.kineto._exact_numbers import NeedsText
from perfkit.trace.kineto._json_repair import lenient
from perfkit.trace.kineto._metadata import metadata_of, read_metadata
from perfkit.trace.kineto._parallel_reading import CannotRunInParallel, count_workers, expected_text, read_in_workers

__all__ = ["read_kineto", "read_kineto_metadata"]

#: Times of a file above this (in 2001) are unix times already, and its base must not be added.
ABSOLUTE_NS = 10**18
#: Bytes of text that are read at once where only the beginning is: metadata of one device has 1 kB, of 300 ranks 20 kB.
_HEAD = 64 << 10


def read_kineto(
    path: Path, progress: Progress | None = None, *, processes: int | None = None, block: int = BLOCK
) -> Trace:
    """Read a Kineto trace: JSON or gzip, whole or damaged.

    Args:
        path: The file.
        progress: Called with (bytes read, bytes in total).
        processes: Number of processes; by default one for each 64 MB of text, up to the number of cores, at most 8.
        block: Bytes of text that are decoded at once.

    Raises:
        TraceError: the file has no trace events at all.
    """
    text = FileText(path, progress, block)
    with no_collection():
        header = read_header(text)
        count = count_workers(text, processes)
        loaded = _read_in_parallel(text, header, count) if count > 1 else None
        if loaded is None:
            loaded = _read_here(text, header)
        if header.bare_list and not loaded.table.counts.seen:
            raise TraceError(f"{path} is not a trace: a JSON list without events; {EXPECTED_FILE}")
        return _trace(text, header, loaded)


def read_kineto_metadata(path: Path) -> Metadata:
    """The metadata before the first event, for which only the beginning of the file is read.

    Raises:
        TraceError: the file has no trace events at all.
        OSError: it cannot be read.
    """
    header = read_header(FileText(path, block=_HEAD))
    return metadata_of(read_metadata(header.text, b"", []), None)


class _LoadedEvents(NamedTuple):
    table: EventTable
    #: The text after the events.
    tail: bytes
    truncated: bool
    endless: bool = False


def _read_in_parallel(text: FileText, header: TraceHeader, count: int) -> _LoadedEvents | None:
    """Read with workers; None where only a reading in order works."""
    for times_as_text in (False, True):
        table = EventTable(expected_text(text))
        try:
            tail, truncated = read_in_workers(text, count, table, header, times_as_text=times_as_text)
        except NeedsText:
            continue
        except CannotRunInParallel:
            return None
        return _LoadedEvents(table, tail, truncated)
    return None


def _read_here(text: FileText, header: TraceHeader) -> _LoadedEvents:
    table = EventTable(expected_text(text))
    cutter = ChunkCutter(header.events_at, text.block, header.bare_list)
    for chunk in cutter.cut(text.blocks(header.events_at)):
        _add(table, chunk, cutter)
    return _LoadedEvents(table, cutter.tail, cutter.truncated, cutter.endless)


def _add(table: EventTable, chunk: EventChunk, cutter: ChunkCutter) -> None:
    events = chunk.events
    while True:
        lost = 0
        if events is None:
            events, lost = lenient(bytes(chunk.text), cutter.decoder)
        try:
            table.add(chunk.offset, len(chunk.text), events)
        except NeedsText:
            # Absolute times with decimals: from here on the times of this file are read as text.
            cutter.decoder = TYPED_TEXT
            events = strict(chunk.text, TYPED_TEXT)
            continue
        table.counts.beyond_repair += lost
        table.counts.repaired += chunk.events is None
        return


def _trace(text: FileText, header: TraceHeader, loaded: _LoadedEvents) -> Trace:
    table, cut = loaded.table, _cut(text, loaded)
    lost = [*([cut] if cut else []), *_losses(loaded)]
    metadata = read_metadata(header.text, b"" if loaded.truncated or header.bare_list else loaded.tail, lost)
    columns = table.columns()
    names = tuple(map(text_of, table.names))
    kind, start, end = columns["kind"], columns["start"], columns["end"]
    as_range = np.array([name.startswith(RANGE_PREFIXES) for name in names] or [False])
    if as_range.any():
        kind[(kind == Kind.OP) & as_range[columns["name"]]] = Kind.RANGE
    base_ns = metadata.base_ns
    if base_ns and start.size and int(start.max()) > ABSOLUTE_NS:
        base_ns = None
    if base_ns:
        start += base_ns
        end += base_ns
    track, tracks = _tracks(table, columns["track"], kind)
    reader = ArgumentsReader(text, table.chunks)
    return Trace(
        path=text.path,
        metadata=metadata_of(metadata, base_ns),
        names=names,
        tracks=tracks,
        start_ns=start,
        end_ns=end,
        name=columns["name"],
        track=track,
        kind=kind,
        correlation=columns["correlation"],
        sequence=columns["sequence"],
        device=columns["device"],
        stream=columns["stream"],
        bytes=columns["bytes"],
        lost=tuple(lost),
        args_reader=reader.args,
        fields_reader=reader.fields,
        cut=cut,
        skipped=table.counts.beyond_repair + table.counts.without_time + table.counts.lost_device_events,
    )


def _tracks(table: EventTable, code: Any, kind: Any) -> tuple[Any, tuple[Track, ...]]:
    """Tracks by (process, thread) as text, those of devices apart: a thread's ids may equal a stream's."""
    keys = [(text_of(pid), text_of(tid)) for pid, tid in table.tracks]
    both = code * np.int32(2) + ON_DEVICE_TRACK[kind]
    final: dict[tuple[tuple[str, str], bool], int] = {}
    codes = np.zeros(2 * max(len(keys), 1), np.int32)
    for used in np.flatnonzero(np.bincount(both, minlength=1)).tolist():
        codes[used] = final.setdefault((keys[used >> 1], bool(used & 1)), len(final))
    tracks = tuple(
        Track(
            process=process,
            thread=thread,
            device=device,
            process_name=table.process_names.get(process),
            thread_name=table.thread_names.get((process, thread)),
        )
        for (process, thread), device in final
    )
    return codes[both], tracks


def _cut(text: FileText, loaded: _LoadedEvents) -> str | None:
    """Why the file ends before its last event, None where it does not."""
    if text.damage:
        return f"{text.damage}: events after that point are missing"
    if loaded.truncated:
        return "the file is cut: events after the cut are missing"
    if loaded.endless:
        return f"an event is longer than {MAX_TEXT >> 20} MiB, which no profiler writes: it and later ones are missing"
    return None


def _losses(loaded: _LoadedEvents) -> Iterator[str]:
    counts = loaded.table.counts
    if counts.beyond_repair:
        yield f"{counts.beyond_repair} events were skipped because they are damaged beyond repair"
    if counts.repaired:
        yield f"{counts.repaired} parts of the file contained invalid JSON or unusual values and were repaired"
    if counts.without_time:
        yield f"{counts.without_time} events were skipped because they have no usable time"
    if counts.negative:
        yield f"{counts.negative} events have a negative duration, which counts as 0"
    if counts.lost_device_events:
        yield f"{counts.lost_device_events} device events were skipped because they were written without their times"
