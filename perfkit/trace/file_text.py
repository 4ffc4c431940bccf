"""The text of a trace file in blocks, plain or gzip, in bounded memory."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from perfkit.errors import TraceError

Progress = Callable[[int, int], None]

GZIP = b"\x1f\x8b"

#: Text handed on at once: measured, 0.5 to 2 MB are the fastest here; more means more objects than the cache holds.
BLOCK = 1 << 20

#: Of a gzip file this much is read at once: it inflates to about a block.
GZIP_BLOCK = 64 << 10

#: A gzip file may inflate to this without question: a few seconds of reading, below 1 GB of memory in columns.
FREE_TEXT = 256 << 20
#: Beyond that, to this many times its size: traces compress 10 to 35 fold, gzip's own limit is 1032.
MOST_INFLATION = 150

#: A gzip stream can be entered again every so often (16 MB inflate in 15 ms); each entry keeps about 100 kB.
ENTRY_EVERY = 16 << 20
#: Beyond this many entries every other one is dropped.
MOST_ENTRIES = 128


class _Entry(NamedTuple):
    """A place where a gzip stream can be entered again."""

    text: int  # position in the text
    file: int  # position in the file
    stream: Any  # zlib's state there; its type has no public name


class FileText:
    """A file's text; after it was read through, ``damage`` says why a gzip stream could not be read to its end."""

    def __init__(self, path: Path, progress: Progress | None = None, block: int = BLOCK) -> None:
        self.path = path
        self.progress = progress
        self.block = block
        self.size = path.stat().st_size
        self.damage: str | None = None
        with path.open("rb") as file:
            self.is_gzip = file.read(2) == GZIP
        self._entries: list[_Entry] = []
        self._entry_every = ENTRY_EVERY

    def __iter__(self) -> Iterator[bytes]:
        return self.blocks()

    def blocks(self, start: int = 0) -> Iterator[bytes]:
        """The text from this position on."""
        with self.path.open("rb") as file:
            if self.is_gzip:
                yield from self._inflated(file, start)
                return
            file.seek(start)
            while data := file.read(self.block):
                self._tell(file)
                yield data

    def spans(self, spans: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        """Parts of the text, (position, length) each, in order."""
        if not self.is_gzip:
            with self.path.open("rb") as file:
                for position, length in spans:
                    file.seek(position)
                    yield file.read(length)
            return
        begin, buffer, blocks = 0, b"", self.blocks()
        for position, length in spans:
            place = bisect_right(self._entries, position, key=lambda entry: entry.text) - 1
            if place >= 0 and self._entries[place].text > begin + len(buffer):
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

    def _tell(self, file: BinaryIO) -> None:
        if self.progress is not None:
            self.progress(file.tell(), self.size)

    def _inflated(self, file: BinaryIO, start: int) -> Iterator[bytes]:
        place = bisect_right(self._entries, start, key=lambda entry: entry.text) - 1
        if place >= 0:
            at, begin, stream = self._entries[place]
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
        limit = max(FREE_TEXT, MOST_INFLATION * self.size)
        self.damage = None
        within = inflated > 0  # a member has begun and not ended
        size = min(self.block, GZIP_BLOCK)
        while True:
            if within and inflated - (self._entries[-1].text if self._entries else 0) >= self._entry_every:
                self._entries.append(_Entry(inflated, file.tell(), stream.copy()))
                if len(self._entries) > MOST_ENTRIES:
                    del self._entries[::2]
                    self._entry_every *= 2
            part = file.read(size)
            if not part:
                break
            self._tell(file)
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
                        f"{self.path} inflates to more than {limit >> 20} MiB, over {MOST_INFLATION} times its"
                        " size, which no recorded trace does; if it is one, unpack it with gunzip first"
                    )
                if text:
                    yield text
                if not stream.eof:
                    part = stream.unconsumed_tail
                    continue
                within = False
                part = stream.unused_data.lstrip(b"\0")
                if part and not part.startswith(GZIP):
                    self.damage = "bytes that are no gzip follow the gzip stream"
                    return
                stream = zlib.decompressobj(31)
        if within:
            self.damage = "the gzip stream is cut"
