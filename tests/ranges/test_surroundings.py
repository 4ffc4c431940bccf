"""Ranges among everything else: debuggers, wrappers, pickles, processes, backward threads, other Pythons."""

from __future__ import annotations

import asyncio
import bdb
import concurrent.futures
import functools
import inspect
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import cloudpickle
import pytest
import torch

import perfkit
from perfkit.ranges import start_recorder
from perfkit.ranges.recorder import RangeRecorder
from perfkit.run.records import RangeRow

Row = Callable[[RangeRecorder, str], RangeRow]
ROOT = Path(__file__).resolve().parents[2]


@perfkit.range("in a worker")
def square(x: int) -> int:
    with perfkit.range("inside the worker"):
        return x * x


def counts(recorder: RangeRecorder) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in recorder.rows():
        found[row.name] = found.get(row.name, 0) + row.count
    return found


def record_in_worker(x: int) -> tuple[int, dict[str, int]]:
    recorder = start_recorder()
    try:
        return square(x), counts(recorder)
    finally:
        recorder.stop()


@pytest.mark.parametrize("on", [False, True])
def test_a_decorated_closure_survives_cloudpickle_on_and_off(on: bool, run_python: Callable[..., Any]) -> None:
    recorder = start_recorder() if on else None
    factor = 3

    @perfkit.range("pickled by value")
    def scale(x: int, *, plus: int = 1) -> int:
        with perfkit.range("inside the pickled"):
            return factor * x + plus

    scale(1)
    # Not by reference to this module: the other process cannot import it.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    data = cloudpickle.dumps([scale, perfkit.range("kept", color="red"), perfkit.range("kept", payload=3)])
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    if recorder:
        recorder.stop()
    run_python(
        f"""
        import pickle, perfkit
        from perfkit.ranges import start_recorder
        scale, kept, loaded = pickle.loads({data!r})
        assert scale(2, plus=0) == 6 and kept is perfkit.range("kept", color="red")
        recorder = start_recorder()
        with kept: assert scale(2) == 7
        recorder.stop()
        names = {{row.name: row.count for row in recorder.rows()}}
        assert names["inside the pickled"] == names["kept"] == 1, names
        assert scale(2) == 7
        """
    )


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_workers_of_multiprocessing_run_and_record_their_own(method: str, recorder: RangeRecorder) -> None:
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        result, names = pool.submit(record_in_worker, 7).result()

    assert result == 49
    assert names == {"in a worker": 1, "inside the worker": 1}
    assert counts(recorder) == {}


@pytest.mark.parametrize("on", [False, True])
def test_a_trace_function_sees_the_users_lines(on: bool) -> None:
    """What coverage does: it must see every line of the user's function, in the user's file."""
    recorder = start_recorder() if on else None
    seen: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            seen.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        assert square(3) == 9
    finally:
        sys.settrace(before)
        if recorder:
            recorder.stop()

    first = inspect.getsourcelines(square)[1]
    assert {(__file__, first + 2), (__file__, first + 3)} <= seen


@pytest.mark.parametrize("on", [False, True])
def test_a_debugger_stops_in_the_users_line_with_its_locals(on: bool) -> None:
    recorder = start_recorder() if on else None
    stops: list[tuple[str, Any]] = []

    class Debugger(bdb.Bdb):
        def user_line(self, frame: FrameType) -> None:
            if self.break_here(frame):
                stops.append((frame.f_code.co_name, frame.f_locals["x"]))
            self.set_continue()

    debugger = Debugger()
    debugger.reset()
    line = inspect.getsourcelines(square)[1] + 3
    assert debugger.set_break(__file__, line) is None
    before = sys.gettrace()
    try:
        assert debugger.runcall(square, 5) == 25
    finally:
        sys.settrace(before)
        debugger.clear_all_breaks()
        if recorder:
            recorder.stop()

    assert stops == [("square", 5)]


def test_a_stack_of_wraps_keeps_signature_source_and_one_range(recorder: RangeRecorder, row: Row) -> None:
    def twice(function: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> int:
            return function(*args, **kwargs) + function(*args, **kwargs)

        return call

    @twice
    @perfkit.range("innermost")
    @twice
    def one(x: int, *, y: int = 1) -> int:
        """Documented."""
        return x + y

    assert one(1, y=2) == 12
    assert str(inspect.signature(one)) == "(x: 'int', *, y: 'int' = 1) -> 'int'"
    assert "return x + y" in inspect.getsource(inspect.unwrap(one))
    assert one.__doc__ == "Documented."
    assert row(recorder, "innermost").count == 2


def test_generators_that_are_never_finished_leave_balanced_rows(recorder: RangeRecorder, row: Row) -> None:
    @perfkit.range("abandoned")
    def numbers() -> Iterator[int]:
        with perfkit.range("around a yield"):
            yield from range(10)

    for _ in range(5):
        assert next(numbers()) == 0  # collected at once
    kept = numbers()
    next(kept)

    assert row(recorder, "abandoned").count == row(recorder, "around a yield").count == 5
    assert recorder.dropped == 0
    del kept


def test_tasks_that_interleave_in_plain_with_statements_sum_up_right(recorder: RangeRecorder) -> None:
    @perfkit.range("task")
    async def work(turns: int) -> None:
        with perfkit.range(f"turns of {turns}"):
            for _ in range(turns):
                await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(work(turns) for turns in (1, 2, 3)))
        cancelled = asyncio.ensure_future(work(100))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled

    asyncio.run(main())

    assert counts(recorder) == {"task": 4, **{f"turns of {turns}": 1 for turns in (1, 2, 3, 100)}}
    assert recorder.dropped == 0


class Doubled(torch.autograd.Function):
    @staticmethod
    @perfkit.range("custom forward")
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    @perfkit.range("custom backward")
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        with perfkit.range("inside the backward"):
            return gradient * 2


def test_ranges_in_a_backward_are_recorded_in_whichever_thread_runs_it(recorder: RangeRecorder) -> None:
    x = torch.ones(2, requires_grad=True)
    hooked = perfkit.range("hook")(lambda gradient: gradient)
    x.register_hook(hooked)

    def train() -> None:
        Doubled.apply(x).sum().backward()

    train()
    thread = threading.Thread(target=train, name="trainer")
    thread.start()
    thread.join()

    assert x.grad is not None
    assert x.grad.tolist() == [4, 4]
    names = ("custom forward", "custom backward", "inside the backward", "hook")
    assert {(row.name, row.thread) for row in recorder.rows()} == {
        (name, thread) for name in names for thread in ("MainThread", "trainer")
    }


def test_a_decorated_function_pickles_by_reference_while_the_recorder_runs(recorder: RangeRecorder) -> None:
    assert pickle.loads(pickle.dumps(square)) is square


OTHER_PYTHONS = """
import asyncio, copy, gc, pickle, sys, threading
import perfkit
from perfkit.ranges import listener_calls as calls, listeners, range_objects

@perfkit.range
def f(x, /, y=2, *rest, z=3, **more): return x, y, rest, z, more
@perfkit.range("generator")
def generate():
    got = yield 1
    yield got
@perfkit.range("coroutine")
async def coroutine(): return 5
@perfkit.range("async generator")
async def agenerate():
    yield 1
    yield 2
class Base:
    def who(self): return "base"
class Child(Base):
    @perfkit.range
    def who(self): return super().who() + __class__.__name__
    @classmethod
    @perfkit.range
    def made(cls): return cls.__name__
async def drain(): return [value async for value in agenerate()]
def everything():
    assert f(1, 5, 6, z=7, w=8) == (1, 5, (6,), 7, {"w": 8})
    running = generate()
    assert [next(running), running.send(3)] == [1, 3]
    running.close()
    assert asyncio.run(coroutine()) == 5 and asyncio.run(drain()) == [1, 2]
    assert Child().who() == "baseChild" and Child.made() == "Child"
    with perfkit.range("with", color="red", payload=3) as r: assert r is perfkit.range("with", color="red")
    async def within():
        async with perfkit.range("async with"): pass
    asyncio.run(within())
    perfkit.range.push("pushed"); perfkit.range.pop()
    try:
        with perfkit.range("raises"): raise KeyError
    except KeyError: pass
    try: perfkit.range("")
    except perfkit.UsageError: pass
    else: raise AssertionError
    assert pickle.loads(pickle.dumps(perfkit.range("p"))) is copy.deepcopy(perfkit.range("p"))

# Without numpy there is no recorder: its events are kept as they are written.
events = []
calls.new_buffer = lambda: setattr(calls.tls, "buffer", events) or events
for on in (False, True, False, True):
    listeners.switch(listeners.RECORDER, on)
    everything()
listeners.switch(listeners.RECORDER, False)
everything()
opened, names = [], []
for value in events:
    if value >= 1 << 20: continue
    if value >= 0: opened.append(value)
    else:
        opened.remove(~value)
        names.append(range_objects.by_number(~value).name)
assert opened == [] and sorted(set(names)) == sorted(["f", "generator", "coroutine", "async generator", "Child.who",
    "Child.made", "with", "async with", "pushed", "raises"]), names
assert len(names) == 20, names
"""


def other_python(version: str) -> str | None:
    """A Python of this version that starts; a version manager's placeholder does not."""
    found = [shutil.which(f"python{version}"), *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
    for candidate in found:
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


@pytest.mark.parametrize("version", ["3.10", "3.12", "3.13"])
def test_ranges_without_torch_work_on_other_pythons(version: str) -> None:
    python = other_python(version)
    if python is None:
        pytest.skip("this Python is not installed")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [python, "-c", OTHER_PYTHONS],
        env={**environment, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
