"""What a profile offers of its last window, as users of torch's profiler expect it."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
import torch

import perfkit
from perfkit.errors import UsageError
from perfkit.measures.ops.op_times import measure_op_times
from perfkit.reports.window_export import export_stacks, export_trace
from perfkit.trace import Kind, read_trace


def train(prof: perfkit.profile, steps: int = 16) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in prof.steps([torch.randn(8, 32) for _ in range(steps)]):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> perfkit.profile:
    folder = tmp_path_factory.mktemp("runs") / "stacks"
    with perfkit.profile(folder, quiet=True, with_stack=True, record_shapes=True) as prof:
        train(prof)
    return prof


def window_of(prof: perfkit.profile) -> Path:
    assert prof.folder is not None
    return next(prof.folder.glob("rank-0/window-*"))


def test_key_averages_have_the_ops_of_the_window_in_torchs_names_and_units(recorded: perfkit.profile) -> None:
    averages = recorded.key_averages()
    found = {row.key: row for row in averages}
    expected = measure_op_times(read_trace(window_of(recorded)))

    assert expected is not None
    assert {row.name: (row.count, row.total_ns / 1e3, row.self_ns / 1e3) for row in expected.rows} == {
        row.key: (row.count, row.cpu_time_total, row.self_cpu_time_total) for row in averages
    }
    linear = found["aten::linear"]
    assert linear.count == 6  # three steps of two layers
    assert linear.cpu_time == pytest.approx(linear.cpu_time_total / 6)
    assert linear.device_time_total is linear.self_cuda_time_total is None


def test_the_table_is_sorted_limited_and_refuses_an_unknown_key(recorded: perfkit.profile) -> None:
    averages = recorded.key_averages()
    lines = averages.table(sort_by="cpu_time_total", row_limit=4).splitlines()
    longest = sorted(averages, key=lambda row: -row.cpu_time_total)[:4]

    assert lines[0].startswith("Ops. Totals over 3 steps")
    assert [line.split("  ")[0] for line in lines[2:6]] == [row.key for row in longest]
    assert len(averages.table(row_limit=-1).splitlines()) == len(averages) + 2
    assert max(averages, key=lambda row: row.self_cpu_time_total).key in repr(averages)
    with pytest.raises(UsageError, match="did you mean"):
        averages.table(sort_by="cpu_time_totals")


def test_averages_by_shape_sum_to_those_by_name(recorded: perfkit.profile) -> None:
    by_shape = [row for row in recorded.key_averages(group_by_input_shape=True) if row.key == "aten::addmm"]

    assert {row.input_shapes for row in by_shape} == {"32 8x32 32x32", "4 8x32 32x4"}
    assert [row.count for row in by_shape] == [3, 3]


def test_the_exported_trace_is_that_of_the_window_without_perfkits_threads(
    recorded: perfkit.profile, tmp_path: Path
) -> None:
    recorded.export_chrome_trace(tmp_path / "t.json")
    recorded.export_chrome_trace(tmp_path / "t.json.gz")

    assert gzip.decompress((tmp_path / "t.json.gz").read_bytes()) == (tmp_path / "t.json").read_bytes()
    ours, window = read_trace(tmp_path / "t.json"), read_trace(window_of(recorded))
    for kind in (Kind.OP, Kind.RANGE):
        assert int(ours.is_kind(kind).sum()) == int(window.is_kind(kind).sum()) > 0
    # What perfkit calls on the thread that trains stays: it is in the time of the steps.
    threads = re.compile(r"line_sampler\.py\(\d+\): _run|_drain_until_stopped")
    assert any(map(threads.search, window.names))
    assert not any(map(threads.search, ours.names))


def test_a_thread_of_perfkits_is_left_out_of_an_export_and_of_stacks(tmp_path: Path) -> None:
    """A trace with such a thread: torch records the frames of every thread that existed when it began."""

    def frame(name: str, tid: int, at: int, length: int = 90_000) -> dict[str, object]:
        return {"ph": "X", "cat": "python_function", "name": name, "pid": 1, "tid": tid, "ts": at, "dur": length}

    op = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 2_000, "dur": 4_000}
    events = [
        frame("train.py(3): train", 1, 1_000),
        op,
        frame("threading.py(1002): _bootstrap", 2, 1_000),
        frame("perfkit/record/samplers/line_sampler.py(40): run", 2, 1_100, 80_000),
        frame("hypothesis/internal/gc_times.py(7): callback", 2, 1_200, 10_000),  # collections run in any thread
        frame("threading.py(1002): _bootstrap", 3, 1_000),
        frame("mine.py(40): prefetch", 3, 1_100, 80_000),
        # torch puts threads that existed before the window on one track.
        frame("threading.py(1002): _bootstrap", 0, 1_000),
        frame("mine.py(60): augment", 0, 1_010, 85_000),
        frame("threading.py(1002): _bootstrap", 0, 1_020, 80_000),
        frame("perfkit/ranges/recorder.py(224): _drain_until_stopped", 0, 1_030, 70_000),
    ]
    window = tmp_path / "window-0.pt.trace.json"
    window.write_text(json.dumps({"traceEvents": events}))

    export_trace(window, tmp_path / "t.json")
    export_stacks(window, None, tmp_path / "t.stacks", "self_cpu_time_total")

    kept = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {event["tid"] for event in kept} == {0, 1, 3}
    stacks = (tmp_path / "t.stacks").read_text()
    assert "line_sampler" not in stacks
    assert "train.py(3):_train;aten::mm 4000" in stacks
    assert "mine.py(40):_prefetch 80000" in stacks
    assert "mine.py(60):_augment 85000" in stacks
    assert "recorder" not in stacks


def test_stacks_have_the_users_functions_and_the_ops_that_they_call(recorded: perfkit.profile, tmp_path: Path) -> None:
    recorded.export_stacks(tmp_path / "w.stacks")
    lines = (tmp_path / "w.stacks").read_text().splitlines()

    assert all(re.fullmatch(r"\S+ \d+", line) for line in lines)
    assert any("test_last_window.py" in line and ";aten::linear;" in line for line in lines)
    with pytest.raises(UsageError, match="no device work"):
        recorded.export_stacks(tmp_path / "w.stacks", "self_cuda_time_total")
    with pytest.raises(UsageError, match="did you mean self_cpu_time_total"):
        recorded.export_stacks(tmp_path / "w.stacks", "cpu_time_total")


def test_before_a_window_was_recorded_an_error_says_when_there_is_one(tmp_path: Path) -> None:
    prof = perfkit.profile(tmp_path / "run", quiet=True)
    for call in (prof.key_averages, lambda: prof.export_chrome_trace("x"), lambda: prof.export_stacks("x")):
        with pytest.raises(UsageError, match="no window was recorded yet"):
            call()


def test_the_averages_can_be_read_in_the_loop_as_soon_as_a_window_is_over(tmp_path: Path) -> None:
    schedule = perfkit.schedule(wait=1, warmup=1, active=2, repeat=1)
    seen = []
    with perfkit.profile(tmp_path / "run", quiet=True, schedule=schedule) as prof:
        for number, batch in enumerate(prof.steps([torch.randn(8, 8) for _ in range(8)])):
            batch.tanh()
            if number == 6:
                seen = [row.count for row in prof.key_averages() if row.key == "aten::tanh"]

    assert seen == [2]


def test_a_window_without_shapes_or_stacks_says_how_to_record_them(tmp_path: Path) -> None:
    with perfkit.profile(tmp_path / "run", quiet=True) as prof:
        train(prof)

    with pytest.raises(UsageError, match="record_shapes=True"):
        prof.key_averages(group_by_input_shape=True)
    with pytest.raises(UsageError, match="cannot be written"):
        prof.export_chrome_trace(tmp_path / "run" / "run.json" / "t.json")
