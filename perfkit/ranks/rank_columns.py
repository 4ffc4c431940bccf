"""One rank as less than 100 kB of numpy columns: what is compared over ranks, whatever it was recorded with.

The file is msgpack: facts, and each column in the narrowest integers that hold it, times as differences from the row
before. Measured with 1,000 steps: 56 kB, loaded in 45 µs; as npz 67 kB in 1.8 ms (its 18 members cost more than the
numbers), so that 10,000 ranks would take 18 s.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from perfkit._regular_file import read_regular
from perfkit._versioned_json import LARGEST
from perfkit.errors import RunError
from perfkit.run.atomic import write_atomically
from perfkit.run.records.rank import MAX_RANKS
from perfkit.trace.intervals import Bools, Codes, Ints

#: Version of the file. Others are not read: the rank is mapped again.
SCHEMA = 2
#: 10,000 ranks then are 1 GB.
MAX_BYTES = 100_000
#: Steps of a trace that are kept whole, up to this multiple of ``MAX_BYTES``: there are two own times between three.
#: Tensor parallelism has some thousand collectives a step, 14 bytes each.
_SUCCESSIVE, _MOST = 3, 10
#: No file that is read is larger: what is written obeys ``MAX_BYTES`` but for its names.
MAX_FILE_BYTES = 16 * 2**20

Origin = Literal["rows", "trace"]


@dataclass(frozen=True, eq=False, kw_only=True)
class RankColumns:
    """What one rank recorded; times are integer ns on the rank's own clock, -1 is not measured or not known.

    Attributes:
        world_size: The ranks of its job, None where unknown.
        launch: What identifies the start of its job, empty where unknown.
        source: The folder or file it was made from; ``digest`` changes when that does.
        origin: Whether the steps are rows of a run folder or were recorded in a trace.
        lost: A sentence for each thing that is damaged, left out or not known.

    Columns, one row per step (length n, in order of time):
        step_number, step_start_ns, step_wall_ns: int64.
        phases_ns: int64[n, len(phase_names)].
        gc_ns: int64, in collections of Python's garbage collector.
        waited_ns: int64, blocked in collectives on the host, from rows.
        work: int64, tokens or elements of the batch.
        kernel_ns, kernel_count: int64[n, len(kernel_classes)]; no classes without a device.

    Columns, one row per collective (length m, in order of their arrival):
        collective_group, collective_kind: int32 codes into ``group_names`` and ``kind_names``.
        collective_sequence: int64, its number in its group, the same on all ranks.
        collective_bytes: int64.
        collective_step: int64, the number of its step.
        collective_arrive_ns: int64, its launch on the host, or where it has none its start there.
        collective_start_ns, collective_end_ns: int64, its kernel, or on a host its call.
        collective_busy_ns: int64, how long kernels that compute ran meanwhile; -1 on a host.

    Where a rank was larger than its budget, some steps are left out; the collectives of one that is there are complete.
    """

    rank: int
    world_size: int | None
    host: str
    launch: str
    source: str
    origin: Origin
    digest: str
    lost: tuple[str, ...]
    step_number: Ints
    step_start_ns: Ints
    step_wall_ns: Ints
    phase_names: tuple[str, ...]
    phases_ns: Ints
    gc_ns: Ints
    waited_ns: Ints
    work: Ints
    group_names: tuple[str, ...]
    kind_names: tuple[str, ...]
    collective_group: Codes
    collective_kind: Codes
    collective_sequence: Ints
    collective_bytes: Ints
    collective_step: Ints
    collective_arrive_ns: Ints
    collective_start_ns: Ints
    collective_end_ns: Ints
    collective_busy_ns: Ints
    kernel_classes: tuple[str, ...]
    kernel_ns: Ints
    kernel_count: Ints

    def __len__(self) -> int:
        return int(self.step_number.size)

    def __repr__(self) -> str:
        return f"<rank {self.rank}: {len(self):,} step(s), {self.collective_step.size:,} collective(s)>"

    def _relative(self, name: str) -> Ints | Codes:
        column: Ints | Codes = getattr(self, name)
        return column - getattr(self, _SINCE[name]) if name in _SINCE else column

    def to_bytes(self) -> bytes:
        """The content of its file; equal ranks have equal bytes."""
        facts = {name: getattr(self, name) for name in _FACTS}
        packed = {name: _packed(self._relative(name), name in _RISING) for name in _COLUMNS}
        return msgspec.msgpack.encode({"schema": SCHEMA, "facts": facts, "columns": packed})

    @classmethod
    def from_bytes(cls, data: bytes) -> RankColumns:
        """Read what `to_bytes` made.

        Raises:
            RunError: it is damaged, or of another version.
        """
        try:
            if msgspec.msgpack.decode(data, type=_Version).schema != SCHEMA:
                raise RunError(
                    f"the columns of a rank are not of version {SCHEMA}, which this perfkit reads: map it again"
                )
            file = msgspec.msgpack.decode(data, type=_File)
            return _checked(cls(**msgspec.structs.asdict(file.facts), **_unpacked(file)))
        except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
            raise RunError(f"the columns of a rank are damaged: {error}") from error

    def save(self, path: Path) -> None:
        """Write its file, whole or not at all."""
        write_atomically(path, self.to_bytes())

    @classmethod
    def load(cls, path: Path) -> RankColumns:
        """Read a file that `save` wrote.

        Raises:
            RunError: it is missing, damaged, or of another version.
        """
        try:
            data = read_regular(path, MAX_FILE_BYTES)
        except OSError as error:
            raise RunError(f"{path}: {error.strerror or error}") from error
        return cls.from_bytes(data)


_FACTS = tuple(one.name for one in fields(RankColumns) if one.type not in ("Ints", "Codes"))
_COLUMNS = tuple(one.name for one in fields(RankColumns) if one.type in ("Ints", "Codes"))
_STEPS = tuple(name for name in _COLUMNS if not name.startswith("collective_"))
_COLLECTIVES = tuple(name for name in _COLUMNS if name.startswith("collective_"))
#: Columns that are stored as differences from the row before, and those that are from another column of their row.
_RISING = ("step_number", "step_start_ns", "collective_sequence", "collective_step", "collective_arrive_ns")
_SINCE = {"collective_start_ns": "collective_arrive_ns", "collective_end_ns": "collective_start_ns"}
_WIDTHS = tuple(np.dtype(name) for name in ("<i1", "<i2", "<i4", "<i8"))
_BY_WIDTH = {width.itemsize: width for width in _WIDTHS}


_RankNumber = Annotated[int, msgspec.Meta(ge=0, le=MAX_RANKS)]


class _Version(msgspec.Struct):
    schema: int


class _FileFacts(msgspec.Struct):
    rank: _RankNumber
    world_size: _RankNumber | None
    host: str
    launch: str
    source: str
    origin: Origin
    digest: str
    lost: tuple[str, ...]
    phase_names: tuple[str, ...]
    group_names: tuple[str, ...]
    kind_names: tuple[str, ...]
    kernel_classes: tuple[str, ...]


class _Column(msgspec.Struct, array_like=True):
    """``first`` is None where ``data`` holds the numbers themselves, else they are the sums of it from ``first`` on."""

    width: int
    first: int | None
    data: bytes


class _File(msgspec.Struct):
    facts: _FileFacts
    columns: dict[str, _Column]


def _packed(column: Ints | Codes, rising: bool) -> _Column:
    values = column.reshape(-1).astype(np.int64)
    first = int(values[0]) if rising and values.size else None
    if first is not None:
        values = np.diff(values, prepend=values[:1])
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    width = next(one for one in _WIDTHS if np.iinfo(one).min <= low and high <= np.iinfo(one).max)
    return _Column(width.itemsize, first, values.astype(width).tobytes())


def _unpacked(file: _File) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    for name in _COLUMNS:
        if name not in file.columns:
            raise ValueError(f"it has no column {name}")
        column = file.columns[name]
        if column.width not in _BY_WIDTH:
            raise ValueError(f"{name} has integers of {column.width} bytes")
        values = np.frombuffer(column.data, _BY_WIDTH[column.width]).astype(np.int64)
        if column.first is not None:
            values = column.first + np.cumsum(values)
        arrays[name] = values
    for name, since in _SINCE.items():  # arrays that do not match are refused here too: ValueError
        arrays[name] = arrays[name] + arrays[since]
    for name, classes in _TABLES:
        wide = len(getattr(file.facts, classes))
        arrays[name] = arrays[name].reshape(arrays["step_number"].size, wide)
    for name in ("collective_group", "collective_kind"):
        arrays[name] = arrays[name].astype(np.int32)
    return arrays


#: Columns with a second dimension, and what names it.
_TABLES = (("phases_ns", "phase_names"), ("kernel_ns", "kernel_classes"), ("kernel_count", "kernel_classes"))


def _checked(columns: RankColumns) -> RankColumns:
    """``columns``, if they belong together.

    Raises:
        ValueError: they do not.
    """
    for names in (_STEPS, _COLLECTIVES):
        if len({len(getattr(columns, name)) for name in names}) != 1:
            raise ValueError("its columns do not belong together")
    for codes, table in (("collective_group", "group_names"), ("collective_kind", "kind_names")):
        used = getattr(columns, codes)
        if used.size and not 0 <= used.min() <= used.max() < len(getattr(columns, table)):
            raise ValueError(f"{codes} has codes that {table} does not hold")
    for name in _COLUMNS:
        values = getattr(columns, name)
        if values.size and not -LARGEST <= int(values.min()) <= int(values.max()) <= LARGEST:
            raise ValueError(f"{name} has numbers that no clock and no counter reaches")
    return columns


def within_budget(columns: RankColumns, max_bytes: int = MAX_BYTES) -> RankColumns:
    """``columns``, with fewer steps if its file would be larger than ``max_bytes``.

    Of rows, every second, fourth, ... number is kept: the same ones on every rank, over the whole run. Of a trace, the
    first steps are, with all their collectives, between which own times are known; at least ``_SUCCESSIVE`` of them.
    """
    if len(columns.to_bytes()) <= max_bytes:
        return columns
    kept, every, lost = columns, 1, list(columns.lost)
    max_bytes -= 500  # for the sentences
    while len(kept) > 1 and columns.origin == "rows" and len(kept.to_bytes()) > max_bytes:
        every *= 2
        kept = _with_steps(columns, columns.step_number % every == 0)
    while len(kept) > _SUCCESSIVE and (size := len(kept.to_bytes())) > max_bytes:
        count = max(_SUCCESSIVE, min(len(kept) - 1, len(kept) * max_bytes // size))
        kept = _with_steps(columns, np.arange(len(columns)) < count)
    if every > 1:
        lost.append(f"of {len(columns):,} steps those whose number is a multiple of {every} were kept")
    elif len(kept) < len(columns):
        lost.append(f"of {len(columns):,} steps the first {len(kept):,} were kept")
    number = kept.collective_step.size
    if len(kept.to_bytes()) > (max_bytes if not len(kept) else _MOST * max_bytes):
        kept = _first_collectives(kept, max_bytes)
        lost.append(f"of {number:,} collectives the first {kept.collective_step.size:,} were kept")
    return replace(kept, lost=tuple(lost))


def _with_steps(columns: RankColumns, mask: Bools) -> RankColumns:
    """Only these steps, and their collectives."""
    inside = np.isin(columns.collective_step, columns.step_number[mask])
    steps = {name: getattr(columns, name)[mask] for name in _STEPS}
    return replace(columns, **steps, **{name: getattr(columns, name)[inside] for name in _COLLECTIVES})


def _first_collectives(columns: RankColumns, max_bytes: int) -> RankColumns:
    kept = columns
    while (count := kept.collective_step.size) and (size := len(kept.to_bytes())) > max_bytes:
        count = min(count - 1, count * max_bytes // size)
        kept = replace(columns, **{name: getattr(columns, name)[:count] for name in _COLLECTIVES})
    return kept
