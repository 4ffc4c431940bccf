"""The step and phase clock: exclusive times that sum to the step.

At every event the time since the last event goes to the phase that was running; then the phase changes.
So the phases of a step sum to its wall time by construction, whatever the order of events.

Phases come from two sides. Nested ones are pushed and popped (`enter`, `leave`): a fetch, the autograd
engine, an optimizer, whatever an integration names. Below them lies the ``base``: what the loop is
doing when nothing is open. After a fetch that is the forward. After a backward or an optimizer step it
cannot be known yet (clipping, logging, or a second forward as in a GAN): that time waits, and is booked
as forward if a backward follows, as other if the step ends first.
"""

from __future__ import annotations

from collections.abc import Callable

from perfkit import _clock
from perfkit.loop.device_clock import DeviceClock
from perfkit.run.records import PHASES, Mode, Phase, Phases

_INDEX = {name: index for index, name in enumerate(PHASES)}
_DATA = _INDEX["data"]
_FORWARD = _INDEX["forward"]
_OTHER = _INDEX["other"]
_BACKWARD = _INDEX["backward"]
_OPTIMIZER = _INDEX["optimizer"]
_VALIDATION = _INDEX["validation"]
_UNDECIDED = len(PHASES)


class ClosedStep:
    """A finished step, before the profiler adds what else it knows."""

    __slots__ = ("mode", "phases_ns", "start_ns", "step", "wall_ns")

    def __init__(self, step: int, mode: Mode, start_ns: int, wall_ns: int, phases_ns: Phases) -> None:
        self.step = step
        self.mode = mode
        self.start_ns = start_ns
        self.wall_ns = wall_ns
        self.phases_ns = phases_ns


class StepClock:
    """Times steps and their phases on one thread.

    ``on_step`` is called with each closed step, outside of all phases: the next step starts when it has
    returned, so that nothing perfkit does between steps lands in one.
    """

    def __init__(self, on_step: Callable[[ClosedStep], None]) -> None:
        self._on_step = on_step
        self._sums = [0] * (len(PHASES) + 1)
        self._known = {_FORWARD, _OTHER}
        self._stack: list[int] = []
        self._base = _UNDECIDED
        self.validating = False
        self._start = self._last = 0
        self.step_num = 0
        self.running = False
        #: The same boundaries on a device, where there is one.
        self.device: DeviceClock | None = None
        #: Whether a `Steps` is being iterated; one inside another is part of the outer one's step.
        self.iterating = False
        #: Whether anything but a fetch happened since the step began; a step without is no step yet.
        self.active = False

    def start(self) -> None:
        """Begin the first (or next) step now; everything before belongs to no step."""
        self._start = self._last = _clock.now_ns()
        self._sums = [0] * (len(PHASES) + 1)
        self._stack.clear()
        self._base = _UNDECIDED
        self.validating = False
        self.running = True
        self.active = False
        if self.device is not None:
            self.device.begin_step()

    @property
    def phase(self) -> Phase:
        """The phase that is running, for the sampler; read from another thread."""
        stack = self._stack
        index = _VALIDATION if self.validating else stack[-1] if stack else self._base
        return PHASES[_OTHER if index == _UNDECIDED else index]

    @property
    def fetching(self) -> bool:
        """Whether the loop is waiting for data right now."""
        return bool(self._stack) and self._stack[-1] == _DATA

    def knows(self, *phases: Phase) -> None:
        """Say that this loop can tell these phases: they are then numbers, 0 where nothing of them happened."""
        self._known.update(_INDEX[phase] for phase in phases)

    def _account(self, now: int) -> None:
        passed = now - self._last
        index = _VALIDATION if self.validating else self._stack[-1] if self._stack else self._base
        if passed > 0:  # a clock that jumps back must not take time from a phase
            self._sums[index] += passed
        self._last = now
        if self.device is not None:
            # On the device a time cannot be moved afterwards: what is undecided counts as other there.
            self.device.mark(_OTHER if index == _UNDECIDED else index)

    def enter(self, phase: Phase) -> None:
        """Open a phase inside whatever runs."""
        index = _INDEX[phase]
        self._account(_clock.now_ns())
        if index == _BACKWARD and not self._stack and self._base == _UNDECIDED:
            # What led to a backward was a forward, also after an optimizer step (two networks, one step).
            self._sums[_FORWARD] += self._sums[_UNDECIDED]
            self._sums[_UNDECIDED] = 0
        self._stack.append(index)
        self._known.add(index)
        if index != _DATA and index != _VALIDATION:
            self.active = True

    def leave(self, phase: Phase) -> None:
        """Close the innermost open phase of that name and all inside it; one that is not open is ignored."""
        index = _INDEX[phase]
        stack = self._stack
        if index not in stack:
            return
        self._account(_clock.now_ns())
        while stack.pop() != index:
            pass
        if not stack:
            if index == _DATA:
                self._settle()
                self._base = _FORWARD
            elif index in (_BACKWARD, _OPTIMIZER):
                if self._base == _UNDECIDED:
                    # Between a backward and the optimizer: clipping and scaling, no forward.
                    self._settle()
                self._base = _UNDECIDED

    def _settle(self) -> None:
        self._sums[_OTHER] += self._sums[_UNDECIDED]
        self._sums[_UNDECIDED] = 0

    def validation(self, inside: bool) -> None:
        """Book everything as validation from now on, or stop doing so."""
        if inside != self.validating:
            self._account(_clock.now_ns())
            self.validating = inside
            self._known.add(_VALIDATION)

    def times(self) -> list[int]:
        """The unfinished step's times until now, for `move_to_validation`."""
        self._account(_clock.now_ns())
        return list(self._sums)

    def move_to_validation(self, since: list[int]) -> None:
        """Book as validation what was booked elsewhere after ``since``: it has turned out to be that."""
        now = self.times()
        for index, (was, is_) in enumerate(zip(since, now, strict=True)):
            if index != _VALIDATION:
                self._sums[index] = was
                self._sums[_VALIDATION] += is_ - was
        self._known.add(_VALIDATION)

    def close(self, mode: Mode = "train") -> None:
        """End the step here; the next begins when ``on_step`` has returned."""
        if not self.running:
            return
        self._account(_clock.now_ns())
        self._settle()
        sums = self._sums
        phases = Phases(**{PHASES[index]: sums[index] for index in self._known})
        closed = ClosedStep(self.step_num, mode, self._start, sum(sums), phases)
        if self.device is not None:
            self.device.end_step(self.step_num)
        self.step_num += 1
        self.running = False
        try:
            self._on_step(closed)
        finally:
            self.start()

    def drop(self) -> None:
        """Forget the unfinished step: what began and never did anything, or what an exception cut short."""
        self.running = False
        self._stack.clear()
        self.validating = False
