"""Runs perfkit's readers on mutated files: ``python tests/hostile/fuzzing.py --inputs 1000000``.

Each reader works in a process of its own with limits: 10 s of processor time per input, 1 GB of memory in all. An
input is a number: the same one makes the same file of the same sound one. What breaks is printed with it, and the exit
code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import os
import pickle
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from rich.console import Console

from perfkit._text import printable
from perfkit.diagnosis import Diagnosis, diagnose
from perfkit.errors import PerfkitError
from perfkit.integrations.tensorboard.drawings import draw
from perfkit.measures.memory.memory_snapshot import measure_memory_snapshot
from perfkit.reports.figures import figures_of, read_figures, write_figures
from perfkit.reports.html import render_html
from perfkit.reports.live import live_line
from perfkit.reports.live_ranks import LateRank
from perfkit.reports.markdown import write_markdown
from perfkit.reports.terminal import print_diagnosis
from perfkit.run.follower import RunFollower
from perfkit.run.reading import read_run
from perfkit.trace import read_trace
from perfkit.trace.memory_snapshot import read_memory_snapshot
from perfkit.trace.nsight.ncu import is_ncu, read_ncu

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)] if str(ROOT) not in sys.path else []

from tests.hostile import mutations  # noqa: E402 - this file is also a program, which has its own folder in the path
from tests.hostile.cases import EVENT, UNSAFE, sound_run  # noqa: E402

#: Limits of one input (processor time) and of a reader's process.
MAX_S = 10
MAX_BYTES = 10**9
#: Inputs of which one is read as a person would have it: diagnosed, drawn and printed in every way, which takes as long
#: as reading two to ten.
EVERY = 4
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
#: Findings that are printed; more of them are mostly the same one.
SHOWN = 5


class Found(NamedTuple):
    """What became of a number of inputs."""

    reader: str
    inputs: int
    seconds: float
    slowest_s: float
    peak_bytes: int
    defects: list[str]


class Reader:
    """A kind of file: sound ones, how they are mutated, and how they are read."""

    def __init__(self, folder: Path, real: Path | None) -> None:
        self.folder = folder
        self.every = EVERY
        self.files: list[Path] = []
        self.sound: dict[Path, bytes] = {}

    def add(self, file: Path, data: bytes) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        self.files.append(file)
        self.sound[file] = data

    def mutate(self, rng: random.Random, file: Path) -> bytes:
        kinds: dict[str, Callable[[random.Random, bytes], bytes]] = {
            ".jsonl": mutations.mutate_lines,
            ".json": mutations.mutate_json,
            ".gz": mutations.mutate_gzip,
            ".npz": mutations.mutate_npz,
            ".pickle": mutations.mutate_pickle,
            ".csv": mutations.mutate_csv,
        }
        if file.suffix == ".sqlite":
            return mutations.mutate_sqlite(rng, self.sound[file], self.folder)
        return kinds[file.suffix](rng, self.sound[file])

    def one(self, number: int) -> None:
        """Read the file of this number."""
        rng = random.Random(number)
        file = rng.choice(self.files)
        file.write_bytes(self.mutate(rng, file))
        try:
            self.read(file, whole=number % self.every == 0)
        finally:
            file.write_bytes(self.sound[file])

    def read(self, file: Path, *, whole: bool) -> None:
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
    assert not UNSAFE.search(out.getvalue()), "something unsafe is shown"
    failed = [one for one in data.missing if "could not be drawn" in one or "failed" in one]
    assert not failed, failed


class Traces(Reader):
    """Kineto's files, plain and gzip."""

    def __init__(self, folder: Path, real: Path | None) -> None:
        super().__init__(folder, real)
        kinds = ("cpu_op", "kernel", "cuda_runtime", "python_function", "gpu_memcpy", "user_annotation")
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "main"}},
            {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 0, "dur": 60_000},
            {"ph": "s", "id": 3, "pid": 1, "tid": 1, "ts": 1, "cat": "ac2g", "name": "ac2g"},
            {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 5, "args": {"Bytes": -512, "Device Type": 1}},
        ]
        for n in range(48):
            args = {"correlation": n // 2, "stream": 7, "device": 0, "Input Dims": [[n, 2], [2, 3]], "Python id": n}
            args |= {"Input type": ["float", "float"], "bytes": 64, "grid": [8, 1, 1], "block": [128, 1, 1]}
            args |= {"Input Strides": [[2, 1], [3, 1]], "Concrete Inputs": ["", "1", "[1, 1]", "True"] * 3}
            name = f"aten::{OPS[n // 6 % len(OPS)]}"
            events.append({**EVENT, "cat": kinds[n % 6], "name": name, "ts": 1000 * n + 0.5, "args": args})
        device = {"id": 0, "name": "NVIDIA A100", "numSms": 108, "totalGlobalMem": 85 * 10**9}
        trace = {"schemaVersion": 1, "deviceProperties": [device], "traceEvents": events, "baseTimeNanoseconds": 9}
        text = json.dumps(trace).encode()
        self.add(folder / "trace.json", text)
        self.add(folder / "packed.json.gz", gzip.compress(text))
        for file in sorted(real.rglob("*.pt.trace.json.gz")) if real is not None else ():
            self.add(folder / f"real-{len(self.files)}.json.gz", file.read_bytes())

    def read(self, file: Path, *, whole: bool) -> None:
        trace = read_trace(file)
        n = len(trace)
        assert bool((trace.end_ns >= trace.start_ns).all())
        for parts in (trace.parent, trace.launch, trace.caller):
            assert bool((parts < max(n, 1)).all())
        trace.args(range(min(n, 50)))
        if whole:
            show(diagnose(file), file)


class Exports(Traces):
    """Exports of Nsight Systems."""

    def __init__(self, folder: Path, real: Path | None) -> None:
        Reader.__init__(self, folder, real)
        file = folder / "export.sqlite"
        with contextlib.closing(sqlite3.connect(file)) as database:
            for table, (columns, rows) in EXPORT.items():
                database.execute(f"create table {table} ({columns})")
                marks = ", ".join("?" * len(rows[0]))
                database.executemany(f"insert into {table} values ({marks})", rows)
            database.commit()
        self.add(file, file.read_bytes())


class Reports(Reader):
    """CSV exports of Nsight Compute."""

    def __init__(self, folder: Path, real: Path | None) -> None:
        super().__init__(folder, real)
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
        self.add(folder / "raw.csv", "\n".join(lines).encode())
        details = [head + '"Section Name","Metric Name","Metric Unit","Metric Value"']
        details += [
            f'"{n}","7","gemm","(8, 1, 1)","(128, 1, 1)","0","9.0","Launch Statistics","Duration","us","{n}.5"'
            for n in range(20)
        ]
        self.add(folder / "details.csv", "\n".join(details).encode())

    def read(self, file: Path, *, whole: bool) -> None:
        if is_ncu(file):
            read_ncu(file)
        else:  # it begins as JSON does
            read_trace(file)
        if whole:
            show(diagnose(file), file)


class Snapshots(Reader):
    """Snapshots of device memory."""

    def __init__(self, folder: Path, real: Path | None) -> None:
        super().__init__(folder, real)
        frames = [
            {"filename": "train.py", "line": 12, "name": "step"},
            {"filename": "main.py", "line": 3, "name": "<m>"},
        ]
        block = {"size": 512, "requested_size": 500, "address": 4096, "state": "active_allocated", "frames": frames}
        segment = {
            "device": 0,
            "address": 4096,
            "total_size": 2048,
            "stream": 0,
            "segment_type": "small",
            "allocated_size": 512,
            "active_size": 512,
            "blocks": [block, {**block, "state": "inactive"}],
        }
        entry = {
            "action": "alloc",
            "addr": 4096,
            "size": 512,
            "stream": 0,
            "time_us": 1_711_305_206_062_125,
            "frames": frames,
        }
        entries = [entry, {**entry, "action": "free_requested"}, {"action": "oom", "size": 1 << 40, "frames": []}] * 5
        content = {"segments": [segment] * 3, "device_traces": [entries]}
        self.add(folder / "memory-0.pickle", pickle.dumps(content))

    def read(self, file: Path, *, whole: bool) -> None:
        measure_memory_snapshot(read_memory_snapshot(file))


class RunFolders(Reader):
    """Every file of a run folder."""

    def __init__(self, folder: Path, real: Path | None) -> None:
        super().__init__(folder, real)
        made = sound_run(folder) if real is None else real
        self.run = folder / "fuzzed"
        for file in sorted(made.rglob("*")):
            if file.is_file() and file.suffix in (".json", ".jsonl", ".npz", ".gz", ".pickle") and file.name[0] != ".":
                self.add(self.run / file.relative_to(made), file.read_bytes())
        if not (self.run / "figures.json").exists():
            diagnosis = diagnose(self.run)
            self.add(self.run / "diagnosis.json", diagnosis.to_json().encode())
            write_figures(self.run, figures_of(diagnosis, self.run, read_sources=False))
            self.add(self.run / "figures.json", (self.run / "figures.json").read_bytes())

    def read(self, file: Path, *, whole: bool) -> None:
        if file.name == "diagnosis.json":
            show(Diagnosis.from_json(file.read_bytes()), self.run)
        elif file.name == "figures.json":
            render_html(read_figures(self.run))
        elif file.suffix == ".gz" and not whole:
            read_trace(file)
        else:
            run = read_run(self.run)
            for rank in run.ranks.values():
                repr(
                    (
                        rank.rank,
                        rank.steps,
                        rank.lines,
                        rank.syncs,
                        rank.ranges,
                        rank.limits,
                        rank.changes,
                        rank.spans(0),
                    )
                )
            live, late = RunFollower(self.run), LateRank()
            live.ranks[0].poll()
            late.update(live)
            assert not UNSAFE.search(printable(live_line(live, live.ranks[0], late.now)))
            repr((run.trial, run.sweep, run.missing_ranks, run.lost))
            if whole:
                show(diagnose(self.run), self.run)
                draw(str(self.run))


class Requests(Reader):
    """What a browser requests from the tab of TensorBoard; no file is mutated."""

    def __init__(self, folder: Path, real: Path | None) -> None:
        super().__init__(folder, real)
        from types import SimpleNamespace

        # Only this reader needs TensorBoard.
        from werkzeug.test import Client

        from perfkit.integrations.tensorboard.tab import Tab

        logs = folder / "logs"
        logs.mkdir()
        sound_run(logs)
        (logs / "run" / "rank-0" / "window-0.pt.trace.json").write_text("{}")
        (folder / "secret").write_text("the text of a file outside")
        (logs / "link").symlink_to(folder)
        apps = Tab(SimpleNamespace(logdir=str(logs), flags=None)).get_plugin_apps()
        self.clients = {route: Client(app) for route, app in apps.items()}

    def one(self, number: int) -> None:
        rng = random.Random(number)
        parts = [
            "..",
            "/",
            "run",
            "rank-0",
            "window-0.pt.trace.json",
            "link",
            "secret",
            "%2e",
            "\\",
            "\0",
            "~",
            "\u202e",
            "run.json",
            "%",
            "?",
            "#",
            "&",
        ]
        text = "".join(rng.choice(parts) for _ in range(rng.randrange(6)))
        name = (
            quote(text, safe="/%&?#")
            if rng.random() < 0.5
            else mutations.mutate_bytes(rng, quote(text).encode()).decode("latin-1")
        )
        route = rng.choice([route for route in self.clients if route in ("/runs", "/trace", "/figures")])
        if route == "/figures" and text in ("run",):
            return  # it is drawn by a process of its own, which takes a second
        method = rng.choice(("get", "get", "get", "head", "post", "put"))
        answer = getattr(self.clients[route], method)(f"{route}?run={name}&trace={quote(rng.choice(parts))}")
        assert answer.status_code < 500, (route, name, answer.status_code)
        assert b"the text of a file outside" not in answer.data, (route, name)


READERS: dict[str, type[Reader]] = {
    "kineto": Traces,
    "nsys": Exports,
    "ncu": Reports,
    "memory": Snapshots,
    "run": RunFolders,
    "tab": Requests,
}


def work(reader: str, first: int, inputs: int, seconds: float, real: Path | None, every: int = EVERY) -> Found:
    """Read so many inputs in this process, or as many as the time allows."""
    began, slowest, defects = time.monotonic(), 0.0, []

    def late(number: int, frame: Any) -> None:
        raise TimeoutError(f"it took more than {MAX_S} s of processor time")

    before = signal.signal(signal.SIGPROF, late)
    with tempfile.TemporaryDirectory() as folder:
        subject = READERS[reader](Path(folder), real)
        subject.every = every
        number = first
        for number in range(first, first + inputs):
            at = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, MAX_S)
            try:
                subject.one(number)
            except PerfkitError:
                pass
            except Exception:  # noqa: BLE001 - this is what is looked for
                defects.append(f"{reader} {number}: {traceback.format_exc()}")
            signal.setitimer(signal.ITIMER_PROF, 0)
            slowest = max(slowest, time.process_time() - at)
            if len(defects) == SHOWN or time.monotonic() - began > seconds:
                break
    signal.signal(signal.SIGPROF, before)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Found(reader, number - first + 1, time.monotonic() - began, slowest, peak, defects)


def run(reader: str, first: int, inputs: int, seconds: float, real: Path | None = None, every: int = EVERY) -> Found:
    """Read so many inputs in a process of its own; a process that crashes is a defect."""
    command = [sys.executable, __file__, "--reader", reader, "--first", str(first), "--inputs", str(inputs)]
    command += ["--minutes", str(seconds / 60), "--every", str(every), "--child"]
    command += ["--real", str(real)] if real is not None else []
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as cache:
        environment["PERFKIT_CACHE_DIR"] = cache
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return Found(
            reader, inputs, 0, 0, 0, [f"{reader}: {first} and later ended with {done.returncode}: {done.stderr}"]
        )
    return Found(*json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    """Run the readers in turns, and print what became of the inputs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="Inputs of each reader. Default: 10,000.")
    parser.add_argument("--minutes", type=float, default=1e9, help="Stop after this time. Default: never.")
    parser.add_argument("--reader", choices=READERS, action="append", help="Run this reader. Default: all.")
    parser.add_argument("--first", type=int, default=0, help="Number of the first input. Default: 0.")
    parser.add_argument("--every", type=int, default=EVERY, help=f"Of so many, show one. Default: {EVERY}.")
    parser.add_argument("--real", type=Path, help="A run folder whose files are mutated. Default: a made one.")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        found = work(
            options.reader[0], options.first, options.inputs, 60 * options.minutes, options.real, options.every
        )
        if found.peak_bytes > MAX_BYTES:
            found.defects.append(f"{found.reader}: {options.first} and later took {found.peak_bytes >> 20} MiB")
        print(json.dumps(found))
        return 0
    until, batch = time.monotonic() + 60 * options.minutes, 5_000
    totals: dict[str, Found] = {}
    for first in range(options.first, options.first + options.inputs, batch):
        for reader in options.reader or READERS:
            left = until - time.monotonic()
            if left <= 0:
                break
            count = min(batch, options.first + options.inputs - first)
            one = run(reader, first, count, left, options.real, options.every)
            for defect in one.defects:
                print(defect, flush=True)
            known = totals.get(reader, Found(reader, 0, 0, 0, 0, []))
            totals[reader] = Found(
                reader,
                known.inputs + one.inputs,
                known.seconds + one.seconds,
                max(known.slowest_s, one.slowest_s),
                max(known.peak_bytes, one.peak_bytes),
                known.defects + one.defects,
            )
    for total in totals.values():
        rate = total.inputs / max(total.seconds, 1e-9)
        print(
            f"{total.reader:8} {total.inputs:>10,} inputs, {rate:,.0f}/s, slowest {total.slowest_s:.2f} s,"
            f" {total.peak_bytes >> 20} MiB, {len(total.defects)} defects"
        )
    return 1 if any(total.defects for total in totals.values()) else 0


if __name__ == "__main__":
    np.seterr(all="ignore")
    sys.exit(main())
