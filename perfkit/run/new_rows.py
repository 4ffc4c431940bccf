"""The new rows of a steps.jsonl that is being written: each once, also where the file is replaced meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from perfkit._regular_file import open_regular
from perfkit.run.older_folders import decode_step
from perfkit.run.records import Step

#: Bytes that are read at once, however long the file is; a row has about 300.
_BLOCK = 4 * 2**20
#: A row is 1 kB at most.
_LONGEST_LINE = 64 * 1024
#: Bytes before the place up to which the file was read, by which it is known again: the end of a row, with its times.
_KNOWN_BY = 200


class NewRows:
    """Reads what was written since the last time; a half-written row is read at the next one.

    Args:
        path: The steps.jsonl.
        most_bytes: Of more new bytes, only so many are read, the newest.
    """

    def __init__(self, path: Path, *, most_bytes: int | None = None) -> None:
        self.path = path
        self.last_step = -1
        self.damaged = 0
        self._most_bytes = most_bytes
        self._inode: int | None = None
        self._offset = 0
        self._before = b""

    def read(self) -> Iterator[list[Step]]:
        """The new rows, in blocks.

        Raises:
            OSError: the file is not there yet, or cannot be read.
        """
        with open_regular(self.path, inside=self.path.parent) as file:
            file.seek(self._start(file))
            while size := (block := file.read(_BLOCK)).rfind(b"\n") + 1:  # after it is a row that is being written
                self._offset = file.tell() - len(block) + size
                self._before = block[:size][-_KNOWN_BY:]
                file.seek(self._offset)
                rows = list(self._decoded(block[:size].splitlines()))
                if rows:
                    self.last_step = rows[-1].step
                    yield rows

    def _start(self, file: BinaryIO) -> int:
        """Where the new rows begin."""
        about = os.fstat(file.fileno())
        if about.st_ino != self._inode or not self._is_known(file):
            # The file was replaced, because its older rows were merged. Of two replacements, the second may have the
            # inode of the file before the first.
            self._inode, self._offset = about.st_ino, self._after_last_step(file, about.st_size)
        if self._most_bytes is not None and about.st_size - self._offset > self._most_bytes:
            file.seek(about.st_size - self._most_bytes)
            file.readline(_LONGEST_LINE)  # the end of a row
            return file.tell()
        return self._offset

    def _is_known(self, file: BinaryIO) -> bool:
        file.seek(self._offset - len(self._before))
        return file.read(len(self._before)) == self._before

    def _after_last_step(self, file: BinaryIO, size: int) -> int:
        """A place shortly before the first row after the last step: rows are in the order of their steps."""
        low, high = 0, size if self.last_step >= 0 else 0
        while high - low > _LONGEST_LINE:
            file.seek((low + high) // 2)
            file.readline(_LONGEST_LINE)  # the end of a row
            line = file.readline(_LONGEST_LINE)
            try:
                known = decode_step(line).step <= self.last_step
            except msgspec.DecodeError:
                break
            if known:
                low = file.tell()
            else:
                high = (low + high) // 2
        return low

    def _decoded(self, lines: list[bytes]) -> Iterator[Step]:
        last = self.last_step
        for line in lines:
            try:
                row = decode_step(line)
            except msgspec.DecodeError:
                self.damaged += 1
                continue
            if row.step > last:
                last = row.step
                yield row
