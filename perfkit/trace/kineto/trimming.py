"""A shorter trace from a long one: some steps or some time, without kinds of events that are not needed.

The text of each event that stays is copied as it is, so its times keep all their digits. The source is read twice:
once into columns, which tell the steps, the launches and their kernels, and once as text, event by event.
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
from perfkit.trace.kineto._event_chunks import Cutter, Piece, find_head
from perfkit.trace.kineto._event_decoding import BOUNDARY, NOT_JSON, repair, strict
from perfkit.trace.kineto._trim_selection import FLOW_LETTERS, Selection, TextEvent

#: What the gzip program takes; Python's default of 9 is several times slower for some percent.
GZIP_LEVEL = 6


class Trimmed(NamedTuple):
    """What was written: events copied and in the source, the steps that stayed, sizes in bytes.

    ``unused`` are the kinds that were to be dropped or kept and of which the source has no event. ``lost`` says what
    was damaged in the source, and is not in the result.
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
) -> Trimmed:
    """Write a part of a Kineto trace (JSON or gzip) to ``out``, gzip where its name ends in ``.gz``.

    Args:
        source: The trace.
        out: Where to. It is written beside its place and renamed, so it is whole or not there.
        steps: First step and the one to stop before, by their numbers; None for an open end. Stays: what threads did
            in the time of these steps, and the device work launched in it, whenever it ran.
        time_ns: Start and end in ns from the first event on. Stays: what ran in that time, and the device work
            launched in it.
        drop: Kinds of events to leave out, as the file's ``cat`` names them; ``memory`` for allocations.
        keep: The only kinds to keep. Names of processes and threads always stay.
        progress: Called with (bytes done, bytes in all), of both readings.

    Raises:
        UsageError: nothing would be left, both ``steps`` and ``time_ns`` or ``drop`` and ``keep`` are given, or
            ``out`` is the source.
        TraceError: the source is no Kineto trace.
    """
    if steps is not None and time_ns is not None:
        raise UsageError("cut by steps or by time, not by both")
    if drop and keep:
        raise UsageError("name the kinds to drop or those to keep, not both")
    if out.exists() and source.exists() and out.samefile(source):
        raise UsageError(f"{out} is the trace itself, which is never overwritten; name another file")
    size = source.stat().st_size if source.exists() else 0

    def shifted(by: int) -> Progress | None:
        report = progress
        return None if report is None else lambda done, _: report(by + done, 2 * size)

    trace = read_trace(source, shifted(0))
    if trace.metadata.format != "kineto":
        raise TraceError(f"{source} is an nsys export; perfkit trim cuts traces of torch.profiler (*.json, *.json.gz)")
    choice = Selection(trace, steps, time_ns, drop, keep)
    lost = trace.lost
    del trace
    beside = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        with _opened(beside, is_gzip=out.suffix == ".gz") as file:
            kept, events, lost_here = _copy(FileText(source, shifted(size)), choice, file.write)
        os.replace(beside, out)
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror}") from error
    finally:
        beside.unlink(missing_ok=True)
    return Trimmed(
        kept=kept,
        events=events,
        steps=choice.steps,
        bytes_before=size,
        bytes_after=out.stat().st_size,
        unused=tuple(word for word in (*drop, *keep) if word.lower() not in choice.seen),
        lost=(*lost, *lost_here),
    )


def _opened(path: Path, *, is_gzip: bool) -> IO[bytes]:
    return gzip.open(path, "wb", compresslevel=GZIP_LEVEL) if is_gzip else path.open("wb")  # type: ignore[return-value]  # a GzipFile is one for writing


RAW: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[msgspec.Raw])
#: Numbers with a fraction as their text: a float cannot hold the times of one era of the format.
EVENTS: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[TextEvent], float_hook=str)


def _copy(text: FileText, choice: Selection, write: Callable[[bytes], object]) -> tuple[int, int, list[str]]:
    """Write the chosen events, with all that stands around them; how many, of how many, and what was lost."""
    head = find_head(text)
    cutter = Cutter(head.events, BLOCK, head.bare_list)
    cutter.decoder = RAW
    lost: list[str] = []
    write(b"[" if head.bare_list else _sound_head(head.text, lost) + b'"traceEvents": [')
    copying = _Copying(choice)
    for piece in cutter.cut(text.blocks(head.events)):
        for event in copying.chosen(piece):
            write(b",\n  " if copying.kept else b"\n  ")
            write(event)
            copying.kept += 1
    write(b"\n  ]")
    if not head.bare_list:
        tail = _sound(cutter.tail.strip())
        write(b"}\n" if cutter.truncated or not tail else tail + b"\n")
    if not copying.kept:
        raise UsageError(f"{text.path} has no event that was asked for")
    if copying.damaged:
        lost.append(f"{copying.damaged} events were damaged and are left out")
    return copying.kept, copying.events, lost


def _sound_head(head: bytes, lost: list[str]) -> bytes:
    """What stands before the events, if it is JSON."""
    before = head.rstrip().removesuffix(b",")
    try:
        found = msgspec.json.decode(before + b"}", type=dict[str, msgspec.Raw])
        before.decode()
    except NOT_JSON:
        lost.append("the metadata before the events is no JSON and is left out")
        return b"{"
    return before + b",\n  " if found else b"{\n  "


class _Copying:
    def __init__(self, choice: Selection) -> None:
        self.choice = choice
        self.kept = 0
        self.events = 0
        self.damaged = 0
        #: Names of processes and threads that were written: some files repeat them a hundred thousand times.
        self.named: set[bytes] = set()
        #: Ends of flows whose other end did not come yet, and the flows that stay.
        self.ends: dict[tuple[str, str, str], dict[str, bytes]] = {}
        self.whole: set[tuple[str, str, str]] = set()

    def chosen(self, piece: Piece) -> Iterator[bytes]:
        """The texts of a chunk's events that stay."""
        if piece.events is not None:
            events = strict(piece.text, EVENTS)
            if events is not None:
                yield from self._texts(events, piece.events)
                return
        for single in _singles(bytes(piece.text)):
            sound = strict(single, EVENTS)
            if sound is not None:
                yield from self._texts(sound, strict(single, RAW) or [])
                continue
            try:
                mended = [json.dumps(one).encode() for one in repair(single)]
            except NOT_JSON:
                self.damaged += 1
                continue
            yield from self._texts([event for text in mended for event in strict(text, EVENTS) or ()], mended)

    def _texts(self, events: list[TextEvent], texts: list[Any]) -> Iterator[bytes]:
        self.events += len(events)
        for i in np.flatnonzero(self.choice.stays(events)).tolist():
            event, text = events[i], _sound(texts[i])
            if event.ph in FLOW_LETTERS:
                yield from self._flow(event, event.ph, text)
            elif event.ph != "M" or self._is_new(event):
                yield text

    def _is_new(self, event: TextEvent) -> bool:
        key = f"{event.name} {event.pid} {event.tid} ".encode("utf-8", "replace") + bytes(event.args)
        if key in self.named:
            return False
        self.named.add(key)
        return True

    def _flow(self, event: TextEvent, letter: str, text: bytes) -> Iterator[bytes]:
        key = (str(event.cat), str(event.name), str(event.id))
        if key in self.whole:
            yield text
            return
        waiting = self.ends.setdefault(key, {})
        waiting[letter] = text
        if "s" in waiting and "f" in waiting:
            yield from waiting.values()
            del self.ends[key]
            self.whole.add(key)


def _sound(raw: Any) -> bytes:
    """The text of an event, as UTF-8 that any reader takes."""
    text = bytes(raw)
    try:
        text.decode()
    except UnicodeDecodeError:
        return text.decode("utf-8", "replace").encode()
    return text


def _singles(text: bytes) -> Iterator[bytes]:
    """The text cut wherever one event might end and the next begin."""
    begin = 0
    for match in BOUNDARY.finditer(text):
        yield text[begin : match.start() + 1]
        begin = match.end() - 1
    yield text[begin:]
