"""Reads a Chrome trace as Kineto (torch.profiler) writes it, in one pass and bounded memory.

The text is cut into chunks at event boundaries (`cutting`), each is decoded on its own (`decoding`) and becomes
rows (`table`), in this process or, a long file's parts, in several (`workers`). What does not decode is repaired,
then taken apart event by event; what was lost is counted and said.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from perfkit.errors import TraceError
from perfkit.trace.columns import DEVICE_KINDS, Kind, Trace, Track
from perfkit.trace.file_text import BLOCK, FileText, Progress
from perfkit.trace.kineto._arguments import ArgumentsReader, no_collection
from perfkit.trace.kineto._event_chunks import MOST_TEXT, WHAT_TO_GIVE, Cutter, Head, Piece, find_head
from perfkit.trace.kineto._event_decoding import TYPED_TEXT, lenient, strict
from perfkit.trace.kineto._event_table import NeedsText, Table, text_of
from perfkit.trace.kineto._metadata import describe, read_facts
from perfkit.trace.kineto._parallel_reading import Unclean, count_workers, expected_text, read_in_workers

__all__ = ["read_kineto"]

#: Ranges that traces of 2021 and 2022 hold as ops.
RANGE_NAMES = ("ProfilerStep", "enumerate(DataLoader)#", "enumerate(DataPipe)#", "Optimizer.")

#: Times of a file above this (in 2001) are unix times already, and its base must not be added.
ABSOLUTE_NS = 10**18


def read_kineto(
    path: Path, progress: Progress | None = None, *, processes: int | None = None, block: int = BLOCK
) -> Trace:
    """Read a Kineto trace: JSON or gzip, whole or damaged.

    Args:
        path: The file.
        progress: Called with (bytes read, bytes in all).
        processes: How many to read with; by default one for each 64 MB of text, up to the cores, 8 at most.
        block: Bytes of text that are decoded at once.

    Raises:
        TraceError: the file holds no trace events at all.
    """
    text = FileText(path, progress, block)
    with no_collection():
        head = find_head(text)
        count = count_workers(text, processes)
        loaded = _read_in_parts(text, head, count) if count > 1 else None
        if loaded is None:
            loaded = _read_here(text, head)
        if head.bare_list and not loaded.table.counts.seen:
            raise TraceError(f"{path} is not a trace: a JSON list without events; {WHAT_TO_GIVE}")
        return _trace(text, head, loaded)


class _Loaded(NamedTuple):
    table: Table
    #: The text after the events.
    tail: bytes
    truncated: bool
    endless: bool = False


def _read_in_parts(text: FileText, head: Head, count: int) -> _Loaded | None:
    """Read with workers; None where that does not go, or only a reading in order can tell what is damaged."""
    for times_as_text in (False, True):
        table = Table(expected_text(text))
        try:
            tail, truncated = read_in_workers(
                text, count, table, offset=head.events, bare_list=head.bare_list, times_as_text=times_as_text
            )
        except NeedsText:
            continue
        except Unclean:
            return None
        return _Loaded(table, tail, truncated)
    return None


def _read_here(text: FileText, head: Head) -> _Loaded:
    table = Table(expected_text(text))
    cutter = Cutter(head.events, text.block, head.bare_list)
    for piece in cutter.cut(text.blocks(head.events)):
        _add(table, piece, cutter)
    return _Loaded(table, cutter.tail, cutter.truncated, cutter.endless)


def _add(table: Table, piece: Piece, cutter: Cutter) -> None:
    events = piece.events
    while True:
        lost = 0
        if events is None:
            events, lost = lenient(bytes(piece.text), cutter.decoder)
        try:
            table.add(piece.offset, len(piece.text), events)
        except NeedsText:
            # Absolute times with decimals: this file is read digit by digit from here on.
            cutter.decoder = TYPED_TEXT
            events = strict(piece.text, TYPED_TEXT)
            continue
        table.counts.beyond_repair += lost
        table.counts.repaired += piece.events is None
        return


def _trace(text: FileText, head: Head, loaded: _Loaded) -> Trace:
    table, lost = loaded.table, list(_what_was_lost(text, loaded))
    facts = read_facts(head.text, b"" if loaded.truncated or head.bare_list else loaded.tail, lost)
    columns = {name: column.done() for name, column in table.columns.items()}
    names = tuple(map(text_of, table.names))
    kind, start, end = columns["kind"], columns["start"], columns["end"]
    as_range = np.array([name.startswith(RANGE_NAMES) for name in names] or [False])
    if as_range.any():
        kind[(kind == Kind.OP) & as_range[columns["name"]]] = Kind.RANGE
    base_ns = facts.base_ns
    if base_ns and start.size and int(start.max()) > ABSOLUTE_NS:
        base_ns = None
    if base_ns:
        start += base_ns
        end += base_ns
    track, tracks = _tracks(table, columns["track"], kind)
    reader = ArgumentsReader(text, table.chunks)
    return Trace(
        path=text.path,
        metadata=describe(facts, base_ns),
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
    )


def _tracks(table: Table, code: Any, kind: Any) -> tuple[Any, tuple[Track, ...]]:
    """Tracks by (process, thread) as text, the device's rows apart: a thread's ids may equal a stream's."""
    keys = [(text_of(pid), text_of(tid)) for pid, tid in table.tracks]
    both = code * np.int32(2) + OF_DEVICE[kind]
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


#: By kind: whether an event stands in a row of a device.
OF_DEVICE = np.zeros(max(Kind) + 1, np.int32)
OF_DEVICE[[*DEVICE_KINDS, Kind.SYNC, Kind.PROJECTION]] = 1


def _what_was_lost(text: FileText, loaded: _Loaded) -> Iterator[str]:
    counts = loaded.table.counts
    if text.damage:
        yield f"{text.damage}: the trace is read as far as it goes"
    elif loaded.truncated:
        yield "the file is cut: the trace is read as far as it goes"
    elif loaded.endless:
        yield f"an event is longer than {MOST_TEXT >> 20} MiB, which no profiler writes: the trace is read up to it"
    if counts.beyond_repair:
        yield f"{counts.beyond_repair} events were damaged beyond reading and are left out"
    if counts.repaired:
        yield f"{counts.repaired} parts of the file held text that is no JSON, or odd values, and were repaired"
    if counts.without_time:
        yield f"{counts.without_time} events had no usable time and are left out"
    if counts.lost_device_events:
        yield f"{counts.lost_device_events} device events were written without their times and are left out"
