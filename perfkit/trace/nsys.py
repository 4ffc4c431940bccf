"""Reads an nsys SQLite export into the same columns as a Kineto trace.

Exports drift: tables are absent when empty, columns come and go, names are ids or text. So every table is
asked for what it has, and what it lacks gets a constant.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from perfkit.errors import TraceError
from perfkit.trace.columns import DeviceProperties, Kind, Metadata, Trace, Track
from perfkit.trace.intervals import Ints
from perfkit.trace.text import Progress

#: Rows fetched at once: measured, more is not faster and fewer is.
BATCH = 50_000

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSETS = "CUPTI_ACTIVITY_KIND_MEMSET"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNCS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
RANGES = "NVTX_EVENTS"
OVERHEADS = ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD")
#: One of these makes a database an nsys export that can be read.
WANTED = (KERNELS, COPIES, MEMSETS, CALLS, RANGES)

#: The ENUM tables that name these are missing in older exports.
COPY_KINDS = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD"}
COPY_KINDS |= {9: "HtoH", 10: "PtoP", 11: "HtoD", 12: "DtoH", 13: "DtoD"}
MEMORY_KINDS = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device", 6: "Managed"}
SYNC_KINDS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}

#: Push/pop and start/end ranges, from the program (59, 60) and from nvtxt files (70, 71).
RANGE_TYPES = (59, 60, 70, 71)

API_VERSION = re.compile(r"_v\d+$")
#: torch.autograd.profiler.emit_nvtx writes these behind an op's name.
EMITTED = re.compile(r", (?:seq|op_id|sizes|input_op_ids) = .*$", re.DOTALL)

#: -1 as uint32: how "no stream" is written.
NO_ID = 2**32 - 1
#: Later than any capture, and far from the end of int64.
MOST_NS = 2**61


class _Rows(NamedTuple):
    start: Ints
    end: Ints
    name: Ints
    track: Ints
    kind: Ints
    correlation: Ints
    device: Ints
    stream: Ints
    bytes: Ints


class _Codes(dict[Any, int]):
    def __missing__(self, key: Any) -> int:
        code = self[key] = len(self)
        return code


def read_nsys(path: Path, progress: Progress | None = None) -> Trace:
    """Read an nsys export.

    Raises:
        TraceError: another SQLite database, or a damaged one with nothing to read.
    """
    try:
        # Immutable: nothing is written beside the file, no journal is looked for, no lock is taken.
        database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    except sqlite3.Error as error:
        raise TraceError(f"{path} cannot be opened as SQLite: {error}") from None
    try:
        # The file may come from anyone: its schema must not call functions, its text need not be UTF-8.
        database.execute("pragma trusted_schema = off")
        database.text_factory = lambda raw: raw.decode("utf-8", "replace")
        return _Load(path, database, progress).run()
    except sqlite3.DatabaseError as error:
        raise TraceError(f"{path} is a damaged SQLite file ({error}); export it again from the .nsys-rep") from None
    finally:
        database.close()


class _Load:
    def __init__(self, path: Path, database: sqlite3.Connection, progress: Progress | None) -> None:
        self.path = path
        self.database = database
        self.progress = progress
        self.columns: dict[str, frozenset[str]] = {
            table: frozenset(row[1] for row in database.execute(f'pragma table_info("{table}")'))
            for (table,) in database.execute("select name from sqlite_master where type = 'table'")
            if '"' not in table
        }
        self.names = _Codes()
        self.tracks = _Codes()
        self.processes = _Codes()
        self.strings: dict[int, str] = {}
        self.parts: list[_Rows] = []
        self.lost: list[str] = []
        #: Correlation ids are per process; exports made by other tools may have dropped the process.
        self.per_process = all(
            "globalPid" in self.columns[table] for table in (KERNELS, COPIES, MEMSETS) if table in self.columns
        )

    def run(self) -> Trace:
        if not any(table in self.columns for table in WANTED):
            raise TraceError(
                f"{self.path} is no nsys export, or an empty one: none of the tables {', '.join(WANTED)};"
                " export the report again with: nsys export --type sqlite"
            )
        if "StringIds" in self.columns:
            self.strings = {i: s for i, s in self.database.execute("select id, value from StringIds") if s}
        readers = (self._kernels, self._copies, self._memsets, self._calls, self._syncs, self._overhead)
        for done, read in enumerate((*readers, self._ranges)):
            for part in read():
                self.parts.append(part)
            if self.progress is not None:
                self.progress(done + 1, len(readers) + 1)
        return self._trace()

    # -- tables -------------------------------------------------------------------------------------------

    def _select(self, table: str, *columns: tuple[str, int], where: str = "") -> Iterator[list[Ints]]:
        """Batches of integer columns; each column with what stands for a missing value or a missing column."""
        if table not in self.columns or not {"start", "end"} <= self.columns[table]:
            return
        has = self.columns[table]
        chosen = ", ".join(
            f'ifnull(cast("{name}" as integer), {default})' if name in has else str(default)
            for name, default in columns
        )
        cursor = self.database.execute(f'select {chosen} from "{table}" {where} order by "start"')
        while batch := cursor.fetchmany(BATCH):
            yield [np.array(column, np.int64) for column in zip(*batch, strict=True)]

    def _name_codes(self, ids: Ints, strip: re.Pattern[str] | None = None) -> Ints:
        unique, place = np.unique(ids, return_inverse=True)
        found = []
        for i in unique.tolist():
            text = self.strings.get(i, "")
            found.append(self.names[strip.sub("", text) if strip is not None else text])
        return np.array(found, np.int64)[place]

    def _correlations(self, ids: Ints, owner: Ints) -> Ints:
        """(process, correlation id) as one number."""
        if not self.per_process:
            return np.where(ids > 0, ids, -1)
        unique, place = np.unique(owner >> 24, return_inverse=True)
        process = np.array([self.processes[p] for p in unique.tolist()], np.int64)[place]
        return np.where((ids > 0) & (ids < NO_ID), process << 32 | ids & NO_ID, -1)

    def _device_track(self, device: Ints, stream: Ints) -> Ints:
        pairs, place = np.unique(np.stack((device, stream)), axis=1, return_inverse=True)
        codes = [self.tracks["device", d, s] for d, s in pairs.T.tolist()]
        return np.array(codes, np.int64)[place.ravel()]

    def _thread_track(self, thread: Ints) -> Ints:
        unique, place = np.unique(thread, return_inverse=True)
        return np.array([self.tracks["thread", t, 0] for t in unique.tolist()], np.int64)[place]

    def _on_device(
        self, kind: Kind, name: Ints, start: Ints, end: Ints, device: Ints, stream: Ints, ids: Ints, owner: Ints,
        size: Ints,
    ) -> _Rows:  # fmt: skip
        stream = np.where((stream < 0) | (stream >= NO_ID), -1, stream)
        return _Rows(
            start, end, name, self._device_track(device, stream), np.full(start.size, kind),
            self._correlations(ids, owner), device, stream, size,
        )  # fmt: skip

    def _kernels(self) -> Iterator[_Rows]:
        has = self.columns.get(KERNELS, frozenset())
        name = next((n for n in ("demangledName", "shortName", "mangledName") if n in has), "demangledName")
        for columns in self._select(
            KERNELS,
            *(("start", 0), ("end", 0), (name, -1), ("deviceId", 0), ("streamId", -1)),
            *(("correlationId", -1), ("globalPid", 0)),
        ):
            start, end, names, device, stream, ids, owner = columns
            none = np.full(start.size, -1, np.int64)
            codes = self._name_codes(names)
            yield self._on_device(Kind.KERNEL, codes, start, end, device, stream, ids, owner, none)

    def _copies(self) -> Iterator[_Rows]:
        for columns in self._select(
            COPIES,
            *(("start", 0), ("end", 0), ("copyKind", 0), ("srcKind", 7), ("dstKind", 7), ("deviceId", 0)),
            *(("streamId", -1), ("correlationId", -1), ("globalPid", 0), ("bytes", -1)),
        ):
            start, end, kind, source, target, device, stream, ids, owner, size = columns
            kinds, place = np.unique(np.stack((kind, source, target)), axis=1, return_inverse=True)
            codes = []
            for one, of, to in kinds.T.tolist():
                way = f"Memcpy {COPY_KINDS.get(one, 'unknown')}"
                memory = f" ({MEMORY_KINDS.get(of, 'Unknown')} -> {MEMORY_KINDS.get(to, 'Unknown')})"
                codes.append(self.names[way + memory])
            names = np.array(codes, np.int64)[place.ravel()]
            yield self._on_device(Kind.COPY, names, start, end, device, stream, ids, owner, size)

    def _memsets(self) -> Iterator[_Rows]:
        for columns in self._select(
            MEMSETS,
            *(("start", 0), ("end", 0), ("memKind", 7), ("deviceId", 0), ("streamId", -1)),
            *(("correlationId", -1), ("globalPid", 0), ("bytes", -1)),
        ):
            start, end, kind, device, stream, ids, owner, size = columns
            table = {one: self.names[f"Memset ({MEMORY_KINDS.get(one, 'Unknown')})"] for one in set(kind.tolist())}
            names = np.array([table[one] for one in kind.tolist()], np.int64)
            yield self._on_device(Kind.MEMSET, names, start, end, device, stream, ids, owner, size)

    def _calls(self) -> Iterator[_Rows]:
        # Exports of schema 2 hold a second row of an interception layer around each call (class 67).
        where = "where eventClass in (0, 1)" if "eventClass" in self.columns.get(CALLS, ()) else ""
        for start, end, names, thread, ids in self._select(
            *(CALLS, ("start", 0), ("end", 0), ("nameId", -1), ("globalTid", 0), ("correlationId", -1)),
            where=where,
        ):
            yield self._on_thread(
                Kind.RUNTIME, self._name_codes(names, API_VERSION), start, end, thread, self._correlations(ids, thread)
            )

    def _syncs(self) -> Iterator[_Rows]:
        for start, end, kind, device, stream, ids, owner in self._select(
            *(SYNCS, ("start", 0), ("end", 0), ("syncType", 0), ("deviceId", 0), ("streamId", -1)),
            *(("correlationId", -1), ("globalPid", 0)),
        ):
            table = {one: self.names[SYNC_KINDS.get(one, "Sync")] for one in set(kind.tolist())}
            names = np.array([table[one] for one in kind.tolist()], np.int64)
            none = np.full(start.size, -1, np.int64)
            yield self._on_device(Kind.SYNC, names, start, end, device, stream, ids, owner, none)

    def _overhead(self) -> Iterator[_Rows]:
        for table in OVERHEADS:
            for start, end, names, thread in self._select(
                table, ("start", 0), ("end", 0), ("nameId", -1), ("globalTid", 0)
            ):
                none = np.full(start.size, -1, np.int64)
                yield self._on_thread(Kind.OVERHEAD, self._name_codes(names), start, end, thread, none)

    def _ranges(self) -> Iterator[_Rows]:
        has = self.columns.get(RANGES, frozenset())
        if not {"start", "end", "eventType"} <= has:
            return
        text = "text" if "text" in has else "null"
        text_id = "textId" if "textId" in has else "null"
        thread = "globalTid" if "globalTid" in has else "0"
        # A range that ends on another thread does not nest on its own.
        same = "and endGlobalTid is null" if "endGlobalTid" in has else ""
        still_open = max((int(part.end.max()) for part in self.parts if part.end.size), default=0)
        unended = 0
        cursor = self.database.execute(
            f'select cast("start" as integer), cast("end" as integer), cast({text} as text),'
            f" cast({text_id} as integer), cast({thread} as integer) from {RANGES}"
            f' where eventType in {RANGE_TYPES} and "start" is not null {same} order by "start"'
        )
        while batch := cursor.fetchmany(BATCH):
            start, end, names, threads = [], [], [], []
            for begin, stop, inline, string, tid in batch:
                name = inline if inline is not None else self.strings.get(string, "")
                unended += stop is None
                start.append(begin)
                end.append(max(begin, still_open) if stop is None else stop)
                names.append(self.names[EMITTED.sub("", name)])
                threads.append(tid or 0)
            columns = [np.array(column, np.int64) for column in (names, start, end, threads)]
            none = np.full(len(start), -1, np.int64)
            yield self._on_thread(Kind.RANGE, columns[0], columns[1], columns[2], columns[3], none)
        if unended:
            self.lost.append(f"{unended} NVTX ranges had not ended: they are taken to reach to the last event")

    def _on_thread(self, kind: Kind, name: Ints, start: Ints, end: Ints, thread: Ints, correlation: Ints) -> _Rows:
        none = np.full(start.size, -1, np.int64)
        track = self._thread_track(thread)
        return _Rows(start, end, name, track, np.full(start.size, kind), correlation, none, none, none)

    # -- the whole ----------------------------------------------------------------------------------------

    def _trace(self) -> Trace:
        empty = np.zeros(0, np.int64)
        columns = _Rows(*(np.concatenate([empty, *column]) for column in zip(*self.parts, strict=True)))
        if not self.parts:
            columns = _Rows(*(empty,) * len(_Rows._fields))
        usable = (np.abs(columns.start) < MOST_NS) & (np.abs(columns.end) < MOST_NS)
        if not usable.all():
            self.lost.append(f"{int((~usable).sum())} events had no usable time and are left out")
            columns = _Rows(*(column[usable] for column in columns))
        base = self._start_time()
        base_ns = base if base is not None else 0
        self._diagnostics()
        return Trace(
            path=self.path,
            metadata=Metadata(format="nsys", devices=tuple(self._devices()), base_ns=base),
            names=tuple(self.names),
            tracks=tuple(self._tracks()),
            start_ns=columns.start + base_ns,
            end_ns=np.maximum(columns.end, columns.start) + base_ns,
            name=columns.name.astype(np.int32),
            track=columns.track.astype(np.int32),
            kind=columns.kind.astype(np.int8),
            correlation=columns.correlation,
            device=columns.device.astype(np.int32),
            stream=columns.stream.astype(np.int32),
            bytes=columns.bytes,
            sequence=np.full(columns.start.size, -1, np.int64),
            lost=tuple(self.lost),
            args_reader=_no_args,
        )

    def _start_time(self) -> int | None:
        for table, has in self.columns.items():
            if table.endswith("_START_TIME") and "utcEpochNs" in has:
                for (ns,) in self.database.execute(f'select cast(utcEpochNs as integer) from "{table}"'):
                    if isinstance(ns, int) and 0 <= ns < MOST_NS:
                        return ns
        return None

    def _devices(self) -> Iterator[DeviceProperties]:
        has = self.columns.get("TARGET_INFO_GPU", frozenset())
        if not {"id", "name"} <= has:
            return
        optional = [n if n in has else "null" for n in ("smCount", "totalMemory", "computeMajor", "computeMinor")]
        rows = self.database.execute(
            f"select cast(id as integer), cast(name as text), {', '.join(optional)} from TARGET_INFO_GPU"
        )
        for device, name, processors, memory, major, minor in rows:
            whole = type(major) is int and type(minor) is int
            yield DeviceProperties(
                id=device or 0,
                name=name or "",
                multiprocessors=processors if type(processors) is int else None,
                memory_bytes=memory if type(memory) is int else None,
                capability=(major, minor) if whole else None,
            )

    def _tracks(self) -> Iterator[Track]:
        threads = self._labels("ThreadNames", "globalTid", "nameId")
        processes = self._labels("PROCESSES", "globalPid", "name")
        for where, first, second in self.tracks:
            if where == "device":
                yield Track(process=str(first), thread=str(second), device=True)
            else:
                yield Track(
                    process=str(first >> 24 & 0xFFFFFF),
                    thread=str(first & 0xFFFFFF),
                    process_name=processes.get(first & ~0xFFFFFF),
                    thread_name=threads.get(first),
                )

    def _labels(self, table: str, key: str, label: str) -> dict[int, str]:
        if not {key, label} <= self.columns.get(table, frozenset()):
            return {}
        found = {}
        for one, name in self.database.execute(f'select {key}, {label} from "{table}"'):
            text = self.strings.get(name) if isinstance(name, int) else name
            if isinstance(text, str):
                found[one] = text
        return found

    def _diagnostics(self) -> None:
        """What nsys itself warned of (severity 2) or failed at (3): it knows which events are incomplete."""
        if {"severity", "text"} <= self.columns.get("DIAGNOSTIC_EVENT", frozenset()):
            told = self.database.execute(
                "select distinct cast(text as text) from DIAGNOSTIC_EVENT where severity in (2, 3) limit 10"
            )
            self.lost += [f"nsys said: {' '.join(text.split())[:300]}" for (text,) in told if text]


def _no_args(rows: Sequence[int]) -> list[dict[str, Any]]:
    """nsys keeps what Kineto calls arguments as columns of its tables; none beside those above is read."""
    return [{} for _ in rows]
