from __future__ import annotations

import csv
import random
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from perfkit.measures.device.device_time import measure_device_time
from perfkit.measures.device.kernels import measure_kernels
from perfkit.measures.host.api_calls import measure_api_calls
from perfkit.measures.host.os_calls import measure_os_calls
from perfkit.measures.results.kernels import NameTime
from perfkit.trace import read_trace

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "traces"


def test_calls_of_one_name_are_counted_and_their_durations_summed(build: Any) -> None:
    for start, end in ((0, 10), (20, 40), (50, 53)):
        build.call("cudaMalloc", start, end)
    build.call("cudaFree", 60, 67, tid=2)
    build.op("aten::mm", 0, 100)

    malloc, free = measure_api_calls(build.read())

    assert (malloc.name, malloc.count, malloc.total_ns, malloc.min_ns, malloc.max_ns) == ("cudaMalloc", 3, 33, 3, 20)
    assert malloc.mean_ns == 11
    assert malloc.deviation_ns == pytest.approx(73**0.5)  # (1 + 81 + 64) / 2
    assert (free.name, free.count, free.total_ns, free.deviation_ns) == ("cudaFree", 1, 7, 0)


def test_a_trace_without_api_calls_has_none(build: Any) -> None:
    build.op("aten::mm", 0, 100)

    assert measure_api_calls(build.read()) == ()


def test_calls_of_the_system_are_not_among_those_of_the_device(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "r.sqlite") as database:
        database.execute("create table StringIds (id, value)")
        database.executemany(
            "insert into StringIds values (?, ?)", enumerate(["cuLaunchKernel", "cudaMalloc_v3020", "poll", "custom"])
        )
        for table, ids in (("CUPTI_ACTIVITY_KIND_RUNTIME", (0, 1)), ("OSRT_API", (2, 3))):
            database.execute(f"create table {table} (start, end, nameId)")
            database.executemany(f"insert into {table} values (?, ?, ?)", [(i, i + 9 - i, i) for i in ids])
    database.close()
    trace = read_trace(tmp_path / "r.sqlite")

    assert [call.name for call in measure_api_calls(trace)] == ["cuLaunchKernel", "cudaMalloc"]
    assert [call.name for call in measure_os_calls(trace)] == ["poll", "custom"]


def test_idle_time_in_a_call_of_the_system_is_charged_to_it(tmp_path: Path) -> None:
    thread = 1 << 24 | 5
    with sqlite3.connect(tmp_path / "r.sqlite") as database:
        database.execute("create table StringIds (id, value)")
        database.executemany("insert into StringIds values (?, ?)", enumerate(["cudaLaunchKernel", "read"]))
        database.execute("create table CUPTI_ACTIVITY_KIND_KERNEL (start, end, correlationId)")
        database.execute("insert into CUPTI_ACTIVITY_KIND_KERNEL values (10, 20, 1), (100, 110, 2)")
        database.execute("create table CUPTI_ACTIVITY_KIND_RUNTIME (start, end, nameId, globalTid, correlationId)")
        database.execute(
            f"insert into CUPTI_ACTIVITY_KIND_RUNTIME values (0, 5, 0, {thread}, 1), (90, 95, 0, {thread}, 2)"
        )
        database.execute("create table OSRT_API (start, end, nameId, globalTid)")
        database.execute(f"insert into OSRT_API values (30, 80, 1, {thread})")
    database.close()

    (device,) = measure_device_time(read_trace(tmp_path / "r.sqlite"))

    assert device.causes["OS call"] == 50
    assert sum(device.causes.values()) == device.idle_ns == 80


Row = tuple[int, int, float, float, int, int]

#: Newer nsys calls its reports, and the directions of copies, by longer names.
DIRECTIONS = {"Host-to-Device": "HtoD", "Device-to-Host": "DtoH", "Device-to-Device": "DtoD"}


def stats(nsys: str, report: str, export: Path) -> dict[str, list[Row]]:
    """What `nsys stats` says: name -> count, total, mean, deviation, min and max of each grid."""
    version = subprocess.run([nsys, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.partition("version ")[2].split(".")[0]) < 2023:
        report = report.replace("cuda_gpu", "gpu").replace("_", "")
    arguments = [nsys, "stats", "--report", report, "--format", "csv", str(export)]
    said = subprocess.run(arguments, capture_output=True, text=True, timeout=200, check=True).stdout
    lines = [line for line in said.splitlines() if line and not line.startswith(("Processing", "NOTICE"))]
    found: dict[str, list[Row]] = {}
    for row in csv.DictReader(lines):
        count = int(row.get("Num Calls") or row.get("Instances") or row["Count"])
        numbers = [float(row[f"{key} (ns)"]) for key in ("Total Time", "Avg", "StdDev", "Min", "Max")]
        name = re.sub(r"_v\d+$", "", row.get("Name") or row["Operation"])
        for long, short in DIRECTIONS.items():
            name = name.replace(long, short)
        one = (count, int(numbers[0]), numbers[1], numbers[2], int(numbers[3]), int(numbers[4]))
        found.setdefault(name, []).append(one)
    return found


def made_export(path: Path) -> None:
    """Calls, kernels, copies and memsets of random durations, of a few names each."""
    chance = random.Random(7)
    with sqlite3.connect(path) as database:
        database.execute("create table StringIds (id integer primary key, value text)")
        names = [*(f"void kernel_{i}<float>(float*)" for i in range(20)), "cudaLaunchKernel_v7000", "cudaMemset_v3020"]
        database.executemany("insert into StringIds values (?, ?)", enumerate(names))
        for table, column, values in (
            ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName", range(20)),
            ("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId", (20, 21)),
            ("CUPTI_ACTIVITY_KIND_MEMCPY", "copyKind", (1, 2, 8)),
            ("CUPTI_ACTIVITY_KIND_MEMSET", "memKind", (2,)),
        ):
            grid = "".join(f", {kind}{axis} integer default 4" for kind in ("grid", "block") for axis in "XYZ")
            database.execute(f"create table {table} (start integer, end integer, {column} integer{grid})")
            rows = [(i * 9000, i * 9000 + chance.randrange(1, 10**chance.randrange(1, 9)), chance.choice(values))
                    for i in range(2000)]  # fmt: skip
            database.executemany(f"insert into {table} (start, end, {column}) values (?, ?, ?)", rows)
    database.close()


@pytest.fixture(params=["nsys-healthy.sqlite", "nsys-mock.sqlite", "made"])
def export(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "r.sqlite"
    if request.param == "made":
        made_export(path)
    elif SHARED.is_dir():
        # nsys opens what it reads to be written, also.
        shutil.copyfile(SHARED / request.param, path)
    else:
        pytest.skip("shared traces are not next to the checkout")
    return path


def ours(times: Iterable[NameTime], name: str = "{}") -> dict[str, list[Row]]:
    return {
        name.format(t.name): [(t.count, t.total_ns, round(t.mean_ns, 1), round(t.deviation_ns, 1), t.min_ns, t.max_ns)]
        for t in times
    }


def test_api_calls_are_those_of_nsys_stats(export: Path, real_nsys: str) -> None:
    assert ours(measure_api_calls(read_trace(export))) == stats(real_nsys, "cuda_api_sum", export)


def test_kernels_and_copies_are_those_of_nsys_stats(export: Path, real_nsys: str) -> None:
    kernels = measure_kernels(read_trace(export))

    assert kernels is not None
    assert ours(kernels.rows) == stats(real_nsys, "cuda_gpu_kern_sum", export)
    operations = stats(real_nsys, "cuda_gpu_mem_time_sum", export) if kernels.copies else {}
    assert ours(kernels.copies, "[CUDA {}]") == {
        name.replace(" mem", " Mem"): rows for name, rows in operations.items()
    }
