"""Handlers on real windows of torch's profiler, under perfkit's profile and in torch's own loop."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

import perfkit
from perfkit.measures.host.folded_stacks import fold_stacks
from perfkit.measures.ops.op_times import measure_op_times
from perfkit.record.windows import handlers
from perfkit.record.windows.handlers import print_table, save_stacks, to_folder
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


def test_a_url_gets_whole_traces_and_keeps_the_newest(tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/traces"
    record(tmp_path, to_folder(url, keep=2), windows=3)
    for thread in threading.enumerate():
        if thread.name == "perfkit writer":
            thread.join()

    system, path = fsspec.core.url_to_fs(url)
    names = sorted((str(file).rsplit("/", 1)[-1] for file in system.ls(path, detail=False)), key=len)
    assert sorted(int(name.split("step")[1].split(".")[0]) for name in names) == [6, 9]
    system.get_file(f"{path}/{names[0]}", str(tmp_path / "back.json.gz"))
    assert len(read_trace(tmp_path / "back.json.gz").steps.number) == 1


def test_a_copy_that_fails_is_reported_and_training_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*anything: Any) -> None:
        raise PermissionError("no entry")

    monkeypatch.setattr(handlers, "copy_out", refused)
    record(tmp_path, to_folder("memory://nowhere"))
    for thread in threading.enumerate():
        if thread.name == "perfkit writer":
            thread.join()

    assert (
        "copying a trace to memory://nowhere: PermissionError: no entry (training continues)" in capsys.readouterr().err
    )


@pytest.mark.parametrize("key", ["self_cuda_time_total", "cpu_time", "self_device_memory_usage", "count", "flops"])
def test_an_accepted_sort_key_is_one_of_torchs(key: str) -> None:
    out = io.StringIO()
    with torch.profiler.profile() as profiler:
        torch.ones(2).sum()
    print_table(sort_by=key, file=out)(profiler)

    assert "aten::sum" in out.getvalue()


def test_our_handlers_work_in_torchs_own_loop(tmp_path: Path) -> None:
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


def test_stacks_contain_all_host_time_once(tmp_path: Path) -> None:
    profiler = torch.profiler.profile()
    with profiler:
        for _ in range(20):
            torch.nn.functional.layer_norm(torch.ones(64, 64), (64,))
    profiler.export_chrome_trace(str(tmp_path / "t.json"))

    folded = fold_stacks(read_trace(tmp_path / "t.json"))
    ops = measure_op_times(read_trace(tmp_path / "t.json"))
    assert ops is not None
    assert sum(folded.values()) == sum(op.self_ns for op in ops.rows)
    assert any(stack.startswith("aten::layer_norm;aten::native_layer_norm") for stack in folded)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: to_folder("x", keep=0), "keep must be a whole number of at least 1"),
        (lambda: to_folder("x", keep=1.5), "keep must be a whole number of at least 1, got 1.5"),
        (lambda: to_folder("nosuch://x"), "is not a URL that fsspec supports"),
        (lambda: print_table(sort_by="gpu_time"), "sort_by must be one of cpu_time, device_time"),
        (lambda: print_table(sort_by="speed"), "sort_by must be one of"),
        (lambda: print_table(rows=0), "rows must be a whole number of at least 1"),
    ],
)
def test_wrong_arguments_are_refused_when_the_handler_is_made(make: Any, message: str) -> None:
    with pytest.raises(perfkit.UsageError, match=message):
        make()
