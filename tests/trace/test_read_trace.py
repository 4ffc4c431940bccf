from __future__ import annotations

import gzip
import json
import os
import random
import sqlite3
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfkit.errors import TraceError
from perfkit.trace import Kind, Trace, read_trace
from perfkit.trace.kineto import read_kineto

TraceOf = Callable[..., Trace]


@pytest.mark.parametrize(
    ("base", "low", "decimals"),
    [
        (None, 1_610_366_387_140_599, 0),
        (None, 1_711_964_646_000_000, 3),
        (1_711_964_646_000_000_000, 4_305_290_206_062, 3),
    ],
    ids=["whole us", "absolute us with decimals", "relative us with a base"],
)
def test_times_of_all_three_eras_are_exact_to_the_nanosecond(
    tmp_path: Path, base: int | None, low: int, decimals: int
) -> None:
    rng = random.Random(7)
    texts = [f"{low + rng.randrange(10**9)}" + (f".{rng.randrange(1000):03}" if decimals else "") for _ in range(500)]
    events = ",\n".join(f'{{"ph": "X", "cat": "cpu_op", "name": "a", "ts": {t}, "dur": 0.001}}' for t in texts)
    head = f'"baseTimeNanoseconds": {base}, ' if base else ""
    file = tmp_path / "t.json"
    file.write_text(f'{{{head}"traceEvents": [{events}]}}')

    trace = read_trace(file)

    assert trace.start_ns.tolist() == [int(Decimal(t) * 1000) + (base or 0) for t in texts]
    assert (trace.end_ns - trace.start_ns == 1).all()
    assert trace.metadata.base_ns == base


def test_kinds_are_reported_by_category_and_never_by_a_stream(trace_of: TraceOf) -> None:
    names = ["cpu_op", "Operator", "user_annotation", "python_function", "Runtime", "cuda_driver", "kernel", "Memcpy"]
    names += ["gpu_memset", "cuda_sync", "gpu_user_annotation", "overhead", "Trace"]
    trace = trace_of([{"cat": cat, "ts": i, "args": {"stream": 7, "device": 0}} for i, cat in enumerate(names)])

    kinds = [Kind(k).name for k in trace.kind]

    assert kinds[:6] == ["OP", "OP", "RANGE", "PYTHON", "RUNTIME", "RUNTIME"]
    assert kinds[6:] == ["KERNEL", "COPY", "MEMSET", "SYNC", "PROJECTION", "OVERHEAD", "OTHER"]
    assert [s >= 0 for s in trace.stream] == [k in ("KERNEL", "COPY", "MEMSET", "SYNC") for k in kinds]


def test_old_traces_hold_ranges_as_ops_and_both_become_ranges(trace_of: TraceOf) -> None:
    trace = trace_of(
        [
            {"cat": "Operator", "name": "ProfilerStep#5", "ts": 1},
            {"cat": "Operator", "name": "enumerate(DataLoader)#_Iter.__next__", "ts": 2},
            {"cat": "user_annotation", "name": "ProfilerStep #6", "ts": 3},
            {"cat": "gpu_user_annotation", "name": "ProfilerStep#6", "ts": 4},
        ]
    )

    assert trace.steps.number.tolist() == [5, 6]
    assert [trace.names[trace.name[row]] for row in trace.ranges] == ["enumerate(DataLoader)#_Iter.__next__"]


def test_a_thread_and_a_device_row_with_equal_ids_are_two_tracks(trace_of: TraceOf) -> None:
    trace = trace_of(
        [
            {"cat": "python_function", "pid": 0, "tid": 7, "ts": 1},
            {"cat": "kernel", "pid": 0, "tid": 7, "ts": 1},
            {"cat": "Operator", "pid": 0, "tid": "7", "ts": 2},
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "ts": 0, "args": {"name": "worker"}},
        ]
    )

    assert [t.device for t in trace.tracks] == [False, True]
    assert trace.track.tolist() == [0, 1, 0]
    assert trace.tracks[0].thread_name == "worker"


def test_device_work_finds_its_launch_by_correlation_alone(trace_of: TraceOf) -> None:
    trace = trace_of(
        [
            {"cat": "kernel", "name": "k", "ts": 9, "args": {"correlation": 5, "stream": "0x0", "External id": 3}},
            {"cat": "cpu_op", "name": "op", "ts": 1, "dur": 8, "args": {"correlation": 5}},
            {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 2, "args": {"correlation": 5}},
            {"cat": "kernel", "name": "lost", "ts": 20, "args": {"correlation": 6, "stream": 4294967295}},
            {"cat": "cuda_runtime", "name": "x", "ts": 3, "args": {"correlation": 0}},
            {"cat": "kernel", "name": "none", "ts": 30, "args": {"correlation": 0}},
        ]
    )

    assert trace.launch.tolist() == [2, -1, -1, -1, -1, -1]
    assert trace.stream.tolist() == [0, -1, -1, -1, -1, -1]
    assert trace.parent[2] == 1


@pytest.mark.parametrize("args", [None, [], "none", 7])
def test_an_event_with_arguments_that_are_not_an_object_has_none(trace_of: TraceOf, args: object) -> None:
    trace = trace_of([{"name": "a", "ts": 1, "args": args}, {"name": "b", "ts": 2, "args": {"Sequence number": 4}}])

    assert trace.names == ("a", "b")
    assert trace.sequence.tolist() == [-1, 4]
    assert trace.args([0, 1]) == [{}, {"Sequence number": 4}]


@pytest.mark.parametrize("text", ['{"traceEvents": []}', '{"traceEvents":[\n], "schemaVersion": 1}'])
def test_a_trace_without_events_is_a_trace(tmp_path: Path, text: str) -> None:
    file = tmp_path / "t.json"
    file.write_text(text)

    trace = read_trace(file)

    assert (len(trace), trace.lost, trace.steps.row.size, trace.parent.size) == (0, (), 0, 0)


def test_arguments_of_any_row_are_read_again_from_the_file(tmp_path: Path) -> None:
    events = [
        {"ph": "X" if i % 3 else "f", "cat": "cpu_op", "name": "a", "ts": i, "dur": 1, "args": {"Input Dims": [[i, i]]}}
        for i in range(400)
    ]
    events[10]["ts"] = None  # left out: rows and events of its chunk no longer have the same numbers
    text = json.dumps({"traceEvents": events}, indent=2)
    plain, packed = tmp_path / "t.json", tmp_path / "t.json.gz"
    plain.write_text(text.replace('"name": "a"', '"name": "bad \\x"', 1))
    packed.write_bytes(gzip.compress(text.encode()))

    for file in (plain, packed):
        trace = read_kineto(file, block=2048)
        rows = [264, 0, 17, 120, 0]
        assert [a["Input Dims"][0][0] for a in trace.args(rows)] == [trace.start_ns[r] // 1000 for r in rows]
        assert trace.args([]) == []


def test_arguments_of_a_file_that_changed_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_text('{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1}]}')
    trace = read_trace(file)
    file.write_text('{"traceEvents": [{"ph": "X", "ts": 2, "dur": 1}, {}]}')

    with pytest.raises(TraceError, match="changed since it was read"):
        trace.args([0])


def test_metadata_is_an_allow_list_and_may_stand_before_or_after_the_events(tmp_path: Path) -> None:
    device = {"id": 3, "name": "NVIDIA A100", "numSms": 108, "totalGlobalMem": 42, "computeMajor": 8, "computeMinor": 0}
    file = tmp_path / "t.json"
    file.write_text(
        json.dumps(
            {
                "deviceProperties": [device, {"name": "no id"}, 7],
                "environment": {"TOKEN": "hf_secret"},
                "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1.5, "dur": 1}],
                "distributedInfo": {"rank": 3, "world_size": 8, "backend": "nccl"},
                "baseTimeNanoseconds": 1000,
                "with_stack": 1,
            }
        )
    )

    trace = read_trace(file)

    assert trace.metadata.devices[0].name == "NVIDIA A100"
    assert trace.metadata.devices[0].capability == (8, 0)
    assert (trace.metadata.rank, trace.metadata.world_size, trace.metadata.backend) == (3, 8, "nccl")
    assert (trace.metadata.with_stack, trace.metadata.record_shapes) == (True, None)
    assert trace.start_ns.tolist() == [2500]
    assert "hf_secret" not in repr(trace)


def test_progress_counts_the_bytes_of_the_file_itself(tmp_path: Path) -> None:
    file = tmp_path / "t.json.gz"
    events = [{"ph": "X", "ts": i, "dur": 1} for i in range(1000)]
    file.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    reports: list[tuple[int, int]] = []

    read_trace(file, progress=lambda done, total: reports.append((done, total)))

    assert reports[-1] == (file.stat().st_size, file.stat().st_size)


def not_traces() -> dict[str, tuple[bytes, str]]:
    return {
        "empty.json": (b"", "is empty"),
        "blank.json": (b" \n" * 10, "begins neither like JSON"),
        "notes.txt": (b"hello\nworld", "begins neither like JSON"),
        "random.bin": (bytes(range(128, 256)) * 8, "begins neither like JSON"),
        "config.json": (b'{"a": 1, "traceEventsX": []}', "has no 'traceEvents' array"),
        "null.json": (b'{"traceEvents": null}', "has no 'traceEvents' array"),
        "list.json": (b"[1, 2, 3]", "a JSON list without events"),
        "t.json.gz": (gzip.compress(b"{}")[:12], "gzip stream is cut before its first event"),
        "bad.json.gz": (b"\x1f\x8b" + b"x" * 40, "gzip stream is damaged"),
        "t.zip": (b"PK\x03\x04aaaa", "is a zip archive"),
        "r.nsys-rep": (b"\x00\x01\x02", "nsys export --type sqlite"),
        "t.sqlite": (b"SQLite format 3\0" + b"\xff" * 200, "SQLite"),
    }


@pytest.mark.parametrize("name", not_traces())
def test_what_is_no_trace_gets_one_line_with_the_reason_and_the_fix(tmp_path: Path, name: str) -> None:
    content, reason = not_traces()[name]
    file = tmp_path / name
    file.write_bytes(content)

    with pytest.raises(TraceError, match=reason) as raised:
        read_trace(file)

    assert str(file) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_path_and_a_folder_are_reported_apart(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="does not exist"):
        read_trace(tmp_path / "none.json")
    with pytest.raises(TraceError, match="is a folder"):
        read_trace(tmp_path)


def test_another_sqlite_database_is_no_nsys_export(tmp_path: Path) -> None:
    file = tmp_path / "app.db"
    with sqlite3.connect(file) as database:
        database.execute("create table users (name text)")
    database.close()

    with pytest.raises(TraceError, match="is not an nsys export"):
        read_trace(file)


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_nesting_without_end_costs_one_event_and_no_stack(tmp_path: Path, opening: str) -> None:
    good = '{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1}'
    deep = '{"ph": "X", "name": "b", "ts": 2, "dur": 1, "args": ' + opening * 100_000
    file = tmp_path / "t.json"
    file.write_text(f'{{"traceEvents": [{good}, {deep}')

    trace = read_trace(file)

    assert trace.names == ("a",)
    assert trace.lost == ("the file is cut: events after the cut are missing",)


def test_numbers_out_of_every_range_do_not_overflow_a_column(trace_of: TraceOf) -> None:
    huge = 10**40
    trace = trace_of(
        [
            {"cat": "kernel", "ts": 1, "args": {"correlation": huge, "stream": huge, "device": -5, "bytes": 1e300}},
            {"cat": "kernel", "ts": huge},
            {"cat": "kernel", "ts": 2**62},
            {"cat": "kernel", "ts": 5, "dur": -3},
        ],
        baseTimeNanoseconds=huge,
    )

    assert len(trace) == 2
    assert (trace.correlation.tolist(), trace.bytes.tolist()) == ([-1, -1], [-1, -1])
    assert trace.end_ns[1] == trace.start_ns[1]
    assert any("2 events were skipped because they have no usable time" in sentence for sentence in trace.lost)


def test_a_gzip_bomb_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bomb.json.gz"
    flows = b'{"ph": "f"},' * 400_000
    with gzip.open(file, "wb", compresslevel=6) as out:
        out.write(b'{"traceEvents": [')
        for _ in range(60):
            out.write(flows)

    with pytest.raises(TraceError, match="inflates to more than 256 MiB, over 150 times its size"):
        read_trace(file)


def test_white_space_or_a_string_without_end_is_given_up_at_a_limit(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    event = '{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1}'
    file.write_text(f'{{"traceEvents": [{event}, {event}, {{"name": "' + " " * (66 << 20))

    trace = read_trace(file)

    assert len(trace) == 2
    assert any("longer than 64 MiB" in sentence for sentence in trace.lost)


def test_a_name_with_a_path_in_it_is_only_a_name(trace_of: TraceOf) -> None:
    assert trace_of([{"name": "../../etc/passwd", "ts": 1}]).names == ("../../etc/passwd",)


def test_every_shared_trace_is_read_whole_and_equal_to_what_json_reads(shared_traces: Path) -> None:
    for file in sorted(shared_traces.glob("*.json.gz")):
        with gzip.open(file) as opened:
            events: list[dict[str, Any]] = json.load(opened)["traceEvents"]
        complete = [e for e in events if e.get("ph") == "X" or e["name"] == "[memory]"]

        trace = read_kineto(file, block=256 << 10)

        assert trace.lost == ()
        assert [trace.names[c] for c in trace.name] == [e["name"] for e in complete]
        base = trace.metadata.base_ns or 0
        expected = [int(Decimal(repr(e["ts"])) * 1000) + base for e in complete]
        np.testing.assert_array_equal(trace.start_ns, expected)
        row = len(trace) // 2
        assert trace.args([row]) == [complete[row].get("args", {})]


def test_a_path_may_be_given_as_text_or_as_any_path_object(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_text('{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1}]}')

    assert len(read_trace(os.fspath(file))) == len(read_trace(file)) == 1
