"""The text of a trace file in blocks, plain or gzip, in bounded memory."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from perfkit.errors import TraceError

Progress = Callable[[int, int], None]

GZIP = b"\x1f\x8b"

#: Text handed on at once: measured, 0.5 to 2 MB are the fastest here; more means more objects than the cache holds.
BLOCK = 1 << 20

#: A gzip file may inflate to this without question: a few seconds of reading, below 1 GB of memory in columns.
FREE_TEXT = 256 << 20
#: Beyond that, to this many times its size: traces compress 10 to 35 fold, gzip's own limit is 1032.
MOST_INFLATION = 150


class Text:
    """Blocks of a file's text; after the last one ``damage`` says why a gzip stream could not be read to its end."""

    def __init__(self, path: Path, progress: Progress | None = None, block: int = BLOCK) -> None:
        self.path = path
        self.progress = progress
        self.block = block
        self.size = path.stat().st_size
        self.damage: str | None = None
        self._done = 0

    def __iter__(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            is_gzip = file.read(2) == GZIP
            file.seek(0)
            self.damage = None
            if is_gzip:
                yield from self._inflate(iter(lambda: self._read(file.read), b""))
            else:
                yield from iter(lambda: self._read(file.read), b"")

    def _read(self, read: Callable[[int], bytes]) -> bytes:
        data = read(self.block)
        if self.progress is not None and data:
            self._done += len(data)
            self.progress(self._done, self.size)
        return data

    def _inflate(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        limit = max(FREE_TEXT, MOST_INFLATION * self.size)
        inflated = 0
        stream = zlib.decompressobj(31)
        within = False  # a member has begun and not ended
        for part in parts:
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
