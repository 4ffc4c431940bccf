"""The step and phase clock: exclusive times that sum to the step.

At every event the time since the last event goes to the phase that was running; then the phase changes.
So the phases of a step sum to its wall time by construction, whatever the order of events.

Phases come from two sides. Nested ones are pushed and popped (`enter`, `leave`): a fetch, the autograd
engine, an optimizer, whatever an integration names. Below them lies the base: what the loop is doing when
nothing is open. After a fetch that is the forward. After a backward or an optimizer step it cannot be
known yet (clipping, logging, or a second forward as in a GAN): that time waits, and is booked as forward
if a backward follows, as other if the step ends first.

In a step, an event is only written down: which phase has ended, and when. The sums are made for many steps at
once, between two steps (`StepClock.due`): code that runs once in a while finds nothing of its own in the
processor's caches, and costs several times what it does in a loop.
"""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from perfkit import _clock
from perfkit.record.clock.device_clock import DeviceClock
from perfkit.run.records import MODES, PHASES, Mode, Phase, Phases

_INDEX = {name: index for index, name in enumerate(PHASES)}
_DATA = _INDEX["data"]
_FORWARD = _INDEX["forward"]
_OTHER = _INDEX["other"]
_BACKWARD = _INDEX["backward"]
_OPTIMIZER = _INDEX["optimizer"]
_VALIDATION = _INDEX["validation"]
#: What follows these cannot be known yet.
_TO_UNDECIDED = (_BACKWARD, _OPTIMIZER)
#: What the base can be, and what an undecided time turned out to be when a backward followed.
_UNDECIDED = len(PHASES)
_BASE_FORWARD = _UNDECIDED + 1
_BECAME_FORWARD = _UNDECIDED + 2
_CODES = _UNDECIDED + 3
#: The phase that each code is shown and timed as on a device, where a time cannot be moved afterwards.
_SHOWN = (*range(len(PHASES)), _OTHER, _FORWARD, _OTHER)

#: Beside the code of the phase that ended: what was undecided before it is none of the forward's; the step ended too,
#: in the mode with this number.
_SETTLES = 16
_CLOSES = 32
_MODE = 6  # bits above which the mode stands
_CLOSES_AS = {mode: _CLOSES | number << _MODE for number, mode in enumerate(MODES)}
_CLOSES_AS_TRAINING = _CLOSES_AS["train"]
#: By code: where its time is booked, also while everything is validation; the phase that the loop is seen to tell.
_PHASE_OF = tuple(code & 15 for code in range(len(MODES) << _MODE))
_ALL_VALIDATION = (_VALIDATION,) * len(_PHASE_OF)
_KNOWN_BY = tuple(_SHOWN[code] if code < _CODES else _OTHER for code in _PHASE_OF)
_ZEROS = (0,) * _CODES
#: What does not make a step.
_INACTIVE = (_DATA, _VALIDATION, _UNDECIDED, _BASE_FORWARD)
#: The stack of a step that begins with a fetch.
_FETCHING = (_UNDECIDED, _DATA)

#: Events that are kept before they are summed also inside a step (2 numbers each, 40 bytes an event): a step of a
#: plain loop has six, and one in which a user opens and closes phases a million times must not fill the memory.
_MOST_EVENTS = 4096


class ClosedStep(msgspec.Struct, gc=False):
    """A finished step, before the profiler adds what else it knows."""

    step: int
    mode: Mode
    start_ns: int
    wall_ns: int
    phases_ns: Phases


class _Shape:
    """The events of one step, and where the time before each is booked: steps of a loop are nearly all alike.

    Which phase a time belongs to follows from the events alone, also where it was undecided for a while.
    """

    __slots__ = ("codes", "mode", "phases", "size")

    def __init__(self, codes: list[int]) -> None:
        self.codes = codes
        self.size = 2 * len(codes)
        self.mode = MODES[codes[-1] >> _MODE]
        phases = [_PHASE_OF[code] for code in codes]
        undecided: list[int] = []
        for index, code in enumerate(codes):
            if phases[index] in (_UNDECIDED, _BECAME_FORWARD):
                undecided.append(index)
            elif phases[index] == _BASE_FORWARD:
                phases[index] = _FORWARD
            if code == _BECAME_FORWARD or code >= _SETTLES:
                for waited in undecided:
                    phases[waited] = _FORWARD if code == _BECAME_FORWARD else _OTHER
                undecided.clear()
        self.phases = tuple(phases)

    def steps_in(self, log: list[int], at: int) -> int:
        """How many steps one after the other, written down from ``at`` on, are like this."""
        begin, codes, size = at, self.codes, self.size
        while log[at : at + size : 2] == codes:
            at += size
        return (at - begin) // size


def _as_phases(
    data: int | None,
    transfer: int | None,
    forward: int | None,
    backward: int | None,
    optimizer: int | None,
    validation: int | None,
    callbacks: int | None,
    logging: int | None,
    checkpoint: int | None,
    other: int | None,
) -> Phases:
    # In the order of `PHASES`; written out, which is twice as fast as by names that are put together.
    return Phases(
        data=data,
        transfer=transfer,
        forward=forward,
        backward=backward,
        optimizer=optimizer,
        validation=validation,
        callbacks=callbacks,
        logging=logging,
        checkpoint=checkpoint,
        other=other,
    )


class StepClock:
    """Times steps and their phases on one thread.

    ``on_steps`` gets the steps that closed since it was called last, in order; ``on_due`` is called with the number
    of the coming step once that is `due`. Both are called outside of all phases: the next step starts when they have
    returned, so that nothing perfkit does between steps lands in one. ``on_due`` says whether it did perfkit's everyday
    work, and no window's. ``batch`` is how many steps later the next
    pause is due, unless ``on_due`` says otherwise.
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
        #: code, time, code, time ...: written by one call, so that no signal or thread finds half an event.
        self._log: list[int] = []
        self._stack = [_UNDECIDED]
        self._sums = [0] * _CODES
        self._known: set[int] = set()
        #: The times of a step in which nothing happened: None for phases that this loop cannot tell.
        self._blank: list[Any] = []
        self._know((_FORWARD, _OTHER))
        #: What two steps one after the other were like, and what the last one was; whether the sums begin with a step.
        self._shape: _Shape | None = None
        self._codes: list[int] = []
        self._whole = True
        self._closed: list[ClosedStep] = []
        self._summed_step = 0
        self._start = self._last = 0
        self.validating = False
        self.step_num = 0
        self.running = False
        #: The step number, and the time, from which on the end of a step is also a pause.
        self.due = 0
        self.due_ns = sys.maxsize
        #: Called with the number of each step that ends, inside no phase: for what must be looked at every time.
        self.at_close: Callable[[int], None] | None = None
        self._events = self._paused_ns = 0
        self._event_ns = 0.0
        #: The same boundaries on a device, where there is one.
        self.device: DeviceClock | None = None
        #: Whether a `Steps` is being iterated; one inside another is part of the outer one's step.
        self.iterating = False

    def start(self) -> None:
        """Begin the first (or next) step now; everything before belongs to no step."""
        if self._log:
            self._sum_up()
        self._sums = [0] * _CODES
        self._whole = True
        self._reset()
        self.running = True
        self._start = self._last = self._now()
        if self.device is not None:
            self.device.begin_step()

    def _reset(self) -> None:
        self._stack[:] = (_UNDECIDED,)
        self.validating = False

    @property
    def phase(self) -> Phase:
        """The phase that is running, for the sampler; read from another thread."""
        return PHASES[_VALIDATION if self.validating else _SHOWN[self._stack[-1]]]

    @property
    def active(self) -> bool:
        """Whether anything but a fetch happened since the step began; a step without is no step yet."""
        codes = list(self._stack)
        for code in reversed(self._log[::2]):
            if code & _CLOSES:
                break
            codes.append(code & 15)
        else:
            codes.extend(code for code, passed in enumerate(self._sums) if passed)
        return any(code not in _INACTIVE for code in codes)

    @property
    def fetching(self) -> bool:
        """Whether the loop is waiting for data right now."""
        return self._stack[-1] == _DATA

    def knows(self, *phases: Phase) -> None:
        """Say that this loop can tell these phases: they are then numbers, 0 where nothing of them happened."""
        self._sum_up()
        self._know(_INDEX[phase] for phase in phases)

    @property
    def overhead_ns(self) -> int:
        """What the clock and its pauses took so far: the pauses as measured, the events by what one costs."""
        return self._paused_ns + round(self._events * self._event_ns)

    def calibrate(self) -> None:
        """Measure what an event costs on this machine.

        In a loop, as here, it is least: between the ops of a training it can be twice that.
        """
        scratch = StepClock(lambda closed: None)
        best = sys.maxsize
        for _ in range(5):  # the least of five: the machine has other things to do
            began = self._now()
            for _ in range(64):
                scratch.enter("backward")
                scratch.leave("backward")
            best = min(best, self._now() - began)
        self._event_ns = best / 128

    # -- events

    def enter(self, phase: Phase) -> None:
        """Open a phase inside whatever runs."""
        index = _INDEX[phase]
        stack = self._stack
        code = stack[-1]
        if self.device is not None:
            self.device.mark(_VALIDATION if self.validating else _SHOWN[code])
        if index == _BACKWARD and code == _UNDECIDED:
            # What led to a backward was a forward, also after an optimizer step (two networks, one step).
            code = _BECAME_FORWARD
        log = self._log
        log.extend((code, self._now()))
        stack.append(index)

    def leave(self, phase: Phase) -> None:
        """Close the innermost open phase of that name and all inside it; one that is not open is ignored."""
        index = _INDEX[phase]
        stack = self._stack
        code = stack[-1]
        if code != index:
            if index not in stack:
                return
            while stack[-1] != index:
                stack.pop()
        if self.device is not None:
            self.device.mark(_VALIDATION if self.validating else _SHOWN[code])
        stack.pop()
        if len(stack) == 1:
            if index == _DATA:
                stack[0] = _BASE_FORWARD
                code |= _SETTLES
            elif index in _TO_UNDECIDED:
                # Between a backward and the optimizer: clipping and scaling, no forward.
                stack[0] = _UNDECIDED
                code |= _SETTLES
        self._log.extend((code, self._now()))
        if len(self._log) > 2 * _MOST_EVENTS:
            self._sum_up()

    def meter(self, phase: Phase) -> tuple[Callable[[], None], Callable[[], None]]:
        """``enter`` and ``leave`` of one phase, for what happens in every step: the same, with nothing looked up."""
        if self.device is not None:
            return lambda: self.enter(phase), lambda: self.leave(phase)
        index = _INDEX[phase]
        before = _BECAME_FORWARD if index == _BACKWARD else _UNDECIDED
        after = _BASE_FORWARD if index == _DATA else _UNDECIDED
        settles = index | _SETTLES
        log, stack, now = self._log, self._stack, self._now
        extend, push, pop = log.extend, stack.append, stack.pop

        def enter() -> None:
            code = stack[-1]
            extend((before if code == _UNDECIDED else code, now()))
            push(index)

        def leave() -> None:
            if stack[-1] != index or len(stack) != 2 or len(log) > 2 * _MOST_EVENTS:
                self.leave(phase)
                return
            extend((settles, now()))
            pop()
            stack[0] = after

        return enter, leave

    def close(self, mode: Mode = "train") -> None:
        """End the step here; the next begins now, or when the pause that is due is over."""
        if not self.running:
            return
        code = self._stack[-1]
        now = self._now()
        self._log.extend((code | _CLOSES_AS[mode], now))
        step = self.step_num
        self.step_num = step + 1
        if self.at_close is not None:
            self.at_close(step)
        if self.device is not None:
            self.device.mark(_VALIDATION if self.validating else _SHOWN[code])
            self.device.end_step(step)
        if step + 1 >= self.due or now >= self.due_ns:
            self._pause(now)
            return
        if self.validating:
            self._sum_up()
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
        self._log.extend((stack[-1] | _CLOSES_AS_TRAINING, now))
        step = self.step_num
        self.step_num = step + 1
        if self.at_close is not None:
            self.at_close(step)
        if step + 1 >= self.due or now >= self.due_ns:
            self._pause(now)
            self.enter("data")
            return
        stack[:] = _FETCHING

    def _pause(self, began: int) -> None:
        self.running = False
        self.due = self.step_num + self._batch
        everyday = True
        try:
            self.hand_over()
            everyday = self._on_due(self.step_num)
        finally:
            self.start()
            if everyday:
                self._paused_ns += self._start - began

    def hand_over(self) -> None:
        """Give the steps that closed so far to ``on_steps``."""
        self._sum_up()
        closed, self._closed = self._closed, []
        if closed:
            self._on_steps(closed)

    def drop(self) -> None:
        """Forget the unfinished step: what began and never did anything, or what an exception cut short."""
        self.running = False
        self.hand_over()
        self._reset()

    # -- sums

    def _sum_up(self) -> None:
        """Book what is written down."""
        log, at = self._log, 0
        self._events += len(log) // 2
        while at < len(log):
            shape = self._shape if self._whole and not self.validating else None
            alike = shape.steps_in(log, at) if shape is not None else 0
            at = self._sum_alike(shape, at, alike) if shape is not None and alike else self._sum_step(at)
        log.clear()

    def _sum_alike(self, shape: _Shape, begin: int, steps: int) -> int:
        """Book so many steps of one shape, the first of which is written down from ``begin`` on; how far that was."""
        end = begin + steps * shape.size
        times = self._log[begin + 1 : end : 2]
        passed = list(map(operator.sub, times, (self._start, *times[:-1])))
        if min(passed) < 0:
            # A clock that jumps back must not take time from a phase: one step by itself, then on.
            return self._sum_step(begin)
        # All steps at once, a column for each phase, at half the cost of step by step.
        events = shape.size // 2
        columns: list[Any] = [itertools.repeat(time) for time in self._blank]
        for event, phase in enumerate(shape.phases):
            column = passed[event::events]
            again = phase in shape.phases[:event]
            columns[phase] = list(map(operator.add, columns[phase], column)) if again else column
        ends = times[events - 1 :: events]
        starts = (self._start, *ends[:-1])
        self._closed.extend(
            map(
                ClosedStep,
                itertools.count(self._summed_step),
                itertools.repeat(shape.mode),
                starts,
                map(operator.sub, ends, starts),
                map(_as_phases, *columns),
            )
        )
        self._summed_step += steps
        self._start = self._last = ends[-1]
        return end

    def _sum_step(self, begin: int) -> int:
        """Book what is written down from ``begin`` on to the end of a step, or to the end; how far that was."""
        log, last, sums = self._log, self._last, self._sums
        phases = _ALL_VALIDATION if self.validating else _PHASE_OF
        for at in range(begin, len(log), 2):
            code, now = log[at], log[at + 1]
            if now > last:
                sums[phases[code]] += now - last
            last = now
            if code >= _BECAME_FORWARD:
                if code == _BECAME_FORWARD:
                    sums[_FORWARD] += sums[_UNDECIDED] + sums[_BECAME_FORWARD]
                    sums[_UNDECIDED] = sums[_BECAME_FORWARD] = 0
                elif sums[_UNDECIDED]:
                    sums[_OTHER] += sums[_UNDECIDED]
                    sums[_UNDECIDED] = 0
                if code >= _CLOSES:
                    codes = log[begin : at + 2 : 2]
                    self._know(_KNOWN_BY[code] for code in codes)
                    self._close(sums, now, MODES[code >> _MODE])
                    if self._whole and codes == self._codes:
                        self._shape = _Shape(codes)
                    self._codes, self._whole = codes, True
                    self._last = last
                    return at + 2
        self._know(_KNOWN_BY[code] for code in log[begin::2])
        self._whole = False
        self._last = last
        return len(log)

    def _know(self, phases: Iterable[int]) -> None:
        self._known.update(phases)
        self._blank = [0 if index in self._known else None for index in range(len(PHASES))]

    def _close(self, sums: list[int], now: int, mode: Mode) -> None:
        sums[_FORWARD] += sums[_BASE_FORWARD]
        sums[_BASE_FORWARD] = 0
        known = [time if blank is not None else None for time, blank in zip(sums, self._blank, strict=False)]
        self._closed.append(ClosedStep(self._summed_step, mode, self._start, sum(sums), _as_phases(*known)))
        self._summed_step += 1
        self._start = now
        sums[:] = _ZEROS

    def _until_now(self) -> None:
        code = self._stack[-1]
        if self.device is not None:
            self.device.mark(_VALIDATION if self.validating else _SHOWN[code])
        self._log.extend((code, self._now()))
        self._sum_up()

    def validation(self, inside: bool) -> None:
        """Book everything as validation from now on, or stop doing so."""
        if inside != self.validating:
            self._until_now()
            self.validating = inside
            self._know((_VALIDATION,))

    def times(self) -> list[int]:
        """The unfinished step's times until now, for `move_to_validation`."""
        self._until_now()
        return list(self._sums)

    def move_to_validation(self, since: list[int]) -> None:
        """Book as validation what was booked elsewhere after ``since``: it has turned out to be that."""
        now = self.times()
        for index, (was, is_) in enumerate(zip(since, now, strict=True)):
            if index != _VALIDATION:
                self._sums[index] = was
                self._sums[_VALIDATION] += is_ - was
        self._know((_VALIDATION,))
