"""Handlers on real windows of torch's profiler, under perfkit's profile and in torch's own loop."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch

import perfkit
from perfkit.capture.handlers import fold, print_table, save_stacks, to_folder
from perfkit.measures.ops import measure_ops
from perfkit.trace import read_trace


def record(folder: Path, handler: Any, windows: int = 1, **options: Any) -> None:
    schedule = perfkit.schedule(wait=1, warmup=1, active=1, repeat=windows)
    with perfkit.profile(folder / "x", schedule=schedule, handlers=[handler], quiet=True, **options) as prof:
        for _ in range(3 * windows + 3):
            torch.ones(8, 8) @ torch.ones(8, 8)
            prof.step()


def test_a_folder_gets_a_readable_trace_per_window(tmp_path: Path) -> None:
    record(tmp_path, to_folder(tmp_path / "traces"), windows=2)

    names = sorted(path.name for path in (tmp_path / "traces").iterdir())
    assert len(names) == 2
    assert len(read_trace(tmp_path / "traces" / names[0]).steps.number) == 1


def test_keep_leaves_the_newest_traces_only(tmp_path: Path) -> None:
    record(tmp_path, to_folder(tmp_path / "traces", keep=2), windows=4)
    (tmp_path / "traces" / "notes.txt").write_text("mine")

    steps = sorted(int(p.name.split("step")[1].split(".")[0]) for p in (tmp_path / "traces").glob("rank0*"))
    assert steps == [9, 12]


def test_a_handler_of_ours_fits_torchs_own_loop(tmp_path: Path) -> None:
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=1)
    with torch.profiler.profile(schedule=schedule, on_trace_ready=to_folder(tmp_path)) as profiler:
        for _ in range(4):
            torch.ones(2).sum()
            profiler.step()

    assert len(list(tmp_path.iterdir())) == 1


def test_the_table_is_torchs_with_torchs_sort_key(tmp_path: Path) -> None:
    out = io.StringIO()
    record(tmp_path, print_table(sort_by="count", rows=3, file=out))

    assert "aten::" in out.getvalue()


def test_stacks_are_lines_that_a_flame_graph_tool_reads(tmp_path: Path) -> None:
    record(tmp_path, save_stacks(tmp_path / "stacks"), with_stack=True)

    (path,) = (tmp_path / "stacks").iterdir()
    lines = [line.rsplit(" ", 1) for line in path.read_text().splitlines()]
    assert all(int(weight) > 0 for _, weight in lines)
    assert any("test_handlers.py" in stack and ";" in stack for stack, _ in lines)


def test_stacks_hold_all_the_time_of_the_host_once(tmp_path: Path) -> None:
    profiler = torch.profiler.profile()
    with profiler:
        for _ in range(20):
            torch.nn.functional.layer_norm(torch.ones(64, 64), (64,))
    profiler.export_chrome_trace(str(tmp_path / "t.json"))

    folded = fold(tmp_path / "t.json")
    ops = measure_ops(read_trace(tmp_path / "t.json"))
    assert ops is not None
    assert sum(folded.values()) == sum(op.self_ns for op in ops.rows)
    assert any(stack.startswith("aten::layer_norm;aten::native_layer_norm") for stack in folded)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: to_folder("x", keep=0), "keep must be at least 1"),
        (lambda: print_table(sort_by="speed"), "sort_by must be one of"),
        (lambda: print_table(rows=0), "rows must be at least 1"),
    ],
)
def test_wrong_arguments_are_refused_when_the_handler_is_made(make: Any, message: str) -> None:
    with pytest.raises(perfkit.UsageError, match=message):
        make()
