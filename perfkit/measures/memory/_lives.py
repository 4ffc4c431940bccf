"""When each piece of a device's memory was allocated and freed, and what is known to hold it."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np

from perfkit.measures.memory._allocations import byte_counts, device_name
from perfkit.run.records import HOLDINGS, HeldStorages, Holding, MemorySteps, Storage
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Ints

#: Before and after everything.
ALWAYS, NEVER = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class Life(NamedTuple):
    """One piece of memory: the row of its allocation (-1: before the trace), when it was held, and its size."""

    row: int
    start_ns: int
    end_ns: int
    bytes: int


class Lives:
    """The pieces of one device's memory, in columns, and notes on them.

    ``holding`` is what the record says they are held for, None where it says nothing; ``name`` the parameter or the
    module. ``outputs`` are (time, piece, module) of what modules returned.
    """

    def __init__(self, trace: Trace, device: int, record: MemorySteps) -> None:
        self.device = device_name(device)
        self._pieces: list[Life] = []
        #: Address -> its pieces from the trace, by time; and those from before it.
        self._at: dict[int, list[int]] = defaultdict(list)
        self._before: dict[int, list[int]] = defaultdict(list)
        rows = np.flatnonzero(trace.is_kind(Kind.MEMORY) & (trace.device == device))
        self.rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
        self._times, self._changes = trace.start_ns[self.rows], trace.bytes[self.rows]
        fields = trace.fields(self.rows, ("Addr", "Total Allocated"))
        self._read(fields["Addr"].list())
        # The host's total counts from the start of the recording.
        self._total = byte_counts(fields["Total Allocated"].numbers()) if device >= 0 and self.rows.size else None
        self.holding: dict[int, Holding] = {}
        self.name: dict[int, str] = {}
        self.outputs: list[tuple[int, int, str]] = []
        self._take_notes(record)
        columns = np.array(self._pieces, np.int64).reshape(-1, 4).T
        self.row, self.start_ns, self.end_ns, self.bytes = columns

    def _read(self, addresses: list[Any]) -> None:
        open_: dict[int, int] = {}
        columns = (self.rows.tolist(), self._times.tolist(), self._changes.tolist(), addresses)
        for row, time, change, address in zip(*columns, strict=True):
            if type(address) is not int:
                continue
            # An allocation whose free was lost ends with the next event at its address.
            before = open_.pop(address, None)
            if before is not None:
                self._pieces[before] = self._pieces[before]._replace(end_ns=time)
            if change > 0:
                open_[address] = self._add(address, Life(row, time, NEVER, change))
            elif change < 0 and before is None:
                self._add(address, Life(-1, ALWAYS, time, -change))

    def _add(self, address: int, life: Life) -> int:
        self._pieces.append(life)
        (self._before if life.row < 0 else self._at)[address].append(len(self._pieces) - 1)
        return len(self._pieces) - 1

    def _take_notes(self, record: MemorySteps) -> None:
        whole = [one.time_ns for one in record.held if one.is_whole]
        last_start = whole[-2] if len(whole) > 1 else ALWAYS
        for held in record.held:
            for storage in held.storages:
                if storage.device == self.device:
                    self._note(held, storage, whole, last_start)

    def _note(self, held: HeldStorages, storage: Storage, whole: list[int], last_start: int) -> None:
        piece = self._alive(storage.address, held.time_ns)
        if piece is None:
            # What a module got but torch's allocator did not make is known in the last step alone.
            if not held.is_whole and (storage.is_output or held.time_ns < last_start):
                return
            piece = self._add_from_before(held, storage, whole)
        if storage.is_output:
            self.outputs.append((held.time_ns, piece, storage.name))
            return
        if storage.holding == "other" and self._pieces[piece].row >= 0:
            return  # that a variable has it says nothing on what it is
        known = self.holding.get(piece)
        if known is None or HOLDINGS.index(storage.holding) < HOLDINGS.index(known):
            self.holding[piece], self.name[piece] = storage.holding, storage.name

    def _alive(self, address: int, time: int) -> int | None:
        known = self._at.get(address, [])
        last = bisect_right(known, time, key=lambda piece: self._pieces[piece].start_ns) - 1
        for piece in [*known[max(0, last) : last + 1], *self._before.get(address, [])]:
            life = self._pieces[piece]
            if life.start_ns <= time < life.end_ns:
                return piece
        return None

    def _add_from_before(self, held: HeldStorages, storage: Storage, whole: list[int]) -> int:
        """Memory that the trace does not show: held from the look before, and until the next one misses it."""
        for piece in self._before.get(storage.address, ()):
            life = self._pieces[piece]
            if life.bytes == storage.bytes and life.end_ns == held.time_ns:
                break
        else:
            earlier = [time for time in whole if time < held.time_ns]
            start = earlier[-1] if earlier and held.is_whole else ALWAYS
            piece = self._add(storage.address, Life(-1, start, NEVER, storage.bytes))
        later = [time for time in whole if time > held.time_ns]
        self._pieces[piece] = self._pieces[piece]._replace(end_ns=later[0] if later else NEVER)
        return piece

    def levels(self) -> tuple[Ints, Ints]:
        """(times, level from then on); the first time is before everything."""
        if self._total is not None:
            # Absolute, and with what no tensor shows, as the workspaces of libraries.
            first = self._total[:1] - self._changes[:1]
            return np.append(ALWAYS, self._times), np.append(first, self._total)
        starts, order = np.unique(np.concatenate((self.start_ns, self.end_ns)), return_inverse=True)
        change = np.zeros(starts.size, np.int64)
        np.add.at(change, order, np.concatenate((self.bytes, -self.bytes)))
        return starts, np.cumsum(change)
