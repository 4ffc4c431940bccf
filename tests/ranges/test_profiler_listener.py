"""The torch profiler as a listener: annotations as torch's own, only while it records."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule

import perfkit
from perfkit.ranges import installed, listeners
from perfkit.ranges.recorder import RangeRecorder


@perfkit.range("decorated")
def decorated() -> torch.Tensor:
    return torch.ones(2) + 1


def annotations(profiler: Any, folder: Path) -> list[tuple[str, float, float]]:
    """(name, begin, end) of each user_annotation of a finished profiler, in order."""
    profiler.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    found = [event for event in events if event.get("cat") == "user_annotation"]
    return sorted(((event["name"], event["ts"], event["ts"] + event["dur"]) for event in found), key=lambda e: e[1])


def test_ranges_and_marks_are_user_annotations_that_nest(tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiler, perfkit.range("outer"):
        decorated()
        perfkit.mark("instant")

    (outer, o0, o1), (inner, i0, i1), (instant, m0, _) = annotations(profiler, tmp_path)
    assert (outer, inner, instant) == ("outer", "decorated", "instant")
    assert o0 <= i0 <= i1 <= m0 <= o1


def test_only_the_windows_of_a_schedule_are_listened_to() -> None:
    modes = []
    with profile(
        activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=1, repeat=1)
    ) as profiler:
        for _ in range(4):
            modes.append(listeners.mode & listeners.PROFILER)
            profiler.step()

    assert modes == [0, 0, listeners.PROFILER, 0]


def test_an_autograd_profiler_is_listened_to_as_well() -> None:
    with torch.autograd.profiler.profile() as profiler:
        decorated()
    assert "decorated" in {event.name for event in profiler.function_events}
    assert listeners.mode == 0


def test_ranges_that_straddle_the_start_and_the_stop_break_nothing(tmp_path: Path) -> None:
    profiler = profile(activities=[ProfilerActivity.CPU])
    with perfkit.range("before"):
        profiler.start()
        with perfkit.range("within"):
            decorated()
        late = perfkit.range("after")
        late.__enter__()
        profiler.stop()
    late.__exit__(None, None, None)

    assert {"within", "decorated"} <= {name for name, _, _ in annotations(profiler, tmp_path)}
    assert listeners.mode == 0


def test_the_annotation_of_a_failing_call_ends(tmp_path: Path) -> None:
    @perfkit.range("failing")
    def fail() -> None:
        raise KeyError

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        with pytest.raises(KeyError):
            fail()
        decorated()

    (first, _, end), (second, begin, _) = annotations(profiler, tmp_path)
    assert (first, second) == ("failing", "decorated")
    assert end <= begin


def test_an_end_without_a_begin_is_ignored() -> None:
    with profile(activities=[ProfilerActivity.CPU]):
        perfkit.range("never entered").__exit__(None, None, None)


def test_threads_may_range_while_a_profiler_records_and_only_the_observer_stays() -> None:
    with profile(activities=[ProfilerActivity.CPU]):
        thread = threading.Thread(target=decorated)
        thread.start()
        thread.join()
    assert listeners.mode == 0
    assert installed() == [
        "permanent: torch.autograd.profiler._run_on_profiler_start",
        "permanent: torch.autograd.profiler._run_on_profiler_stop",
    ]


def test_recorder_and_profiler_listen_together(recorder: RangeRecorder, tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            decorated()
    decorated()

    assert len(annotations(profiler, tmp_path)) == 3
    assert [(row.name, row.count) for row in recorder.rows()] == [("decorated", 4)]


@pytest.mark.parametrize("order", ["import perfkit, torch", "import torch, perfkit"])
def test_the_profiler_is_seen_whichever_is_imported_first(order: str, run_python: Callable[..., object]) -> None:
    run_python(
        f"""
        {order}
        with perfkit.range("before torch knows"): pass
        import torch
        from torch.profiler import profile
        from perfkit.ranges import installed
        with profile() as profiler:
            with perfkit.range("seen"): pass
        assert "seen" in {{event.name for event in profiler.events()}}
        assert len(installed()) == 2, installed()
        """
    )


def test_a_profiler_that_runs_already_when_perfkit_is_imported_is_seen(run_python: Callable[..., object]) -> None:
    run_python(
        """
        import torch
        with torch.profiler.profile() as profiler:
            import perfkit
            with perfkit.range("late but seen"): pass
        assert "late but seen" in {event.name for event in profiler.events()}
        """
    )


def test_perfkit_disable_leaves_torch_and_the_users_functions_alone(run_python: Callable[..., object]) -> None:
    run_python(
        """
        import torch
        start = torch.autograd.profiler._run_on_profiler_start
        import perfkit
        from perfkit.ranges import installed, listeners, start_recorder
        @perfkit.range(color="red")
        def f(x): return x + 1
        @perfkit.range
        def g(x): return x
        assert torch.autograd.profiler._run_on_profiler_start is start
        assert installed() == [] and vars(f) == {} and type(vars(f)) is dict
        recorder = start_recorder()
        with torch.profiler.profile() as profiler, perfkit.range("off", payload=3) as r, perfkit.range(name="x"):
            assert f(1) == 2 and r.name == "off"
            perfkit.mark("off"); perfkit.range.push("p"); perfkit.range.pop()
        recorder.stop()
        assert recorder.rows() == () and listeners.mode == 0
        assert not {"off", "f", "p", "x"} & {event.name for event in profiler.events()}
        assert torch.compile(lambda x: f(x) + r.args is None, backend="eager") is not None
        """,
        PERFKIT_DISABLE="1",
    )


def test_importing_perfkit_and_using_ranges_does_not_import_torch_or_nvtx(run_python: Callable[..., object]) -> None:
    run_python(
        """
        import sys, perfkit
        with perfkit.range("light"): pass
        from perfkit.ranges import start_recorder
        start_recorder().stop()
        assert not {"torch", "nvtx"} & set(sys.modules)
        """
    )
