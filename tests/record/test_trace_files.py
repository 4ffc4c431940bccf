"""A window's trace is compressed whole or not at all, and what is missing in it is found and reported."""

from __future__ import annotations

import gzip
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import perfkit
from perfkit.record.windows import torch_profiler, trace_files
from perfkit.record.windows.kineto import KinetoRecorder
from perfkit.record.windows.trace_files import BackgroundWriter, ExpectedTrace, TraceContents
from perfkit.run.reading import read_run
from perfkit.run.records import Rank, Window

WINDOW = perfkit.schedule(wait=2, warmup=1, active=2, repeat=1)


def seen(*parts: str) -> TraceContents:
    contents = TraceContents()
    for part in parts:
        contents.add(part.encode())
    return contents


def text(steps: range, *events: str, rank: bool = True) -> str:
    events = (*(f'{{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{n}"}}' for n in steps), *events)
    return ('{"distributedInfo": {"rank": 0},' if rank else "{") + f'"traceEvents": [{", ".join(events)}]}}\n'


KERNEL = '{"ph": "X", "cat": "kernel", "name": "gemm"}'


@pytest.mark.parametrize(
    ("trace", "expected", "problem"),
    [
        (text(range(3, 5), KERNEL), ExpectedTrace(range(3, 5), kernels=True), None),
        (text(range(3, 5)), ExpectedTrace(range(3, 5), kernels=False), None),
        (text(range(3, 5)), ExpectedTrace(None, kernels=False), None),
        (text(range(3, 4)), ExpectedTrace(range(3, 5), kernels=False), "should contain steps 3 to 4, it has: 3"),
        (text(range(0)), ExpectedTrace(range(3, 5), kernels=False), "it has: none"),
        (text(range(3, 5)), ExpectedTrace(range(3, 5), kernels=True), "no device work although CUDA is in use"),
        (text(range(3, 5), rank=False), ExpectedTrace(range(3, 5), kernels=False), "does not contain its rank"),
        (text(range(3, 5))[:-6], ExpectedTrace(range(3, 5), kernels=False), "is cut off"),
    ],
)
def test_the_problem_of_a_trace_is_what_is_missing(trace: str, expected: ExpectedTrace, problem: str | None) -> None:
    found = seen(trace).problem(expected)

    assert (found is None) == (problem is None)
    assert problem is None or problem in (found or "")


def test_words_are_found_wherever_the_blocks_are_cut() -> None:
    trace = text(range(123_456, 123_459), KERNEL)
    for cut in range(1, len(trace) - 1):
        contents = seen(trace[:cut], trace[cut:])
        assert contents.problem(ExpectedTrace(range(123_456, 123_459), kernels=True)) is None
        assert contents.steps == {123_456, 123_457, 123_458}


def test_torch_writes_the_words_that_are_searched(tmp_path: Path) -> None:
    steps: list[Any] = []
    profiler = torch_profiler.start(7, lambda number: "record", steps.append, None, {}, lambda: None)
    torch.ones(2).sum()
    torch_profiler.stop(profiler)
    plain = torch_profiler.export(profiler, tmp_path / "window-0.pt.trace.json.gz", 2**30, "")

    # Kernels cannot be had here; ops stand in the same words.
    assert b'"cat": "cpu_op"' in plain.read_bytes()
    contents = trace_files.compress_trace(plain, tmp_path / "window-0.pt.trace.json.gz")
    assert contents.problem(ExpectedTrace(range(7, 8), kernels=False)) is None
    assert [path.name for path in tmp_path.iterdir()] == ["window-0.pt.trace.json.gz"]


def test_a_trace_that_does_not_read_back_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = tmp_path / "plain"
    plain.write_text(text(range(3)) * 100)
    real: Any = gzip.open

    def cut(path: Any, *arguments: Any, **more: Any) -> Any:
        if not arguments:  # read back
            Path(path).write_bytes(Path(path).read_bytes()[:-20])
        return real(path, *arguments, **more)

    monkeypatch.setattr(gzip, "open", cut)
    with pytest.raises(OSError, match="reads back damaged"):
        trace_files.compress_trace(plain, tmp_path / "window-0.pt.trace.json.gz")
    assert list(tmp_path.iterdir()) == []


def loop(folder: Path, **options: Any) -> tuple[Rank, Window]:
    with perfkit.profile(folder, quiet=True, **{"schedule": WINDOW, **options}) as prof:
        for _ in prof.steps(range(10)):
            torch.ones(2).sum()
    rank = read_run(folder).ranks[0].rank
    assert rank is not None
    return rank, rank.windows[0]


def test_a_whole_window_has_no_problem(tmp_path: Path) -> None:
    rank, window = loop(tmp_path / "x")

    assert (window.complete, window.problem) == (True, None)
    assert rank.errors == ()


def test_a_window_without_kernels_while_cuda_is_in_use_is_reported_once_and_not_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch_profiler, "expects_kernels", lambda activities: True)
    _, window = loop(tmp_path / "x")

    assert not window.complete
    assert "no device work although CUDA is in use" in (window.problem or "")
    assert window.file is not None  # what is there may still be of use
    assert capsys.readouterr().err.count("window-0.pt.trace.json.gz: the trace contains no device work") == 1


def test_a_problem_of_every_window_is_reported_once_and_recorded_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch_profiler, "expects_kernels", lambda activities: True)
    rank, _ = loop(tmp_path / "x", schedule=perfkit.schedule(wait=1, warmup=0, active=1, repeat=2))

    assert [window.complete for window in rank.windows] == [False, False]
    assert capsys.readouterr().err.count("a window's trace:") == 1


def test_the_trace_is_compressed_without_a_thread_when_the_program_exits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "perfkit writer":
            raise RuntimeError("can't create new thread at interpreter shutdown")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    _, window = loop(tmp_path / "x")

    assert (window.complete, window.file) == (True, "window-0.pt.trace.json.gz")


def test_the_problem_of_a_window_without_one_of_its_steps_names_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = KinetoRecorder.advance

    def miscounted(recorder: Any) -> None:
        advance(recorder)
        recorder._active_steps += 1

    monkeypatch.setattr(KinetoRecorder, "advance", miscounted)
    _, window = loop(tmp_path / "x", schedule=perfkit.schedule(wait=1, warmup=0, active=2, repeat=1))

    assert "should contain steps 0 to 2, it has: 1, 2" in (window.problem or "")


def test_kernels_are_expected_where_cuda_is_used_and_was_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cuda = torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA
    assert not torch_profiler.expects_kernels(None)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)

    assert torch_profiler.expects_kernels(None)
    assert torch_profiler.expects_kernels((cpu, cuda))
    assert torch_profiler.expects_kernels((cpu, {cuda: ["GPU_MEMCPY"]}))
    assert not torch_profiler.expects_kernels((cpu,))


def test_the_processor_time_of_writing_is_known() -> None:
    before, writer = trace_files.processor_ns(), BackgroundWriter()

    def work() -> None:
        until = time.thread_time_ns() + 5_000_000
        while time.thread_time_ns() < until:
            pass

    writer.start(work)
    assert writer.wait()

    assert trace_files.processor_ns() - before >= 5_000_000
