"""Device time per phase, with events that the test moves along a device's stream."""

from __future__ import annotations

from typing import Any, NamedTuple

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
