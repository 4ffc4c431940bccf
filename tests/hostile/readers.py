"""Sound files of each kind that perfkit reads, and how a mutated one is read; fuzzing.py runs these.

The sound files are small, so that most of the time goes into reading: a trace of 18 events, an export of 12 kernels.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import pickle
import random
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from perfkit.diagnosis import Diagnosis, diagnose
from perfkit.errors import TraceError
from perfkit.measures.memory.memory_snapshot import measure_memory_snapshot
from perfkit.reports.figures import figures_of
from perfkit.reports.html import render_html
from perfkit.reports.markdown import write_markdown
from perfkit.reports.terminal import print_diagnosis
from perfkit.trace import Trace, read_trace
from perfkit.trace.kineto import read_kineto
from perfkit.trace.memory_snapshot import read_memory_snapshot
from perfkit.trace.nsight.ncu import is_ncu, read_ncu
from tests.hostile.cases import EVENT, UNSAFE
from tests.hostile.mutations import Mutate, mutate_bytes, mutator

#: How much of an input is read: a file's own values; also what is read at first use, of each 4th; and of few of them
#: all that perfkit makes of it, diagnosed, drawn and printed in every way, which takes ten to a hundred times as long.
VALUES, ALL_VALUES, EVERYTHING = range(3)
#: What a number that is none, or a share below zero, looks like.
IMPOSSIBLE = re.compile(r"(?<![\w./-])(nan|inf)(?![\w./])|(?<![\w.,-])-\d[\d,.]* ?%")
#: Events and rows that are kept of a real trace.
REAL_EVENTS = 40
#: The tables of an export: their columns, and their rows.
EXPORT: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "StringIds": ("id, value", [(1, "gemm(float*)"), (2, "cudaLaunchKernel_v7000"), (3, "forward"), (4, "main")]),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start, end, deviceId, streamId, correlationId, globalPid, demangledName, gridX, blockX, registersPerThread",
        [(1000 * n + 100, 1000 * n + 800, 0, 7, n + 1, 1 << 24, 1, 8, 128, 40) for n in range(12)],
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start, end, eventClass, globalTid, correlationId, nameId",
        [(1000 * n, 1000 * n + 90, 0, 1 << 24 | 5, n + 1, 2) for n in range(12)],
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "start, end, deviceId, streamId, correlationId, globalPid, bytes, copyKind, srcKind, dstKind",
        [(1000 * n + 810, 1000 * n + 850, 0, 7, n + 1, 1 << 24, 64, 1, 0, 2) for n in range(12)],
    ),
    "NVTX_EVENTS": (
        "start, end, eventType, text, textId, globalTid, endGlobalTid",
        [(1000 * n, 1000 * n + 900, 59, "step", None, 1 << 24 | 5, None) for n in range(12)],
    ),
    "TARGET_INFO_GPU": (
        "id, name, busLocation, smCount, totalMemory, computeMajor, computeMinor",
        [(0, "NVIDIA A100", "x", 108, 85 * 10**9, 8, 0)],
    ),
    "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs, utcTime, localTime", [(1_711_964_646_000_000_000, "x", "y")]),
    "ThreadNames": ("nameId, globalTid", [(4, 1 << 24 | 5)]),
    "DIAGNOSTIC_EVENT": ("timestamp, severity, text", [(5, 3, "Not all NVTX events might have been collected.")]),
}
#: Ops whose work follows from their arguments, and others.
OPS = ("mm", "addmm", "convolution", "embedding", "to", "copy_", "scaled_dot_product_attention", "add_")


class Reader:
    """A kind of file: sound ones, how they are mutated, and how they are read."""

    #: Files of this kind end so, where real ones are taken.
    endings: tuple[str, ...] = ()
    #: One of this many inputs is read as `EVERYTHING`, which then takes about a fifth of the time.
    every = 128

    def __init__(self, folder: Path, real: Path | None = None) -> None:
        self.folder = folder
        self.files: list[Path] = []
        self._sound: dict[Path, bytes] = {}
        self._mutators: dict[Path, Mutate] = {}
        self.make()
        for file in sorted(real.rglob("*")) if real is not None else ():
            if file.is_file() and file.name.endswith(self.endings or "\0"):
                with contextlib.suppress(ValueError):  # of another kind
                    self.add_real(file)

    def make(self) -> None:
        """Make the sound files."""

    def add_real(self, file: Path) -> None:
        """Take a real file, too."""
        self.add(self.folder / f"real-{len(self.files)}-{file.name}", file.read_bytes())

    def add(self, file: Path, data: bytes) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        self.files.append(file)
        self._sound[file] = data
        self._mutators[file] = mutator(file, data, self.folder)

    def one(self, number: int) -> None:
        """Read the file of this number."""
        rng = random.Random(number)
        file = rng.choice(self.files)
        file.write_bytes(self._mutators[file](rng))
        try:
            self.read(file, EVERYTHING if number % self.every == 0 else ALL_VALUES if number % 4 == 0 else VALUES)
        finally:
            file.write_bytes(self._sound[file])

    def read(self, file: Path, depth: int) -> None:
        raise NotImplementedError


def show(diagnosis: Diagnosis, path: Path) -> None:
    """Show a diagnosis in every way, and see that nothing unsafe is shown and no part failed."""
    out = io.StringIO()
    print_diagnosis(diagnosis, Console(file=out, width=120), all=True)
    write_markdown(diagnosis, out)
    out.write(diagnosis._repr_html_() + diagnosis.to_json())
    data = figures_of(diagnosis, path, read_sources=False)
    render_html(data)
    out.write(data.verdict + "".join(data.missing))
    text = out.getvalue()
    assert not UNSAFE.search(text), "something unsafe is shown"
    # Numbers that no measure has; the values in mutated files are not written so.
    impossible = IMPOSSIBLE.search(text)
    assert impossible is None, text[max(0, impossible.start() - 300) : impossible.end() + 100]
    failed = [one for one in data.missing if "could not be drawn" in one or "failed" in one]
    assert not failed, failed


# -- traces


def trace_text() -> bytes:
    """A trace with an event of each kind."""
    kinds = ("cpu_op", "kernel", "cuda_runtime", "python_function", "gpu_memcpy", "user_annotation")
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "main"}},
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 0, "dur": 60_000},
        {"ph": "s", "id": 3, "pid": 1, "tid": 1, "ts": 1, "cat": "ac2g", "name": "ac2g"},
        {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 5, "args": {"Bytes": -512, "Device Type": 1}},
    ]
    for n in range(18):
        args = {"correlation": n // 2, "stream": 7, "device": 0, "Input Dims": [[n, 2], [2, 3]], "Python id": n}
        args |= {"Input type": ["float", "float"], "bytes": 64, "grid": [8, 1, 1], "block": [128, 1, 1]}
        args |= {"Input Strides": [[2, 1], [3, 1]], "Concrete Inputs": ["", "1", "[1, 1]", "True"] * 3}
        events.append(
            {**EVENT, "cat": kinds[n % 6], "name": f"aten::{OPS[n // 3]}", "ts": 1000 * n + 0.5, "args": args}
        )
    device = {"id": 0, "name": "NVIDIA A100", "numSms": 108, "totalGlobalMem": 85 * 10**9}
    trace = {"schemaVersion": 1, "deviceProperties": [device], "traceEvents": events, "baseTimeNanoseconds": 9}
    return json.dumps(trace).encode()


class Traces(Reader):
    """Kineto's files, plain and gzip."""

    endings = (".json.gz", ".trace.json")

    def make(self) -> None:
        text = trace_text()
        self.add(self.folder / "trace.json", text)
        self.add(self.folder / "packed.json.gz", gzip.compress(text))

    def add_real(self, file: Path) -> None:
        packed = file.suffix == ".gz"
        trace = json.loads(gzip.decompress(file.read_bytes()) if packed else file.read_bytes())
        events = trace.get("traceEvents") if isinstance(trace, dict) else None
        if not events:
            raise ValueError("no trace")
        # From all parts of it, so that each kind of event is among them.
        trace["traceEvents"] = events[:8] + events[:: max(1, len(events) // (REAL_EVENTS - 8))]
        text = json.dumps(trace, separators=(",", ":")).encode()
        name = f"real-{len(self.files)}.json"
        self.add(self.folder / name, text)

    def read(self, file: Path, depth: int) -> None:
        trace = read_or_refuse(file, read_trace)
        if depth >= ALL_VALUES:
            use(trace)
        if depth == EVERYTHING:
            show(diagnose(file), file)


def read_or_refuse(file: Path, read: Callable[[Path], Trace]) -> Trace:
    """Read a trace, or see that the error is one line on this file."""
    try:
        trace = read(file)
    except TraceError as error:
        if str(file) not in str(error) or "\n" in str(error):
            raise AssertionError(f"no line on the file: {error}") from error
        raise
    assert bool((trace.end_ns >= trace.start_ns).all())
    return trace


def use(trace: Trace) -> None:
    """Everything that looks at a trace, or at its file again."""
    n = len(trace)
    columns = (trace.start_ns, trace.end_ns, trace.name, trace.track, trace.kind, trace.correlation, trace.device)
    assert all(column.size == n for column in (*columns, trace.stream, trace.bytes, trace.sequence))
    if n:
        assert 0 <= trace.name.min() <= trace.name.max() < len(trace.names)
        assert 0 <= trace.track.min() <= trace.track.max() < len(trace.tracks)
    "".join(trace.names).encode()
    for parts in (trace.parent, trace.launch, trace.caller):
        assert bool((parts < max(n, 1)).all())
    assert len(trace.args(range(n))) == n
    for field in trace.fields(range(n), ["Input Dims", "correlation", "Bytes"]).values():
        assert len(field.list()) == field.numbers().size == n
    repr(trace.metadata)


def file_of_events(count: int = 12) -> tuple[bytes, list[tuple[int, int]]]:
    """A trace as Kineto lays it out, and from where to where in it each event is that has a duration."""
    memory = {"Bytes": -512, "Device Type": 1, "Device Id": 0, "Total Allocated": 9}
    events: list[dict[str, Any]] = []
    for n in range(count):
        cat = ("cpu_op", "kernel", "cuda_runtime", "python_function")[n % 4]
        args = {"correlation": n, "stream": 7, "device": 0, "Input Dims": [[n, 2], []], "Python id": n}
        events.append({**EVENT, "cat": cat, "name": f"e{n}", "ts": n + 0.5, "dur": 0.25, "args": args})
    events.insert(5, {"ph": "i", "name": "[memory]", "pid": 1, "tid": 2, "ts": 5, "args": memory})
    events.insert(2, {"ph": "s", "id": 3, "pid": 1, "tid": 2, "ts": 1, "cat": "ac2g", "name": "ac2g"})
    events.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "main"}})
    text, places = '{\n  "schemaVersion": 1,\n  "traceEvents": [\n  ', list[tuple[int, int]]()
    for n, event in enumerate(events):
        body = json.dumps(event, indent=2).replace("\n", "\n  ")
        text += ",\n  " if n else ""
        if event["ph"] == "X":
            places.append((len(text), len(text) + len(body)))
        text += body
    return (text + '\n  ],\n  "baseTimeNanoseconds": 1000,\n  "traceName": "t.json"\n}\n').encode(), places


class Events(Reader):
    """Kineto's files in blocks of all sizes: of which an event or any part is damaged, and bytes that begin as one."""

    def make(self) -> None:
        self.data, self.places = file_of_events()
        self.add(self.folder / "trace.json", self.data)

    def one(self, number: int) -> None:
        rng = random.Random(number)
        file, damaged = self.files[0], None
        way = rng.randrange(8)
        if way == 0:
            begin = rng.choice((b"", b"[", b'{"traceEvents": [', b"\xef\xbb\xbf[", b"\x1f\x8b", b"SQLite format 3\0"))
            file.write_bytes(begin + rng.randbytes(rng.randrange(300)))
        elif way == 1:
            data = mutate_bytes(rng, self.data)
            file.write_bytes(gzip.compress(data, 1) if rng.random() < 0.5 else data)
        else:
            damaged = rng.randrange(len(self.places))
            start, end = self.places[damaged]
            event = mutate_bytes(rng, self.data[start:end])
            file.write_bytes(self.data[:start] + event + self.data[end:])
        block = rng.choice((64, 300, 1500, 1 << 20))
        trace = read_or_refuse(file, lambda path: read_kineto(path, block=block))
        use(trace)
        # The damage may open a string or a bracket that swallows the neighbours, and no more.
        near = range(damaged - 1, damaged + 2) if damaged is not None else range(len(self.places))
        lost = {f"e{n}" for n in range(len(self.places)) if n not in near} - set(trace.names)
        assert not lost, lost

    def read(self, file: Path, depth: int) -> None:
        trace = read_kineto(file)
        assert not trace.lost
        assert {f"e{n}" for n in range(len(self.places))} <= set(trace.names)
        use(trace)


class Exports(Traces):
    """Exports of Nsight Systems."""

    endings = (".sqlite",)

    def make(self) -> None:
        file = self.folder / "export.sqlite"
        with contextlib.closing(sqlite3.connect(file)) as database:
            for table, (columns, rows) in EXPORT.items():
                database.execute(f"create table {table} ({columns})")
                marks = ", ".join("?" * len(rows[0]))
                database.executemany(f"insert into {table} values ({marks})", rows)
            database.commit()
        self.add(file, file.read_bytes())

    def add_real(self, file: Path) -> None:
        copy = self.folder / f"real-{len(self.files)}.sqlite"
        shutil.copyfile(file, copy)
        with contextlib.closing(sqlite3.connect(copy)) as database:
            tables = database.execute(
                "select name from sqlite_master where type = 'table' and name not like 'sqlite_%'"
            )
            for (table,) in tables.fetchall():
                if not table.startswith(("StringIds", "TARGET_INFO", "ENUM")):
                    database.execute(f'delete from "{table}" where rowid > {REAL_EVENTS}')
            database.commit()
            database.execute("vacuum")
        self.add(copy, copy.read_bytes())


class Reports(Reader):
    """CSV exports of Nsight Compute."""

    def make(self) -> None:
        head = '"ID","Process ID","Kernel Name","Grid Size","Block Size","Device","CC",'
        metrics = (
            "gpu__time_duration.sum",
            "sm__throughput.avg.pct_of_peak_sustained_elapsed",
            "launch__registers_per_thread",
        )
        lines = [
            "==PROF== Connected",
            head + ",".join(f'"{one}"' for one in metrics),
            '"","","","","","","","us","%","register/thread"',
        ]
        lines += [
            f'"{n}","7","gemm<{n % 3}>","(8, 1, 1)","(128, 1, 1)","0","9.0","1,{n}00.5","4{n % 10}.5","40"'
            for n in range(20)
        ]
        self.add(self.folder / "raw.csv", "\n".join(lines).encode())
        details = [head + '"Section Name","Metric Name","Metric Unit","Metric Value"']
        details += [
            f'"{n}","7","gemm","(8, 1, 1)","(128, 1, 1)","0","9.0","Launch Statistics","Duration","us","{n}.5"'
            for n in range(20)
        ]
        self.add(self.folder / "details.csv", "\n".join(details).encode())

    def read(self, file: Path, depth: int) -> None:
        if is_ncu(file):
            read_ncu(file)
        else:  # it begins as JSON does
            read_trace(file)
        if depth == EVERYTHING:
            show(diagnose(file), file)


def snapshot() -> bytes:
    """A snapshot of device memory."""
    frames = [
        {"filename": "train.py", "line": 12, "name": "step"},
        {"filename": "main.py", "line": 3, "name": "<m>"},
    ]
    block = {"size": 512, "requested_size": 500, "address": 4096, "state": "active_allocated", "frames": frames}
    segment = {"device": 0, "address": 4096, "total_size": 2048, "stream": 0, "segment_type": "small"}
    segment |= {"allocated_size": 512, "active_size": 512, "blocks": [block, {**block, "state": "inactive"}]}
    entry = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "frames": frames}
    entry |= {"time_us": 1_711_305_206_062_125}
    entries = [entry, {**entry, "action": "free_requested"}, {"action": "oom", "size": 1 << 40, "frames": []}] * 5
    return pickle.dumps({"segments": [segment] * 3, "device_traces": [entries]})


class Snapshots(Reader):
    """Snapshots of device memory."""

    endings = (".pickle",)

    def make(self) -> None:
        self.add(self.folder / "memory-0.pickle", snapshot())

    def read(self, file: Path, depth: int) -> None:
        measure_memory_snapshot(read_memory_snapshot(file))
