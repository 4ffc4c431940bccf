"""Arguments of many rows, and the events of memory."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfkit.errors import TraceError
from perfkit.trace import Kind, Trace, file_text, read_trace
from perfkit.trace.kineto import read_kineto

TraceOf = Callable[..., Trace]


def test_fields_of_many_rows_are_those_that_args_gives(trace_of: TraceOf) -> None:
    some = [{"grid": [1, 1], "occupancy": 0.5}, {"grid": None}, {}, {"occupancy": "inf"}, {"grid": [0, 1]}]
    trace = trace_of([{"ts": i, "args": some[i % 5]} for i in range(200)])
    rows = [7, 0, 4, 1, 2, 3, 100]

    fields = trace.fields(rows, ("grid", "occupancy", "none", "grid"))

    assert list(fields) == ["grid", "occupancy", "none"]
    assert fields["grid"].list() == [args.get("grid") for args in trace.args(rows)]
    assert fields["occupancy"].list() == [args.get("occupancy") for args in trace.args(rows)]
    assert fields["none"].codes.tolist() == [-1] * 7
    assert len(fields["grid"].values) == 3  # [0, 1], [1, 1], null: equal values stand once


def test_a_field_is_also_numbers(trace_of: TraceOf) -> None:
    values = [3, 0.5, "7", "inf", "N/A", None, [1], True]
    trace = trace_of([{"ts": i, "args": {"a": value}} for i, value in enumerate(values)] + [{"ts": 9}])

    numbers = trace.fields(range(9), ["a"])["a"].numbers().tolist()

    assert numbers[:4] == [3.0, 0.5, 7.0, math.inf]
    assert all(math.isnan(number) for number in numbers[4:])


def test_fields_of_repaired_events_are_there_too(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    event = '{"ph": "X", "name": "%s", "ts": %d, "dur": 1, "args": {"k": [%s, 2]}}'
    names = ["good", "bad \\x", "bad \x01", "good"]
    file.write_text("[" + ",".join(event % (name, i, i) for i, name in enumerate(names)) + "]")

    trace = read_trace(file)

    assert trace.fields([3, 1, 2, 0], ["k"])["k"].list() == [[3, 2], [1, 2], [2, 2], [0, 2]]
    assert trace.args([2]) == [{"k": [2, 2]}]


@pytest.mark.parametrize("value", ["9" * 5000, '"\\ud800"', "[" * 500 + "]" * 500, "1e999", '{"a": {}}'])
def test_an_argument_that_cannot_be_decoded_is_no_error(tmp_path: Path, value: str) -> None:
    file = tmp_path / "t.json"
    file.write_text(f'[{{"ph": "X", "name": "a", "ts": 1, "dur": 1, "args": {{"k": {value}, "l": 3}}}}]')

    trace = read_trace(file)

    assert len(trace) == 1
    trace.args([0])
    assert trace.fields([0], ["k", "l"])["l"].list() in ([3], [None])


def test_fields_of_a_file_that_changed_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_text('[{"ph": "X", "ts": 1, "dur": 1}]')
    trace = read_trace(file)
    file.unlink()

    with pytest.raises(TraceError, match="can no longer be read"):
        trace.fields([0], ["a"])


def test_a_gzip_file_is_entered_near_the_rows_and_not_read_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_text, "RESUME_EVERY", 50_000)
    file = tmp_path / "t.json.gz"
    events = [{"ph": "X", "ts": i, "dur": 1, "args": {"k": str(hash(("x", i)))}} for i in range(20_000)]
    whole = json.dumps({"traceEvents": events}).encode()
    half = len(whole) // 2
    file.write_bytes(gzip.compress(whole[:half], 1) + gzip.compress(whole[half:], 9))
    trace = read_kineto(file, block=4096)
    reader = trace.fields_reader.__self__  # type: ignore[union-attr]  # a bound method
    read: list[int] = []
    reader.text.progress = lambda done, total: read.append(done)

    for rows in ([19_999], [10_001, 3], [5_000, 19_000]):
        read.clear()
        assert trace.fields(rows, ["k"])["k"].list() == [events[row]["args"]["k"] for row in rows]  # type: ignore[index]
        if len(rows) == 1:
            assert min(read) > file.stat().st_size // 2


MEMORY: dict[str, Any] = {"ph": "i", "s": "t", "name": "[memory]", "cat": "cpu_instant_event"}


def test_allocations_and_frees_are_rows_with_signed_bytes(trace_of: TraceOf) -> None:
    args = {"Total Allocated": 512, "Total Reserved": 2048, "Device Type": 1, "Device Id": 2, "Addr": 77}
    trace = trace_of(
        [
            {"name": "op", "ts": 1},
            {**MEMORY, "ts": 2.5, "args": {**args, "Bytes": 512}},
            {**MEMORY, "ts": 3, "args": {**args, "Bytes": -512}},
            {**MEMORY, "ts": 4, "args": {"Device Type": 0, "Device Id": -1, "Bytes": 64}},
            {"ph": "i", "name": "Record Window End", "ts": 5},
            {**MEMORY, "ts": 6, "args": {"Bytes": "many"}},
            {"name": "op", "ts": 7, "args": {"Addr": 8}},
        ]
    )

    memory = trace.is_kind(Kind.MEMORY).nonzero()[0]

    assert memory.tolist() == [1, 2, 3, 4]
    assert trace.bytes.tolist() == [-1, 512, -512, 64, 0, -1]
    assert trace.device.tolist() == [-1, 2, 2, -1, -1, -1]
    assert trace.start_ns[1] == trace.end_ns[1] == 2500
    assert trace.fields(memory, ["Total Allocated"])["Total Allocated"].list() == [512, 512, None, None]
    assert trace.args([5, 2])[0] == {"Addr": 8}
    assert memory.size + 2 == len(trace)
    assert not set(memory.tolist()) & set(trace.host_rows.tolist())


def test_python_frames_know_their_caller_by_id(trace_of: TraceOf) -> None:
    ids = [(1, None), (2, 1), (3, 2), (4, 1), (5, 99)]
    trace = trace_of(
        [
            {"cat": "python_function", "ts": 5, "args": {"Python id": own, "Python parent id": above}}
            for own, above in ids
        ]
        + [{"ts": 1}]
    )

    assert trace.caller.tolist() == [-1, 0, 1, 0, -1, -1]
