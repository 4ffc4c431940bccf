"""Device time of the ranges that ask for it, from pairs of CUDA events; nothing here waits for the device.

While a recorder runs, ``perfkit.range("x", device_time=True)`` records an event on the current stream where it begins,
and one on the same stream where it ends, whatever stream or device is current there. A pair waits in a queue until the
device has passed both events. One of the next ranges that end reads it and returns it to the pool.

- The pool has `POOL` pairs per device. While all of them wait for a device, further ranges have no device time; they
  are counted and reported once.
- Nothing is recorded while a CUDA graph is captured: the events would become part of the graph.
- Events are queried by threads that end such a range, by `RangeRecorder.stop`, and after it by `RangeRecorder.rows`;
  not while any thread captures a graph (`device_events.GraphCaptures`).

Run against a simulated CUDA runtime.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from perfkit import _env
from perfkit.ranges import dynamo, listeners
from perfkit.ranges.device_events import GRAPH_CAPTURES, DeviceEvents
from perfkit.ranges.listeners import DEVICE, Form

#: Pairs of events per device. A training step has some hundred ranges at most, and the host is rarely more than a
#: few steps ahead of the device; a pair is two CUDA events, well below a kilobyte.
POOL = 1024

#: Pairs that are read when a range ends: more than one, so that the queue shrinks.
_PER_END = 4


class DeviceTimesListener(listeners.RangeListener):
    """Lets ranges with ``device_time=True`` record events for the running recorder's `DeviceTimes`."""

    bit = DEVICE
    calls = {
        # number -> pair, pair -> None; and number -> None, where no pair can be kept
        "device_begin": lambda number: None,
        "device_end": lambda pair: None,
        "device_enter": lambda number: None,
        "device_leave": lambda number: None,
    }

    def code(self, form: Form, mode: int) -> tuple[str, str]:
        """Keep the pair until the end, or let `DeviceTimes` keep it."""
        if form in ("with", "payload"):
            return "{device_enter}({number})", "{device_leave}({number})"
        return "{kept} = {device_begin}({number})", "{device_end}({kept})"


LISTENER = DeviceTimesListener()


class Pair:
    """Two events: where a range began and where it ended on its stream."""

    __slots__ = ("begin", "end", "key", "stream")

    def __init__(self, events: DeviceEvents) -> None:
        self.begin = events.new()
        self.end = events.new()
        self.key = ("", -1)
        self.stream: Any = None


class DeviceTimes:
    """Counts and device times per thread name and range number, for one recorder.

    Args:
        thread_name: returns the name under which the running thread is counted.
        events: makes the events; by default those of CUDA, once the program uses it.
        pool: pairs of events per device.
    """

    def __init__(self, thread_name: Callable[[], str], events: DeviceEvents | None = None, pool: int = POOL) -> None:
        self.sums: dict[tuple[str, int], tuple[int, int]] = {}  # (count, ns)
        self.dropped = 0
        self._thread_name = thread_name
        self._events = events
        self._pool = pool
        self._made: dict[int, int] = {}
        self._free: dict[int, list[Pair]] = {}
        self._waiting: dict[int, deque[Pair]] = {}
        self._reading = threading.Lock()
        self._tls = threading.local()
        self._broken = self._watching = False

    def start(self) -> None:
        """Record the device times of ranges here from now on."""
        LISTENER.connect(device_begin=self.begin, device_end=self.end, device_enter=self.enter, device_leave=self.leave)

    def begin(self, number: int) -> Pair | None:
        """Record the begin of a range; None where nothing is timed."""
        try:
            if self._broken:
                return None
            # Before the program uses CUDA, no range has device work.
            events = self._events or self._events_in_use()
            if events is None or events.capturing():
                return None
            stream = events.current_stream()
            pair = self._take(stream.device_index, events)
            if pair is not None:
                pair.key = (self._name(), number)
                pair.stream = stream
                pair.begin.record(stream)
            return pair
        except Exception as error:  # noqa: BLE001 - timing must not break training
            self._give_up(error)
            return None

    def _events_in_use(self) -> DeviceEvents | None:
        if not _env.cuda_in_use():
            return None
        with self._reading:  # one of several threads
            if self._events is None:
                GRAPH_CAPTURES.watch()
                self._watching = True
                self._events = DeviceEvents()
        return self._events

    def end(self, pair: Pair | None) -> None:
        """Record the end of a range, and read a few of the pairs that the device has passed."""
        if pair is None or self._broken or self._events is None:
            return
        try:
            device = pair.stream.device_index
            if self._events.capturing():
                # It began before the capture that runs now.
                self.dropped += 1
                self._free[device].append(pair)
                return
            pair.end.record(pair.stream)
            self._waiting[device].append(pair)
            self.read(_PER_END)
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(error)

    def enter(self, number: int) -> None:
        """`begin` for a ``with``, which cannot keep the pair: it is kept here, per thread and range."""
        if not hasattr(self._tls, "opened"):
            self._tls.opened = {}
        self._tls.opened.setdefault(number, []).append(self.begin(number))

    def leave(self, number: int) -> None:
        """`end` of the pair that this thread entered last for this range."""
        opened = getattr(self._tls, "opened", {}).get(number)
        if opened:
            self.end(opened.pop())

    def read(self, limit: int | None = None) -> None:
        """Add up pairs that the device has passed, oldest first; ``limit`` of them per device, or all."""
        if self._broken or not self._reading.acquire(blocking=False):
            return
        try:
            if self._events is not None and not self._events.capturing() and GRAPH_CAPTURES.hold():
                try:
                    self._read(limit)
                finally:
                    GRAPH_CAPTURES.release()
        finally:
            self._reading.release()

    def _read(self, limit: int | None) -> None:
        for device, waiting in list(self._waiting.items()):
            for _ in itertools.repeat(None, len(waiting) if limit is None else limit):
                if not waiting or not waiting[0].end.query():
                    break
                pair = waiting.popleft()
                count, total_ns = self.sums.get(pair.key, (0, 0))
                self.sums[pair.key] = (count + 1, total_ns + round(pair.begin.elapsed_time(pair.end) * 1e6))
                self._free[device].append(pair)

    def read_rest(self) -> None:
        """`read` all."""
        try:
            self.read()
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(error)

    def stop(self) -> None:
        """The recorder has stopped; `read_rest` may still be called."""
        if self._watching:
            self._watching = False
            GRAPH_CAPTURES.unwatch()

    def _take(self, device: int, events: DeviceEvents) -> Pair | None:
        free = self._free.setdefault(device, [])
        self._waiting.setdefault(device, deque())
        try:
            return free.pop()
        except IndexError:
            pass
        if self._made.get(device, 0) < self._pool:
            self._made[device] = self._made.get(device, 0) + 1
            return Pair(events)
        self.dropped += 1
        listeners.warn_once(
            f"{self._pool} ranges wait for device {device} to finish them; until then further ranges have no device "
            f"time. Set device_time=True on fewer ranges",
            key=f"device time pool {device}",
        )
        return None

    def _name(self) -> str:
        try:
            name: str = self._tls.name
        except AttributeError:
            name = self._tls.name = self._thread_name()
        return name

    def _give_up(self, error: Exception) -> None:
        self._broken = True
        listeners.warn_once(
            f"ranges have no device time from here on: {type(error).__name__}: {error}", key="device time"
        )


dynamo.leave_alone(
    *(
        function.__code__
        for function in (DeviceTimes.begin, DeviceTimes.end, DeviceTimes.enter, DeviceTimes.leave, DeviceTimes.read)
    )
)
