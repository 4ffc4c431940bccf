"""Detection by torch's sync debug mode: its Python code, run on the CPU with the text of torch's warning."""

from __future__ import annotations

import _thread
import functools
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import perfkit
from perfkit._patches import installed
from perfkit.latency.timers import CudaTimer
from perfkit.record.windows.window_controller import WindowController, WindowRecorder
from perfkit.syncs import detect_syncs

SYNC = "called a synchronizing CUDA operation (Triggered internally at c10/cuda/CUDAFunctions.cpp:150.)"


class DeviceTensor(torch.Tensor):
    """A CPU tensor whose ``is_cuda`` is true, so that the timed methods measure it."""

    is_cuda = True


def torch_warns() -> None:
    """What torch does at a sync, at the line that called into it."""
    warnings.warn(SYNC, UserWarning, stacklevel=2)


@pytest.fixture
def device_tensor() -> Iterator[torch.Tensor]:
    """A tensor whose ``item`` and ``__repr__`` warn of a sync each time, as on CUDA; `__repr__` through items."""
    item = torch.Tensor.item

    def syncing_item(self: torch.Tensor) -> Any:
        torch_warns()
        with torch._C.DisableTorchFunctionSubclass():  # else a subclass comes here a second time
            return item(self)

    def syncing_repr(self: torch.Tensor) -> str:
        return f"tensor({self.item()}, {self.item()})"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "item", syncing_item, raising=False)
        patch.setattr(torch.Tensor, "__repr__", syncing_repr)
        yield torch.tensor(2.0).as_subclass(DeviceTensor)


def test_each_sync_is_counted_at_the_users_line_and_its_warning_is_not_shown(
    pretended_cuda: list[int], run_program: Callable[..., Any]
) -> None:
    with detect_syncs("cuda") as syncs:
        run_program("for i in range(5):\n    warn(text, UserWarning)", warn=warnings.warn, text=SYNC)

    assert [(event.line, event.count, event.blocked_ns) for event in syncs.events] == [(2, 5, None)]
    assert syncs.observed


def test_without_a_wrapped_function_the_expression_of_the_line_is_the_name(
    pretended_cuda: list[int], run_program: Callable[..., Any]
) -> None:
    # Called from C as torch's ops are, so that the program's own frame is the top one.
    warn = staticmethod(functools.partial(warnings.warn, SYNC, UserWarning, 1))
    x = type("Tensor", (), {"nonzero": warn, "__getitem__": warn})()
    with detect_syncs("cuda") as syncs:
        run_program("total = x.nonzero(); y = x[0]", x=x)

    found = {(event.kind, event.op) for event in syncs.events}
    # Python 3.10 has no columns, so the sync has no name there.
    named = sys.version_info >= (3, 11)
    assert found == ({("shape", "x.nonzero()"), ("other", "x[0]")} if named else {("other", "sync")})


def test_the_debug_mode_is_put_back(pretended_cuda: list[int]) -> None:
    with detect_syncs("cuda"):
        assert pretended_cuda == [0, 1]
        assert "warnings filter: sync debug mode" in installed()

    assert pretended_cuda == [0, 1, 0]


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_a_debug_mode_that_the_program_sets_meanwhile_stays(pretended_cuda: list[int], mode: int) -> None:
    with detect_syncs("cuda"):
        torch.cuda.set_sync_debug_mode(mode)

    assert pretended_cuda == [0, 1, mode]


def test_a_debug_mode_that_the_program_sets_past_torchs_function_stays(pretended_cuda: list[int]) -> None:
    with detect_syncs("cuda"):
        torch._C._cuda_set_sync_debug_mode(2)

    assert pretended_cuda == [0, 1, 2]


def test_the_debug_mode_is_set_without_the_functions_that_create_a_cuda_context(pretended_cuda: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("init", "_lazy_init", "get_sync_debug_mode", "set_sync_debug_mode"):
            patch.setattr(torch.cuda, name, lambda *args: pytest.fail("a CUDA context"))
        with detect_syncs("cuda"):
            pass

    assert pretended_cuda == [0, 1, 0]


def test_a_sync_of_perfkits_own_work_is_not_reported_and_one_of_the_program_inside_it_is(
    pretended_cuda: list[int], run_program: Callable[..., Any]
) -> None:
    def note_window(is_open: bool) -> None:
        if not is_open:
            callback()

    recorder = WindowRecorder()
    recorder.name = "waiting"
    callback = run_program("def log():\n    warn(text, UserWarning)", warn=warnings.warn, text=SYNC)["log"]
    actions: dict[int, Any] = {0: "record", 1: "save"}
    windows = WindowController(
        lambda step: actions.get(step, "none"),
        [recorder],
        trouble=lambda what, error: pytest.fail(f"{what}: {error}"),
        on_change=note_window,
    )
    with detect_syncs("cuda") as syncs:
        # As torch's profiler does, which has no code of the program between perfkit and the wait.
        recorder.end = torch.cuda.synchronize  # type: ignore[method-assign,assignment]  # a double
        for step in range(4):
            windows.advance(step)

    assert {event.function for event in syncs.events} == {"log"}


def test_latency_waits_for_the_device_in_nobodys_name(pretended_cuda: list[int]) -> None:
    class Event:
        """An event of CUDA, whose wait is reported."""

        def __init__(self, **options: Any) -> None: ...

        def record(self, stream: Any) -> None: ...

        def synchronize(self) -> None: ...

        def elapsed_time(self, other: Any) -> float:
            return 1.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "Event", Event)
        patch.setattr(torch.cuda, "current_stream", lambda device: None)
        with detect_syncs("cuda") as syncs:
            CudaTimer(torch.device("cuda")).time(torch_warns)

    assert [(event.function, event.count) for event in syncs.events] == [("torch_warns", 1)]


def test_everything_is_put_back_after_an_error(pretended_cuda: list[int]) -> None:
    before = torch.Tensor.__dict__.get("item"), torch.Tensor.__dict__["__repr__"], warnings._add_filter  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="mine"), detect_syncs("cuda"):
        raise ValueError("mine")

    assert (torch.Tensor.__dict__.get("item"), torch.Tensor.__dict__["__repr__"], warnings._add_filter) == before  # type: ignore[attr-defined]
    assert installed() == []


def test_nothing_stays_in_place_when_the_debug_mode_cannot_be_set(pretended_cuda: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch._C, "_cuda_set_sync_debug_mode", lambda mode: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            detect_syncs("cuda").start()

    assert installed() == []
    assert not [entry for entry in warnings.filters if hasattr(entry[1], "enter")]


def test_syncs_of_all_threads_are_counted_with_their_thread(pretended_cuda: list[int]) -> None:
    def work() -> None:
        for _ in range(100):
            torch_warns()

    with detect_syncs("cuda", threads="all") as syncs, detect_syncs("cuda", on_sync="raise") as here:
        threads = [threading.Thread(target=work, name=f"logger-{n}") for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert sorted((event.thread, event.count) for event in syncs.events) == [(f"logger-{n}", 100) for n in range(4)]
    assert here.events == ()


def test_a_backward_in_a_thread_of_torchs_counts_for_the_current_thread(pretended_cuda: list[int]) -> None:
    done = threading.Event()

    def work() -> None:
        torch_warns()
        done.set()

    with detect_syncs("cuda") as syncs, pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch._C, "_current_graph_task_id", lambda: 0)
        _thread.start_new_thread(work, ())  # unknown to Python's threading, as torch's threads are
        assert done.wait(10)

    assert [(event.thread, event.count) for event in syncs.events] == [("autograd", 1)]


def test_a_sync_in_a_python_backward_is_reported_at_its_own_line(
    pretended_cuda: list[int], run_program: Callable[..., Any]
) -> None:
    program = """\
y = (x * 2).sum()
y.register_hook(lambda grad: warn(text, UserWarning))
y.backward()
"""
    with detect_syncs("cuda") as syncs:
        run_program(program, x=torch.ones(2, requires_grad=True), warn=warnings.warn, text=SYNC)

    assert [(event.line, event.count) for event in syncs.events] == [(2, 1)]


@pytest.fixture
def copying_tensor(device_tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """A "device" tensor; `host.to(..)` returns one, and warns of no sync."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "to", lambda self, *a, **k: self.as_subclass(DeviceTensor), raising=False)
        patch.setattr(torch.Tensor, "copy_", lambda self, *a, **k: self, raising=False)
        yield device_tensor


def test_pageable_non_blocking_copies_are_reported_with_certainty_may(
    pretended_cuda: list[int], copying_tensor: torch.Tensor
) -> None:
    def copy() -> None:
        torch.ones(2).to("cuda", non_blocking=True)
        torch.ones(2).to("cuda")
        copying_tensor.copy_(torch.ones(()), True)
        torch.ones(()).copy_(copying_tensor, non_blocking=True)
        torch.empty(0).to("cuda", non_blocking=True)

    with detect_syncs("cuda") as plain:
        copy()
    with detect_syncs("cuda", certainty="may") as wide:
        copy()

    assert plain.events == ()
    assert sorted((event.kind, event.op, event.certainty) for event in wide.events) == [
        ("copy-d2h", "copy_", "certain"),
        ("copy-h2d", "copy_", "may"),
        ("copy-h2d", "to", "may"),
    ]


def test_the_private_parts_that_the_debug_mode_needs_exist() -> None:
    assert torch._C._current_graph_task_id() == -1
    assert issubclass(threading._DummyThread, threading.Thread)  # type: ignore[attr-defined]
    assert callable(warnings._add_filter)  # type: ignore[attr-defined]


def test_a_users_simplefilter_error_inside_the_block_does_not_take_precedence(pretended_cuda: list[int]) -> None:
    with detect_syncs("cuda") as syncs, warnings.catch_warnings():
        warnings.simplefilter("error")
        torch_warns()
        with pytest.raises(UserWarning, match="mine"):
            warnings.warn("mine", stacklevel=1)

    assert sum(event.count for event in syncs.events) == 1


def test_other_warnings_reach_their_filters(pretended_cuda: list[int]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with detect_syncs("cuda"):
            torch_warns()
            warnings.warn("mine", stacklevel=1)

    assert [str(warning.message) for warning in caught] == ["mine"]


def test_a_filter_left_behind_by_an_open_catch_warnings_is_inert(pretended_cuda: list[int]) -> None:
    syncs = detect_syncs("cuda").start()
    block = warnings.catch_warnings()
    block.__enter__()
    syncs.stop()
    block.__exit__(None, None, None)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch_warns()
    warnings.filters[:] = [entry for entry in warnings.filters if not hasattr(entry[1], "enter")]  # type: ignore[index]

    assert len(caught) == 1
    assert syncs.events == ()


def test_a_timed_method_is_reported_with_the_syncs_and_the_time_inside_it(
    pretended_cuda: list[int], device_tensor: torch.Tensor
) -> None:
    with detect_syncs("cuda") as syncs:
        repr(device_tensor)
        device_tensor.item()

    by_op = {event.op: event for event in syncs.events}
    assert (by_op["print(tensor)"].count, by_op["print(tensor)"].raw_syncs) == (1, 2)
    assert (by_op["item"].count, by_op["item"].raw_syncs) == (1, 1)
    assert all(event.blocked_ns is not None and event.blocked_ns > 0 for event in syncs.events)


def test_a_timed_method_that_does_not_sync_is_not_counted(pretended_cuda: list[int]) -> None:
    with detect_syncs("cuda") as syncs:
        torch.ones(1).as_subclass(DeviceTensor).tolist()
        torch.ones(1).tolist()

    assert syncs.events == ()


def test_an_explicit_wait_is_counted_although_torch_does_not_warn_of_it(pretended_cuda: list[int]) -> None:
    with detect_syncs("cuda") as syncs:
        torch.cuda.synchronize()

    assert [(event.kind, event.op, event.count) for event in syncs.events] == [("explicit", "cuda.synchronize", 1)]
    assert syncs.events[0].blocked_ns is not None


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.unique(x, dim=0),
        lambda x: x.unique(dim=0),
        lambda x: torch.unique_consecutive(x, dim=0),
        lambda x: x.unique_consecutive(dim=0),
    ],
)
def test_a_wait_inside_thrust_is_counted_although_torch_does_not_warn_of_it(
    pretended_cuda: list[int], call: Callable[[torch.Tensor], Any]
) -> None:
    with detect_syncs("cuda") as syncs:
        call(torch.ones(2, 2).as_subclass(DeviceTensor))
        call(torch.ones(2, 2))

    assert [(event.kind, event.op, event.count) for event in syncs.events] in (
        [("shape", "unique", 1)],
        [("shape", "unique_consecutive", 1)],
    )


def test_raise_raises_at_the_users_line(pretended_cuda: list[int], device_tensor: torch.Tensor) -> None:
    with detect_syncs("cuda", on_sync="raise"):
        with pytest.raises(perfkit.SyncError, match=r"test_cuda_debug_mode\.py"):
            torch_warns()
        with pytest.raises(perfkit.SyncError, match="item"):
            device_tensor.item()


def test_an_error_of_a_timed_call_passes_through(pretended_cuda: list[int]) -> None:
    with detect_syncs("cuda", on_sync="raise") as syncs, pytest.raises(RuntimeError, match="cannot be converted"):
        torch.ones(2).as_subclass(DeviceTensor).item()

    assert syncs.events == ()


def test_a_blocked_budget_is_checked(pretended_cuda: list[int], device_tensor: torch.Tensor) -> None:
    with detect_syncs("cuda", max_blocked_ms=10_000):
        device_tensor.item()
    with (
        pytest.raises(perfkit.SyncBudgetExceeded, match=r"at most 0 ms, was"),
        detect_syncs("cuda", max_blocked_ms=0),
    ):
        device_tensor.item()


def test_an_allowed_sync_is_not_counted_and_its_warning_is_not_shown(pretended_cuda: list[int]) -> None:
    with detect_syncs("cuda") as syncs, perfkit.allow_sync("metrics"):
        torch_warns()

    assert syncs.events == ()
    assert syncs.allowed == {"metrics": 1}


def test_nested_detections_set_the_debug_mode_once_and_both_count(pretended_cuda: list[int]) -> None:
    with detect_syncs("cuda") as outer:
        with detect_syncs("cuda") as inner:
            torch_warns()
        torch_warns()

    assert pretended_cuda == [0, 1, 0]
    assert (sum(e.count for e in outer.events), sum(e.count for e in inner.events)) == (2, 1)


def test_without_any_memory_on_a_device_nothing_was_checked(pretended_cuda: list[int]) -> None:
    with detect_syncs("cuda") as syncs:
        torch.ones(1).sum().item()

    assert not syncs.observed
    with pytest.raises(perfkit.SyncBudgetExceeded, match="no tensor was ever on a CUDA device"):
        syncs.assert_max(0)


@pytest.mark.parametrize("certainty", ["certain", "may"])
def test_detection_causes_no_graph_break(pretended_cuda: list[int], certainty: Any) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x.relu().cpu() * 2 if x.shape[0] > 1 else x
        return y.to(torch.float64).copy_(x, non_blocking=True)

    torch._dynamo.reset()
    syncs = detect_syncs("cuda", certainty=certainty).start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)  # Dynamo would look for the device
        result = torch.compile(step, backend="eager", fullgraph=True)(torch.ones(3))
    syncs.stop()

    assert torch.equal(result, step(torch.ones(3)))
