"""What a worker process does: reads parts of a trace, and hands the rows back over its pipes.

The parent's side is `_parallel_reading`. The two sides exchange pickles, of which nothing comes from the trace as such.
"""

from __future__ import annotations

import io
import pickle
import signal
import sys
from collections.abc import Iterator
from typing import IO, NamedTuple

from perfkit._regular_file import open_regular
from perfkit.trace.file_text import BLOCK
from perfkit.trace.kineto._arguments import no_collection
from perfkit.trace.kineto._event_chunks import ChunkCutter
from perfkit.trace.kineto._event_decoding import TYPED, TYPED_TEXT
from perfkit.trace.kineto._event_table import EventTable, TablePart
from perfkit.trace.kineto._exact_numbers import NeedsText


class ReadTask(NamedTuple):
    """A part of the text: between two boundaries, or (``last``) from a boundary to the end of the text."""

    path: str
    offset: int
    length: int
    last: bool
    bare_list: bool
    times_as_text: bool
    #: The text itself where it comes from a gzip file, else None: the worker reads the file.
    text: bytes | None = None


class ReadReply(NamedTuple):
    """The rows of a task: None if its text is damaged, or (``needs_text``) its times must be decoded as text."""

    part: TablePart | None = None
    tail: bytes = b""
    truncated: bool = False
    needs_text: bool = False


def serve() -> None:
    """Read parts until the parent closes the pipe."""
    # Ctrl-C reaches the whole process group: end at once and silently, the parent prints what there is to print.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    with no_collection():
        while True:
            try:
                task: ReadTask = pickle.load(stdin)
            except EOFError:
                return
            pickle.dump(_read(task), stdout, protocol=pickle.HIGHEST_PROTOCOL)
            stdout.flush()


def _read(task: ReadTask) -> ReadReply:
    table = EventTable(task.length)
    cutter = ChunkCutter(task.offset, BLOCK, task.bare_list)
    cutter.decoder = TYPED_TEXT if task.times_as_text else TYPED
    with io.BytesIO(task.text) if task.text is not None else open_regular(task.path) as file:
        file.seek(task.offset if task.text is None else 0)
        blocks = _blocks(file, task.length)
        try:
            for chunk in cutter.cut(blocks) if task.last else cutter.cut_whole(blocks):
                if chunk.events is None:
                    return ReadReply()
                table.add(chunk.offset, len(chunk.text), chunk.events)
        except NeedsText:
            return ReadReply(needs_text=True)
    if cutter.endless or table.counts.beyond_repair:
        return ReadReply()
    return ReadReply(table.part(), bytes(cutter.tail), cutter.truncated)


def _blocks(file: IO[bytes], length: int) -> Iterator[bytes]:
    while length > 0 and (data := file.read(min(BLOCK, length))):
        length -= len(data)
        yield data
