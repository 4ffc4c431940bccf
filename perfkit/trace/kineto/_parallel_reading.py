"""Reads parts of a trace in worker processes; damage is left to the reader in one process.

A worker is a fresh interpreter that talks over its pipes, not a child of multiprocessing: it needs no guard in
the user's ``__main__``, starts from daemons and from processes that have used CUDA or threads, and imports
numpy and msgspec alone. It is gone when its parent is: it reads the end of its pipe.
"""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

import msgspec
import numpy as np

from perfkit.trace.file_text import BLOCK, FileText
from perfkit.trace.kineto._arguments import no_collection
from perfkit.trace.kineto._event_chunks import COMMA, Cutter, find_cuts
from perfkit.trace.kineto._event_decoding import TYPED, TYPED_TEXT
from perfkit.trace.kineto._event_table import COLUMNS, Header, NeedsText, Table

#: Text of one task: some 40 ms of work, and 2 MB of columns to hand back.
TASK = 16 << 20

#: The same of a gzip file, whose text waits here and on its way: shorter, to take less memory.
SENT_TASK = 4 << 20

#: Boundaries of tasks are looked for in this much text; one event longer than that makes a longer task.
SEARCH = 256 << 10

#: A worker takes 0.15 s to start and reads about 300 MB/s: for less text it is not worth its start.
TEXT_PER_WORKER = 64 << 20
#: The parent appends about eight times as fast as a worker reads.
MOST_WORKERS = 8
#: What gzip is taken to inflate traces to, before they are read (seen: 10 to 35).
INFLATION = 15


class Unclean(Exception):
    """Something in here is damaged, or no boundary where one seemed to be."""


class Task(msgspec.Struct):
    """A part of the text: between two boundaries, or (``last``) from a boundary to the end of the text."""

    path: str
    offset: int
    length: int
    last: bool
    bare_list: bool
    times_as_text: bool
    #: The text is sent along instead of read: it stood in a gzip file.
    sent: bool


class Reply(msgspec.Struct):
    """A task's rows, without their columns."""

    header: Header | None = None
    tail: bytes = b""
    truncated: bool = False
    problem: str = ""


def count_workers(text: FileText, asked: int | None) -> int:
    """How many processes to read with; 1 = this one alone."""
    if asked is not None:
        return max(1, asked)
    # One of a pool's processes: the pool has shared out the cores already.
    if "multiprocessing" in sys.modules and sys.modules["multiprocessing"].parent_process() is not None:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, MOST_WORKERS, expected_text(text) // TEXT_PER_WORKER))


def expected_text(text: FileText) -> int:
    """How long the text might be, before it is read."""
    return text.size * INFLATION if text.is_gzip else text.size


# -- the parent's side -----------------------------------------------------------------------------------------


class _Worker:
    def __init__(self) -> None:
        # The folder of this package besides: an editable install may find it by a hook and not by the path.
        path = [*sys.path, str(Path(__file__).parents[3])]
        program = (
            f"import sys; sys.path[:] = {path!r}; from perfkit.trace.kineto._parallel_reading import serve; serve()"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Interrupted while it starts, it would print a traceback beside the parent's.
            stderr=subprocess.DEVNULL,
        )

    def run(self, task: Task, text: bytes) -> tuple[Reply, dict[str, Any]]:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        _write(stdin, msgspec.msgpack.encode(task), text)
        reply = msgspec.msgpack.decode(_read(stdout), type=Reply)
        columns = {}
        if reply.header is not None:
            for name, dtype in COLUMNS.items():
                column: Any = np.empty(reply.header.rows, dtype)
                _read_into(stdout, memoryview(column).cast("B"))
                columns[name] = column
        return reply, columns

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # what was not yet written has no reader any more
                    pass


def read_in_workers(
    text: FileText, count: int, table: Table, *, offset: int, bare_list: bool, times_as_text: bool
) -> tuple[bytes, bool]:
    """Append all events of the text to the table; what stands after them, and whether the file is cut.

    Raises:
        Unclean: the text is damaged, or a worker could not work; the table is then of no use.
        NeedsText: times must be decoded as text.
    """
    if not sys.executable or getattr(sys, "frozen", False):
        raise Unclean("no interpreter to start")
    workers: list[_Worker] = []
    idle: SimpleQueue[_Worker] = SimpleQueue()
    threads = ThreadPoolExecutor(count)

    def work(task: Task, sent: bytes) -> tuple[Reply, dict[str, Any]]:
        worker = idle.get()
        try:
            return worker.run(task, sent)
        finally:
            idle.put(worker)

    pending: deque[Future[tuple[Reply, dict[str, Any]]]] = deque()
    last = Reply()
    try:
        for _ in range(count):
            workers.append(_Worker())
            idle.put(workers[-1])
        tasks = (_sent_tasks if text.is_gzip else _ranges)(text, offset, bare_list, times_as_text)
        more = True
        while more or pending:
            # Ahead of the workers by one task each: enough to keep them busy, little to keep in memory.
            while more and len(pending) < 2 * count:
                following = next(tasks, None)
                if following is None:
                    more = False
                else:
                    pending.append(threads.submit(work, *following))
            if not pending:
                break
            last, columns = pending.popleft().result()
            if last.problem == "times":
                raise NeedsText
            if last.header is None:
                raise Unclean(last.problem)
            table.append(last.header, columns)
            if not text.is_gzip and text.progress is not None:
                chunk = table.chunks[-1]
                text.progress(min(chunk.offset + chunk.length, text.size), text.size)
    except (OSError, EOFError, msgspec.DecodeError) as error:
        raise Unclean(str(error)) from error
    finally:
        for worker in workers:
            worker.stop()
        threads.shutdown(wait=True, cancel_futures=True)
    if text.damage:
        raise Unclean(text.damage)
    if not text.is_gzip and text.progress is not None:
        text.progress(text.size, text.size)
    return last.tail, last.truncated


def _ranges(text: FileText, offset: int, bare_list: bool, times_as_text: bool) -> Iterator[tuple[Task, bytes]]:
    """Tasks of a plain file, which the workers read themselves."""
    with text.path.open("rb") as file:
        while True:
            end, following = offset, offset
            ahead = TASK
            while following == offset and offset + ahead < text.size:
                begin = max(offset, offset + ahead - SEARCH)
                file.seek(begin)
                window = file.read(SEARCH)
                cut = next(find_cuts(window, len(window)), 0)
                comma = COMMA.match(window, cut) if cut else None
                if comma:
                    end, following = begin + cut, begin + comma.end()
                ahead += SEARCH
            last = following == offset
            length = (text.size if last else end) - offset
            yield Task(str(text.path), offset, length, last, bare_list, times_as_text, sent=False), b""
            if last:
                return
            offset = following


def _sent_tasks(text: FileText, offset: int, bare_list: bool, times_as_text: bool) -> Iterator[tuple[Task, bytes]]:
    """Tasks of a gzip file: only this process can inflate it."""
    buffer = bytearray()
    for block in text.blocks(offset):
        buffer += block
        if len(buffer) < SENT_TASK:
            continue
        cut = next(find_cuts(buffer, len(buffer)), 0)
        comma = COMMA.match(buffer, cut) if cut else None
        if comma is None:
            continue
        end = comma.end()
        del comma  # it holds the buffer
        yield Task("", offset, cut, False, bare_list, times_as_text, sent=True), bytes(memoryview(buffer)[:cut])
        offset += end
        del buffer[:end]
    yield Task("", offset, len(buffer), True, bare_list, times_as_text, sent=True), bytes(buffer)


# -- the worker's side -----------------------------------------------------------------------------------------


def serve() -> None:
    """Work until the parent closes the pipe."""
    import signal

    # Ctrl-C reaches the whole group: die at once and silently, the parent says what there is to say.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    with no_collection():
        while True:
            try:
                task = msgspec.msgpack.decode(_read(stdin), type=Task)
                sent = _read(stdin)
            except EOFError:
                return
            reply, columns = _work(task, sent)
            _write(stdout, msgspec.msgpack.encode(reply))
            for column in columns:
                stdout.write(memoryview(column).cast("B"))
            stdout.flush()


def _work(task: Task, sent: bytes) -> tuple[Reply, list[Any]]:
    table = Table(task.length)
    cutter = Cutter(task.offset, BLOCK, task.bare_list)
    cutter.decoder = TYPED_TEXT if task.times_as_text else TYPED
    with io.BytesIO(sent) if task.sent else Path(task.path).open("rb") as file:
        file.seek(0 if task.sent else task.offset)
        return _read_part(task, table, cutter, _blocks_of(file, task.length))


def _read_part(task: Task, table: Table, cutter: Cutter, blocks: Iterator[bytes]) -> tuple[Reply, list[Any]]:
    try:
        for piece in cutter.cut(blocks) if task.last else cutter.cut_whole(blocks):
            if piece.events is None:
                return Reply(problem="damaged"), []
            table.add(piece.offset, len(piece.text), piece.events)
    except NeedsText:
        return Reply(problem="times"), []
    if cutter.endless or table.counts.beyond_repair:
        return Reply(problem="damaged"), []
    columns = [table.columns[name].done() for name in COLUMNS]
    return Reply(table.header(), bytes(cutter.tail), cutter.truncated), columns


def _blocks_of(file: IO[bytes], length: int) -> Iterator[bytes]:
    while length > 0 and (data := file.read(min(BLOCK, length))):
        length -= len(data)
        yield data


# -- the wire --------------------------------------------------------------------------------------------------


def _write(pipe: IO[bytes], *messages: bytes) -> None:
    for message in messages:
        pipe.write(struct.pack("<Q", len(message)))
        pipe.write(message)
    pipe.flush()


def _read(pipe: IO[bytes]) -> bytes:
    length = pipe.read(8)
    if len(length) < 8:
        raise EOFError("a worker ended")
    message = pipe.read(struct.unpack("<Q", length)[0])
    if len(message) < struct.unpack("<Q", length)[0]:
        raise EOFError("a worker ended")
    return message


def _read_into(pipe: Any, view: memoryview) -> None:
    while view:
        count = pipe.readinto(view)
        if not count:
            raise EOFError("a worker ended")
        view = view[count:]
