from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfkit.errors import TraceError
from perfkit.trace import Kind, Trace, read_trace
from perfkit.trace.nsight._nsys_tables import NsysTables

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

    def write_and_read(*statements: str, **tables: list[dict[str, Any]]) -> Trace:
        tables = {"StringIds": [{"id": i, "value": s} for i, s in STRINGS.items()], **tables}
        with sqlite3.connect(tmp_path / "r.sqlite") as database:
            for name, rows in tables.items():
                columns = ", ".join(f'"{column}"' for column in rows[0])
                database.execute(f"create table {name} ({columns})")
                marks = ", ".join("?" * len(rows[0]))
                database.executemany(f"insert into {name} values ({marks})", [tuple(row.values()) for row in rows])
            for statement in statements:
                database.execute(statement)
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
    assert trace.lost == (
        "1 NVTX ranges had not ended: they are assumed to end with the last event",
        "1 NVTX ranges were skipped because they ended on another thread",
    )


def test_start_of_the_capture_devices_and_what_nsys_reported_are_reported(export: Export) -> None:
    trace = export(
        TARGET_INFO_SESSION_START_TIME=[{"utcEpochNs": 1_776_781_226_557_295_056}],
        TARGET_INFO_GPU=[
            {
                "id": 0,
                "name": "NVIDIA H200",
                "smCount": 132,
                "clockRate": 1_980_000_000,
                "memoryBandwidth": 4800 * 10**9,
            }
        ],
        ThreadNames=[{"nameId": 5, "globalTid": T1}],
        DIAGNOSTIC_EVENT=[{"severity": 1, "text": "started"}, {"severity": 2, "text": "events were\nlost"}],
        **{CALL: [call(-5, 2, 3)]},
    )

    assert trace.start_ns.tolist() == [1_776_781_226_557_295_051]
    assert trace.metadata.devices[0].name == "NVIDIA H200"
    assert trace.metadata.devices[0].multiprocessors == 132
    assert (trace.metadata.devices[0].clock_mhz, trace.metadata.devices[0].bytes_per_s) == (1980, 4800 * 10**9)
    assert trace.tracks[0].thread_name == "main"
    assert trace.lost == ("nsys reported: events were lost",)


def test_values_of_the_wrong_type_and_out_of_range_break_nothing(export: Export) -> None:
    odd = kernel(10, 20, 3, demangledName="no id", deviceId=None, streamId="x")
    late = kernel(2**62, 2**62 + 1, 4)

    trace = export(**{KERNEL: [odd, late]}, StringIds=[{"id": 1, "value": b"\xff\xfe"}])

    assert len(trace) == 1
    assert trace.names[trace.name[0]] == ""
    assert "1 events were skipped because they have no usable time" in trace.lost


def test_calls_of_the_system_are_events_of_their_thread_without_the_rows_that_mark_their_ends(export: Export) -> None:
    def os_call(start: int, end: int, event: int) -> dict[str, Any]:
        return {"start": start, "end": end, "eventClass": event, "globalTid": T1, "nameId": 6, "nestingLevel": 0}

    strings = [{"id": i, "value": s} for i, s in (*STRINGS.items(), (6, "sem_wait"))]
    trace = export(StringIds=strings, OSRT_API=[os_call(10, 90, 27), os_call(10, 10, 31)], **{CALL: [call(5, 95, 3)]})

    assert names(trace, Kind.RUNTIME) == ["cudaLaunchKernel", "sem_wait"]
    assert trace.parent.tolist() == [-1, 0]


def test_a_graph_that_was_recorded_whole_is_device_work_and_that_is_reported(export: Export) -> None:
    graph = {"start": 10, "end": 90, "deviceId": 0, "streamId": 7, "correlationId": 3, "globalPid": P1, "graphId": 1}

    trace = export(CUPTI_ACTIVITY_KIND_GRAPH_TRACE=[graph], **{CALL: [call(1, 9, 3)]})

    assert names(trace, Kind.KERNEL) == ["[CUDA graph]"]
    assert trace.start_ns[trace.launch[trace.device_rows]].tolist() == [1]
    assert "1 launches of CUDA graphs were recorded without the kernels in them" in trace.lost[0]


GPU = {"id": 0, "name": "A100", "smCount": 100, "computeMajor": 8, "computeMinor": 0, "totalMemory": 2**36}
GPU |= {"maxWarpsPerSm": 64, "maxBlocksPerSm": 32, "maxRegistersPerSm": 65536, "maxShmemPerSm": 164 << 10}


def test_device_work_has_its_arguments_under_kinetos_names(export: Export) -> None:
    launch = {"gridX": 500, "gridY": 2, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1, "registersPerThread": 128}
    launch |= {"staticSharedMemory": 100, "dynamicSharedMemory": 28, "contextId": 1, "graphNodeId": None}
    copy = {"start": 50, "end": 60, "copyKind": 1, "bytes": 640, "contextId": 1, "deviceId": 0, "streamId": 7}
    trace = export(TARGET_INFO_GPU=[GPU], **{KERNEL: [kernel(1, 2, 3, **launch)], COPY: [copy], CALL: [call(0, 1, 3)]})

    of_copy, of_kernel, of_call = trace.args([1, 0, 2])

    assert of_call == {}
    assert of_copy == {"device": 0, "context": 1, "bytes": 640, "memory bandwidth (GB/s)": 64.0}
    assert of_kernel == {
        **{"device": 0, "context": 1, "grid": [500, 2, 1], "block": [128, 1, 1], "registers per thread": 128},
        **{"shared memory": 128, "blocks per SM": 10.0, "warps per SM": 40.0, "est. achieved occupancy %": 25.0},
    }


def test_arguments_of_an_export_that_changed_are_refused(export: Export, tmp_path: Path) -> None:
    trace = export(**{KERNEL: [kernel(1, 2, 3)]})
    (tmp_path / "r.sqlite").write_bytes(b"")

    with pytest.raises(TraceError, match="changed since it was read"):
        trace.args([0])


def test_the_exports_own_enum_tables_say_what_numbers_stand_for(export: Export) -> None:
    where = {"start": 1, "end": 2, "deviceId": 0, "streamId": 7, "srcKind": 90, "dstKind": 91}
    ways = {20: "CUDA_MEMCPY_KIND_UVM_DTOH", 21: "CUDA_MEMCPY_KIND_NEW", 1: "CUDA_MEMCPY_KIND_DTOD"}
    memory = {90: "CUDA_MEMOPR_MEMORY_KIND_MANAGED_STATIC", 91: "CUDA_MEMOPR_MEMORY_KIND_PINNED"}
    trace = export(
        ENUM_CUDA_MEMCPY_OPER=[{"id": i, "name": name, "label": "New way"} for i, name in ways.items()],
        ENUM_CUDA_MEM_KIND=[{"id": i, "name": name, "label": ""} for i, name in memory.items()],
        **{COPY: [{**where, "copyKind": way} for way in (20, 21, 1)]},
    )

    kinds = "(Managed -> Pinned)"
    assert names(trace, Kind.COPY) == [f"Memcpy {way} {kinds}" for way in ("DtoH", "New way", "DtoD")]


def test_two_processes_that_each_see_one_gpu_as_their_first_have_two(export: Export) -> None:
    cuda = [{"pid": pid, "cudaId": 0, "gpuId": gpu, "numMultiprocessors": 80} for pid, gpu in ((1, 4), (2, 5))]
    gpus = [{"id": gpu, "name": f"gpu {gpu}"} for gpu in (4, 5)]
    work = [kernel(1, 2, 3), kernel(1, 2, 3, P2)]

    split = export(TARGET_INFO_CUDA_DEVICE=cuda, TARGET_INFO_GPU=gpus, **{KERNEL: work})

    assert split.device.tolist() == [4, 5]
    assert [(d.id, d.name, d.multiprocessors) for d in split.metadata.devices] == [(4, "gpu 4", 80), (5, "gpu 5", 80)]


def test_where_all_processes_number_the_gpus_alike_cudas_numbers_stay(export: Export) -> None:
    cuda = [{"pid": pid, "cudaId": 0, "gpuId": 4, "numMultiprocessors": 80} for pid in (1, 2)]

    trace = export(
        TARGET_INFO_CUDA_DEVICE=cuda, TARGET_INFO_GPU=[{"id": 4, "name": "gpu 4"}], **{KERNEL: [kernel(1, 2, 3)]}
    )

    assert trace.device.tolist() == [0]
    assert trace.metadata.devices[0].id == 0


def test_what_nsys_missed_is_reported_with_the_kind_of_its_events_and_without_control_characters(
    export: Export,
) -> None:
    diagnostics = (
        (1, "Number of NVTX events collected: 12."),
        (1, "Not all NVTX events might have been collected."),
        (2, "Not all OS runtime libraries events\x1b[31m might have been collected."),
        (2, "CUDA device 0: Unified Memory cannot be traced on this device"),
        (3, "x" * 1000),
    )
    trace = export(DIAGNOSTIC_EVENT=[{"severity": s, "text": t} for s, t in diagnostics], **{CALL: [call(1, 2, 3)]})

    assert trace.lost == (
        "NVTX events are incomplete: nsys reported: Not all NVTX events might have been collected.",
        "OS call events are incomplete: nsys reported:"
        " Not all OS runtime libraries events [31m might have been collected.",
        "unified memory events are incomplete:"
        " nsys reported: CUDA device 0: Unified Memory cannot be traced on this device",
        f"nsys reported: {'x' * 300}",
    )


def test_columns_that_are_computed_when_read_are_left_alone(export: Export) -> None:
    table = f"create table {KERNEL} (start integer, end integer, deviceId as (start + 40))"

    trace = export(table, f"insert into {KERNEL} (start, end) values (1, 2)", **{CALL: [call(1, 2, 3)]})

    assert trace.device[trace.device_rows].tolist() == [0]


def test_pages_that_contain_each_other_are_not_read_for_ever(export: Export, tmp_path: Path) -> None:
    export(**{KERNEL: [kernel(i, i + 1, i) for i in range(20_000)]})
    file = tmp_path / "r.sqlite"
    with sqlite3.connect(file) as database:
        ((size,),) = database.execute("pragma page_size")
        ((root,),) = database.execute("select rootpage from sqlite_master where name = ?", (KERNEL,))
    database.close()
    data = bytearray(file.read_bytes())
    at = (root - 1) * size
    cells = [
        int.from_bytes(data[at + 12 + 2 * i : at + 14 + 2 * i], "big") for i in range(data[at + 3] << 8 | data[at + 4])
    ]
    leaf = data[at + cells[0] : at + cells[0] + 4]
    for cell in cells:
        data[at + cell : at + cell + 4] = leaf
    data[at + 8 : at + 12] = leaf
    pages = max(root, int.from_bytes(leaf, "big"))
    data[28:32] = pages.to_bytes(4, "big")
    file.write_bytes(data[: pages * size])

    with pytest.raises(TraceError, match="more rows than fit into the file"):
        read_trace(file)


def test_reading_ends_where_it_takes_far_more_than_any_export_of_its_size(export: Export, tmp_path: Path) -> None:
    export(**{KERNEL: [kernel(i, i + 1, i) for i in range(60_000)]})

    with (
        NsysTables(tmp_path / "r.sqlite", seconds=0.0) as tables,
        pytest.raises(TraceError, match="took more than 0 s"),
    ):
        list(tables.values(KERNEL, "start", where="where start < 0"))


def test_a_schema_that_is_no_utf8_is_damage(export: Export, tmp_path: Path) -> None:
    export(**{CALL: [call(1, 2, 3)]})
    file = tmp_path / "r.sqlite"
    file.write_bytes(file.read_bytes().replace(b"CREATE TABLE", b"CREATE \xff\xb6\xff\xb6\xff", 1))

    with pytest.raises(TraceError, match=r"damaged SQLite file \(its schema is not text\)"):
        read_trace(file)


def test_a_table_that_is_cut_is_read_up_to_there_and_that_is_reported(export: Export, tmp_path: Path) -> None:
    whole = export(
        **{CALL: [call(i, i + 1, i) for i in range(1, 500)], KERNEL: [kernel(i, i + 1, i) for i in range(50_000)]}
    )
    file = tmp_path / "r.sqlite"
    data = bytearray(file.read_bytes())
    data[-200_000:] = b"\xff" * 200_000
    file.write_bytes(data)

    trace = read_trace(file)

    assert trace.is_kind(Kind.RUNTIME).sum() == 499
    assert 20_000 < trace.is_kind(Kind.KERNEL).sum() < 50_000 < len(whole)
    assert any(line.startswith(f"the table {KERNEL} is damaged") for line in trace.lost)


def test_a_database_that_another_program_has_locked_is_read(export: Export, tmp_path: Path) -> None:
    export(**{CALL: [call(1, 2, 3)]})
    other = sqlite3.connect(tmp_path / "r.sqlite", isolation_level=None)
    other.execute("begin exclusive")

    try:
        assert len(read_trace(tmp_path / "r.sqlite")) == 1
    finally:
        other.close()


def test_rows_that_stand_only_in_a_write_ahead_log_are_reported_missing(export: Export, tmp_path: Path) -> None:
    export(**{CALL: [call(1, 2, 3)]})
    writer = sqlite3.connect(tmp_path / "r.sqlite", isolation_level=None)
    writer.execute("pragma journal_mode = wal")
    writer.execute("pragma wal_autocheckpoint = 0")
    writer.execute(f"insert into {CALL} values (5, 6, 0, {T1}, 9, 2)")

    trace = read_trace(tmp_path / "r.sqlite")

    writer.close()
    assert len(trace) == 1
    assert trace.lost[0].startswith("there is a write-ahead log next to r.sqlite")


def test_a_view_in_place_of_a_table_is_not_run(tmp_path: Path) -> None:
    endless = "with recursive r(x) as (select 1 union all select x + 1 from r) select x as start, x as end from r"
    with sqlite3.connect(tmp_path / "r.sqlite") as database:
        database.execute(f"create view {KERNEL} as {endless}")
    database.close()

    with pytest.raises(TraceError, match="is not an nsys export"):
        read_trace(tmp_path / "r.sqlite")


def test_a_cut_database_is_damaged_in_one_line(export: Export, tmp_path: Path) -> None:
    export(**{KERNEL: [kernel(i, i + 1, i) for i in range(5000)]})
    file = tmp_path / "r.sqlite"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    with pytest.raises(TraceError, match="is a damaged SQLite file"):
        read_trace(file)


def test_reading_leaves_nothing_next_to_the_file(export: Export, tmp_path: Path) -> None:
    export(**{CALL: [call(1, 2, 3)]})

    assert [file.name for file in tmp_path.iterdir()] == ["r.sqlite"]


def test_the_shared_exports_are_read_whole(shared_traces: Path) -> None:
    healthy = read_trace(shared_traces / "nsys-healthy.sqlite")
    mock = read_trace(shared_traces / "nsys-mock.sqlite")

    assert (len(healthy), healthy.device_rows.size, (healthy.launch >= 0).sum()) == (800, 400, 400)
    assert names(mock, Kind.COPY) == ["Memcpy DtoH (Device -> Pinned)"]
    assert names(mock, Kind.RUNTIME)[-1] == "cudaStreamSynchronize"
    assert (mock.launch[mock.device_rows] >= 0).all()
