"""steps.jsonl: its rows while they are written, for a run of any length, and all of them read again.

The newest steps have a row each. Older ones are merged in blocks of equally many steps, so that the whole run is seen
with the same detail; where there are too many blocks, they are merged by halves.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from perfkit.run.atomic import replacing
from perfkit.run.merging import FIRST_ROWS, fitted, merged_block
from perfkit.run.older_folders import decode_step
from perfkit.run.records import Step

#: The newest so many steps, up to twice as many, have rows of their own: rhythms, slow steps and other ranks' steps are
#: looked for among some thousands. With `MERGED_ROWS` that is 18,000 rows, 7 MB.
NEWEST_ROWS = 8_000
#: Maximum number of rows of merged steps: a hundred for each part of a run whose levels are compared.
MERGED_ROWS = 2_000
#: Steps of the first blocks: to merge so many rows at once costs 1 µs per step, two by two 15 µs.
_BLOCK = 32
#: Rows that a reader keeps, the newest half as they are: twice what a run writes, at 0.7 kB each.
READ_ROWS = 40_000
#: A row is 1 kB at most.
_LONGEST_LINE = 64 * 1024
#: A file with more damaged rows is none of perfkit's.
_MAX_DAMAGED = 100_000
_COPIED_BYTES = 2**20
#: Places of a large file that `read_some_steps` reads: its first and last rows, and what lies between.
_PARTS = 16

_ENCODER = msgspec.json.Encoder()


class StepFile:
    """Appends rows, and replaces the file by a shorter one each `NEWEST_ROWS` rows.

    The file has three parts: merged rows, the last but one `NEWEST_ROWS` rows, and those after them. The blocks of the
    latter two are made while they are written, so that replacing the file copies bytes and decodes nothing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        #: Ends of the first two parts, in bytes, and the number of merged rows; None: not opened yet.
        self._merged_end: int | None = None
        self._older_end = self._merged_rows = 0
        #: The blocks of the second part and of the third, as lines.
        self._older: list[bytes] = []
        self._newer: list[bytes] = []
        self._newer_rows = 0
        self._size = _BLOCK
        #: The unfinished block, and the rows that are not in it yet.
        self._block: list[Step] = []
        self._waiting: list[Step] = []

    def append(self, rows: Sequence[Step]) -> None:
        """Append rows and hand them to the system, so that a kill loses none of them.

        Raises:
            OSError: the file cannot be written; it can be tried again.
        """
        if self._file is None:
            self._file = self._open()
        self._file.write(_ENCODER.encode_lines(rows))
        self._file.flush()
        self._waiting += rows
        self._newer_rows += len(rows)
        if len(self._waiting) >= _BLOCK:
            self._merge_waiting()
        if self._newer_rows >= NEWEST_ROWS:
            self._newer_rows = 0  # also where the disk is full: it is tried again after as many rows
            self._replace()

    def _open(self) -> BinaryIO:
        file = self._path.open("ab")
        if self._merged_end is None:
            # A launch that was started again goes on in its file: what is there counts as merged.
            if file.tell():
                file.write(b"\n")  # the last row may be a part of one
                with self._path.open("rb") as before:
                    self._merged_rows = sum(1 for _ in before)
            self._merged_end = self._older_end = file.tell()
        return file

    def _merge_waiting(self) -> None:
        """Add the waiting rows to the unfinished block, and finish it if it is large enough."""
        rows, self._waiting = self._waiting, []
        if rows and rows[0].step < FIRST_ROWS:
            first = [row for row in rows if row.step < FIRST_ROWS]
            self._newer += map(_ENCODER.encode, first)
            rows = [row for row in rows if row.step >= FIRST_ROWS]
        self._block = merged_block([*self._block, *rows])
        if sum(row.steps for row in self._block) >= self._size:
            self._finish_block()

    def _finish_block(self) -> None:
        self._newer += map(_ENCODER.encode, self._block)
        self._block = []

    def _replace(self) -> None:
        """Replace the second part of the file by its blocks; the third becomes the second."""
        assert self._file is not None  # appending opened it
        assert self._merged_end is not None
        self._merge_waiting()
        self._finish_block()
        with replacing(self._path) as part:
            with self._path.open("rb") as old, part.open("wb") as new:
                rows, size = self._merged_rows, self._size
                if rows + len(self._older) > MERGED_ROWS:
                    lines = old.read(self._merged_end) + b"".join(line + b"\n" for line in self._older)
                    merged, size = fitted(read_steps(io.BytesIO(lines)).rows, size, MERGED_ROWS // 2)
                    new.write(_ENCODER.encode_lines(merged))
                    rows = len(merged)
                else:
                    _copy(old, new, self._merged_end)
                    new.writelines(line + b"\n" for line in self._older)
                    rows += len(self._older)
                merged_end = new.tell()
                old.seek(self._older_end)
                _copy(old, new, self._file.tell() - self._older_end)
                older_end = new.tell()
            self.close()
        self._merged_end, self._older_end, self._merged_rows, self._size = merged_end, older_end, rows, size
        self._older, self._newer = self._newer, []

    def close(self) -> None:
        """Close the file; another row opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _copy(old: BinaryIO, new: BinaryIO, size: int) -> None:
    while size > 0 and (block := old.read(min(size, _COPIED_BYTES))):
        new.write(block)
        size -= len(block)


class StepsRead(NamedTuple):
    """The rows of a steps.jsonl, in order, and how many of its lines were damaged and skipped."""

    rows: list[Step]
    lines: int
    damaged: int


def read_steps(file: BinaryIO) -> StepsRead:
    """Read rows until the end of the file; more than `READ_ROWS` are merged, the older ones first.

    After the last newline is nothing, or a row that is being written. A file is read no further where it has more than
    100,000 damaged rows.
    """
    merged: list[Step] = []
    newest: list[Step] = []
    size, lines, damaged = _BLOCK, 0, 0
    for line in _lines(file):
        if line == b"\n":
            continue
        lines += 1
        try:
            newest.append(decode_step(line))
        except msgspec.DecodeError:
            damaged += 1
            if damaged > _MAX_DAMAGED:
                break
        if len(newest) >= READ_ROWS:
            half = len(newest) // 2
            merged, size = fitted([*merged, *newest[:half]], size, MERGED_ROWS)
            del newest[:half]
    return StepsRead([*merged, *newest], lines, damaged)


def read_some_steps(file: BinaryIO, max_bytes: int) -> StepsRead:
    """Read the rows of a file of at most ``max_bytes``; of a larger one those of `_PARTS` places evenly spread over it.

    Reading a thousand runs then takes as long as a thousand small ones.
    """
    size = file.seek(0, io.SEEK_END)
    if size <= max_bytes:
        file.seek(0)
        return read_steps(file)
    part = max_bytes // _PARTS
    found = []
    for number in range(_PARTS):
        file.seek((size - part) * number // (_PARTS - 1))
        # It begins inside of a row, but for the first, and ends inside of one.
        lines = file.read(part).split(b"\n")[1 if number else 0 : -1]
        found.append(read_steps(io.BytesIO(b"".join(line + b"\n" for line in lines))))
    return StepsRead(
        [row for one in found for row in one.rows],
        sum(one.lines for one in found),
        sum(one.damaged for one in found),
    )


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The finished lines of a file; of one that is too long for a row only its end."""
    while line := file.readline(_LONGEST_LINE):
        if line.endswith(b"\n"):
            yield line
        elif len(line) < _LONGEST_LINE:
            return  # the end of the file: the rest of this row may be written before the next one is read
