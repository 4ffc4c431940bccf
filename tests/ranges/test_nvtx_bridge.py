"""Ranges of nvtx and torch.cuda.nvtx in the recorder, and everything as it was afterwards."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import nvtx
import pytest
import torch
from nvtx import push_range as pushes_under_another_name
from torch.profiler import ProfilerActivity, profile

import perfkit
from perfkit import _patches
from perfkit.ranges import bridge_nvtx
from perfkit.ranges.recorder import RangeRecorder


@pytest.fixture
def bridged(recorder: RangeRecorder) -> Iterator[Any]:
    """The bridge to nvtx, until the test ends."""
    bridge = bridge_nvtx()
    yield bridge
    bridge.remove()


@pytest.fixture
def cuda_build(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """torch.cuda.nvtx as in a build with CUDA; the calls that reached it."""
    calls: list[str] = []
    fake = SimpleNamespace(rangePushA=lambda name: calls.append(name) or 7, rangePop=lambda: calls.append("pop") or 6)
    monkeypatch.setattr(torch.cuda.nvtx, "_nvtx", fake)
    return calls


def counts(recorder: RangeRecorder) -> dict[str, int]:
    return {row.name: row.count for row in recorder.rows()}


def functions() -> dict[str, Any]:
    """The functions that the bridge replaces, as they are now."""
    found = {
        "push": nvtx.push_range,
        "pop": nvtx.pop_range,
        "enter": nvtx.annotate.__enter__,
        "exit": nvtx.annotate.__exit__,
        "call": nvtx.annotate.__call__,
        "cuda push": torch.cuda.nvtx.range_push,
        "cuda pop": torch.cuda.nvtx.range_pop,
    }
    return {name: (function, function.__code__, dict(vars(function))) for name, function in found.items()}


def test_every_form_of_nvtx_is_recorded_under_its_name_domain_and_category(
    recorder: RangeRecorder, bridged: Any
) -> None:
    with nvtx.annotate("outer", domain="mine", category="forward"), nvtx.annotate("inner", color="red"):
        pushes_under_another_name("pushed", "blue", "mine", 3)
        nvtx.pop_range(domain="mine")
    with nvtx.annotate():
        pass

    assert {(row.name, row.domain, row.category, row.count) for row in recorder.rows()} == {
        ("outer", "mine", "forward", 1),
        ("inner", "default", "", 1),
        ("pushed", "mine", "3", 1),
        ("(no message)", "default", "", 1),
    }


def test_a_function_that_nvtx_decorates_while_bridged_is_recorded(recorder: RangeRecorder, bridged: Any) -> None:
    @nvtx.annotate("named")
    def first() -> None:
        pass

    @nvtx.annotate()
    def second() -> None:
        first()

    second()
    assert counts(recorder) == {"named": 1, "second": 1}


def test_ranges_of_torch_are_recorded_and_still_reach_torch(
    recorder: RangeRecorder, bridged: Any, cuda_build: list[str]
) -> None:
    with torch.cuda.nvtx.range("step {}", 3):
        depth = torch.cuda.nvtx.range_push("pushed")
        assert (depth, torch.cuda.nvtx.range_pop()) == (7, 6)

    assert cuda_build == ["step 3", "pushed", "pop", "pop"]
    assert counts(recorder) == {"step 3": 1, "pushed": 1}


@pytest.mark.skipif(torch.version.cuda is not None, reason="no CUDA device on this machine")
def test_torch_without_cuda_raises_as_usual_and_nothing_is_recorded(recorder: RangeRecorder, bridged: Any) -> None:
    with nvtx.annotate("around"), pytest.raises(RuntimeError, match="NVTX functions not installed"):
        torch.cuda.nvtx.range_push("x")
    with pytest.raises(RuntimeError, match="NVTX functions not installed"), torch.cuda.nvtx.range("x"):
        pass

    assert counts(recorder) == {"around": 1}


def test_everything_is_put_back_exactly_also_with_ranges_open_and_after_an_error(recorder: RangeRecorder) -> None:
    before = functions()
    bridge = bridge_nvtx()
    assert "nvtx.push_range" in _patches.installed()
    nvtx.push_range("left open")
    with pytest.raises(ZeroDivisionError), nvtx.annotate("raises"):
        1 / 0  # noqa: B018 - the error is the point
    bridge.remove()
    bridge.remove()
    nvtx.pop_range()

    assert functions() == before
    assert counts(recorder) == {"raises": 1}


def test_there_is_only_one_bridge(bridged: Any) -> None:
    with pytest.raises(perfkit.UsageError, match=r"remove\(\) the first"):
        bridge_nvtx()


def test_an_end_without_its_begin_ends_nothing_else(recorder: RangeRecorder) -> None:
    nvtx.push_range("begun before")
    bridge = bridge_nvtx()
    with nvtx.annotate("whole"):
        nvtx.pop_range(domain="another")
    nvtx.pop_range()
    nvtx.pop_range()
    bridge.remove()

    assert counts(recorder) == {"whole": 1}
    assert recorder.dropped == 0


def test_threads_keep_their_own_ranges(recorder: RangeRecorder, bridged: Any) -> None:
    def work() -> None:
        for _ in range(100):
            nvtx.push_range("worked")
            nvtx.pop_range()

    threads = [threading.Thread(target=work, name=f"worker {n}") for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {(row.thread, row.count) for row in recorder.rows()} == {(f"worker {n}", 100) for n in range(3)}


def test_a_message_that_is_no_valid_name_is_reported_and_not_raised(recorder: RangeRecorder, bridged: Any) -> None:
    with nvtx.annotate("out"):
        with pytest.warns(perfkit.PerfkitWarning, match="is not recorded"):
            nvtx.push_range("nul \0 inside")
        nvtx.pop_range()

    assert counts(recorder) == {"out": 1}


def test_the_torch_profiler_shows_them_too(bridged: Any, annotations: Callable[[Any], list[str]]) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as prof, nvtx.annotate("shown"):
        pass

    assert annotations(prof) == ["shown"]


def test_nvtx_that_is_imported_later_is_bridged_then(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    run_python(
        """
        import sys
        from perfkit import _patches
        from perfkit.ranges import bridge_nvtx, start_recorder
        recorder, bridge = start_recorder(), bridge_nvtx()
        assert "nvtx" not in sys.modules and _patches.installed() == []
        import nvtx
        with nvtx.annotate("late"): pass
        bridge.remove(); recorder.stop()
        assert [row.name for row in recorder.rows()] == ["late"] and _patches.installed() == []
        watched = [finder._name for finder in sys.meta_path if type(finder).__module__ == "perfkit._import_hook"]
        assert watched == ["torch"], watched  # the observer of the torch profiler
        """
    )


def test_switched_off_by_nvtx_its_own_way_nothing_breaks(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_python(
        """
        import contextlib, nvtx
        from perfkit.ranges import bridge_nvtx, start_recorder
        enter = contextlib.nullcontext.__enter__.__code__
        recorder, bridge = start_recorder(), bridge_nvtx()
        with nvtx.annotate("unseen"): nvtx.push_range("seen"); nvtx.pop_range()
        assert contextlib.nullcontext.__enter__.__code__ is enter
        bridge.remove(); recorder.stop()
        assert [row.name for row in recorder.rows()] == ["seen"]
        """,
        NVTX_DISABLE="1",
    )
    assert done.stderr == ""


def test_what_nvtx_itself_rejects_raises_its_own_error(bridged: Any) -> None:
    with pytest.raises(TypeError, match="unhashable type: 'list'"):
        nvtx.push_range("x", domain=[])
    with pytest.raises(TypeError, match="unhashable type: 'list'"):
        nvtx.pop_range([])
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        nvtx.push_range("x", colour="red")


def test_a_subclass_of_annotate_that_keeps_nothing_of_its_arguments_is_recorded_without_a_name(
    recorder: RangeRecorder, bridged: Any
) -> None:
    class Subclass(nvtx.annotate):
        def __init__(self) -> None:
            self.domain = nvtx.get_domain()

    with Subclass():
        pass
    assert counts(recorder) == {"(no message)": 1}


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
@pytest.mark.filterwarnings("ignore:Graph break due to unsupported builtin:UserWarning")  # torch before 2.7
def test_a_compiled_function_with_such_calls_is_compiled_once_more_and_not_again(bridged: Any) -> None:
    graphs = []

    def count(graph: Any, example: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def step(x: torch.Tensor) -> torch.Tensor:
        nvtx.push_range("compiled")
        x = x + 1
        nvtx.pop_range()
        return x

    bridged.remove()
    compiled, x = torch.compile(step, backend=count), torch.zeros(1)
    compiled(x)
    once = len(graphs)
    for _ in range(3):
        bridge = bridge_nvtx()
        assert compiled(x).item() == 1
        bridge.remove()
        compiled(x)

    assert len(graphs) == 2 * once
