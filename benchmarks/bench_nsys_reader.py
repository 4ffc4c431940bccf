"""What reading an nsys export costs, beside a bare `fetchmany` of the same columns.

    python benchmarks/bench_nsys_reader.py [ROWS]

Builds an export with the tables of Nsight Systems 2026 (schema 3.24: all their columns) and 1,200,000 rows of calls,
kernels, copies, ranges and calls of the system in a temporary folder. All candidates run interleaved in one process,
in reversed order every other round. `fetchmany` selects what the reader needs and drops it, with the batch size that is
fastest for it. The file is in the page cache. Peak memory is that of a process of its own, less what it has after its
imports.
"""

from __future__ import annotations

import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from perfkit.trace import read_trace

ROWS = 1_200_000
ROUNDS = 5
BATCHES = (100, 1_000, 10_000)

#: The tables with all their columns.
COLUMNS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "start end deviceId contextId greenContextId streamId correlationId globalPid"
    " demangledName shortName mangledName launchType cacheConfig registersPerThread gridX gridY gridZ blockX blockY"
    " blockZ staticSharedMemory dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId sharedMemoryExecuted"
    " graphNodeId sharedMemoryLimitConfig qmdBulkReleaseDone qmdPreexitDone qmdLastCtaDone graphId clusterX clusterY"
    " clusterZ clusterSchedulingPolicy maxPotentialClusterSize maxActiveClusters sharedMemoryRequestedPercentage",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start end deviceId contextId greenContextId streamId correlationId globalPid bytes"
    " copyKind deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId migrationCause"
    " graphNodeId virtualAddress copyCount",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId returnValue callchainId",
    "NVTX_EVENTS": "start end eventType rangeId category color text globalTid endGlobalTid textId domainId uint64Value"
    " int64Value doubleValue uint32Value int32Value floatValue jsonTextId jsonText binaryData",
    "OSRT_API": "start end eventClass globalTid nameId returnValue nestingLevel callchainId",
}
#: (table, share of the rows, the columns that the reader selects)
TABLES = (
    ("CUPTI_ACTIVITY_KIND_KERNEL", 0.35, "start end demangledName deviceId streamId correlationId globalPid rowid"),
    (
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        0.05,
        "start end copyKind srcKind dstKind deviceId streamId correlationId globalPid bytes rowid",
    ),
    ("CUPTI_ACTIVITY_KIND_RUNTIME", 0.45, "start end nameId globalTid correlationId"),
    ("NVTX_EVENTS", 0.1, "start end text textId globalTid endGlobalTid"),
    ("OSRT_API", 0.05, "start end nameId globalTid"),
)
PROCESS = 283_004_823_928_832
NAMES = 400


def build(path: Path, rows: int) -> None:
    """Write an export: launches from three threads, a kernel for most of them on four streams."""
    chance = random.Random(0)
    database = sqlite3.connect(path)
    database.execute("pragma journal_mode = off")
    database.execute("create table StringIds (id integer not null primary key, value text not null)")
    names = [f"void at::native::kernel_{i}<float, {'int, ' * (i % 40)}4>(int, float*)" for i in range(NAMES)]
    database.executemany("insert into StringIds values (?, ?)", enumerate(names))
    for table, share, _ in TABLES:
        columns = COLUMNS[table].split()
        made = ", ".join(f'"{c}" {"text" if c in ("text", "jsonText") else "integer"}' for c in columns)
        database.execute(f"create table {table} ({made})")
        fixed = dict.fromkeys(columns)
        fixed |= {
            "globalPid": PROCESS,
            "deviceId": 0,
            "contextId": 1,
            "eventClass": 0,
            "returnValue": 0,
            "eventType": 59,
        }
        fixed |= {"gridX": 864, "blockX": 128, "registersPerThread": 40, "copyKind": 1, "srcKind": 1, "dstKind": 2}
        if table == "OSRT_API":
            fixed["eventClass"] = 27

        def row(i: int, columns: list[str] = columns, fixed: dict[str, int | None] = fixed) -> tuple[int | None, ...]:
            start = 10**9 + i * 7_000 + chance.randrange(1_000)
            changing = {"start": start, "end": start + chance.randrange(1_000, 6_000), "correlationId": i + 100}
            changing |= {"globalTid": PROCESS + 91_186 + i // 1_000 % 3, "streamId": 7 + (i % 50 == 0), "bytes": 4096}
            name = chance.randrange(NAMES)
            changing |= {"demangledName": name, "nameId": name % 30, "textId": name}
            return tuple(changing.get(c, fixed.get(c)) if c in fixed else None for c in columns)

        marks = ", ".join("?" * len(columns))
        database.executemany(f"insert into {table} values ({marks})", (row(i) for i in range(int(rows * share))))
    database.commit()
    database.close()


def fetch(path: Path, batch: int) -> None:
    """The columns that the reader selects, fetched and dropped."""
    database = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
    for table, _, columns in TABLES:
        chosen = ", ".join(f'"{column}"' for column in columns.split())
        cursor = database.execute(f"select {chosen} from {table}")
        while cursor.fetchmany(batch):
            pass
    database.close()


def peak_mb(path: Path) -> float:
    """Memory that reading takes beyond the imports."""
    program = (
        "import re, sys\nfrom pathlib import Path\nfrom perfkit.trace import read_trace\n"
        "import perfkit.trace.nsight.nsys\n"
        # Not getrusage: its peak is inherited from the parent.
        "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]) / 1024\n"
        "before = peak(); trace = read_trace(sys.argv[1]); print(peak() - before)"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    """Measure and print one markdown table."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "big.sqlite")
        build(path, rows)
        events = len(read_trace(path))
        candidates: dict[str, Callable[[], object]] = {
            f"`fetchmany({batch:,})`": lambda batch=batch: fetch(path, batch)  # type: ignore[misc]  # bound here
            for batch in BATCHES
        }
        candidates["`read_trace`"] = lambda: read_trace(path)
        found: dict[str, list[float]] = {label: [] for label in candidates}
        for turn in range(ROUNDS):
            for label, run in list(candidates.items())[:: -1 if turn % 2 else 1]:
                begin = time.perf_counter()
                run()
                found[label].append(time.perf_counter() - begin)
        bare = min(min(found[label]) for label in candidates if "fetchmany" in label)
        print(
            f"{events:,} events, {path.stat().st_size >> 20} MB; peak memory of `read_trace` {peak_mb(path):.0f} MB\n"
        )
        print("| what | min s | median s | rows/s | time of the fastest `fetchmany` |\n|---|---|---|---|---|")
        for label, seconds in found.items():
            least = min(seconds)
            print(
                f"| {label} | {least:.2f} | {statistics.median(seconds):.2f} | {events / least:,.0f} |"
                f" {least / bare:.2f} x |"
            )


if __name__ == "__main__":
    main()
