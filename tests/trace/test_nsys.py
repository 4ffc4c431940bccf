from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfkit.errors import TraceError
from perfkit.trace import Kind, Trace, read_trace

#: globalTid of thread 5 in process 1 and of thread 6 in process 2, as nsys packs them.
P1, P2 = 1 << 24, 2 << 24
T1, T2 = P1 | 5, P2 | 6

STRINGS = {1: "gemm(float*)", 2: "cudaLaunchKernel_v7000", 3: "cudaMemcpyAsync_v3020", 4: "forward", 5: "main"}
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
CALL = "CUPTI_ACTIVITY_KIND_RUNTIME"
COPY = "CUPTI_ACTIVITY_KIND_MEMCPY"

Tables = dict[str, list[dict[str, Any]]]
Export = Callable[..., Trace]


@pytest.fixture
def export(tmp_path: Path) -> Export:
    """Writes tables as an export has them (columns are those of the first row) and reads the file."""

    def write_and_read(**tables: list[dict[str, Any]]) -> Trace:
        tables = {"StringIds": [{"id": i, "value": s} for i, s in STRINGS.items()], **tables}
        with sqlite3.connect(tmp_path / "r.sqlite") as database:
            for name, rows in tables.items():
                columns = ", ".join(f'"{column}"' for column in rows[0])
                database.execute(f"create table {name} ({columns})")
                marks = ", ".join("?" * len(rows[0]))
                database.executemany(f"insert into {name} values ({marks})", [tuple(row.values()) for row in rows])
        database.close()
        return read_trace(tmp_path / "r.sqlite")

    return write_and_read


def kernel(start: int, end: int, correlation: int, pid: int = P1, **more: Any) -> dict[str, Any]:
    where = {"deviceId": 0, "streamId": 7, "correlationId": correlation, "globalPid": pid, "demangledName": 1}
    return {"start": start, "end": end, **where, **more}


def call(start: int, end: int, correlation: int, thread: int = T1, name: int = 2, event: int = 0) -> dict[str, Any]:
    ids = {"eventClass": event, "globalTid": thread, "correlationId": correlation, "nameId": name}
    return {"start": start, "end": end, **ids}


def names(trace: Trace, kind: Kind) -> list[str]:
    return [trace.names[code] for code in trace.name[trace.is_kind(kind)]]


def test_correlation_ids_of_two_processes_are_not_mixed_up(export: Export) -> None:
    trace = export(**{KERNEL: [kernel(10, 20, 3), kernel(30, 40, 3, P2)], CALL: [call(1, 2, 3), call(21, 22, 3, T2)]})

    launches = trace.launch[trace.device_rows]

    assert trace.start_ns[launches].tolist() == [1, 21]
    assert names(trace, Kind.RUNTIME) == ["cudaLaunchKernel"] * 2
    assert [(t.process, t.thread) for t in trace.tracks if not t.device] == [("1", "5"), ("2", "6")]


def test_an_export_that_lost_its_processes_is_linked_by_correlation_alone(export: Export) -> None:
    bare = {k: v for k, v in kernel(10, 20, 3).items() if k != "globalPid"}

    trace = export(**{KERNEL: [bare], CALL: [call(1, 2, 3, thread=1)]})

    assert trace.launch[trace.device_rows].tolist() == trace.host_rows.tolist()


def test_the_second_row_of_an_old_exports_interception_layer_is_not_a_second_call(export: Export) -> None:
    trace = export(**{CALL: [call(1, 9, 3), call(2, 8, 3, event=67), call(11, 12, 4, event=1)]})

    assert trace.start_ns.tolist() == [1, 11]


def test_copies_are_named_as_kineto_names_them_also_without_their_memory_kinds(export: Export) -> None:
    where = {"deviceId": 0, "streamId": 2**32 - 1, "correlationId": 3, "globalPid": P1, "bytes": 64}
    pageable = {"start": 1, "end": 2, **where, "copyKind": 1, "srcKind": 0, "dstKind": 2}
    trace = export(**{COPY: [pageable], "CUPTI_ACTIVITY_KIND_MEMSET": [{"start": 5, "end": 6, **where, "memKind": 2}]})

    assert names(trace, Kind.COPY) == ["Memcpy HtoD (Pageable -> Device)"]
    assert names(trace, Kind.MEMSET) == ["Memset (Device)"]
    assert trace.bytes.tolist() == [64, 64]
    assert trace.stream.tolist() == [-1, -1]


def test_nvtx_ranges_have_inline_or_shared_text_and_may_be_open(export: Export) -> None:
    def nvtx(start: int, end: int | None, kind: int, text: str | None, text_id: int | None) -> dict[str, Any]:
        row = {"start": start, "end": end, "eventType": kind, "text": text, "textId": text_id}
        return {**row, "globalTid": T1, "endGlobalTid": T2 if text == "elsewhere" else None}

    rows = [
        nvtx(1, 90, 59, None, 4),
        nvtx(2, 50, 60, "aten::mm, seq = 7, op_id = 3", None),
        nvtx(3, None, 59, "still open", None),
        nvtx(4, 5, 34, "a mark", None),
        nvtx(6, 7, 75, "a domain", None),
        nvtx(8, 9, 60, "elsewhere", None),
    ]
    trace = export(NVTX_EVENTS=rows, **{CALL: [call(100, 120, 3)]})

    assert names(trace, Kind.RANGE) == ["forward", "aten::mm", "still open"]
    assert trace.end_ns[trace.is_kind(Kind.RANGE)].tolist() == [90, 50, 120]
    assert trace.lost == ("1 NVTX ranges had not ended: they are taken to reach to the last event",)


def test_start_of_the_capture_devices_and_what_nsys_said_are_told(export: Export) -> None:
    trace = export(
        TARGET_INFO_SESSION_START_TIME=[{"utcEpochNs": 1_776_781_226_557_295_056}],
        TARGET_INFO_GPU=[{"id": 0, "name": "NVIDIA H200", "smCount": 132}],
        ThreadNames=[{"nameId": 5, "globalTid": T1}],
        DIAGNOSTIC_EVENT=[{"severity": 1, "text": "started"}, {"severity": 2, "text": "events were\nlost"}],
        **{CALL: [call(-5, 2, 3)]},
    )

    assert trace.start_ns.tolist() == [1_776_781_226_557_295_051]
    assert trace.metadata.devices[0].name == "NVIDIA H200"
    assert trace.metadata.devices[0].multiprocessors == 132
    assert trace.tracks[0].thread_name == "main"
    assert trace.lost == ("nsys said: events were lost",)


def test_values_of_the_wrong_type_and_out_of_range_break_nothing(export: Export) -> None:
    odd = kernel(10, 20, 3, demangledName="no id", deviceId=None, streamId="x")
    late = kernel(2**62, 2**62 + 1, 4)

    trace = export(**{KERNEL: [odd, late]}, StringIds=[{"id": 1, "value": b"\xff\xfe"}])

    assert len(trace) == 1
    assert trace.names[trace.name[0]] == ""
    assert "1 events had no usable time and are left out" in trace.lost


def test_a_view_in_place_of_a_table_is_not_run(tmp_path: Path) -> None:
    endless = "with recursive r(x) as (select 1 union all select x + 1 from r) select x as start, x as end from r"
    with sqlite3.connect(tmp_path / "r.sqlite") as database:
        database.execute(f"create view {KERNEL} as {endless}")
    database.close()

    with pytest.raises(TraceError, match="is no nsys export"):
        read_trace(tmp_path / "r.sqlite")


def test_a_cut_database_is_damaged_in_one_line(export: Export, tmp_path: Path) -> None:
    export(**{KERNEL: [kernel(i, i + 1, i) for i in range(5000)]})
    file = tmp_path / "r.sqlite"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    with pytest.raises(TraceError, match="is a damaged SQLite file"):
        read_trace(file)


def test_reading_leaves_nothing_beside_the_file(export: Export, tmp_path: Path) -> None:
    export(**{CALL: [call(1, 2, 3)]})

    assert [file.name for file in tmp_path.iterdir()] == ["r.sqlite"]


def test_the_shared_exports_are_read_whole(shared_traces: Path) -> None:
    healthy = read_trace(shared_traces / "nsys-healthy.sqlite")
    mock = read_trace(shared_traces / "nsys-mock.sqlite")

    assert (len(healthy), healthy.device_rows.size, (healthy.launch >= 0).sum()) == (800, 400, 400)
    assert names(mock, Kind.COPY) == ["Memcpy DtoH (Device -> Pinned)"]
    assert names(mock, Kind.RUNTIME)[-1] == "cudaStreamSynchronize"
    assert (mock.launch[mock.device_rows] >= 0).all()
