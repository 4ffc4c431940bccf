"""Device times of steps on several streams and devices: kept, never negative, harmless to captures and training."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import perfkit
from perfkit.ranges import start_recorder
from perfkit.ranges.device_events import DeviceEvent, DeviceEvents
from perfkit.record.clock.device_clock import DeviceClock
from perfkit.record.clock.step_clock import StepClock
from perfkit.run.reading import read_run
from perfkit.run.records import Phases, Rank, Step

pytestmark = pytest.mark.semantics

several_devices = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device on this machine")


class Training:
    """A small network on one device."""

    def __init__(self, device: int = 0) -> None:
        self.device = device
        self.model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4))).to(f"cuda:{device}")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.batch = torch.randn(64, 256, device=f"cuda:{device}")

    def step(self, batch: torch.Tensor | None = None) -> None:
        self.optimizer.zero_grad()
        self.model(self.batch if batch is None else batch).pow(2).mean().backward()
        self.optimizer.step()


def profiled(folder: Path, steps: Any, body: Callable[[Any], None]) -> tuple[list[Step], Rank]:
    """The rows of a run of ``body`` over ``steps``, with the device's rest waited for."""
    with perfkit.profile(folder, quiet=True, recorders=(), report=False) as prof:
        for item in prof.steps(steps):
            body(item)
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)
    found = read_run(folder).ranks[0]
    assert found.rank is not None
    assert found.rank.errors == ()
    return list(found.steps), found.rank


def times(row: Step) -> list[int]:
    """The device's time in each phase of a row that has them."""
    assert row.device_phases_ns is not None
    return [time for time in msgspec.structs.asdict(row.device_phases_ns).values() if time is not None]


def test_each_step_has_device_times_in_the_phases_of_the_host(tmp_path: Path) -> None:
    training = Training()
    rows, _ = profiled(tmp_path / "x", range(40), lambda _: training.step())

    assert len(rows) == 40
    for row in rows:
        assert min(times(row)) >= 0
        assert row.device_phases_ns is not None
        assert row.device_phases_ns.backward
        assert row.device_phases_ns.optimizer is not None


@several_devices
def test_a_program_that_moves_to_another_device_goes_on_and_keeps_its_device_times(tmp_path: Path) -> None:
    trainings = [Training(0), Training(1)]

    def body(number: int) -> None:
        device = 0 if number < 30 else 1
        torch.cuda.set_device(device)
        trainings[device].step()

    try:
        rows, rank = profiled(tmp_path / "x", range(90), body)
    finally:
        torch.cuda.set_device(0)

    assert len(rows) == 90
    assert all(min(times(row)) >= 0 for row in rows)
    assert not [note for note in rank.notes if "device times" in note]


@several_devices
def test_a_step_over_two_devices_has_the_times_of_the_stream_on_which_it_began(tmp_path: Path) -> None:
    first, second = Training(0), Training(1)

    def body(number: int) -> None:
        hidden = first.model(first.batch).to("cuda:1")
        with torch.cuda.device(1):
            second.model(hidden).sum().backward()
        first.optimizer.step()

    rows, _ = profiled(tmp_path / "x", range(300), body)

    assert len([row for row in rows if row.device_phases_ns is not None]) == 300
    assert all(min(times(row)) >= 0 for row in rows)


class Prefetcher:
    """Fetches and copies inside ``with torch.cuda.stream(side)``, with ``work`` on that stream."""

    def __init__(self, batches: list[torch.Tensor], work: int) -> None:
        self.batches = torch.utils.data.DataLoader(batches, batch_size=None)
        self.side = torch.cuda.Stream()
        self.work = work
        self.matrix = torch.randn(2048, 2048, device="cuda")

    def __iter__(self) -> Iterator[torch.Tensor]:
        iterator = iter(self.batches)
        while True:
            with torch.cuda.stream(self.side):
                batch = next(iterator, None)
                if batch is None:
                    return
                batch = batch.pin_memory().cuda(non_blocking=True)
                for _ in range(self.work):
                    self.matrix @ self.matrix
            yield batch


@pytest.mark.parametrize("work", [0, 30])
def test_a_prefetcher_on_a_side_stream_leaves_device_times_that_are_not_negative(tmp_path: Path, work: int) -> None:
    training = Training()
    prefetcher = Prefetcher([torch.randn(64, 256) for _ in range(60)], work)
    rows, _ = profiled(tmp_path / "x", prefetcher, training.step)

    # On another stream than the step's, work of any length delays no reading of the step's own times.
    assert len([row for row in rows if row.device_phases_ns is not None]) == 60
    assert all(min(times(row)) >= 0 for row in rows)


def test_a_prefetcher_in_a_plain_loop_leaves_device_times_that_are_not_negative(tmp_path: Path) -> None:
    training = Training()
    with perfkit.profile(tmp_path / "x", quiet=True, recorders=(), report=False):
        for batch in Prefetcher([torch.randn(64, 256) for _ in range(40)], 10):
            training.step(batch)
        torch.cuda.synchronize()

    rows = list(read_run(tmp_path / "x").ranks[0].steps)
    assert len(rows) >= 39
    assert all(min(times(row)) >= 0 for row in rows)


class CountedEvents(DeviceEvents):
    """Counts the events that are made."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        make = self.new

        def new() -> DeviceEvent:
            self.made += 1
            return make()

        self.new = new


def test_events_are_used_again_over_streams_and_steps_without_times() -> None:
    events = CountedEvents()
    clock = DeviceClock(events)
    side = torch.cuda.Stream()
    x = torch.randn(256, 256, device="cuda")
    kept: list[Phases | None] = []
    for step in range(300):
        with torch.cuda.stream(side if step % 3 == 0 else torch.cuda.default_stream()):
            clock.begin_step()
            x @ x
            clock.mark("forward")
        if step % 10 == 5:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                x @ x
                clock.mark("backward")
        clock.mark("optimizer")
        clock.end_step(step)
        torch.cuda.synchronize()
        kept.extend(phases for _, phases in clock.resolved())

    assert events.made <= 8
    assert len(kept) == 300
    assert kept.count(None) == clock.dropped == 30
    assert clock.problem is None


def test_a_step_in_which_a_graph_is_captured_has_no_device_times_and_the_others_have(tmp_path: Path) -> None:
    training = Training()
    graph = torch.cuda.CUDAGraph()

    def body(number: int) -> None:
        if number < 12:
            training.step()
        elif number == 12:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    training.step()
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(graph):
                training.step()
        else:
            graph.replay()

    rows, _ = profiled(tmp_path / "x", range(40), body)

    assert [row.step for row in rows if row.device_phases_ns is None] == [12]
    assert all(min(times(row)) >= 0 for row in rows if row.step != 12)


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")  # torch's own, also without perfkit
def test_make_graphed_callables_captures_inside_a_step(tmp_path: Path) -> None:
    training = Training()
    module = torch.nn.Linear(256, 256).cuda()
    graphed: list[Any] = []

    def body(number: int) -> None:
        if number in (7, 20):
            sample = torch.randn(64, 256, device="cuda", requires_grad=True)
            graphed.append(torch.cuda.make_graphed_callables(module if number == 7 else torch.nn.Tanh(), (sample,)))
        training.step(graphed[0](training.batch) if graphed else None)

    rows, _ = profiled(tmp_path / "x", range(40), body)

    assert len(graphed) == 2
    assert {row.step for row in rows if row.device_phases_ns is None} <= {7, 20}


def test_nothing_is_queried_while_another_thread_captures(tmp_path: Path) -> None:
    training = Training()
    training.step()
    x = torch.randn(64, 256, device="cuda")
    begun, done, failed = threading.Event(), threading.Event(), []

    def capture() -> None:
        try:
            _ = x + x  # makes the context this thread's, without which torch warns of cuBLAS
            _ = x @ x.T  # cuBLAS, which each thread starts for itself, refuses to start inside a capture
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                _ = x @ x.T
                begun.set()
                done.wait(10)
                _ = x @ x.T
        except RuntimeError as error:
            failed.append(error)

    thread = threading.Thread(target=capture)

    def body(number: int) -> None:
        if number == 10:
            thread.start()
            begun.wait(10)
        if not 10 <= number < 30:
            training.step()  # ops that wait or allocate would break the capture, as without perfkit
        else:
            time.sleep(0.03)  # longer than a pause is apart
            with perfkit.range("ended meanwhile", device_time=True):
                pass
        if number == 29:
            done.set()
            thread.join()

    rows, _ = profiled(tmp_path / "x", range(60), body)

    assert failed == []
    assert len([row for row in rows if row.device_phases_ns is not None]) >= 40


def test_a_range_that_ends_in_another_thread_does_not_break_a_capture() -> None:
    x = torch.randn(64, 64, device="cuda")
    _ = x @ x
    recorder = start_recorder()
    for _ in range(3):
        with perfkit.range("waiting to be read", device_time=True):
            _ = x @ x
    ended = threading.Event()

    def other() -> None:
        with perfkit.range("ends meanwhile", device_time=True):
            pass
        ended.set()

    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        y = x @ x
        threading.Thread(target=other).start()
        assert ended.wait(5)
        y = y @ x
    recorder.stop()
    torch.cuda.synchronize()

    counts = {row.name: row.device_count for row in recorder.rows()}
    assert counts == {"waiting to be read": 3, "ends meanwhile": 1}


def test_a_range_over_a_change_of_stream_and_device_has_the_time_of_its_first_stream() -> None:
    last = torch.cuda.device_count() - 1
    x = torch.randn(1024, 1024, device="cuda")
    recorder = start_recorder()
    side = torch.cuda.Stream(last)
    before = torch.cuda.current_stream()
    for _ in range(5):
        with perfkit.range("crosses", device_time=True):
            _ = x @ x
            torch.cuda.set_stream(side)
        torch.cuda.set_device(0)
        torch.cuda.set_stream(before)
    torch.cuda.synchronize()
    recorder.stop()

    (row,) = recorder.rows()
    assert row.device_count == 5
    assert row.device_ns is not None
    assert row.device_ns > 0


def test_a_mark_costs_less_than_a_recorded_event_of_torch_and_is_counted_as_perfkits_time() -> None:
    steps = StepClock(lambda closed: None, batch=10_000)
    clock = steps.device = DeviceClock(DeviceEvents())
    clock.calibrate()
    torchs: Any = torch.cuda.Event(enable_timing=True)
    torchs.record()
    marks, records = [], []
    for _ in range(200):
        clock.begin_step()
        began = time.perf_counter_ns()
        for _ in range(10):
            clock.mark("forward")
        marks.append(time.perf_counter_ns() - began)
        clock.end_step(0)
        clock.forget(before=1)
        began = time.perf_counter_ns()
        for _ in range(10):
            torchs.record()
        records.append(time.perf_counter_ns() - began)

    assert statistics.median(marks) < 0.5 * statistics.median(records)
    # 11 marks in each of 200 steps, each at least half of what was measured here.
    assert steps.overhead_ns >= 0.5 * 200 * 1.1 * min(marks)
