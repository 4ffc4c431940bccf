"""Device time per phase, with events that the test moves along a device's stream."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from perfkit.ranges.device_events import GRAPH_CAPTURES
from perfkit.record.clock.device_clock import DeviceClock
from perfkit.record.clock.step_clock import StepClock
from perfkit.record.clock.step_sums import ClosedStep
from perfkit.run.records import Phase


class Stream(NamedTuple):
    """A stream of a device."""

    device_index: int


class Device:
    """A stream that has executed everything up to ``done`` ms; a recorded event lies at ``queued`` ms."""

    def __init__(self) -> None:
        self.queued = 0.0
        self.done = 0.0
        self.waits = self.made = 0
        self.is_captured = False
        self.stream = Stream(0)

    def capturing(self) -> bool:
        return self.is_captured

    def current_stream(self) -> Stream:
        return self.stream

    def new(self) -> Any:
        device = self
        device.made += 1

        class Event:
            at = -1.0
            device_index: int | None = None

            def record(self, stream: Stream) -> None:
                # As on CUDA: an event belongs to the device on which it was recorded first.
                self.device_index = stream.device_index if self.device_index is None else self.device_index
                if self.device_index != stream.device_index:
                    raise RuntimeError("the event's device does not match the stream's")
                self.at = device.queued

            def query(self) -> bool:
                return self.at <= device.done

            def elapsed_time(self, end: Any) -> float:
                assert self.at <= device.done
                assert end.at <= device.done
                return end.at - self.at

            def synchronize(self) -> None:
                device.waits += 1

        return Event()


def step(clock: DeviceClock, device: Device, number: int) -> None:
    clock.begin_step()
    times: dict[Phase, int] = {"forward": 10, "backward": 20, "optimizer": 5}
    for phase, ms in times.items():
        device.queued += ms
        clock.mark(phase)
    clock.end_step(number)


def test_the_time_between_two_boundaries_is_the_phases_on_the_device() -> None:
    device = Device()
    clock = DeviceClock(device)
    step(clock, device, 0)
    device.done = device.queued

    ((number, phases),) = clock.resolved()
    assert number == 0
    assert phases is not None
    assert (phases.forward, phases.backward, phases.optimizer) == (10_000_000, 20_000_000, 5_000_000)
    assert phases.data is None


def test_a_step_that_the_device_has_not_finished_is_queried_again_later_without_a_wait() -> None:
    device = Device()
    clock = DeviceClock(device)
    for number in range(3):
        step(clock, device, number)
    device.done = 36.0

    assert [number for number, _ in clock.resolved()] == [0]
    device.done = 200.0
    assert [number for number, _ in clock.resolved()] == [1, 2]
    assert device.waits == 0


def test_events_are_used_again() -> None:
    device = Device()
    clock = DeviceClock(device, pool=8)
    for number in range(50):
        step(clock, device, number)
        device.done = device.queued
        assert clock.resolved()[0][1] is not None

    assert device.made == 4


def test_a_step_without_events_left_has_no_device_times_and_is_counted() -> None:
    device = Device()
    clock = DeviceClock(device, pool=6)
    step(clock, device, 0)
    step(clock, device, 1)
    device.done = device.queued

    assert [phases is None for _, phases in clock.resolved()] == [False, True]
    assert clock.dropped == 1
    step(clock, device, 2)
    device.done = device.queued
    assert clock.resolved()[0][1] is not None


def test_while_a_graph_is_captured_nothing_is_recorded_into_it() -> None:
    device = Device()
    clock = DeviceClock(device)
    device.is_captured = True
    step(clock, device, 0)
    device.is_captured = False

    assert clock.resolved() == [(0, None)]


def test_rows_that_were_written_without_are_forgotten_and_their_events_come_back() -> None:
    device = Device()
    clock = DeviceClock(device, pool=8)
    step(clock, device, 0)
    step(clock, device, 1)
    clock.forget(before=2)
    step(clock, device, 2)
    device.done = device.queued

    assert [(number, phases is None) for number, phases in clock.resolved()] == [(2, False)]


def test_the_step_clock_marks_the_same_boundaries_on_the_device(clock: Any) -> None:
    device = Device()
    closed: list[ClosedStep] = []
    steps = StepClock(closed.extend)
    steps.device = DeviceClock(device)
    steps.start()
    steps.enter("forward")
    device.queued += 7
    steps.leave("forward")
    steps.enter("backward")
    device.queued += 9
    steps.leave("backward")
    steps.close()
    device.done = device.queued

    ((number, phases),) = steps.device.resolved()
    assert number == 0
    assert phases is not None
    assert (phases.forward, phases.backward) == (7_000_000, 9_000_000)


def test_each_step_is_timed_on_the_device_that_is_current_when_it_begins() -> None:
    device = Device()
    clock = DeviceClock(device)
    for number in range(6):
        device.stream = Stream(number % 2)
        step(clock, device, number)
        device.done = device.queued

    assert [phases is None for _, phases in clock.resolved()] == [False] * 6
    assert clock.problem is None


def test_an_error_of_the_device_ends_its_times_and_is_not_raised() -> None:
    device = Device()
    clock = DeviceClock(device)
    step(clock, device, 0)
    device.done = device.queued
    device.new = lambda: 1 / 0  # type: ignore[method-assign]  # as after an assertion on the device
    for number in (1, 2):
        step(clock, device, number)

    assert [phases is None for _, phases in clock.resolved()] == [True] * 3
    assert "ZeroDivisionError" in (clock.problem or "")


class Graph:
    """What torch.cuda.CUDAGraph is to those who wrap it."""

    def capture_begin(self, pool: Any = None) -> None:
        if pool == "taken":
            raise RuntimeError("no capture")

    def capture_end(self) -> None:
        pass


def test_no_event_is_queried_until_the_last_capture_of_the_process_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    device = Device()
    clock = DeviceClock(device)
    step(clock, device, 0)
    device.done = device.queued
    GRAPH_CAPTURES.watch()
    try:
        first, second = Graph(), Graph()
        first.capture_begin()
        second.capture_begin()
        first.capture_end()
        assert clock.resolved() == []
        del second  # a capture that nobody ends
        assert len(clock.resolved()) == 1

        with pytest.raises(RuntimeError, match="no capture"):
            first.capture_begin(pool="taken")
        assert GRAPH_CAPTURES.hold()
        GRAPH_CAPTURES.release()
    finally:
        GRAPH_CAPTURES.unwatch()


def test_the_marks_on_a_device_are_perfkits_own_time(clock: Any) -> None:
    class Slow(Device):
        def current_stream(self) -> Stream:
            clock.pass_ms(8)
            return super().current_stream()

    steps = StepClock(lambda closed: None)
    steps.due = 100
    steps.device = DeviceClock(Slow())
    steps.device.calibrate()
    steps.start()
    before = steps.overhead_ns
    steps.enter("backward")
    steps.leave("backward")
    steps.close()

    # Four marks, of which eight take 8 ms.
    assert steps.overhead_ns - before == 4_000_000
