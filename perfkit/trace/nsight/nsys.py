"""Reads an nsys SQLite export into the same columns as a Kineto trace."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from perfkit.errors import TraceError
from perfkit.trace.columns import CodeTable, Kind, Metadata, Trace, Track
from perfkit.trace.file_text import Progress
from perfkit.trace.intervals import Ints
from perfkit.trace.nsight._nsys_arguments import COPIES, KERNELS, MEMSETS, NsysArguments
from perfkit.trace.nsight._nsys_metadata import CUDA_INCOMPLETE, MAX_NS, Gpus, host_name, messages, start_time_ns
from perfkit.trace.nsight._nsys_tables import NsysTables, recode
from perfkit.trace.nsight.report_export import export_nsys_report

CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNCS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RANGES = "NVTX_EVENTS"
OS_CALLS = "OSRT_API"
OVERHEADS = ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD")
#: A database with one of these tables is an nsys export that can be read.
EXPECTED_TABLES = (KERNELS, COPIES, MEMSETS, GRAPHS, CALLS, RANGES, OS_CALLS)

#: The meaning of the numbers in the tables, and the symbols of the export's own ENUM tables; those are missing in older
#: exports, which have always used these numbers.
COPY_KINDS = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD"}
COPY_KINDS |= {9: "HtoH", 10: "PtoP", 11: "HtoD", 12: "DtoH", 13: "DtoD"}
COPY_SYMBOL = re.compile(r"KIND_(?:UVM_)?([HDAP])TO([HDAP])$")
MEMORY_KINDS = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device", 6: "Managed"}
MEMORY_SYMBOL = re.compile(r"KIND_(PAGEABLE|PINNED|DEVICE|ARRAY|MANAGED)(?:_STATIC)?$")
SYNC_KINDS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
SYNC_SYMBOL = re.compile(r"TYPE_(EVENT|STREAM|CONTEXT)_SYNCHRONIZE$|TYPE_(STREAM_WAIT_EVENT)$")

#: The name of a graph launch whose kernels were not recorded one by one.
WHOLE_GRAPH = "[CUDA graph]"

#: Push/pop and start/end ranges, from the program (59, 60) and from nvtxt files (70, 71).
RANGE_TYPES = (59, 60, 70, 71)
#: Rows that mark where a system call began or ended, in addition to the row of the call.
OS_MARKERS = (31, 32)

API_VERSION = re.compile(r"_v\d+$")
#: What torch.autograd.profiler.emit_nvtx appends to an op's name.
EMITTED = re.compile(r", (?:seq|op_id|sizes|input_op_ids) = .*$", re.DOTALL)

#: -1 as uint32, which stands for "no stream".
NO_ID = 2**32 - 1

#: The columns of device work and of host events, with what replaces a missing value.
_DEVICE_COLUMNS = {"deviceId": 0, "streamId": -1, "correlationId": -1, "globalPid": 0}
_RANGE_COLUMNS = {"textId": -1, "globalTid": 0, "endGlobalTid": -1}

#: Columns of a table of the export, by their names there.
_Block = dict[str, Ints]

#: Columns of events, with their types.
_DTYPES: dict[str, type] = {
    "start": np.int64,
    "end": np.int64,
    "name": np.int32,
    "track": np.int32,
    "kind": np.int8,
    "correlation": np.int64,
    "device": np.int32,
    "stream": np.int32,
    "bytes": np.int64,
    "row_id": np.int64,
}
_Events = dict[str, Any]


def _events(block: _Block, kind: Kind, **columns: Ints) -> _Events:
    """The events of a block; -1 in the columns that are not given."""
    none = np.full(block["start"].size, -1, np.int64)
    columns |= {"start": block["start"], "end": block["end"], "kind": np.full(none.size, kind)}
    return {name: np.asarray(columns.get(name, none), dtype) for name, dtype in _DTYPES.items()}


def read_nsys(path: Path, progress: Progress | None = None) -> Trace:
    """Read an nsys export.

    Raises:
        TraceError: another SQLite database, or one that is damaged so that nothing can be read.
    """
    with NsysTables(path) as tables:
        return _NsysLoad(tables, progress).run()


def read_nsys_report(path: Path, progress: Progress | None = None) -> Trace:
    """Read a report of Nsight Systems (``.nsys-rep``), through the installed nsys.

    Raises:
        TraceError: nsys is not installed, or cannot read the report.
    """
    return dataclasses.replace(read_nsys(export_nsys_report(path), progress), path=path)


class _NsysLoad:
    def __init__(self, tables: NsysTables, progress: Progress | None) -> None:
        self.tables = tables
        self.path = tables.path
        self.progress = progress
        self.names = CodeTable()
        self.tracks = CodeTable()
        self.processes = CodeTable()
        self.strings = {i: s for i, s in tables.values("StringIds", "id", "value") if isinstance(s, str)}
        self.parts: list[_Events] = []
        self.lost = tables.lost
        # Correlation ids are unique per process; exports made by other tools may lack the process.
        self.per_process = all(tables.has(t, "globalPid") for t in (KERNELS, COPIES, MEMSETS, GRAPHS) if tables.has(t))
        self.gpus = Gpus(tables)

    def run(self) -> Trace:
        if not any(self.tables.has(table) for table in EXPECTED_TABLES):
            raise TraceError(
                f"{self.path} is not an nsys export, or is empty: it has none of the tables"
                f" {', '.join(EXPECTED_TABLES)}; export the report again with: nsys export --type sqlite"
            )
        readers = (
            *(self._kernels, self._copies, self._memsets, self._graphs),
            *(self._calls, self._os_calls, self._syncs, self._overhead, self._ranges),
        )
        for done, read in enumerate(readers, 1):
            self.parts.extend(read())
            if self.progress is not None:
                self.progress(done, len(readers))
        if self.lost and not self.parts:
            raise TraceError(
                f"{self.path} is a damaged SQLite file ({self.lost[0]}); export it again from the .nsys-rep"
            )
        return self._trace()

    # -- columns ------------------------------------------------------------------------------------------

    def _select(self, table: str, columns: dict[str, int], where: str = "") -> Iterator[_Block]:
        """Start, end and other columns of a table of events, in blocks."""
        if self.tables.has(table, "start", "end"):
            # A missing time is made unusable, not zero.
            yield from self.tables.integers(table, {"start": MAX_NS, "end": MAX_NS, **columns}, where)

    def _name_codes(self, string_ids: Ints, remove: re.Pattern[str] | None = None) -> Ints:
        def code(i: int) -> int:
            text = self.strings.get(i, "")
            return self.names[remove.sub("", text) if remove is not None else text]

        return recode(string_ids, code)

    def _enum(self, table: str, known: dict[int, str], symbol: re.Pattern[str], template: str) -> dict[int, str]:
        """The meaning of numbers: from the export's ENUM table, and ``known`` where it has none."""
        found = dict(known)
        for i, name, label in self.tables.values(table, "id", "name", "label"):
            if type(i) is int and isinstance(name, str):
                if match := symbol.search(name):
                    found[i] = template.format(*(part.title().replace("_", " ") for part in match.groups() if part))
                elif i not in known and isinstance(label, str):
                    found[i] = label
        return found

    def _correlations(self, correlation_ids: Ints, owner: Ints) -> Ints:
        """(process, correlation id) as one number."""
        if not self.per_process:
            return np.where(correlation_ids > 0, correlation_ids, -1)
        process = recode(owner >> 24, self.processes.__getitem__)
        is_id = (correlation_ids > 0) & (correlation_ids < NO_ID)
        return np.where(is_id, process << 32 | correlation_ids & NO_ID, -1)

    def _device_events(
        self, table: str, kind: Kind, names: Callable[[_Block], Ints], columns: dict[str, int] | None = None
    ) -> Iterator[_Events]:
        """The events of a table of device work."""
        for block in self._select(table, {**(columns or {}), **_DEVICE_COLUMNS}):
            owner, device, stream = block["globalPid"], block["deviceId"], block["streamId"]
            device = self.gpus.numbers(np.where((device < 0) | (device >= 2**31), -1, device), owner)
            stream = np.where((stream < 0) | (stream >= 2**31), -1, stream)
            both = device << 32 | stream + 1
            optional = {name: block[key] for name, key in (("bytes", "bytes"), ("row_id", "rowid")) if key in block}
            yield _events(
                block,
                kind,
                name=names(block),
                track=recode(both, lambda one: self.tracks["device", one >> 32, (one & NO_ID) - 1]),
                correlation=self._correlations(block["correlationId"], owner),
                device=device,
                stream=stream,
                **optional,
            )

    def _thread_events(self, block: _Block, kind: Kind, names: Ints, **columns: Ints) -> _Events:
        track = recode(block["globalTid"], lambda thread: self.tracks["thread", thread, 0])
        return _events(block, kind, name=names, track=track, **columns)

    # -- tables -------------------------------------------------------------------------------------------

    def _kernels(self) -> Iterator[_Events]:
        columns = ("demangledName", "shortName", "mangledName")
        name = next((column for column in columns if self.tables.has(KERNELS, column)), columns[0])
        return self._device_events(
            KERNELS, Kind.KERNEL, lambda block: self._name_codes(block[name]), {name: -1, "rowid": -1}
        )

    def _copies(self) -> Iterator[_Events]:
        directions = self._enum("ENUM_CUDA_MEMCPY_OPER", COPY_KINDS, COPY_SYMBOL, "{}to{}")
        memory = self._enum("ENUM_CUDA_MEM_KIND", MEMORY_KINDS, MEMORY_SYMBOL, "{}")

        def code(packed: int) -> int:
            direction, source, target = packed >> 32, packed >> 16 & 0xFFFF, packed & 0xFFFF
            kinds = f" ({memory.get(source, 'Unknown')} -> {memory.get(target, 'Unknown')})"
            return self.names[f"Memcpy {directions.get(direction, 'unknown')}{kinds}"]

        def names(block: _Block) -> Ints:
            source, target = block["srcKind"] & 0xFFFF, block["dstKind"] & 0xFFFF
            return recode((block["copyKind"] & 0xFFFF) << 32 | source << 16 | target, code)

        columns = {"copyKind": 0, "srcKind": 7, "dstKind": 7, "bytes": -1, "rowid": -1}
        return self._device_events(COPIES, Kind.COPY, names, columns)

    def _memsets(self) -> Iterator[_Events]:
        memory = self._enum("ENUM_CUDA_MEM_KIND", MEMORY_KINDS, MEMORY_SYMBOL, "{}")

        def code(kind: int) -> int:
            return self.names[f"Memset ({memory.get(kind, 'Unknown')})"]

        columns = {"memKind": 7, "bytes": -1, "rowid": -1}
        return self._device_events(MEMSETS, Kind.MEMSET, lambda block: recode(block["memKind"], code), columns)

    def _graphs(self) -> Iterator[_Events]:
        """Graphs that nsys recorded as a whole, its default: device work, but not of one kernel."""
        launches = 0
        for events in self._device_events(
            GRAPHS, Kind.KERNEL, lambda block: np.full(block["start"].size, self.names[WHOLE_GRAPH], np.int64)
        ):
            launches += events["start"].size
            yield events
        if launches:
            self.lost.append(
                f"{launches} launches of CUDA graphs were recorded without the kernels in them: record with"
                " `nsys profile --cuda-graph-trace=node` to see the kernels"
            )

    def _syncs(self) -> Iterator[_Events]:
        kinds = self._enum("ENUM_CUPTI_SYNC_TYPE", SYNC_KINDS, SYNC_SYMBOL, "{}")
        kinds = {i: word if word in SYNC_KINDS.values() else f"{word} Sync" for i, word in kinds.items()}

        def code(kind: int) -> int:
            return self.names[kinds.get(kind, "Sync")]

        return self._device_events(SYNCS, Kind.SYNC, lambda block: recode(block["syncType"], code), {"syncType": 0})

    def _calls(self) -> Iterator[_Events]:
        # Exports of schema 2 have a second row of an interception layer for each call (class 67).
        where = "where eventClass in (0, 1)" if self.tables.has(CALLS, "eventClass") else ""
        for block in self._select(CALLS, {"nameId": -1, "globalTid": 0, "correlationId": -1}, where):
            correlation = self._correlations(block["correlationId"], block["globalTid"])
            names = self._name_codes(block["nameId"], API_VERSION)
            yield self._thread_events(block, Kind.RUNTIME, names, correlation=correlation)

    def _os_calls(self) -> Iterator[_Events]:
        where = f"where eventClass not in {OS_MARKERS}" if self.tables.has(OS_CALLS, "eventClass") else ""
        for block in self._select(OS_CALLS, {"nameId": -1, "globalTid": 0}, where):
            yield self._thread_events(block, Kind.RUNTIME, self._name_codes(block["nameId"]))

    def _overhead(self) -> Iterator[_Events]:
        for table in OVERHEADS:
            for block in self._select(table, {"nameId": -1, "globalTid": 0}):
                yield self._thread_events(block, Kind.OVERHEAD, self._name_codes(block["nameId"]))

    def _ranges(self) -> Iterator[_Events]:
        if not self.tables.has(RANGES, "start", "end", "eventType"):
            return
        blocks = list(self._named_ranges())
        ends = [part["end"] for part in (*self.parts, *blocks)]
        last_end = max((int(end[end < MAX_NS].max(initial=0)) for end in ends), default=0)
        still_open = elsewhere = 0
        for block in blocks:
            # A range that ends on another thread does not nest on its own.
            here = (block["endGlobalTid"] == -1) | (block["endGlobalTid"] == block["globalTid"])
            is_open = here & (block["end"] == MAX_NS) & (block["start"] < MAX_NS)
            elsewhere += int((~here).sum())
            still_open += int(is_open.sum())
            block["end"] = np.where(is_open, np.maximum(block["start"], last_end), block["end"])
            block = {key: column[here] for key, column in block.items()}
            yield self._thread_events(block, Kind.RANGE, block["name"])
        if still_open:
            self.lost.append(f"{still_open} NVTX ranges had not ended: they are assumed to end with the last event")
        if elsewhere:
            self.lost.append(f"{elsewhere} NVTX ranges were skipped because they ended on another thread")

    def _named_ranges(self) -> Iterator[_Block]:
        """Ranges with the codes of their names (``name``): those with shared text, then those with their own."""
        is_range = f"where eventType in {RANGE_TYPES}"
        has_text = self.tables.has(RANGES, "text")
        shared = f"{is_range} and typeof(text) <> 'text'" if has_text else is_range
        for block in self._select(RANGES, _RANGE_COLUMNS, shared):
            yield {**block, "name": self._name_codes(block["textId"], EMITTED)}
        if not has_text:
            return
        inline = f"{is_range} and typeof(text) = 'text'"
        texts = self.tables.values(RANGES, "text", where=inline)
        code = cache(lambda text: self.names[EMITTED.sub("", text)])
        for block in self._select(RANGES, _RANGE_COLUMNS, inline):
            names = np.array([code(text) for (text,) in islice(texts, block["start"].size)], np.int64)
            yield {"name": names, **{key: column[: names.size] for key, column in block.items()}}

    # -- the trace ----------------------------------------------------------------------------------------

    def _trace(self) -> Trace:
        columns = {
            name: np.concatenate([np.zeros(0, dtype), *(part[name] for part in self.parts)])
            for name, dtype in _DTYPES.items()
        }
        self.parts.clear()
        usable = (np.abs(columns["start"]) < MAX_NS) & (np.abs(columns["end"]) < MAX_NS)
        if not usable.all():
            self.lost.append(f"{int((~usable).sum())} events were skipped because they have no usable time")
            columns = {name: column[usable] for name, column in columns.items()}
        if negative := int((columns["end"] < columns["start"]).sum()):
            self.lost.append(f"{negative} events have a negative duration, which counts as 0")
        base_ns = start_time_ns(self.tables)
        start = columns["start"] + (base_ns or 0)
        end = np.maximum(columns["end"], columns["start"]) + (base_ns or 0)
        kind, device = columns["kind"], columns["device"]
        reported = messages(self.tables)
        return Trace(
            path=self.path,
            metadata=Metadata(
                format="nsys", devices=self.gpus.properties, host=host_name(self.tables), base_ns=base_ns
            ),
            names=tuple(self.names),
            tracks=tuple(self._tracks()),
            start_ns=start,
            end_ns=end,
            name=columns["name"],
            track=columns["track"],
            kind=kind,
            correlation=columns["correlation"],
            device=device,
            stream=columns["stream"],
            bytes=columns["bytes"],
            sequence=np.full(start.size, -1, np.int64),
            lost=(*self.lost, *reported),
            cut=self.tables.cut or next((one for one in reported if one.startswith(CUDA_INCOMPLETE)), None),
            skipped=int((~usable).sum()),
            args_reader=NsysArguments(
                self.path, kind, device, columns["row_id"], end - start, self.gpus.multiprocessors
            ),
        )

    def _tracks(self) -> Iterator[Track]:
        threads = self._labels("ThreadNames", "globalTid", "nameId")
        processes = self._labels("PROCESSES", "globalPid", "name")
        for runs_on, first, second in self.tracks:
            if runs_on == "device":
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
