"""Reads a memory snapshot of torch (``torch.cuda.memory._dump_snapshot``) without unpickling it."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from perfkit._code_owner import owner_of
from perfkit._location import Location
from perfkit._regular_file import read_regular
from perfkit.errors import TraceError
from perfkit.trace._plain_pickle import MAX_CONTAINERS, PickleRefused, load_plain
from perfkit.trace.intervals import Ints

#: perfkit records 100,000 entries, about 20 MB; a pickle of this size builds at most about 1 GB of objects.
MAX_BYTES = 128 << 20
#: Maximum number of records: lists may be in others many times.
MAX_RECORDS = MAX_CONTAINERS
_MAX_INT = 2**63 - 1
#: Bytes: more than any device has, and so few that the sum of all records fits into 64 bits.
_MAX_SIZE = 2**40


class MemorySegment(NamedTuple):
    """Memory that the allocator has from the driver."""

    device: int
    address: int
    total_bytes: int
    allocated_bytes: int
    active_bytes: int
    stream: int
    #: ``small`` or ``large``, as torch says.
    kind: str


class MemoryBlock(NamedTuple):
    """A part of a segment: the memory of a tensor, or free."""

    segment: int  # index into the segments
    address: int
    bytes: int
    requested_bytes: int
    #: ``active_allocated``, ``active_awaiting_free``, ``inactive``, as torch says.
    state: str
    stack: int  # index into the stacks; -1 for none


@dataclass(frozen=True, eq=False, kw_only=True)
class MemoryHistory:
    """The memory that was allocated when the snapshot was taken, and the actions of the allocator before.

    Columns of the actions, in order for each device (length n):
        action: int16 codes into ``actions`` (``alloc``, ``free_requested``, ``free_completed``, ``segment_alloc``,
            ``segment_free``, ``oom``, ...).
        device, stack: int32; stack is an index into ``stacks`` (innermost call first), -1 for none.
        address, bytes, stream: int64; -1 for none.
        time_ns: int64, unix time; -1 where torch did not write it.
    """

    path: Path
    segments: tuple[MemorySegment, ...]
    blocks: tuple[MemoryBlock, ...]
    stacks: tuple[tuple[Location, ...], ...]
    actions: tuple[str, ...]
    action: npt.NDArray[np.int16]
    device: npt.NDArray[np.int32]
    stack: npt.NDArray[np.int32]
    address: Ints
    bytes: Ints
    stream: Ints
    time_ns: Ints
    lost: tuple[str, ...]


def read_memory_snapshot(path: str | os.PathLike[str]) -> MemoryHistory:
    """Read a memory snapshot.

    Raises:
        TraceError: the file does not exist, is not a snapshot, asks for a class or a function, or is too large.
    """
    file = Path(path)
    try:
        data = read_regular(file, MAX_BYTES)
    except FileNotFoundError:
        raise TraceError(f"{file} does not exist; give the path of a memory snapshot") from None
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) == errno.EFBIG:
            raise TraceError(
                f"{file} has more than the {MAX_BYTES >> 20} MiB that are read; record it with a smaller max_entries,"
                " or open it at pytorch.org/memory_viz"
            ) from None
        raise TraceError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        content = load_plain(data)
    except PickleRefused as refused:
        raise TraceError(f"{file} is not read: {refused}") from None
    except (IndexError, struct.error, TypeError, AttributeError):
        raise TraceError(f"{file} is not a memory snapshot, or is damaged: its pickle is invalid") from None
    if not isinstance(content, dict) or not isinstance(content.get("segments"), list):
        raise TraceError(f"{file} is a pickle but not a memory snapshot: it has no list of segments")
    return _SnapshotContent(file, content).history()


class _SnapshotContent:
    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        self.path = path
        self.content = content
        self.stacks: dict[tuple[Location, ...], int] = {}
        self.stack_of: dict[int, int] = {}
        self.invalid = 0
        self.seen = 0

    def history(self) -> MemoryHistory:
        segments, blocks = self._segments()
        actions: dict[str, int] = {}
        history = list(self._entries(actions))
        columns = np.array(history, np.int64).reshape(-1, 7).T
        lost = (f"{self.invalid} records were skipped because they are not in torch's format",) if self.invalid else ()
        return MemoryHistory(
            path=self.path,
            segments=tuple(segments),
            blocks=tuple(blocks),
            stacks=tuple(self.stacks),
            actions=tuple(actions),
            action=columns[0].astype(np.int16),
            device=columns[1].astype(np.int32),
            stack=columns[2].astype(np.int32),
            address=columns[3],
            bytes=columns[4],
            stream=columns[5],
            time_ns=columns[6],
            lost=lost,
        )

    def _records(self, records: Any) -> Iterator[dict[str, Any]]:
        for record in records if isinstance(records, list) else ():
            self.seen += 1
            if self.seen > MAX_RECORDS:
                raise TraceError(f"{self.path} is not read: it repeats itself to more than {MAX_RECORDS:,} records")
            if type(record) is dict:
                yield record
            else:
                self.invalid += 1

    def _segments(self) -> tuple[list[MemorySegment], list[MemoryBlock]]:
        segments: list[MemorySegment] = []
        blocks: list[MemoryBlock] = []
        for record in self._records(self.content["segments"]):
            total = _int(record.get("total_size"), _MAX_SIZE)
            if total < 0:
                self.invalid += 1
                continue
            address = _int(record.get("address"))
            for block in self._records(record.get("blocks")):
                size = _int(block.get("size"), _MAX_SIZE)
                if size < 0:
                    self.invalid += 1
                    continue
                begin = _int(block.get("address", address))
                stack = self._stack(block)
                requested = _int(block.get("requested_size", size), _MAX_SIZE)
                blocks.append(MemoryBlock(len(segments), begin, size, requested, _text(block.get("state")), stack))
                address = begin + size  # torch before 2.1 wrote no addresses of blocks: they follow each other
            segments.append(
                MemorySegment(
                    _int(record.get("device", 0)),
                    _int(record.get("address")),
                    total,
                    _int(record.get("allocated_size"), _MAX_SIZE),
                    _int(record.get("active_size"), _MAX_SIZE),
                    _int(record.get("stream")),
                    _text(record.get("segment_type")),
                )
            )
        return segments, blocks

    def _entries(self, actions: dict[str, int]) -> Iterator[tuple[int, ...]]:
        traces = self.content.get("device_traces")
        for device, entries in enumerate(traces if isinstance(traces, list) else ()):
            for entry in self._records(entries):
                action = entry.get("action")
                # torch has few actions; a file may claim any number.
                if type(action) is not str or len(action) > 64 or (action not in actions and len(actions) >= 64):
                    self.invalid += 1
                    continue
                time_us = _int(entry.get("time_us"))
                yield (
                    actions.setdefault(action, len(actions)),
                    device,
                    self._stack(entry),
                    _int(entry.get("addr")),
                    _int(entry.get("size"), _MAX_SIZE),
                    _int(entry.get("stream")),
                    time_us * 1000 if 0 <= time_us < _MAX_INT // 1000 else -1,
                )

    def _stack(self, record: dict[str, Any]) -> int:
        frames = record.get("frames")
        if type(frames) is not list or not frames:
            return -1
        # torch writes one list for all allocations at one place; the content keeps the lists alive.
        known = self.stack_of.get(id(frames))
        if known is None:
            stack = tuple(_location(frame) for frame in frames if type(frame) is dict)
            known = self.stack_of[id(frames)] = self.stacks.setdefault(stack, len(self.stacks))
        return known


def _location(frame: dict[str, Any]) -> Location:
    file, line = _text(frame.get("filename")), _int(frame.get("line"))
    # A path with a NUL is invalid, and has no owner.
    owner = owner_of(file.replace("\0", ""))
    return Location(file=file, line=line if line >= 0 else None, function=_text(frame.get("name")), owner=owner)


def _int(value: Any, largest: int = _MAX_INT) -> int:
    return value if type(value) is int and 0 <= value <= largest else -1


def _text(value: Any) -> str:
    return value if type(value) is str else ""
