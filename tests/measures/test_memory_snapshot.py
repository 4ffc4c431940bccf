from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfkit.measures.gathering import measure as measure_path
from perfkit.measures.memory.memory_snapshot import measure_memory_snapshot
from perfkit.measures.results.memory import DeviceMemory, MemorySnapshot
from perfkit.trace.memory_snapshot import read_memory_snapshot

TORCH = {"filename": "/opt/lib/python3.11/site-packages/torch/nn/modules/linear.py", "line": 134, "name": "forward"}


def frames(line: int) -> list[dict[str, Any]]:
    return [TORCH, {"filename": "/home/me/train.py", "line": line, "name": "step"}]


def entry(action: str, address: int, size: int, line: int = 1, at: int | None = None) -> dict[str, Any]:
    times = {} if at is None else {"time_us": at}
    return {"action": action, "addr": address, "size": size, "stream": 0, "frames": frames(line), **times}


def measure(folder: Path, entries: list[dict[str, Any]], active: dict[int, tuple[int, int]]) -> DeviceMemory:
    """``active`` are the blocks that are there at the end: address -> (size, line)."""
    blocks = [
        {"size": size, "address": address, "state": "active_allocated", "frames": frames(line)}
        for address, (size, line) in active.items()
    ]
    total = sum(size for size, _ in active.values())
    segment = {"device": 0, "address": 0, "total_size": total, "allocated_size": total, "blocks": blocks}
    file = folder / "memory-0.pickle"
    file.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [entries]}))
    (found,) = measure_memory_snapshot(read_memory_snapshot(file))
    return found


def test_holders_of_the_peak_are_by_line_also_those_from_before(tmp_path: Path) -> None:
    history = [
        entry("alloc", 1, 100, line=10, at=1_000),
        entry("segment_alloc", 1, 9_999, at=1_000),
        entry("free_requested", 2, 50, line=11, at=2_000),
        entry("alloc", 3, 400, line=12, at=3_000),
        entry("free_requested", 3, 400, line=13, at=4_000),
        entry("free_completed", 3, 400, line=13, at=4_000),
    ]

    found = measure(tmp_path, history, {1: (100, 10), 7: (1_000, 5)})

    # 1000 of line 5 were there all the time, 50 were freed before the peak.
    assert (found.device, found.peak_bytes, found.peak_ns) == ("cuda:0", 1_500, 3_000_000)
    assert [(one.bytes, one.function) for one in found.held] == [
        (1_000, "/home/me/train.py(5): step"),
        (400, "/home/me/train.py(12): step"),
        (100, "/home/me/train.py(10): step"),
    ]
    assert (found.other_bytes, found.before_bytes, found.allocations, found.frees) == (0, 0, 2, 2)
    assert found.timeline is not None
    assert max(found.timeline.allocated_bytes) == 1_500


def test_what_was_freed_after_the_peak_but_allocated_before_the_history_is_before(tmp_path: Path) -> None:
    history = [entry("alloc", 1, 100), entry("free_requested", 2, 30), entry("free_requested", 1, 100)]

    found = measure(tmp_path, history, {})

    assert (found.peak_bytes, found.before_bytes) == (130, 30)
    assert (found.peak_ns, found.timeline) == (None, None)


def test_a_history_of_frees_alone_was_highest_before_it(tmp_path: Path) -> None:
    found = measure(tmp_path, [entry("free_requested", 2, 30)], {5: (8, 1)})

    assert (found.peak_bytes, found.before_bytes) == (38, 30)


def test_without_a_history_what_is_held_now_is_reported(tmp_path: Path) -> None:
    found = measure(tmp_path, [], {5: (8, 1), 6: (4, 2)})

    assert (found.peak_bytes, found.before_bytes, len(found.held)) == (12, 0, 2)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 10**6)), max_size=40),
    st.dictionaries(st.integers(10, 19), st.tuples(st.integers(1, 10**6), st.integers(1, 5)), max_size=5),
)
def test_holders_and_what_was_before_sum_to_the_peak_of_any_history(
    tmp_path: Path, toggles: list[tuple[int, int]], old: dict[int, tuple[int, int]]
) -> None:
    held = dict(old)
    level = highest = sum(size for size, _ in old.values())
    history = []
    for address, size in toggles:
        if address in held:
            gone, line = held.pop(address)
            history.append(entry("free_requested", address, gone, line))
            level -= gone
        else:
            held[address] = (size, address)
            history.append(entry("alloc", address, size, address))
            level += size
        highest = max(highest, level)

    found = measure(tmp_path, history, held)

    assert found.peak_bytes == highest
    assert (found.before_bytes or 0) >= 0
    assert sum(one.bytes for one in found.held) + (found.other_bytes or 0) + (found.before_bytes or 0) == highest
    assert found.before_bytes == 0


def test_the_newest_snapshot_of_a_run_that_can_be_read_is_measured(tmp_path: Path) -> None:
    rank = tmp_path / "run" / "rank-0"
    rank.mkdir(parents=True)
    measure(rank, [entry("alloc", 1, 64)], {1: (64, 1)})
    (rank / "memory-0.pickle").rename(rank / "memory-9.pickle")
    (rank / "memory-10.pickle").write_bytes(pickle.dumps(Path))
    (rank / "window-0.pt.trace.json").write_text('{"traceEvents": []}')

    measured = measure_path(tmp_path / "run")

    assert [one.peak_bytes for one in measured.all(MemorySnapshot)] == [64]
    assert any("memory-10.pickle" in sentence for sentence in measured.missing)
