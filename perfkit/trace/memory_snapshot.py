"""Reads a memory snapshot of torch (``torch.cuda.memory._dump_snapshot``) without unpickling it.

A pickle is a program that may call anything. What is read here is the part of its language that builds dicts,
lists, tuples, text and numbers; whatever else a file asks for, a class or a function first of all, is refused.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from perfkit.errors import TraceError
from perfkit.trace.intervals import Ints

#: perfkit records 100,000 entries, about 20 MB; this much text of a pickle builds at most about 1 GB of objects.
MOST_BYTES = 128 << 20
#: Dicts, lists and tuples: the costly objects, of which one byte of a pickle makes one. Fifty for each entry above.
MOST_CONTAINERS = 5_000_000
#: Values that wait for their container: pickle writes 1000 at a time; and open containers in each other (real: 6).
MOST_WAITING = 10_000
MOST_DEPTH = 64

MOST_INT = 2**63 - 1


class Frame(NamedTuple):
    """One call of a stack."""

    file: str
    line: int
    function: str


class Segment(NamedTuple):
    """Memory that the allocator holds from the driver."""

    device: int
    address: int
    total_bytes: int
    allocated_bytes: int
    active_bytes: int
    stream: int
    #: ``small`` or ``large``, as torch says.
    kind: str


class Block(NamedTuple):
    """A part of a segment: a tensor's, or free."""

    segment: int  # index into the segments
    address: int
    bytes: int
    requested_bytes: int
    #: ``active_allocated``, ``active_awaiting_free``, ``inactive``, as torch says.
    state: str
    stack: int  # index into the stacks; -1 for none


@dataclass(frozen=True, eq=False, kw_only=True)
class MemoryHistory:
    """What the allocator held when the snapshot was taken, and what it did before.

    The history, in order of each device (length n):
        action: int16 codes into ``actions`` (``alloc``, ``free_requested``, ``free_completed``, ``segment_alloc``,
            ``segment_free``, ``oom``, ...).
        device, stack: int32; stack is an index into ``stacks``, -1 for none.
        address, bytes, stream: int64; -1 for none.
        time_ns: int64, unix time; -1 where this torch does not write it.
    """

    path: Path
    segments: tuple[Segment, ...]
    blocks: tuple[Block, ...]
    stacks: tuple[tuple[Frame, ...], ...]
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
        TraceError: there is no such file, it is no snapshot, asks for a class or a function, or is too large.
    """
    file = Path(path)
    try:
        size = file.stat().st_size
        if size > MOST_BYTES:
            raise TraceError(
                f"{file} has {size >> 20} MiB, more than the {MOST_BYTES >> 20} MiB that are read; record it with a"
                " smaller max_entries, or open it at pytorch.org/memory_viz"
            )
        data = file.read_bytes()
    except FileNotFoundError:
        raise TraceError(f"{file} does not exist; give the path of a memory snapshot") from None
    except (OSError, ValueError) as error:
        raise TraceError(f"{file} cannot be read: {error}") from None
    try:
        content = _build(data)
    except _Refused as refused:
        raise TraceError(f"{file} is not read: {refused}") from None
    except (IndexError, struct.error, UnicodeDecodeError, TypeError, AttributeError):
        raise TraceError(f"{file} is no memory snapshot, or a damaged one: its pickle does not add up") from None
    if not isinstance(content, dict) or not isinstance(content.get("segments"), list):
        raise TraceError(f"{file} is a pickle but no memory snapshot: it has no list of segments")
    return _Snapshot(file, content).result()


# -- the pickle ------------------------------------------------------------------------------------------------


class _Refused(Exception):
    """Why the pickle is not built."""


#: Opcodes that import, call or look up: what makes a pickle a program.
CALLING = {
    **dict.fromkeys((b"c", b"\x93", b"i"), "asks for a class or a function"),
    **dict.fromkeys((b"R", b"b", b"o", b"\x81", b"\x92"), "calls something"),
    **dict.fromkeys((b"P", b"Q", b"\x82", b"\x83", b"\x84", b"\x97"), "refers to things outside itself"),
}

CONSTANTS = {ord("N"): None, 0x88: True, 0x89: False}
#: Numbers by opcode, as struct formats.
NUMBERS = {ord("J"): struct.Struct("<i"), ord("K"): struct.Struct("<B"), ord("M"): struct.Struct("<H")}
NUMBERS[ord("G")] = struct.Struct(">d")
#: Text by opcode: how long its length is.
TEXTS = {ord("X"): 4, 0x8C: 1, 0x8D: 8}
PUTS = {ord("q"): 1, ord("r"): 4}
GETS = {ord("h"): 1, ord("j"): 4}
TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}


def _build(data: bytes) -> Any:
    """What the pickle describes, of plain containers, text and numbers."""
    at = 0
    stack: list[Any] = []
    below: list[list[Any]] = []
    memo: list[Any] = []
    containers = 0
    while True:
        code = data[at]
        at += 1
        if code in NUMBERS:
            number = NUMBERS[code]
            stack.append(number.unpack_from(data, at)[0])
            at += number.size
        elif code in GETS:
            width = GETS[code]
            stack.append(memo[int.from_bytes(data[at : at + width], "little")])
            at += width
        elif code in TEXTS:
            width = TEXTS[code]
            begin = at + width
            at = begin + int.from_bytes(data[at:begin], "little")
            if at > len(data):
                raise _Refused("it is cut")
            stack.append(data[begin:at].decode("utf-8", "replace"))
        elif code == 0x94:  # MEMOIZE
            memo.append(stack[-1])
        elif code in PUTS:
            width = PUTS[code]
            # Every pickler counts up; a jump would only make room for nothing.
            if int.from_bytes(data[at : at + width], "little") != len(memo):
                raise _Refused("it keeps objects under numbers that no pickler gives")
            memo.append(stack[-1])
            at += width
        elif code == ord("("):  # MARK
            below.append(stack)
            stack = []
            if len(below) > MOST_DEPTH:
                raise _Refused(f"its containers lie more than {MOST_DEPTH} deep in each other")
        elif code in b"}])" or code in TUPLES or code == ord("t"):
            containers += 1
            if containers > MOST_CONTAINERS:
                raise _Refused(f"it holds more than {MOST_CONTAINERS:,} containers; record with a smaller max_entries")
            if code == ord("t"):
                items = tuple(stack)
                stack = below.pop()
                stack.append(items)
            elif code in TUPLES:
                count = TUPLES[code]
                if len(stack) < count:
                    raise IndexError
                stack[-count:] = [tuple(stack[-count:])]
            else:
                stack.append({} if code == ord("}") else [] if code == ord("]") else ())
        elif code in b"ue":  # SETITEMS, APPENDS
            items_of = stack
            stack = below.pop()
            _fill(stack[-1], items_of, code == ord("u"))
        elif code == ord("a"):  # APPEND
            value = stack.pop()
            _fill(stack[-1], [value], False)
        elif code == ord("s"):  # SETITEM
            value, key = stack.pop(), stack.pop()
            _fill(stack[-1], [key, value], True)
        elif code in CONSTANTS:
            stack.append(CONSTANTS[code])
        elif code == 0x8A:  # LONG1
            length = data[at]
            stack.append(int.from_bytes(data[at + 1 : at + 1 + length], "little", signed=True))
            at += 1 + length
        elif code == 0x80:  # PROTO
            at += 1
        elif code == 0x95:  # FRAME
            at += 8
        elif code == ord("."):  # STOP
            return stack.pop()
        else:
            reason = CALLING.get(bytes([code]), f"holds what no snapshot holds (opcode {code:#x})")
            raise _Refused(f"its pickle {reason}, and only plain dicts, lists, text and numbers are taken")
        if len(stack) > MOST_WAITING:
            raise _Refused(f"more than {MOST_WAITING:,} values wait for their container")


def _fill(container: Any, values: list[Any], is_dict: bool) -> None:
    if is_dict:
        keys = values[::2]
        # Text alone: hashing a tuple of tuples can take forever.
        if type(container) is not dict or len(values) % 2 or not all(type(key) is str for key in keys):
            raise TypeError
        container.update(zip(keys, values[1::2], strict=True))
    elif type(container) is list:
        container += values
    else:
        raise TypeError


# -- the snapshot ----------------------------------------------------------------------------------------------


class _Snapshot:
    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        self.path = path
        self.content = content
        self.stacks: dict[tuple[Frame, ...], int] = {}
        self.stack_of: dict[int, int] = {}
        self.odd = 0
        self.taken = 0

    def result(self) -> MemoryHistory:
        segments, blocks = self._segments()
        actions: dict[str, int] = {}
        history = list(self._history(actions))
        columns = np.array(history, np.int64).reshape(-1, 7).T
        lost = (f"{self.odd} records are not what torch writes and are left out",) if self.odd else ()
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

    def _records(self, of: Any) -> Iterator[dict[str, Any]]:
        for record in of if isinstance(of, list) else ():
            self.taken += 1
            if self.taken > MOST_CONTAINERS:  # lists may stand in others many times
                raise TraceError(f"{self.path} is not read: it repeats itself to more than {MOST_CONTAINERS:,} records")
            if type(record) is dict:
                yield record
            else:
                self.odd += 1

    def _segments(self) -> tuple[list[Segment], list[Block]]:
        segments: list[Segment] = []
        blocks: list[Block] = []
        for record in self._records(self.content["segments"]):
            total = _int(record.get("total_size"))
            if total < 0:
                self.odd += 1
                continue
            address = _int(record.get("address"))
            for block in self._records(record.get("blocks")):
                size = _int(block.get("size"))
                if size < 0:
                    self.odd += 1
                    continue
                begin = _int(block.get("address", address))
                stack = self._stack(block)
                requested = _int(block.get("requested_size", size))
                blocks.append(Block(len(segments), begin, size, requested, _text(block.get("state")), stack))
                address = begin + size  # torch before 2.1 gave blocks no address: they follow each other
            segments.append(
                Segment(
                    _int(record.get("device", 0)),
                    _int(record.get("address")),
                    total,
                    _int(record.get("allocated_size")),
                    _int(record.get("active_size")),
                    _int(record.get("stream")),
                    _text(record.get("segment_type")),
                )
            )
        return segments, blocks

    def _history(self, actions: dict[str, int]) -> Iterator[tuple[int, ...]]:
        traces = self.content.get("device_traces")
        for device, entries in enumerate(traces if isinstance(traces, list) else ()):
            for entry in self._records(entries):
                action = entry.get("action")
                # A few actions exist; as many as a file claims are not taken.
                if type(action) is not str or len(action) > 64 or (action not in actions and len(actions) >= 64):
                    self.odd += 1
                    continue
                time_us = _int(entry.get("time_us"))
                yield (
                    actions.setdefault(action, len(actions)),
                    device,
                    self._stack(entry),
                    _int(entry.get("addr")),
                    _int(entry.get("size")),
                    _int(entry.get("stream")),
                    time_us * 1000 if 0 <= time_us < MOST_INT // 1000 else -1,
                )

    def _stack(self, record: dict[str, Any]) -> int:
        frames = record.get("frames")
        if type(frames) is not list or not frames:
            return -1
        # torch writes one list for all that was allocated at one place; the content keeps the lists alive.
        known = self.stack_of.get(id(frames))
        if known is None:
            stack = tuple(
                Frame(_text(frame.get("filename")), _int(frame.get("line")), _text(frame.get("name")))
                for frame in frames
                if type(frame) is dict
            )
            known = self.stack_of[id(frames)] = self.stacks.setdefault(stack, len(self.stacks))
        return known


def _int(value: Any) -> int:
    return value if type(value) is int and 0 <= value <= MOST_INT else -1


def _text(value: Any) -> str:
    return value if type(value) is str else ""
