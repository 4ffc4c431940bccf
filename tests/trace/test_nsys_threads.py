"""Threads, processes, unified memory and GPU metrics of nsys exports; exports of other formats are refused."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfkit.commands import main
from perfkit.errors import TraceError
from perfkit.trace import read_trace
from perfkit.trace.nsight.nsys_gpu_metrics import GpuMetric, read_gpu_metrics
from perfkit.trace.nsight.nsys_threads import read_nsys_processes, read_nsys_threads
from perfkit.trace.nsight.nsys_unified_memory import UnifiedMemory, read_unified_memory

#: globalTid of threads 5 and 6 of process 1.
T5, T6 = 1 << 24 | 5, 1 << 24 | 6


@pytest.fixture
def export(tmp_path: Path) -> Callable[..., Path]:
    """Writes tables as an export has them; columns are those of the first row."""

    def write(**tables: list[dict[str, Any]]) -> Path:
        with sqlite3.connect(tmp_path / "r.sqlite") as database:
            for name, rows in tables.items():
                database.execute(f"create table {name} ({', '.join(rows[0])})")
                marks = ", ".join("?" * len(rows[0]))
                database.executemany(f"insert into {name} values ({marks})", [tuple(row.values()) for row in rows])
        database.close()
        return tmp_path / "r.sqlite"

    return write


def switch(start: int, thread: int, *, gets: bool, cpu: int = 0) -> dict[str, Any]:
    return {"start": start, "cpu": cpu, "isSchedIn": int(gets), "globalTid": thread}


def test_a_thread_runs_from_the_switch_that_gives_it_a_processor_to_the_next(export: Callable[..., Path]) -> None:
    path = export(
        SCHED_EVENTS=[
            switch(100, T5, gets=True),
            switch(250, T5, gets=False),
            switch(400, T5, gets=True, cpu=1),
            switch(500, T5, gets=False, cpu=1),
            switch(120, T6, gets=True),
            switch(130, T6, gets=False),
        ],
        StringIds=[{"id": 1, "value": "main"}],
        ThreadNames=[{"nameId": 1, "priority": 0, "globalTid": T5}],
        PROCESSES=[{"globalPid": 1 << 24, "pid": 1, "name": "python"}],
        OSRT_API=[
            {"start": 260, "end": 390, "globalTid": T5, "nameId": 1, "nestingLevel": 0},
            {"start": 270, "end": 300, "globalTid": T5, "nameId": 1, "nestingLevel": 1},
        ],
        COMPOSITE_EVENTS=[{"globalTid": T6, "threadState": 3}, {"globalTid": T6, "threadState": 1}],
        ENUM_SAMPLING_THREAD_STATE=[{"id": 1, "label": "Running"}, {"id": 3, "label": "Uninterruptible"}],
    )

    first, second = read_nsys_threads(path)

    assert (first.thread, first.thread_name, first.process_name) == (5, "main", "python")
    assert (first.running_ns, first.waiting_ns, first.switches, first.processors) == (250, 150, 2, 2)
    assert (first.os_calls, first.os_ns) == (2, 130)  # a call inside another is part of its time
    assert (second.running_ns, second.states) == (10, {"Uninterruptible": 1, "Running": 1})
    assert [(one.process, one.name, one.threads) for one in read_nsys_processes(path)] == [(1, "python", 2)]


def test_page_faults_and_migrations_are_counted_by_kind(export: Callable[..., Path]) -> None:
    copy = {"start": 10, "end": 30, "copyKind": 11, "bytes": 4096}
    path = export(
        CUDA_UM_CPU_PAGE_FAULT_EVENTS=[{"start": 1}, {"start": 2}],
        CUDA_UM_GPU_PAGE_FAULT_EVENTS=[{"start": 5, "end": 9, "numberOfPageFaults": 3}],
        CUPTI_ACTIVITY_KIND_MEMCPY=[copy, {**copy, "copyKind": 12}, {**copy, "copyKind": 1}],
    )

    assert read_unified_memory(path) == (
        UnifiedMemory(kind="page faults on the host", count=2),
        UnifiedMemory(kind="page faults on the device", count=3, total_ns=4),
        UnifiedMemory(kind="migration HtoD", count=1, bytes=4096, total_ns=20),
        UnifiedMemory(kind="migration DtoH", count=1, bytes=4096, total_ns=20),
    )


def sample(at: int, device: int, metric: int, value: object) -> dict[str, Any]:
    # The device is the last byte of the type, as in nsys' documentation of its schema.
    return {"rawTimestamp": 0, "timestamp": at, "typeId": 0x1_0000_0300 | device, "metricId": metric, "value": value}


def metric_names(*names: str) -> list[dict[str, Any]]:
    columns = {"sourceId": 3, "typeName": "GPU Metrics [GA100]"}
    return [
        {"typeId": 0x1_0000_0300 | device, **columns, "metricId": metric, "metricName": name}
        for device in (0, 1)
        for metric, name in enumerate(names)
    ]


def test_gpu_metrics_are_summed_by_device_and_nvlink_is_among_them(export: Callable[..., Path]) -> None:
    """Tables and names as nsys exports them from an A100."""
    nvlink = "NVLink RX Requests User Data"
    samples = [sample(at, 0, 0, 10 * at) for at in range(11)]
    samples += [sample(5, 1, 1, 40), sample(9, 1, 1, 60), sample(9, 1, 7, 3), sample(9, 1, 1, "many")]
    path = export(
        GPU_METRICS=samples, TARGET_INFO_GPU_METRICS=metric_names("SMs Active", f"{nvlink} [Throughput %]", "x [MHz]")
    )

    first, nvlinks, unnamed = read_gpu_metrics(path)

    assert first == GpuMetric(
        device=0, name="SMs Active", unit=None, samples=11, mean=50, low=0, high=100, sampled_ns=10
    )
    assert (nvlinks.device, nvlinks.name, nvlinks.unit, nvlinks.mean, nvlinks.samples) == (1, nvlink, "%", 50, 2)
    assert (unnamed.name, unnamed.high) == ("metric 7", 3)


def test_gpu_metrics_are_a_table_of_the_export_and_without_them_it_says_what_to_record(
    export: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    ranges = [{"start": 1, "end": 9, "eventType": 59, "text": "step", "globalTid": T5}]
    path = export(NVTX_EVENTS=ranges)
    assert main(["diagnose", str(path), "--table", "gpu-metrics"]) == 2
    assert "--gpu-metrics-devices=all" in capsys.readouterr().err

    path = export(GPU_METRICS=[sample(1, 0, 0, 70)], TARGET_INFO_GPU_METRICS=metric_names("PCIe TX [Throughput %]"))
    assert main(["diagnose", str(path), "--table", "gpu-metrics"]) == 0
    assert "PCIe TX" in capsys.readouterr().out


@pytest.mark.parametrize(
    "content", [b"\x89HDF\r\n\x1a\n" + bytes(64), b'{"data":["[Unknown]","[kernel.kallsyms]"],"x":[]}']
)
def test_exports_of_other_formats_are_refused_with_the_command_that_makes_sqlite(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "r.json").write_bytes(content)

    with pytest.raises(TraceError, match=r"nsys export --type sqlite -o report\.sqlite report\.nsys-rep"):
        read_trace(tmp_path / "r.json")


def test_a_report_of_nsys_has_its_os_calls_threads_and_processes_and_its_other_exports_are_refused(
    tmp_path: Path, real_nsys: str, record_with_nsys: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.py").write_text("import time\nfor _ in range(3):\n    time.sleep(0.01)\n")
    report = record_with_nsys(sys.executable, "p.py", trace="nvtx,osrt")
    for kind in ("sqlite", "json", "hdf"):
        command = [real_nsys, "export", "--type", kind, "-o", str(tmp_path / f"r.{kind}"), str(report)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr

    export = str(tmp_path / "r.sqlite")
    assert main(["diagnose", export, "--table", "osrt", "--csv"]) == 0
    assert "fopen" in capsys.readouterr().out
    assert main(["diagnose", export, "--table", "threads", "--csv"]) == 0
    assert "python" in capsys.readouterr().out
    assert main(["diagnose", export, "--table", "processes", "--csv"]) == 0
    assert "python" in capsys.readouterr().out
    for kind in ("json", "hdf"):
        assert main(["diagnose", str(tmp_path / f"r.{kind}"), "--table", "osrt"]) == 2
        assert "nsys export --type sqlite" in " ".join(capsys.readouterr().err.split())
