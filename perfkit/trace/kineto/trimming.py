"""Writes a shorter trace: some steps or some time of a long one, without kinds of events that are not needed.

The text of each kept event is copied as it is, so its times keep all their digits. The source is read twice: once into
columns, which give the steps, the launches and their kernels, and once as text, event by event.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
import numpy as np

from perfkit.errors import TraceError, UsageError
from perfkit.trace import read_trace
from perfkit.trace.file_text import BLOCK, FileText, Progress
from perfkit.trace.kineto._event_chunks import ChunkCutter, EventChunk, read_header
from perfkit.trace.kineto._event_decoding import NOT_JSON, strict
from perfkit.trace.kineto._json_repair import repair, split_at_boundaries
from perfkit.trace.kineto._trim_selection import FLOW_TYPES, TextEvent, TrimSelection

#: The gzip program's default; Python's default of 9 is several times slower and saves some percent.
GZIP_LEVEL = 6

#: Each event as its text.
RAW: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[msgspec.Raw])
#: Numbers with a fraction as their text: a float cannot hold the times of some versions of the format.
EVENTS: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[TextEvent], float_hook=str)


class TrimResult(NamedTuple):
    """What was written: number of events copied and in the source, the steps that were kept, sizes in bytes.

    ``unused`` are the kinds in ``drop`` or ``keep`` of which the source has no event. ``lost`` says what was damaged in
    the source, and is not in the result.
    """

    kept: int
    events: int
    steps: tuple[int, ...]
    bytes_before: int
    bytes_after: int
    unused: tuple[str, ...]
    lost: tuple[str, ...]


def trim_trace(
    source: Path,
    out: Path,
    *,
    steps: tuple[int | None, int | None] | None = None,
    time_ns: tuple[int | None, int | None] | None = None,
    drop: Sequence[str] = (),
    keep: Sequence[str] = (),
    progress: Progress | None = None,
) -> TrimResult:
    """Write a part of a Kineto trace (JSON or gzip) to ``out``.

    Args:
        source: The trace.
        out: Output path; gzipped if it ends in ``.gz``. Written under another name and renamed, so it is complete or
            absent.
        steps: First step and the one to stop before, by their numbers; None for an open end. Keeps what threads did
            during these steps, and the device work launched in them, whenever it ran.
        time_ns: Start and end in ns from the first event on. Keeps what ran in that time, and the device work
            launched in it.
        drop: Kinds of events to drop, as the file's ``cat`` names them; ``memory`` for allocations.
        keep: The only kinds to keep. Names of processes and threads are always kept.
        progress: Called with (bytes done, bytes in total), both for the two passes together.

    Raises:
        UsageError: nothing would be left, both ``steps`` and ``time_ns`` or ``drop`` and ``keep`` are given, or
            ``out`` is the source.
        TraceError: the source is not a Kineto trace.
    """
    if steps is not None and time_ns is not None:
        raise UsageError("cut by steps or by time, not by both")
    if drop and keep:
        raise UsageError("name the kinds to drop or those to keep, not both")
    if out.exists() and source.exists() and out.samefile(source):
        raise UsageError(f"{out} is the trace itself, which is never overwritten; name another file")
    size = source.stat().st_size if source.exists() else 0

    def progress_after(done_before: int) -> Progress | None:
        return None if progress is None else lambda done, _: progress(done_before + done, 2 * size)

    trace = read_trace(source, progress_after(0))
    if trace.metadata.format != "kineto":
        raise TraceError(f"{source} is an nsys export; perfkit trim cuts traces of torch.profiler (*.json, *.json.gz)")
    selection = TrimSelection(trace, steps, time_ns, drop, keep)
    lost = trace.lost
    del trace
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        with _open(part, is_gzip=out.suffix == ".gz") as file:
            copy = _TrimCopy(selection, file.write)
            copy.run(FileText(source, progress_after(size)))
        os.replace(part, out)
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)
    return TrimResult(
        kept=copy.kept,
        events=copy.events,
        steps=selection.steps,
        bytes_before=size,
        bytes_after=out.stat().st_size,
        unused=tuple(word for word in (*drop, *keep) if word.lower() not in selection.kinds_seen),
        lost=(*lost, *copy.lost),
    )


def _open(path: Path, *, is_gzip: bool) -> IO[bytes]:
    return gzip.open(path, "wb", compresslevel=GZIP_LEVEL) if is_gzip else path.open("wb")  # type: ignore[return-value]  # a GzipFile is one for writing


class _TrimCopy:
    """Copies the selected events, with the text around them."""

    def __init__(self, selection: TrimSelection, write: Callable[[bytes], object]) -> None:
        self.kept = 0
        self.events = 0
        self.lost: list[str] = []
        self._selection = selection
        self._write = write
        self._damaged = 0
        #: Names of processes and threads that were written: some files repeat them a hundred thousand times.
        self._names: set[bytes] = set()
        #: Ends of flows whose other end was not read yet, and the flows that are kept.
        self._flow_ends: dict[tuple[str, str, str], dict[str, bytes]] = {}
        self._whole_flows: set[tuple[str, str, str]] = set()

    def run(self, text: FileText) -> None:
        """Write the trimmed trace."""
        header = read_header(text)
        cutter = ChunkCutter(header.events_at, BLOCK, header.bare_list)
        cutter.decoder = RAW
        self._write(b"[" if header.bare_list else self._valid_header(header.text) + b'"traceEvents": [')
        for chunk in cutter.cut(text.blocks(header.events_at)):
            for event in self._selected(chunk):
                self._write(b",\n  " if self.kept else b"\n  ")
                self._write(event)
                self.kept += 1
        self._write(b"\n  ]")
        if not header.bare_list:
            tail = _valid_utf8(cutter.tail.strip())
            self._write(b"}\n" if cutter.truncated or not tail else tail + b"\n")
        if not self.kept:
            raise UsageError(f"{text.path} has none of the requested events")
        if self._damaged:
            self.lost.append(f"{self._damaged} events were skipped because they are damaged")

    def _valid_header(self, header: bytes) -> bytes:
        """The text before the events, if it is valid JSON."""
        before = header.rstrip().removesuffix(b",")
        try:
            found = msgspec.json.decode(before + b"}", type=dict[str, msgspec.Raw])
            before.decode()
        except NOT_JSON:
            self.lost.append("the metadata before the events was skipped because it is not valid JSON")
            return b"{"
        return before + b",\n  " if found else b"{\n  "

    def _selected(self, chunk: EventChunk) -> Iterator[bytes]:
        """The texts of a chunk's events that are kept."""
        if chunk.events is not None:
            events = strict(chunk.text, EVENTS)
            if events is not None:
                yield from self._kept_texts(events, chunk.events)
                return
        for single in split_at_boundaries(bytes(chunk.text)):
            events = strict(single, EVENTS)
            if events is not None:
                yield from self._kept_texts(events, strict(single, RAW) or [])
                continue
            try:
                repaired = [json.dumps(event).encode() for event in repair(single)]
            except NOT_JSON:
                self._damaged += 1
                continue
            yield from self._kept_texts([event for text in repaired for event in strict(text, EVENTS) or ()], repaired)

    def _kept_texts(self, events: list[TextEvent], texts: list[Any]) -> Iterator[bytes]:
        self.events += len(events)
        for i in np.flatnonzero(self._selection.keeps(events)).tolist():
            event, text = events[i], _valid_utf8(texts[i])
            if event.ph in FLOW_TYPES:
                yield from self._flow(event, event.ph, text)
            elif event.ph != "M" or self._is_new_name(event):
                yield text

    def _is_new_name(self, event: TextEvent) -> bool:
        key = f"{event.name} {event.pid} {event.tid} ".encode("utf-8", "replace") + bytes(event.args)
        if key in self._names:
            return False
        self._names.add(key)
        return True

    def _flow(self, event: TextEvent, end: str, text: bytes) -> Iterator[bytes]:
        """The ends of a flow, once both of them are selected."""
        key = (str(event.cat), str(event.name), str(event.id))
        if key in self._whole_flows:
            yield text
            return
        ends = self._flow_ends.setdefault(key, {})
        ends[end] = text
        if "s" in ends and "f" in ends:
            yield from ends.values()
            del self._flow_ends[key]
            self._whole_flows.add(key)


def _valid_utf8(raw: Any) -> bytes:
    """The text of an event, as UTF-8 that any reader takes."""
    text = bytes(raw)
    try:
        text.decode()
    except UnicodeDecodeError:
        return text.decode("utf-8", "replace").encode()
    return text
