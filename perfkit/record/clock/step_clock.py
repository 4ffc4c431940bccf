"""The step and phase clock: exclusive times that sum to the step.

At every event the time since the last event goes to the phase that was running; then the phase changes. So the phases
of a step sum to its wall time by construction, whatever the order of events.

Phases come from two sides. `enter` and `leave` nest: a fetch, the autograd engine, an optimizer, whatever an
integration names. Below them is what the loop does when no phase is open. After a fetch that is the forward. After a
backward or an optimizer step it is not known yet (clipping, logging, or a second forward as in a GAN): that time counts
as forward if a backward follows, and as other if the step ends first.

In a step, an event is only logged: which interval has ended (`intervals`), and when. `StepSums` adds up the log of many
steps at once, between two steps (`StepClock.due`): code that runs once in a while finds nothing of its own in the
processor's caches, and costs several times what it does in a loop.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from perfkit import _clock
from perfkit.record.clock.device_clock import DeviceClock
from perfkit.record.clock.intervals import AFTER_FETCH, BEFORE_BACKWARD, IN_PHASE, UNDECIDED, Interval
from perfkit.record.clock.step_sums import ClosedStep, StepSums
from perfkit.run.records import Mode, Phase

#: Minimum time between two readings of the thread's processor time: each takes 0.6 us.
_THREAD_NS = 1_000_000

#: The stack of a step that begins with a fetch.
_FETCHING = (UNDECIDED, IN_PHASE["data"])
#: Events that are logged before they are added up also inside a step (40 bytes an event): a step of a plain loop has
#: six, and one in which a user opens and closes phases a million times must not fill the memory.
_MAX_EVENTS = 4096


class StepClock:
    """Times steps and their phases on one thread.

    Both callbacks run outside of all phases: the next step starts when they have returned, so that no step contains
    perfkit's work between steps.

    Args:
        on_steps: Gets the steps that closed since its last call, in order.
        on_due: Called with the number of the coming step once that is `due`. It returns whether it did perfkit's
            everyday work, and no window's.
        batch: How many steps later the next pause is due, unless ``on_due`` sets `due`.
    """

    def __init__(
        self,
        on_steps: Callable[[list[ClosedStep]], None],
        on_due: Callable[[int], bool] = lambda step: True,
        *,
        batch: int = 1,
    ) -> None:
        self._on_steps = on_steps
        self._on_due = on_due
        self._batch = batch
        # Bound once, here: this is the path whose cost is the product (see `_clock`).
        self._now = _clock.now_ns
        #: interval, time, interval, time ...: written by one call, so that no signal or thread finds half an event.
        self._log: list[Any] = []
        #: What runs when no phase is open, then the open phases.
        self._stack: list[Interval] = [UNDECIDED]
        self._sums = StepSums()
        self.validating = False
        self.step_num = 0
        #: How often a step was begun anew: what was measured before that is in no step.
        self.starts = 0
        self.running = False
        #: The step number, and the time, from which on the end of a step is also a pause.
        self.due = 0
        self.due_ns = sys.maxsize
        #: Called with the number of each coming step, where nobody can foresee the next pause: whether it is now.
        self.asks: Callable[[int], bool] | None = None
        #: Called with the number of each step that ends, in no phase, for what must be read after every step.
        self.at_close: Callable[[int], None] | None = None
        self._events = self._paused_ns = 0
        #: When the running pause began; None in a step.
        self.paused_at: int | None = None
        self._event_ns = 0.0
        #: The same boundaries on a device; set between two steps, once the program uses one.
        self.device: DeviceClock | None = None
        #: The thread that trains, its processor time (ns) before each of these steps, and when to read it again.
        self._thread = self._thread_due = 0
        self._thread_times: list[tuple[int, int]] = []
        #: Whether a `StepIterator` is being iterated; one inside another is part of the outer one's step.
        self.iterating = False

    def start(self) -> None:
        """Begin the first (or next) step now; everything before belongs to no step."""
        self._add_up()
        self._reset()
        self.starts += 1
        self.running = True
        self._thread_times.clear()
        if not self._sums.closed:
            self._thread = threading.get_ident()
            self._read_thread(self.step_num)
        self._sums.begin(self._now())
        if self.device is not None:
            self.device.begin_step()

    def _reset(self) -> None:
        self._stack[:] = (UNDECIDED,)
        self.validating = False

    @property
    def phase(self) -> Phase:
        """The phase that is running; also read from the sampler's thread."""
        return "validation" if self.validating else self._stack[-1].shown

    @property
    def active(self) -> bool:
        """Whether anything but a fetch happened since the step began; a step without is not a step yet."""
        return self._sums.is_active(self._log, self._stack)

    @property
    def fetching(self) -> bool:
        """Whether the loop is waiting for data right now."""
        return self._stack[-1] is IN_PHASE["data"]

    @property
    def idle_ns(self) -> int:
        """Time since the last event."""
        return self._now() - (self._log[-1] if self._log else self._sums.last)

    def knows(self, *phases: Phase) -> None:
        """The loop shows these phases: they are numbers from now on, 0 where they took no time."""
        self._add_up()
        self._sums.know(phases)

    @property
    def overhead_ns(self) -> int:
        """Time of the clock and its pauses so far: the pauses as measured, the events by the time of one."""
        on_device = self.device.own_ns if self.device is not None else 0
        return self._paused_ns + round(self._events * self._event_ns) + on_device

    def calibrate(self) -> None:
        """Measure the time of an event on this machine.

        In a loop, as here, it is shortest: between the ops of a training it can take twice as long.
        """
        scratch = StepClock(lambda closed: None)
        best = sys.maxsize
        for _ in range(5):  # the minimum of five: the machine does other work too
            began = self._now()
            for _ in range(64):
                scratch.enter("backward")
                scratch.leave("backward")
            best = min(best, self._now() - began)
        self._event_ns = best / 128

    # -- events

    def enter(self, phase: Phase) -> None:
        """Open a phase inside the one that runs."""
        stack = self._stack
        interval = stack[-1]
        if self.device is not None:
            self.device.mark(self.phase)
        if interval is UNDECIDED and phase == "backward":
            # What led to a backward was a forward, also after an optimizer step (two networks, one step).
            interval = BEFORE_BACKWARD
        self._log.extend((interval, self._now()))
        stack.append(IN_PHASE[phase])

    def leave(self, phase: Phase) -> None:
        """Close the innermost open phase of that name and all inside it; one that is not open is ignored."""
        left = IN_PHASE[phase]
        stack = self._stack
        interval = stack[-1]
        if interval is not left:
            if left not in stack:
                return
            while stack[-1] is not left:
                stack.pop()
        if self.device is not None:
            self.device.mark("validation" if self.validating else interval.shown)
        stack.pop()
        if len(stack) == 1:
            if phase == "data":
                stack[0] = AFTER_FETCH
                interval = interval.settled
            elif phase in ("backward", "optimizer"):
                # Between a backward and the optimizer: clipping and scaling, no forward.
                stack[0] = UNDECIDED
                interval = interval.settled
        self._log.extend((interval, self._now()))
        if len(self._log) > 2 * _MAX_EVENTS:
            self._add_up()

    def meter(self, phase: Phase) -> tuple[Callable[[], None], Callable[[], None]]:
        """``enter`` and ``leave`` of one phase, for what happens in every step: the same, with fewer lookups."""
        inside = IN_PHASE[phase]
        before = BEFORE_BACKWARD if phase == "backward" else UNDECIDED
        after = AFTER_FETCH if phase == "data" else UNDECIDED
        settled = inside.settled
        log, stack, now = self._log, self._stack, self._now
        extend, push, pop = log.extend, stack.append, stack.pop

        def enter() -> None:
            if self.device is not None:
                self.enter(phase)
                return
            interval = stack[-1]
            extend((before if interval is UNDECIDED else interval, now()))
            push(inside)

        def leave() -> None:
            if stack[-1] is not inside or len(stack) != 2 or len(log) > 2 * _MAX_EVENTS or self.device is not None:
                self.leave(phase)
                return
            extend((settled, now()))
            pop()
            stack[0] = after

        return enter, leave

    def close(self, mode: Mode = "train") -> None:
        """End the step here; the next begins now, or after the pause that is due."""
        if not self.running:
            return
        interval = self._stack[-1]
        now = self._now()
        self._log.extend((interval.closed[mode], now))
        step = self.step_num
        self.step_num = step + 1
        if now >= self._thread_due:
            self._read_thread(step + 1)
        if self.at_close is not None:
            self.at_close(step)
        if self.device is not None:
            self.device.mark(self.phase)
            self.device.end_step(step)
        if step + 1 >= self.due or now >= self.due_ns or (self.asks is not None and self.asks(step + 1)):
            self._pause(now)
            return
        if self.validating:
            self._add_up()
        self._reset()
        if self.device is not None:
            self.device.begin_step()

    def close_with_fetch(self) -> None:
        """End the step where the next begins with a fetch, as most steps do: `close` and ``enter("data")`` at once."""
        stack = self._stack
        if self.validating or self.device is not None or not self.running:
            self.close()
            self.enter("data")
            return
        now = self._now()
        self._log.extend((stack[-1].closed["train"], now))
        step = self.step_num
        self.step_num = step + 1
        if now >= self._thread_due:
            self._read_thread(step + 1)
        if self.at_close is not None:
            self.at_close(step)
        if step + 1 >= self.due or now >= self.due_ns or (self.asks is not None and self.asks(step + 1)):
            self._pause(now)
            self.enter("data")
            return
        stack[:] = _FETCHING

    def _pause(self, began: int) -> None:
        self.paused_at = began
        self._read_thread(self.step_num)
        self.running = False
        self.due = self.step_num + self._batch
        everyday = True
        try:
            self.hand_over()
            everyday = self._on_due(self.step_num)
        finally:
            self.paused_at = None
            self.start()
            if everyday:
                self._paused_ns += self._sums.start_ns - began

    def _read_thread(self, step: int) -> None:
        self._thread_times.append((step, time.thread_time_ns()))
        self._thread_due = self._now() + _THREAD_NS

    def _share_thread_times(self) -> None:
        """Give each of the steps since the last pause the thread's processor time: between two readings their mean."""
        closed, times = self._sums.closed, self._thread_times
        if not closed or not times or times[0][0] != closed[0].step or self._thread != threading.get_ident():
            return
        for (first, began), (end, ended) in itertools.pairwise(times):
            if end > first:
                mean = (ended - began) // (end - first)
                for step in closed[first - closed[0].step : end - closed[0].step]:
                    step.thread_ns = mean

    def hand_over(self) -> None:
        """Give the steps that closed so far to ``on_steps``."""
        self._add_up()
        self._share_thread_times()
        closed, self._sums.closed = self._sums.closed, []
        if closed:
            self._on_steps(closed)

    def drop(self) -> None:
        """Forget the unfinished step: one that did nothing yet, or that an exception cut short."""
        self.running = False
        self.hand_over()
        self._reset()

    def _add_up(self) -> None:
        log = self._log
        self._events += len(log) // 2
        self._sums.add(log, validating=self.validating)
        log.clear()

    # -- validation

    def _until_now(self) -> None:
        if self.device is not None:
            self.device.mark(self.phase)
        self._log.extend((self._stack[-1], self._now()))
        self._add_up()

    def validation(self, inside: bool) -> None:
        """Count all time as validation from now on, or stop doing so."""
        if inside != self.validating:
            self._until_now()
            self.validating = inside
            self._sums.know(("validation",))

    def times(self) -> list[int]:
        """The unfinished step's times until now, for `move_to_validation`."""
        self._until_now()
        return list(self._sums.times)

    def move_to_validation(self, since: list[int]) -> None:
        """Count as validation all time of the unfinished step after ``since``: it has turned out to be that."""
        self._until_now()
        self._sums.move_to_validation(since)
