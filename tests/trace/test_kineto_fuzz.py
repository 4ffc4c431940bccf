"""Whatever bytes stand in a file: no error but TraceError, no wait, and the events that are sound."""

from __future__ import annotations

import gzip
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from perfkit.errors import TraceError
from perfkit.trace import Trace, read_trace
from perfkit.trace.kineto import read_kineto

COUNT = 12


def events() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for i in range(COUNT):
        cat = ("cpu_op", "kernel", "cuda_runtime", "python_function")[i % 4]
        args = {"correlation": i, "stream": 7, "device": 0, "Input Dims": [[i, 2], []], "Python id": i}
        rows.append(
            {"ph": "X", "cat": cat, "name": f"e{i}", "pid": 1, "tid": 2, "ts": i + 0.5, "dur": 0.25, "args": args}
        )
    memory = {"Bytes": -512, "Device Type": 1, "Device Id": 0, "Total Allocated": 9}
    rows.insert(5, {"ph": "i", "name": "[memory]", "pid": 1, "tid": 2, "ts": 5, "args": memory})
    rows.insert(2, {"ph": "s", "id": 3, "pid": 1, "tid": 2, "ts": 1, "cat": "ac2g", "name": "ac2g"})
    rows.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "main"}})
    return rows


def written() -> tuple[bytes, list[tuple[int, int]]]:
    """A file, and where in it the complete events stand."""
    text, places = '{\n  "schemaVersion": 1,\n  "traceEvents": [\n  ', []
    for i, event in enumerate(events()):
        body = json.dumps(event, indent=2).replace("\n", "\n  ")
        text += ",\n  " if i else ""
        if event["ph"] == "X":
            places.append((len(text), len(text) + len(body)))
        text += body
    return (text + '\n  ],\n  "baseTimeNanoseconds": 1000,\n  "traceName": "t.json"\n}\n').encode(), places


FILE, PLACES = written()

#: What breaks parsers: structure, halves of escapes and characters, words and numbers that JSON lacks.
TOKENS = [
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\n  },\n  {", b"]}", b'"ph": "X"', b'"traceEvents": ['),
    *(b"\\u", b"\\ud800", b"\\udc00", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\0", b"\x1f", b"\xef\xbb\xbf"),
    *(b"NaN", b"-inf", b"N/A", b"null", b"true", b"[]", b"{}", b'""', b"-", b"1e999", b"-0", b"0x1F", b"9" * 400),
    *(b"9223372036854775808", b"4611686018427387904", b"1711964646000000.125", b"8796093022208.001", b"[" * 600),
]


def mutated(rng: random.Random, low: int, high: int, data: bytes) -> bytes:
    """The data with a few changes between two places; outside them each byte stays."""
    middle = bytearray(data[low:high])
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(middle) + 1)
        way = rng.randrange(5)
        if way == 0 and middle:
            middle[min(at, len(middle) - 1)] = rng.randrange(256)
        elif way == 1:
            middle[at:at] = rng.choice(TOKENS)
        elif way == 2:
            del middle[at : at + rng.choice((1, 2, 8, 40))]
        elif way == 3:
            other = rng.randrange(len(middle) + 1)
            middle[at:at] = middle[other : other + rng.choice((1, 4, 30))]
        else:
            middle[at : at + rng.choice((1, 3, 9))] = rng.choice(TOKENS)
    return data[:low] + bytes(middle) + data[high:]


def use(trace: Trace) -> None:
    """Everything that looks at a trace, or at its file again."""
    n = len(trace)
    columns = (trace.start_ns, trace.end_ns, trace.name, trace.track, trace.kind, trace.correlation, trace.device)
    assert all(column.size == n for column in (*columns, trace.stream, trace.bytes, trace.sequence))
    assert (trace.end_ns >= trace.start_ns).all()
    if n:
        assert 0 <= trace.name.min() <= trace.name.max() < len(trace.names)
        assert 0 <= trace.track.min() <= trace.track.max() < len(trace.tracks)
    "".join(trace.names).encode()
    assert (trace.parent < n).all()
    assert (trace.launch < n).all()
    assert (trace.caller < n).all()
    assert len(trace.args(range(n))) == n
    for field in trace.fields(range(n), ["Input Dims", "correlation", "Bytes"]).values():
        assert len(field.list()) == field.numbers().size == n
    repr(trace.metadata)


def read_or_refused(file: Path, block: int | None) -> None:
    """Read the file and use what was read, or expect a one-line error."""
    try:
        trace = read_kineto(file, block=block) if block else read_trace(file)
    except TraceError as error:
        refusal = str(error)
    else:
        use(trace)
        return
    assert str(file) in refusal
    assert "\n" not in refusal


def check(folder: Path, seed: int) -> None:
    """One mutated file: anywhere, or in one event, of which the adjacent events must survive."""
    rng = random.Random(seed)
    file = folder / "t.json"
    block = rng.choice((64, 300, 1500, 1 << 20))
    if rng.random() < 0.5:
        data = mutated(rng, 0, len(FILE), FILE)
        if rng.random() < 0.3:
            data = data[: rng.randrange(len(data) + 1)]
        if rng.random() < 0.3:
            packed = gzip.compress(data, 1)
            data = mutated(rng, 0, len(packed), packed) if rng.random() < 0.7 else packed
        file.write_bytes(data)
        read_or_refused(file, block)
        return
    damaged = rng.randrange(COUNT)
    file.write_bytes(mutated(rng, *PLACES[damaged], FILE))
    trace = read_kineto(file, block=block)
    use(trace)
    # The damage may open a string or a bracket that swallows the neighbours, and no more.
    sound = {f"e{i}" for i in range(COUNT) if abs(i - damaged) > 1}
    assert sound <= set(trace.names), (seed, sound - set(trace.names))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**40))
@pytest.mark.timeout(120)
def test_a_mutated_file_gives_its_sound_events_or_one_line_of_error(tmp_path: Path, seed: int) -> None:
    check(tmp_path, seed)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_thousands_of_mutated_files_do(tmp_path: Path) -> None:
    minutes = float(os.environ.get("PERFKIT_FUZZ_MINUTES", "2"))
    seed, stop = random.SystemRandom().randrange(2**40), time.monotonic() + 60 * minutes
    while time.monotonic() < stop:
        begin = time.monotonic()
        check(tmp_path, seed)
        assert time.monotonic() - begin < 60, seed  # a file of 4 kB: a hang, not a slow machine
        seed += 1


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300))
@example(data=b"[")
@example(data=b'{"traceEvents":[')
@example(data=b'\xef\xbb\xbf[{"ph":"X","ts":1,"dur":1}]')
def test_bytes_that_are_no_trace_are_refused_or_read(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "t.json"
    for start in (b"", b"[", b'{"traceEvents": [', b"\x1f\x8b", b"SQLite format 3\0"):
        file.write_bytes(start + data)
        read_or_refused(file, None)


def test_the_file_that_is_mutated_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_bytes(FILE)

    trace = read_kineto(file)

    assert (len(trace), trace.lost) == (COUNT + 1, ())
    np.testing.assert_array_equal(trace.start_ns[:2], [1500, 2500])
    use(trace)
