"""Damaged and unusual files: the undamaged part is read, and the rest is reported."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfkit.trace import Trace
from perfkit.trace.kineto import read_kineto

Events = list[dict[str, Any]]
#: Blocks so small that these files have many chunks, and the default, in which they are one.
BLOCKS = (2 << 10, 64 << 10, 4 << 20)


def kineto_text(events: Events, **around: Any) -> str:
    body = ",\n  ".join(json.dumps(one, indent=2).replace("\n", "\n  ") for one in events)
    after = {"traceName": "t.json", "displayTimeUnit": "ms", **around}
    tail = ",\n  ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in after.items())
    return '{\n  "schemaVersion": 1,\n  "traceEvents": [\n  ' + body + "\n  ],\n  " + tail + "\n}"


def many_events(count: int = 120) -> Events:
    """A few hundred events of the kinds that real traces mix, with times of three decimals."""
    events: Events = []
    for i in range(count):
        at = 4305290206062.066 + i * 10.25
        thread = {"pid": 10, "tid": 11}
        op = {"External id": 1, "Sequence number": 7, "Input Dims": [[1, 2], [{"a": "}"}]]}
        call = {"correlation": 100 + i, "cbid": 211}
        work = {"device": 0, "stream": 7, "correlation": 100 + i, "context": 1, "blocks per SM": "inf"}
        op_name = f"aten::op{i % 7}"
        events += [
            {"ph": "X", "cat": "cpu_op", "name": op_name, **thread, "ts": at, "dur": 4.007, "args": op},
            {"ph": "f", "id": 1, **thread, "ts": at, "cat": "ac2g", "name": "ac2g", "bp": "e"},
            {"ph": "X", "cat": "cuda_runtime", "name": "launch", **thread, "ts": at + 1, "dur": 2.5, "args": call},
            {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": at + 5, "dur": 3.125, "args": work},
        ]
    return events


def same_events(one: Trace, other: Trace, count: int | None = None) -> None:
    """Equal in every column, or in the first ``count`` rows."""
    count = len(other) if count is None else count
    assert len(one) == count
    for column in ("start_ns", "end_ns", "kind", "correlation", "device", "stream", "bytes", "sequence"):
        np.testing.assert_array_equal(getattr(one, column), getattr(other, column)[:count], column)
    assert [one.names[c] for c in one.name] == [other.names[c] for c in other.name[:count]]
    assert [one.tracks[c].thread for c in one.track] == [other.tracks[c].thread for c in other.track[:count]]


def whole(events: Events) -> str:
    return kineto_text(events)


def minified(events: Events) -> str:
    return json.dumps({"schemaVersion": 1, "traceEvents": events}, separators=(",", ":"))


def indent_4(events: Events) -> str:
    return json.dumps({"schemaVersion": 1, "traceEvents": events}, indent=4)


def bare_list(events: Events) -> str:
    return json.dumps(events, indent=2)


def crlf(events: Events) -> str:
    return kineto_text(events).replace("\n", "\r\n")


def byte_order_mark(events: Events) -> str:
    return "\ufeff" + kineto_text(events)


def keys_reordered(events: Events) -> str:
    return kineto_text([dict(sorted(e.items(), reverse=True)) for e in events])


def metadata_after(events: Events) -> str:
    return json.dumps({"traceEvents": events, "deviceProperties": [{"id": 0}, {"id": 1}], "schemaVersion": 1})


def metadata_with_the_same_words_before(events: Events) -> str:
    return json.dumps({"note": 'has "traceEvents": [ in it', "traceEvents": events})


def string_times(events: Events) -> str:
    return kineto_text([{**e, "ts": str(e["ts"])} for e in events])


def args_null_elsewhere(events: Events) -> str:
    extra = {"ph": "i", "name": "Record Window End", "ts": 1, "pid": 1, "tid": 1, "args": None}
    return kineto_text([extra, *events])


def begin_and_end_letters(events: Events) -> str:
    extra = {"ph": "B", "name": "x", "ts": 1, "pid": 1, "tid": 1}
    return kineto_text([extra, *events, {**extra, "ph": "E"}])


def unknown_letter(events: Events) -> str:
    return kineto_text([{"ph": "?", "name": "x", "ts": 1}, *events])


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(
    "write",
    [
        minified, indent_4, bare_list, crlf, byte_order_mark, keys_reordered, metadata_after,
        metadata_with_the_same_words_before, string_times, args_null_elsewhere, begin_and_end_letters, unknown_letter,
    ],
)  # fmt: skip
def test_every_way_of_writing_a_trace_gives_the_same_columns(
    tmp_path: Path, write: Callable[[Events], str], block: int
) -> None:
    plain, other = tmp_path / "plain.json", tmp_path / "other.json"
    plain.write_bytes(whole(many_events()).encode())
    other.write_bytes(write(many_events()).encode())

    same_events(read_kineto(other, block=block), read_kineto(plain))


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(
    "name",
    ['a } , { "b" ]}', "]}", "\n  },\n  {", '"traceEvents": [', "\\", "é€😀", "a\\\"},{"],
)  # fmt: skip
def test_a_name_may_contain_text_like_the_end_of_an_event(tmp_path: Path, name: str, block: int) -> None:
    file = tmp_path / "t.json"
    file.write_text(kineto_text([{**e, "name": name} for e in many_events()]), encoding="utf-8")

    trace = read_kineto(file, block=block)

    assert len(trace) == 360
    assert trace.names == (name,)
    assert trace.lost == ()


def raw(events: Events, at: int, old: str, new: bytes) -> bytes:
    """The file with one piece of text of one event replaced by bytes that no JSON writer would write."""
    marked = [{**e, "name": "MARKED " + e["name"]} if i == at else e for i, e in enumerate(events)]
    text = kineto_text(marked).encode()
    place = text.index(b"MARKED ")
    begin = text.index(old.encode(), place)
    return (text[:begin] + new + text[begin + len(old) :]).replace(b"MARKED ", b"")


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("aten::", b"C:\\Windows\\x "),
        ("aten::", b"tab\there\x01 "),
        ("aten::", b"\xff\xfe "),
        ('"External id": 1', b'"memory bandwidth (GB/s)": NaN'),
        ('"External id": 1', b'"memory bandwidth (GB/s)": -inf'),
        ('"External id": 1', b'"memory bandwidth (GB/s)": N/A'),
    ],
    ids=["backslash", "control characters", "utf-8", "NaN", "-inf", "N/A"],
)
def test_text_that_is_no_json_is_repaired_and_costs_no_event(tmp_path: Path, old: str, new: bytes, block: int) -> None:
    plain, file = tmp_path / "plain.json", tmp_path / "t.json"
    plain.write_text(whole(many_events()))
    file.write_bytes(raw(many_events(), 160, old, new))

    trace = read_kineto(file, block=block)

    expected = read_kineto(plain)
    assert len(trace) == len(expected)
    np.testing.assert_array_equal(trace.start_ns, expected.start_ns)
    assert any("repaired" in sentence for sentence in trace.lost)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "N/A", "null", '"soon"', "1e400", "[]", "9" * 5000])
@pytest.mark.parametrize("key", ["ts", "dur"])
def test_an_event_without_a_usable_time_is_skipped_and_counted(tmp_path: Path, key: str, value: str) -> None:
    file = tmp_path / "t.json"
    number = json.dumps(many_events()[160][key])
    file.write_bytes(raw(many_events(), 160, f'"{key}": {number}', f'"{key}": {value}'.encode()))

    trace = read_kineto(file)

    assert len(trace) == 359
    assert any("1 events" in sentence for sentence in trace.lost)


@pytest.mark.parametrize("block", BLOCKS)
def test_an_event_beyond_repair_costs_only_itself(tmp_path: Path, block: int) -> None:
    file = tmp_path / "t.json"
    file.write_bytes(raw(many_events(), 160, '"pid"', b'"pid'))

    trace = read_kineto(file, block=block)

    assert len(trace) == 359
    assert "1 events were skipped because they are damaged beyond repair" in trace.lost


@pytest.mark.parametrize("block", BLOCKS)
def test_a_file_that_lost_its_last_lines_keeps_every_event(tmp_path: Path, block: int) -> None:
    plain, cut = tmp_path / "plain.json", tmp_path / "cut.json"
    text = whole(many_events())
    plain.write_text(text)
    cut.write_text(text[: text.index("traceName") + 4])

    trace = read_kineto(cut, block=block)

    same_events(trace, read_kineto(plain))
    assert trace.lost == ("the file is cut: events after the cut are missing",)


def test_metadata_after_the_events_may_be_long(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    notes = [f"INFO: line {i} [{i}]" for i in range(100_000)]
    file.write_text(kineto_text(many_events(), INFO=notes, distributedInfo={"rank": 5}))

    trace = read_kineto(file)

    assert (len(trace), trace.lost, trace.metadata.rank) == (360, (), 5)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_gzip_file_reads_like_its_text_and_may_have_several_members(tmp_path: Path, block: int) -> None:
    plain, packed = tmp_path / "plain.json", tmp_path / "t.json.gz"
    text = whole(many_events()).encode()
    plain.write_bytes(text)
    packed.write_bytes(gzip.compress(text[:5000]) + gzip.compress(text[5000:]))

    trace = read_kineto(packed, block=block)

    same_events(trace, read_kineto(plain))
    assert trace.lost == ()


def test_a_cut_gzip_file_is_read_as_far_as_it_inflates(tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain.json", tmp_path / "t.json.gz"
    text = whole(many_events()).encode()
    plain.write_bytes(text)
    data = gzip.compress(text)
    packed.write_bytes(data[: len(data) * 6 // 10])

    trace = read_kineto(packed)

    assert 50 < len(trace) < 360
    same_events(trace, read_kineto(plain), len(trace))
    assert trace.lost == ("the gzip stream is cut: events after that point are missing",)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), block=st.sampled_from(BLOCKS))
def test_any_prefix_of_a_file_gives_exactly_the_complete_events_in_it(
    tmp_path: Path, data: st.DataObject, block: int
) -> None:
    events = many_events(10)
    text = whole(events)
    begin = text.index("[") + 1
    length = data.draw(st.integers(begin, len(text)))
    plain, cut = tmp_path / "plain.json", tmp_path / "cut.json"
    plain.write_text(text)
    cut.write_text(text[:length])
    # An event is complete when its closing brace is there; the writer puts that at this indent only.
    complete = [i for i, e in enumerate(events) if text.index("\n  }", _place(text, i)) + 4 <= length]
    rows = sum(events[i]["ph"] == "X" for i in complete)

    trace = read_kineto(cut, block=block)

    same_events(trace, read_kineto(plain), rows)
    assert trace.lost or length == len(text)


def _place(text: str, index: int) -> int:
    place = text.index("[")
    for _ in range(index + 1):
        place = text.index("\n  {", place + 1) if _ else text.index("{", place)
    return place


@pytest.mark.parametrize("block", BLOCKS)
def test_a_bracket_between_two_events_does_not_end_the_trace(tmp_path: Path, block: int) -> None:
    plain, file = tmp_path / "plain.json", tmp_path / "t.json"
    text = whole(many_events())
    plain.write_text(text)
    place = _place(text, 240)
    file.write_text(text[: place - 1] + "]" + text[place - 1 :])

    trace = read_kineto(file, block=block)

    # Where they join is damaged: it costs the two at the most, and not the 120 behind them.
    assert len(read_kineto(plain)) - len(trace) <= 2
    assert trace.lost


def test_half_a_surrogate_pair_becomes_a_character_that_can_be_printed(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    names = ["\\ud83d\\ude00", "\\ud83d x", "\\ude00", "\\\\ud83d", "\\u00e9"]
    file.write_text("[" + ",".join(f'{{"ph": "X", "name": "{name}", "ts": 1, "dur": 1}}' for name in names) + "]")

    trace = read_kineto(file)

    assert trace.names == ("\U0001f600", "\ufffd x", "\ufffd", "\\ud83d", "é")
