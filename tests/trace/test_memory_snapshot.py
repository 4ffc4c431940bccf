"""Memory snapshots are read; what a pickle could call is never called."""

from __future__ import annotations

import io
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from perfkit._location import Location
from perfkit.errors import TraceError
from perfkit.measures.memory.memory_snapshot import measure_memory_snapshot
from perfkit.trace import memory_snapshot
from perfkit.trace.memory_snapshot import MemoryBlock, MemorySegment, read_memory_snapshot


def snapshot() -> dict[str, Any]:
    """Two tensors of one line in a segment, as torch.cuda.memory._snapshot describes them."""
    frames = [{"filename": "train.py", "line": 12, "name": "step"}, {"filename": "main.py", "line": 3, "name": "<m>"}]
    active = {"size": 512, "requested_size": 500, "address": 4096, "state": "active_allocated", "frames": frames}
    free = {"size": 1536, "requested_size": 0, "address": 4608, "state": "inactive", "frames": []}
    segment = {
        "device": 1, "address": 4096, "total_size": 2048, "stream": 0, "segment_type": "small",
        "segment_pool_id": (0, 0), "allocated_size": 512, "active_size": 512, "blocks": [active, free],
    }  # fmt: skip
    alloc = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "time_us": 1_711_305_206_062_125}
    entries = [
        {**alloc, "frames": frames, "pool_id": (0, 0)},
        {**alloc, "action": "free_requested", "frames": [dict(frame) for frame in frames]},
        {"action": "oom", "size": 1 << 40, "stream": 0, "device_free": 77, "frames": []},
    ]
    return {"segments": [segment], "device_traces": [[], entries], "allocator_settings": {"expandable_segments": False}}


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_segments_blocks_stacks_and_history_of_a_snapshot(tmp_path: Path, protocol: int) -> None:
    file = tmp_path / "memory-0.pickle"
    file.write_bytes(pickle.dumps(snapshot(), protocol))

    read = read_memory_snapshot(file)

    assert read.segments == (MemorySegment(1, 4096, 2048, 512, 512, 0, "small"),)
    assert read.blocks == (
        MemoryBlock(0, 4096, 512, 500, "active_allocated", 0),
        MemoryBlock(0, 4608, 1536, 0, "inactive", -1),
    )
    assert read.stacks == (
        (Location(file="train.py", line=12, function="step"), Location(file="main.py", line=3, function="<m>")),
    )
    assert [read.actions[code] for code in read.action] == ["alloc", "free_requested", "oom"]
    assert read.device.tolist() == [1, 1, 1]
    assert read.stack.tolist() == [0, 0, -1]
    assert read.address.tolist() == [4096, 4096, -1]
    assert read.bytes.tolist() == [512, 512, 1 << 40]
    assert read.time_ns.tolist() == [1_711_305_206_062_125_000] * 2 + [-1]
    assert read.lost == ()


def test_what_torch_does_not_write_is_skipped_and_reported(tmp_path: Path) -> None:
    file = tmp_path / "memory-0.pickle"
    odd = snapshot()
    odd["segments"] += [7, {"total_size": "much"}]
    odd["device_traces"][1] += [{"action": 5}, {"action": "alloc", "addr": -4, "size": 10**30, "frames": "x"}]
    file.write_bytes(pickle.dumps(odd))

    read = read_memory_snapshot(file)

    assert len(read.segments) == 1
    assert read.bytes.tolist()[-1] == -1
    assert read.lost == ("3 records were skipped because they are not in torch's format",)


class Calls:
    """Unpickled by pickle, it calls os.mkdir() with a path."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_calls_something_is_refused_and_nothing_is_called(tmp_path: Path, protocol: int) -> None:
    file, victim = tmp_path / "memory-0.pickle", tmp_path / "victim"
    file.write_bytes(pickle.dumps({"segments": [Calls(victim)], "device_traces": []}, protocol))

    with pytest.raises(TraceError, match="asks for a class or a function, and only plain dicts"):
        read_memory_snapshot(file)

    assert not victim.exists()
    pickle.loads(file.read_bytes())
    assert victim.exists()  # the pickle was a working one


def nested(opening: bytes, count: int) -> bytes:
    return b"\x80\x04" + opening * count + b"."


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", "asks for a class or a function"),
        (b"(ios\nsystem\n.", "asks for a class or a function"),
        (b"(S'true'\no.", "contains what no snapshot contains"),
        (pickle.dumps(OrderedDict(segments=[])), "asks for a class or a function"),
        (pickle.dumps({"segments": {1, 2}}), "contains what no snapshot contains"),
        (pickle.dumps({"segments": b"bytes"}), "contains what no snapshot contains"),
        (b"\x80\x02Pid\n.", "refers to things outside itself"),
        (b"\x80\x02\x82\x01.", "refers to things outside itself"),
        (b"\x80\x04]r\xff\xff\xff\x7f.", "numbers that no pickler gives"),
        (b"\x80\x04X\xff\xff\xff\x7fabc.", "it is cut"),
        (b"\x80\x04\x8d" + b"\xff" * 8 + b"abc.", "it is cut"),
        (nested(b"(", 100), "nested more than 64 deep"),
        (nested(b"]", 20_000), "values wait"),
        (nested(b")0", 10), "contains what no snapshot contains"),
        (b"\x80\x04)" + b"\x85" * 6_000_000 + b".", "over 5,000,000 containers"),
        (b"\x80\x04)" + b"\x85" * 500_000 + b".", "no list of segments"),
        (b"\x80\x04}(" + b")" + b"\x86" * 3 + b"K\x01u.", "its pickle is invalid"),
        (b"\x80\x04}()K\x01u.", "its pickle is invalid"),
        (b"\x80\x04]h\x05a.", "its pickle is invalid"),
        (b"\x80\x04ae.", "its pickle is invalid"),
        (b"\x80\x04}", "its pickle is invalid"),
        (b"", "its pickle is invalid"),
        (b"{}", "contains what no snapshot contains"),
        (pickle.dumps([1, 2]), "no list of segments"),
        (pickle.dumps({"segments": None}), "no list of segments"),
    ],
    ids=range(25),
)
def test_a_hostile_or_foreign_pickle_is_refused_in_one_line(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "memory-0.pickle"
    file.write_bytes(content)

    with pytest.raises(TraceError, match=reason) as raised:
        read_memory_snapshot(file)

    assert "\n" not in str(raised.value)


def test_lists_that_stand_in_each_other_many_times_are_not_followed_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_snapshot, "MAX_RECORDS", 200_000)
    file = tmp_path / "memory-0.pickle"
    blocks: list[Any] = [{"size": 1}] * 10_000
    file.write_bytes(pickle.dumps({"segments": [{"total_size": 1, "blocks": blocks}] * 10_000}))

    with pytest.raises(TraceError, match="repeats itself to more than 200,000 records"):
        read_memory_snapshot(file)


def test_a_cut_pickle_and_a_missing_or_too_large_one_are_reported_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "memory-0.pickle"
    whole = pickle.dumps(snapshot())
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(TraceError, match=r"its pickle is invalid|it is cut"):
            read_memory_snapshot(file)

    with pytest.raises(TraceError, match="does not exist"):
        read_memory_snapshot(tmp_path / "none.pickle")
    monkeypatch.setattr(memory_snapshot, "MAX_BYTES", 1 << 20)
    file.write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(TraceError, match="more than the 1 MiB that are read"):
        read_memory_snapshot(file)


def test_the_python_pickler_writes_what_is_read_too(tmp_path: Path) -> None:
    file, out = tmp_path / "memory-0.pickle", io.BytesIO()
    pickle._Pickler(out).dump(snapshot())  # type: ignore[attr-defined]  # the pure Python one, of other builds
    file.write_bytes(out.getvalue())

    assert len(read_memory_snapshot(file).blocks) == 2


@pytest.mark.parametrize("size", [2**40 + 1, 2**62, 10**400])
def test_a_size_that_no_device_has_is_no_size(tmp_path: Path, size: int) -> None:
    content = snapshot()
    content["segments"][0]["allocated_size"] = size
    content["device_traces"][1][0]["size"] = size
    file = tmp_path / "memory-0.pickle"
    file.write_bytes(pickle.dumps(content))

    read = read_memory_snapshot(file)

    assert read.segments[0].allocated_bytes == -1
    assert read.bytes.tolist() == [-1, 512, 1 << 40]
    assert measure_memory_snapshot(read)[0].peak_bytes >= 0
