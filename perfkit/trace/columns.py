"""A trace as numpy columns: one row per event, whatever the format of its file."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from perfkit.trace.intervals import Bools, Codes, Ints
from perfkit.trace.nesting import find_parents, nearest_ancestor

Kinds = npt.NDArray[np.int8]


class Kind(IntEnum):
    """The kind of an event."""

    OTHER = 0
    OP = 1
    RANGE = 2
    PYTHON = 3
    #: A call of the runtime's or the driver's API: launches, syncs, allocations.
    RUNTIME = 4
    KERNEL = 5
    COPY = 6
    MEMSET = 7
    #: A sync as the device records it: no work.
    SYNC = 8
    #: A host range drawn over the kernels it launched: no work.
    PROJECTION = 9
    #: Time of the profiler itself.
    OVERHEAD = 10
    #: An allocation or a free, an instant: ``bytes`` is signed, ``device`` is -1 for host memory.
    MEMORY = 11


#: Events of a thread, which nest.
HOST_KINDS = (Kind.OP, Kind.RANGE, Kind.PYTHON, Kind.RUNTIME)
#: Work of a device.
DEVICE_KINDS = (Kind.KERNEL, Kind.COPY, Kind.MEMSET)

STEP_NAME = re.compile(r"ProfilerStep\s?#(\d{1,18})$")


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """What events run on: a thread of a process, or (``device``) a stream of a device."""

    process: str
    thread: str
    device: bool = False
    process_name: str | None = None
    thread_name: str | None = None


class DeviceProperties(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of one device, from the file; nsys has the maximum clock and the bandwidth of the memory."""

    id: int
    name: str
    multiprocessors: int | None = None
    memory_bytes: int | None = None
    capability: tuple[int, int] | None = None
    clock_mhz: float | None = None
    bytes_per_s: int | None = None


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a file, from a fixed list of keys: other keys were seen to hold access tokens.

    ``base_ns`` was added to the times of the file to make them unix time; None where they are unix time already, or
    where the file does not give it: they then count from the file's own zero.
    """

    format: Literal["kineto", "nsys"]
    devices: tuple[DeviceProperties, ...] = ()
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    host: str | None = None
    base_ns: int | None = None
    with_stack: bool | None = None
    record_shapes: bool | None = None


class ProfilerSteps(NamedTuple):
    """The steps on the host, in order of time: ``ProfilerStep#N`` ranges with N, their extent, track and row."""

    number: Ints
    start_ns: Ints
    end_ns: Ints
    track: Codes
    row: Ints


class CodeTable(dict[Any, int]):
    """Gives each new key the next code."""

    def __missing__(self, key: Any) -> int:
        code = self[key] = len(self)
        return code


def positions_in(known: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """The position of each wanted value in ``known``, which is sorted; -1 for none."""
    if not known.size:
        return np.full(wanted.shape, -1)
    at = np.minimum(np.searchsorted(known, wanted), known.size - 1)
    return np.where(known[at] == wanted, at, -1)


class Field(NamedTuple):
    """One argument of many events: ``values[codes[i]]`` for the i-th requested row; code -1 where it has none.

    Equal values are in ``values`` once, so that work per value (a shape, a grid) is done once.
    """

    codes: Codes
    values: tuple[Any, ...]

    def numbers(self) -> npt.NDArray[np.float64]:
        """The argument of each row as a number; NaN where it is absent or not a number (``"inf"`` is infinite)."""
        table = np.array([*(_number(value) for value in self.values), math.nan])
        return np.asarray(table[self.codes], np.float64)

    def list(self) -> list[Any]:
        """The argument of each row, decoded; None where it has none. Lists and dicts are shared: do not modify them."""
        table = [*self.values, None]
        return [table[code] for code in self.codes.tolist()]


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


#: Reads all arguments of some rows again from the file.
ArgsReader = Callable[[Sequence[int]], list[dict[str, Any]]]
#: Reads some arguments, given by their keys, of many rows again from the file.
FieldsReader = Callable[[Ints, Sequence[str]], dict[str, Field]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Trace:
    """The events of one trace, in the order of the file; an event is identified by its row number.

    Columns (length n):
        start_ns, end_ns: int64, unix time where the file gives it (`Metadata.base_ns`).
        name, track: int32 codes into ``names`` and ``tracks``.
        kind: int8, see `Kind`.
        correlation: int64, links a launch to its device work; unique over processes; -1 for none.
        device, stream: int32, only for events of a device; -1 for none.
        bytes: int64, for copies and memsets; -1 for none. For `Kind.MEMORY` the size allocated, negative for a free.
        sequence: int64, autograd's sequence number of ops; -1 for none.

    ``lost`` has one sentence for each thing that is damaged, left out, or not known. ``cut`` is the one of them that
    reports an unknown part of the events missing, None where there is none; ``skipped`` events could not be read.
    """

    path: Path
    metadata: Metadata
    names: tuple[str, ...]
    tracks: tuple[Track, ...]
    start_ns: Ints
    end_ns: Ints
    name: Codes
    track: Codes
    kind: Kinds
    correlation: Ints
    device: Codes
    stream: Codes
    bytes: Ints
    sequence: Ints
    lost: tuple[str, ...]
    args_reader: ArgsReader
    #: For formats with a faster way than ``args_reader``.
    fields_reader: FieldsReader | None = None
    cut: str | None = None
    skipped: int = 0

    def __len__(self) -> int:
        return int(self.start_ns.size)

    def args(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """The arguments of these rows, read again from the file; empty where the format has none.

        Raises:
            TraceError: the file was changed or deleted since it was read.
        """
        return self.args_reader(rows)

    def fields(self, rows: Ints | Sequence[int], keys: Sequence[str]) -> dict[str, Field]:
        """Selected arguments of many rows, in one pass over the parts of the file that hold them.

        Made for 100,000 rows and more: request all keys in one call, because every call reads the text of the rows
        again, in about a third of the time that loading took.

        Raises:
            TraceError: the file was changed or deleted since it was read.
        """
        rows = np.asarray(rows, np.int64)
        if self.fields_reader is not None:
            return self.fields_reader(rows, keys)
        args = self.args_reader(rows.tolist())
        found = {}
        for key in keys:
            values = [one[key] for one in args if key in one]
            codes = np.full(rows.size, -1, np.int32)
            codes[[key in one for one in args]] = np.arange(len(values))
            found[key] = Field(codes, tuple(values))
        return found

    def is_kind(self, *kinds: Kind) -> Bools:
        """A mask of the rows of these kinds."""
        mask = np.zeros(len(self), bool)
        for kind in kinds:
            mask |= self.kind == int(kind)  # ten times as fast as with a member of an enum
        return mask

    def name_matches(self, pattern: re.Pattern[str]) -> Bools:
        """A mask of the rows whose name has a match (``pattern.search``)."""
        hit = np.fromiter((pattern.search(n) is not None for n in self.names), bool, len(self.names))
        return hit[self.name] if len(self) else np.zeros(0, bool)

    def above(self, wanted: Bools) -> Ints:
        """For each row its nearest ancestor on its thread (itself excluded) that is wanted; -1 for none."""
        return nearest_ancestor(wanted, self.parent)

    @cached_property
    def duration_ns(self) -> Ints:
        """The duration of each event."""
        return self.end_ns - self.start_ns

    @cached_property
    def device_rows(self) -> Ints:
        """Rows of device work: kernels, copies and memsets."""
        return np.flatnonzero(self.is_kind(*DEVICE_KINDS))

    @cached_property
    def host_rows(self) -> Ints:
        """Rows of ops, ranges, python frames and API calls."""
        return np.flatnonzero(self.is_kind(*HOST_KINDS))

    @cached_property
    def parent(self) -> Ints:
        """Row of the innermost event on its thread that contains each host event; -1 for none."""
        return find_parents(self.track, self.start_ns, self.end_ns, self.host_rows)

    @cached_property
    def caller(self) -> Ints:
        """Row of the Python frame that called each Python frame, by the profiler's ids; -1 for none.

        Ids are exact where times are not: two frames within one microsecond, frames of an unknown thread.
        """
        rows = np.flatnonzero(self.is_kind(Kind.PYTHON))
        caller = np.full(len(self), -1, np.int64)
        ids = self.fields(rows, ("Python id", "Python parent id"))
        own, above = ids["Python id"].numbers(), ids["Python parent id"].numbers()
        order = np.argsort(own)  # NaN last
        caller[rows] = np.append(rows[order], -1)[positions_in(own[order], above)]
        return caller

    @cached_property
    def launch(self) -> Ints:
        """Row of the API call that launched each device event; -1 where the trace has none."""
        launch = np.full(len(self), -1, np.int64)
        calls = np.flatnonzero(self.is_kind(Kind.RUNTIME) & (self.correlation > 0))
        calls = calls[np.argsort(self.correlation[calls], kind="stable")]
        at = positions_in(self.correlation[calls], self.correlation[self.device_rows])
        launch[self.device_rows] = np.append(calls, -1)[at]
        return launch

    @cached_property
    def steps(self) -> ProfilerSteps:
        """The ``ProfilerStep#N`` ranges of the host."""
        number = np.full(len(self.names), -1, np.int64)
        for code, name in enumerate(self.names):
            if match := STEP_NAME.match(name):
                number[code] = int(match[1])
        rows = np.flatnonzero(self.is_kind(Kind.RANGE))
        rows = rows[number[self.name[rows]] >= 0]
        rows = rows[np.argsort(self.start_ns[rows], kind="stable")]
        return ProfilerSteps(number[self.name[rows]], self.start_ns[rows], self.end_ns[rows], self.track[rows], rows)

    @cached_property
    def ranges(self) -> Ints:
        """Rows of the user's ranges, without the steps."""
        is_range = self.is_kind(Kind.RANGE)
        is_range[self.steps.row] = False
        return np.flatnonzero(is_range)
