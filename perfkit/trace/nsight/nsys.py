"""Reads an nsys SQLite export into the same columns as a Kineto trace."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from perfkit.errors import TraceError
from perfkit.trace.columns import Codes, Kind, Kinds, Metadata, Trace, Track
from perfkit.trace.file_text import Progress
from perfkit.trace.intervals import Ints
from perfkit.trace.nsight._nsys_arguments import COPIES, KERNELS, MEMSETS, ArgsOfRows
from perfkit.trace.nsight._nsys_metadata import Gpus, messages, start_time_ns
from perfkit.trace.nsight._nsys_tables import Column, NsysTables, recoded
from perfkit.trace.nsight.report_export import export_report

CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNCS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RANGES = "NVTX_EVENTS"
OS_CALLS = "OSRT_API"
OVERHEADS = ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD")
#: One of these makes a database an nsys export that can be read.
WANTED = (KERNELS, COPIES, MEMSETS, GRAPHS, CALLS, RANGES, OS_CALLS)

#: What the numbers in the tables stand for, by the symbols of the export's own ENUM tables; those are missing in
#: older exports, which have used these numbers always.
COPY_KINDS = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD"}
COPY_KINDS |= {9: "HtoH", 10: "PtoP", 11: "HtoD", 12: "DtoH", 13: "DtoD"}
COPY_SYMBOL = re.compile(r"KIND_(?:UVM_)?([HDAP])TO([HDAP])$")
MEMORY_KINDS = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device", 6: "Managed"}
MEMORY_SYMBOL = re.compile(r"KIND_(PAGEABLE|PINNED|DEVICE|ARRAY|MANAGED)(?:_STATIC)?$")
SYNC_KINDS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
SYNC_SYMBOL = re.compile(r"TYPE_(EVENT|STREAM|CONTEXT)_SYNCHRONIZE$|TYPE_(STREAM_WAIT_EVENT)$")

#: A launch of a graph whose kernels were not recorded one by one.
WHOLE_GRAPH = "[CUDA graph]"

#: Push/pop and start/end ranges, from the program (59, 60) and from nvtxt files (70, 71).
RANGE_TYPES = (59, 60, 70, 71)
#: Rows that only say where a call of the system began or ended, beside the row of the call.
OS_MARKERS = (31, 32)

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
    name: Codes
    track: Codes
    kind: Kinds
    correlation: Ints
    device: Codes
    stream: Codes
    bytes: Ints
    row_id: Ints


#: What each column holds, also where the trace has no event.
DTYPES = (np.int64, np.int64, np.int32, np.int32, np.int8, np.int64, np.int32, np.int32, np.int64, np.int64)


def _part(*columns: npt.NDArray[Any]) -> _Rows:
    return _Rows(*(np.asarray(column, dtype) for column, dtype in zip(columns, DTYPES, strict=True)))


class _Codes(dict[Any, int]):
    def __missing__(self, key: Any) -> int:
        code = self[key] = len(self)
        return code


def read_nsys(path: Path, progress: Progress | None = None) -> Trace:
    """Read an nsys export.

    Raises:
        TraceError: another SQLite database, or a damaged one with nothing to read.
    """
    with NsysTables(path) as tables:
        return _Load(tables, progress).run()


def read_nsys_report(path: Path, progress: Progress | None = None) -> Trace:
    """Read what Nsight Systems recorded (``.nsys-rep``), through the nsys that is installed.

    Raises:
        TraceError: nsys is not installed, or cannot read the report.
    """
    return dataclasses.replace(read_nsys(export_report(path), progress), path=path)


class _Load:
    def __init__(self, tables: NsysTables, progress: Progress | None) -> None:
        self.tables = tables
        self.path = tables.path
        self.progress = progress
        self.names = _Codes()
        self.tracks = _Codes()
        self.processes = _Codes()
        self.strings = {i: s for i, s in tables.values("StringIds", "id", "value") if isinstance(s, str)}
        self.parts: list[_Rows] = []
        self.lost = tables.lost
        #: Correlation ids are per process; exports made by other tools may have dropped the process.
        self.per_process = all(tables.has(t, "globalPid") for t in (KERNELS, COPIES, MEMSETS, GRAPHS) if tables.has(t))
        self.gpus = Gpus(tables)

    def run(self) -> Trace:
        if not any(self.tables.has(table) for table in WANTED):
            raise TraceError(
                f"{self.path} is no nsys export, or an empty one: none of the tables {', '.join(WANTED)};"
                " export the report again with: nsys export --type sqlite"
            )
        readers = (
            *(self._kernels, self._copies, self._memsets, self._graphs),
            *(self._calls, self._os_calls, self._syncs, self._overhead),
        )
        for done, read in enumerate((*readers, self._ranges)):
            self.parts.extend(read())
            if self.progress is not None:
                self.progress(done + 1, len(readers) + 1)
        if self.lost and not self.parts:
            raise TraceError(
                f"{self.path} is a damaged SQLite file ({self.lost[0]}); export it again from the .nsys-rep"
            )
        return self._trace()

    # -- columns ------------------------------------------------------------------------------------------

    def _select(self, table: str, *columns: Column, where: str = "") -> Iterator[list[Ints]]:
        """Start, end and other columns of a table of events."""
        if self.tables.has(table, "start", "end"):
            # A missing time is made unusable, not zero.
            times = (Column("start", MOST_NS), Column("end", MOST_NS))
            yield from self.tables.integers(table, *times, *columns, where=where)

    def _name_codes(self, ids: Ints, strip: re.Pattern[str] | None = None) -> Ints:
        def code(i: int) -> int:
            text = self.strings.get(i, "")
            return self.names[strip.sub("", text) if strip is not None else text]

        return recoded(ids, code)

    def _enum(self, table: str, known: dict[int, str], symbol: re.Pattern[str], word: str) -> dict[int, str]:
        """What numbers stand for: as the export says, and as it always was where it does not."""
        found = dict(known)
        for i, name, label in self.tables.values(table, "id", "name", "label"):
            if type(i) is int and isinstance(name, str):
                if match := symbol.search(name):
                    found[i] = word.format(*(part.title().replace("_", " ") for part in match.groups() if part))
                elif i not in known and isinstance(label, str):
                    found[i] = label
        return found

    def _correlations(self, ids: Ints, owner: Ints) -> Ints:
        """(process, correlation id) as one number."""
        if not self.per_process:
            return np.where(ids > 0, ids, -1)
        process = recoded(owner >> 24, self.processes.__getitem__)
        return np.where((ids > 0) & (ids < NO_ID), process << 32 | ids & NO_ID, -1)

    def _thread_track(self, thread: Ints) -> Ints:
        return recoded(thread, lambda one: self.tracks["thread", one, 0])

    def _on_device(
        self, kind: Kind, name: Ints, start: Ints, end: Ints, device: Ints, stream: Ints, ids: Ints, owner: Ints,
        size: Ints, row_id: Ints,
    ) -> _Rows:  # fmt: skip
        device = self.gpus.numbers(np.where((device < 0) | (device >= 2**31), -1, device), owner)
        stream = np.where((stream < 0) | (stream >= 2**31), -1, stream)
        track = recoded(device << 32 | stream + 1, lambda both: self.tracks["device", both >> 32, (both & NO_ID) - 1])
        kinds = np.full(start.size, kind)
        return _part(
            start, end, name, track, kinds, self._correlations(ids, owner), device, stream, size, row_id
        )  # fmt: skip

    def _on_thread(self, kind: Kind, name: Ints, start: Ints, end: Ints, thread: Ints, correlation: Ints) -> _Rows:
        none = np.full(start.size, -1, np.int64)
        track = self._thread_track(thread)
        return _part(start, end, name, track, np.full(start.size, kind), correlation, none, none, none, none)

    # -- tables -------------------------------------------------------------------------------------------

    def _kernels(self) -> Iterator[_Rows]:
        names = ("demangledName", "shortName", "mangledName")
        name = next((n for n in names if self.tables.has(KERNELS, n)), names[0])
        for start, end, name_ids, device, stream, ids, owner, row_id in self._select(
            KERNELS, Column(name), Column("deviceId", 0), Column("streamId"), Column("correlationId"),
            Column("globalPid", 0), Column("rowid"),
        ):  # fmt: skip
            none = np.full(start.size, -1, np.int64)
            codes = self._name_codes(name_ids)
            yield self._on_device(Kind.KERNEL, codes, start, end, device, stream, ids, owner, none, row_id)

    def _copies(self) -> Iterator[_Rows]:
        ways = self._enum("ENUM_CUDA_MEMCPY_OPER", COPY_KINDS, COPY_SYMBOL, "{}to{}")
        memory = self._enum("ENUM_CUDA_MEM_KIND", MEMORY_KINDS, MEMORY_SYMBOL, "{}")

        def code(packed: int) -> int:
            way, source, target = packed >> 32, packed >> 16 & 0xFFFF, packed & 0xFFFF
            kinds = f" ({memory.get(source, 'Unknown')} -> {memory.get(target, 'Unknown')})"
            return self.names[f"Memcpy {ways.get(way, 'unknown')}{kinds}"]

        for start, end, kind, source, target, device, stream, ids, owner, size, row_id in self._select(
            COPIES, Column("copyKind", 0), Column("srcKind", 7), Column("dstKind", 7), Column("deviceId", 0),
            Column("streamId"), Column("correlationId"), Column("globalPid", 0), Column("bytes"), Column("rowid"),
        ):  # fmt: skip
            packed = (kind & 0xFFFF) << 32 | (source & 0xFFFF) << 16 | target & 0xFFFF
            names = recoded(packed, code)
            yield self._on_device(Kind.COPY, names, start, end, device, stream, ids, owner, size, row_id)

    def _memsets(self) -> Iterator[_Rows]:
        memory = self._enum("ENUM_CUDA_MEM_KIND", MEMORY_KINDS, MEMORY_SYMBOL, "{}")
        for start, end, kind, device, stream, ids, owner, size, row_id in self._select(
            MEMSETS, Column("memKind", 7), Column("deviceId", 0), Column("streamId"), Column("correlationId"),
            Column("globalPid", 0), Column("bytes"), Column("rowid"),
        ):  # fmt: skip
            names = recoded(kind, lambda one: self.names[f"Memset ({memory.get(one, 'Unknown')})"])
            yield self._on_device(Kind.MEMSET, names, start, end, device, stream, ids, owner, size, row_id)

    def _graphs(self) -> Iterator[_Rows]:
        """Graphs that nsys recorded whole, its default: device work, though not of one kernel."""
        launches = 0
        for start, end, device, stream, ids, owner in self._select(
            GRAPHS, Column("deviceId", 0), Column("streamId"), Column("correlationId"), Column("globalPid", 0)
        ):
            launches += start.size
            none = np.full(start.size, -1, np.int64)
            names = np.full(start.size, self.names[WHOLE_GRAPH], np.int64)
            yield self._on_device(Kind.KERNEL, names, start, end, device, stream, ids, owner, none, none)
        if launches:
            self.lost.append(
                f"{launches} launches of CUDA graphs were recorded whole, without the kernels in them: record with"
                " `nsys profile --cuda-graph-trace=node` to see those"
            )

    def _calls(self) -> Iterator[_Rows]:
        # Exports of schema 2 hold a second row of an interception layer around each call (class 67).
        where = "where eventClass in (0, 1)" if self.tables.has(CALLS, "eventClass") else ""
        for start, end, names, thread, ids in self._select(
            CALLS, Column("nameId"), Column("globalTid", 0), Column("correlationId"), where=where
        ):
            codes = self._name_codes(names, API_VERSION)
            yield self._on_thread(Kind.RUNTIME, codes, start, end, thread, self._correlations(ids, thread))

    def _os_calls(self) -> Iterator[_Rows]:
        where = f"where eventClass not in {OS_MARKERS}" if self.tables.has(OS_CALLS, "eventClass") else ""
        for start, end, names, thread in self._select(OS_CALLS, Column("nameId"), Column("globalTid", 0), where=where):
            none = np.full(start.size, -1, np.int64)
            yield self._on_thread(Kind.RUNTIME, self._name_codes(names), start, end, thread, none)

    def _syncs(self) -> Iterator[_Rows]:
        kinds = self._enum("ENUM_CUPTI_SYNC_TYPE", SYNC_KINDS, SYNC_SYMBOL, "{}")
        kinds = {i: word if word in SYNC_KINDS.values() else f"{word} Sync" for i, word in kinds.items()}
        for start, end, kind, device, stream, ids, owner in self._select(
            SYNCS, Column("syncType", 0), Column("deviceId", 0), Column("streamId"), Column("correlationId"),
            Column("globalPid", 0),
        ):  # fmt: skip
            names = recoded(kind, lambda one: self.names[kinds.get(one, "Sync")])
            none = np.full(start.size, -1, np.int64)
            yield self._on_device(Kind.SYNC, names, start, end, device, stream, ids, owner, none, none)

    def _overhead(self) -> Iterator[_Rows]:
        for table in OVERHEADS:
            for start, end, names, thread in self._select(table, Column("nameId"), Column("globalTid", 0)):
                none = np.full(start.size, -1, np.int64)
                yield self._on_thread(Kind.OVERHEAD, self._name_codes(names), start, end, thread, none)

    def _ranges(self) -> Iterator[_Rows]:
        if not self.tables.has(RANGES, "start", "end", "eventType"):
            return
        blocks = list(self._named_ranges())
        ends = [*(part.end for part in self.parts), *(end for _, _, end, *_ in blocks)]
        still_open = max((int(end[end < MOST_NS].max(initial=0)) for end in ends), default=0)
        unended = elsewhere = 0
        for names, start, end, thread, end_thread in blocks:
            # What ends on another thread does not nest on its own.
            here = (end_thread == -1) | (end_thread == thread)
            is_open = here & (end == MOST_NS) & (start < MOST_NS)
            elsewhere += int((~here).sum())
            unended += int(is_open.sum())
            end = np.where(is_open, np.maximum(start, still_open), end)
            none = np.full(int(here.sum()), -1, np.int64)
            yield self._on_thread(Kind.RANGE, names[here], start[here], end[here], thread[here], none)
        if unended:
            self.lost.append(f"{unended} NVTX ranges had not ended: they are taken to reach to the last event")
        if elsewhere:
            self.lost.append(f"{elsewhere} NVTX ranges ended on another thread than they began on and are left out")

    def _named_ranges(self) -> Iterator[list[Ints]]:
        """Codes of names, and columns, of the ranges whose text stands elsewhere, then of those with their own."""
        columns = (Column("textId"), Column("globalTid", 0), Column("endGlobalTid"))
        ours = f"where eventType in {RANGE_TYPES}"
        has_text = self.tables.has(RANGES, "text")
        theirs = f"{ours} and typeof(text) <> 'text'" if has_text else ours
        for start, end, ids, *rest in self._select(RANGES, *columns, where=theirs):
            yield [self._name_codes(ids, EMITTED), start, end, *rest]
        if not has_text:
            return
        inline = f"{ours} and typeof(text) = 'text'"
        texts = self.tables.values(RANGES, "text", where=inline)
        codes = _Stripped(self.names)
        for start, end, ids, *rest in self._select(RANGES, *columns, where=inline):
            names = np.array([codes[text] for (text,) in islice(texts, ids.size)], np.int64)
            yield [names, *(column[: names.size] for column in (start, end, *rest))]

    # -- the whole ----------------------------------------------------------------------------------------

    def _trace(self) -> Trace:
        columns = _Rows(
            *map(np.concatenate, zip(_part(*[np.zeros(0, np.int64)] * len(DTYPES)), *self.parts, strict=True))
        )
        self.parts.clear()
        usable = (np.abs(columns.start) < MOST_NS) & (np.abs(columns.end) < MOST_NS)
        if not usable.all():
            self.lost.append(f"{int((~usable).sum())} events had no usable time and are left out")
            columns = _part(*(column[usable] for column in columns))
        base = start_time_ns(self.tables)
        base_ns = base if base is not None else 0
        start, end = columns.start + base_ns, np.maximum(columns.end, columns.start) + base_ns
        return Trace(
            path=self.path,
            metadata=Metadata(format="nsys", devices=self.gpus.properties, base_ns=base),
            names=tuple(self.names),
            tracks=tuple(self._tracks()),
            start_ns=start,
            end_ns=end,
            name=columns.name,
            track=columns.track,
            kind=columns.kind,
            correlation=columns.correlation,
            device=columns.device,
            stream=columns.stream,
            bytes=columns.bytes,
            sequence=np.full(columns.start.size, -1, np.int64),
            lost=(*self.lost, *messages(self.tables)),
            args_reader=ArgsOfRows(
                self.path, columns.kind, columns.device, columns.row_id, end - start, self.gpus.multiprocessors
            ),
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
        found = {}
        for one, name in self.tables.values(table, key, label):
            text = self.strings.get(name) if isinstance(name, int) else name
            if isinstance(text, str) and isinstance(one, int):
                found[one] = text
        return found


class _Stripped(dict[str, int]):
    """Codes of range names by their text."""

    def __init__(self, names: _Codes) -> None:
        super().__init__()
        self.names = names

    def __missing__(self, text: str) -> int:
        code = self[text] = self.names[EMITTED.sub("", text)]
        return code
