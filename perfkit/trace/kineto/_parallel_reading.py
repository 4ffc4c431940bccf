"""Reads a long trace with several worker processes; damaged files are left to the reader in one process.

A worker is a fresh interpreter that talks over its pipes, not a child of multiprocessing: it needs no guard in the
user's ``__main__``, can be started by daemons and by processes that have used CUDA or threads, and imports only numpy
and msgspec. It ends when its parent ends, because its pipe ends.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

from perfkit import _env
from perfkit._regular_file import open_regular
from perfkit.trace.file_text import FileText
from perfkit.trace.kineto._event_chunks import TraceHeader, last_boundary
from perfkit.trace.kineto._event_table import EventTable
from perfkit.trace.kineto._exact_numbers import NeedsText
from perfkit.trace.kineto._worker import ReadReply, ReadTask

#: Bytes of text of one task: some 40 ms of work, and 2 MB of columns to hand back.
TASK = 16 << 20
#: The same for a gzip file: less, because its text waits here and in the pipe, and takes memory.
GZIP_TASK = 4 << 20
#: Boundaries of tasks are searched in this much text; an event longer than that makes a longer task.
SEARCH = 256 << 10

#: A worker takes 0.15 s to start and reads about 300 MB/s: a shorter text is not worth its start.
TEXT_PER_WORKER = 64 << 20
#: The parent appends about eight times as fast as a worker reads.
MAX_WORKERS = 8
#: The assumed ratio of a gzip file's text to its size before it is read (seen: 10 to 35).
INFLATION = 15


class CannotRunInParallel(Exception):
    """The text is damaged, has no boundary where one seemed to be, or a worker failed."""


def count_workers(text: FileText, processes: int | None) -> int:
    """How many processes to read with; 1 for this process alone."""
    if processes is not None:
        return max(1, processes)
    # In a process of a multiprocessing pool: the pool has divided the cores already.
    if "multiprocessing" in sys.modules and sys.modules["multiprocessing"].parent_process() is not None:
        return 1
    return max(1, min(_env.cores(), MAX_WORKERS, expected_text(text) // TEXT_PER_WORKER))


def expected_text(text: FileText) -> int:
    """An estimate of the length of the text, before it is read."""
    return text.size * INFLATION if text.is_gzip else text.size


class _WorkerProcess:
    def __init__(self) -> None:
        # This package's folder too: an editable install may find it by a hook and not by the path.
        path = [*sys.path, str(Path(__file__).parents[3])]
        program = f"import sys; sys.path[:] = {path!r}; from perfkit.trace.kineto._worker import serve; serve()"
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Interrupted while it starts, it would print a traceback of its own.
            stderr=subprocess.DEVNULL,
        )

    def run(self, task: ReadTask) -> ReadReply:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        pickle.dump(task, stdin, protocol=pickle.HIGHEST_PROTOCOL)
        stdin.flush()
        reply: ReadReply = pickle.load(stdout)
        return reply

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):  # text that was not written yet has no reader any more
                    pipe.close()


def read_in_workers(
    text: FileText, count: int, table: EventTable, header: TraceHeader, *, times_as_text: bool
) -> tuple[bytes, bool]:
    """Append all events of the text to the table; the text after them, and whether the file is cut.

    Raises:
        CannotRunInParallel: the text is damaged or a worker failed; the table is incomplete then.
        NeedsText: times must be decoded as text.
    """
    if not sys.executable or getattr(sys, "frozen", False):
        raise CannotRunInParallel
    workers: list[_WorkerProcess] = []
    idle: SimpleQueue[_WorkerProcess] = SimpleQueue()
    threads = ThreadPoolExecutor(count)

    def run(task: ReadTask) -> ReadReply:
        worker = idle.get()
        try:
            return worker.run(task)
        finally:
            idle.put(worker)

    pending: deque[Future[ReadReply]] = deque()
    last = ReadReply()
    try:
        for _ in range(count):
            workers.append(_WorkerProcess())
            idle.put(workers[-1])
        tasks = (_gzip_tasks if text.is_gzip else _file_tasks)(text, header, times_as_text)
        while True:
            # One task per worker ahead keeps the workers busy, and takes little memory.
            while len(pending) < 2 * count and (task := next(tasks, None)) is not None:
                pending.append(threads.submit(run, task))
            if not pending:
                break
            last = pending.popleft().result()
            if last.needs_text:
                raise NeedsText
            if last.part is None:
                raise CannotRunInParallel
            table.append(last.part)
            if not text.is_gzip and text.progress is not None:
                chunk = table.chunks[-1]
                text.progress(min(chunk.offset + chunk.length, text.size), text.size)
    except (OSError, EOFError, pickle.UnpicklingError) as error:
        raise CannotRunInParallel from error
    finally:
        for worker in workers:
            worker.stop()
        threads.shutdown(wait=True, cancel_futures=True)
    if text.damage:
        raise CannotRunInParallel
    if not text.is_gzip and text.progress is not None:
        text.progress(text.size, text.size)
    return last.tail, last.truncated


def _file_tasks(text: FileText, header: TraceHeader, times_as_text: bool) -> Iterator[ReadTask]:
    """Tasks of a plain file, which the workers read themselves."""
    offset = header.events_at
    with open_regular(text.path) as file:
        while True:
            end, following = offset, offset
            ahead = TASK
            while following == offset and offset + ahead < text.size:
                begin = max(offset, offset + ahead - SEARCH)
                file.seek(begin)
                window = file.read(SEARCH)
                if boundary := last_boundary(window):
                    end, following = begin + boundary[0], begin + boundary[1]
                ahead += SEARCH
            last = following == offset
            length = (text.size if last else end) - offset
            yield ReadTask(str(text.path), offset, length, last, header.bare_list, times_as_text)
            if last:
                return
            offset = following


def _gzip_tasks(text: FileText, header: TraceHeader, times_as_text: bool) -> Iterator[ReadTask]:
    """Tasks of a gzip file with their text, because only this process can inflate it."""
    offset = header.events_at
    buffer = bytearray()
    for block in text.blocks(offset):
        buffer += block
        if len(buffer) < GZIP_TASK:
            continue
        boundary = last_boundary(buffer)
        if boundary is None:
            continue
        end, following = boundary
        yield ReadTask("", offset, end, False, header.bare_list, times_as_text, bytes(memoryview(buffer)[:end]))
        offset += following
        del buffer[:following]
    yield ReadTask("", offset, len(buffer), True, header.bare_list, times_as_text, bytes(buffer))
