"""The text of a file in blocks, plain or gzip, in bounded memory; and whether a file has changed since it was read."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from perfkit._regular_file import open_regular
from perfkit.errors import TraceError

Progress = Callable[[int, int], None]

GZIP = b"\x1f\x8b"

#: Bytes of text in one block: measured, 0.5 to 2 MB are the fastest here; more makes more objects than fit the cache.
BLOCK = 1 << 20

#: Bytes read at once from a gzip file: they inflate to about a block.
GZIP_BLOCK = 64 << 10

#: A gzip file may always inflate to this: a few seconds of reading, below 1 GB of memory in columns.
UNCHECKED_TEXT = 256 << 20
#: Beyond that, at most to this many times its size: traces compress 10 to 35 fold, gzip's own limit is 1032.
MAX_INFLATION = 150

#: Bytes of text between two places where a gzip stream can be resumed (16 MB inflate in 15 ms); each takes 100 kB.
RESUME_EVERY = 16 << 20
#: Beyond this many places every other one is dropped.
MAX_RESUME_POINTS = 128


class _ResumePoint(NamedTuple):
    """A place where inflating a gzip stream can be resumed."""

    text: int  # position in the text
    file: int  # position in the file
    stream: Any  # zlib's state there; its type has no public name


def file_stamp(path: Path, expected: tuple[int, int] | None = None) -> tuple[int, int]:
    """The size and the modification time of a file.

    Raises:
        TraceError: the file is missing, or has another stamp than ``expected``, so it is not the one that was read.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise TraceError(f"{path} can no longer be read: {error.strerror}") from None
    stamp = status.st_size, status.st_mtime_ns
    if expected is not None and stamp != expected:
        raise TraceError(f"{path} changed since it was read; read it again")
    return stamp


class FileText:
    """The text of a file; after reading, ``damage`` says why a gzip stream could not be read to its end.

    A file that a user did not name, but its folder, must lie ``inside`` that.
    """

    def __init__(
        self, path: Path, progress: Progress | None = None, block: int = BLOCK, inside: Path | None = None
    ) -> None:
        self.path = path
        self.inside = inside
        self.progress = progress
        self.block = block
        self.size = path.stat().st_size
        self.damage: str | None = None
        with open_regular(path, inside=inside) as file:
            self.is_gzip = file.read(2) == GZIP
        self._resume_points: list[_ResumePoint] = []
        self._resume_every = RESUME_EVERY

    def __iter__(self) -> Iterator[bytes]:
        return self.blocks()

    def blocks(self, start: int = 0) -> Iterator[bytes]:
        """The text from this position on, in blocks."""
        with open_regular(self.path, inside=self.inside) as file:
            if self.is_gzip:
                yield from self._inflated(file, start)
                return
            file.seek(start)
            while data := file.read(self.block):
                self._report(file)
                yield data

    def spans(self, spans: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        """Parts of the text in order, each given by its position and length."""
        if not self.is_gzip:
            with open_regular(self.path, inside=self.inside) as file:
                for position, length in spans:
                    file.seek(position)
                    yield file.read(length)
            return
        begin, buffer, blocks = 0, b"", self.blocks()
        for position, length in spans:
            place = bisect_right(self._resume_points, position, key=attrgetter("text")) - 1
            if place >= 0 and self._resume_points[place].text > begin + len(buffer):
                begin, buffer, blocks = position, b"", self.blocks(position)
            while True:
                drop = min(len(buffer), max(0, position - begin))
                buffer, begin = buffer[drop:], begin + drop
                if begin + len(buffer) >= position + length:
                    break
                block = next(blocks, b"")
                if not block:
                    break
                buffer += block
            yield buffer[:length]

    def _report(self, file: BinaryIO) -> None:
        if self.progress is not None:
            self.progress(file.tell(), self.size)

    def _inflated(self, file: BinaryIO, start: int) -> Iterator[bytes]:
        place = bisect_right(self._resume_points, start, key=attrgetter("text")) - 1
        if place >= 0:
            at, begin, stream = self._resume_points[place]
            stream = stream.copy()
            file.seek(begin)
        else:
            at, stream = 0, zlib.decompressobj(31)
        for text in self._inflate(file, at, stream):
            skip = max(0, start - at)
            at += len(text)
            if skip < len(text):
                yield text[skip:] if skip else text

    def _inflate(self, file: BinaryIO, inflated: int, stream: Any) -> Iterator[bytes]:
        limit = max(UNCHECKED_TEXT, MAX_INFLATION * self.size)
        self.damage = None
        within = inflated > 0  # a member has begun and not ended
        size = min(self.block, GZIP_BLOCK)
        while True:
            if within and inflated - (self._resume_points[-1].text if self._resume_points else 0) >= self._resume_every:
                self._resume_points.append(_ResumePoint(inflated, file.tell(), stream.copy()))
                if len(self._resume_points) > MAX_RESUME_POINTS:
                    del self._resume_points[::2]
                    self._resume_every *= 2
            part = file.read(size)
            if not part:
                break
            self._report(file)
            while part:
                within = True
                try:
                    text = stream.decompress(part, self.block)
                except zlib.error as error:
                    self.damage = f"the gzip stream is damaged ({error})"
                    return
                inflated += len(text)
                if inflated > limit:
                    raise TraceError(
                        f"{self.path} inflates to more than {limit >> 20} MiB, over {MAX_INFLATION} times its"
                        " size, which no recorded trace does; if it is a trace, unpack it with gunzip first"
                    )
                if text:
                    yield text
                if not stream.eof:
                    part = stream.unconsumed_tail
                    continue
                within = False
                part = stream.unused_data.lstrip(b"\0")
                if part and not part.startswith(GZIP):
                    self.damage = "bytes that are not gzip follow the gzip stream"
                    return
                stream = zlib.decompressobj(31)
        if within:
            self.damage = "the gzip stream is cut"
