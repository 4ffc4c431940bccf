"""Which steps are recorded, in torch's words: skip_first, wait, warmup, active, repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from perfkit import _clock
from perfkit.errors import UsageError

Action = Literal["none", "warmup", "record", "save"]

_TORCH_NAMES: dict[str, Action] = {
    "NONE": "none",
    "WARMUP": "warmup",
    "RECORD": "record",
    "RECORD_AND_SAVE": "save",
}


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """Cycles of wait, warmup and active steps after ``skip_first`` steps; see `schedule`.

    Called with a step number it gives torch's ``ProfilerAction``, so it also fits torch.profiler.profile.
    """

    wait: int
    warmup: int
    active: int
    repeat: int = 0
    skip_first: int = 0
    skip_first_wait: int = 0
    every_s: float | None = None

    def action(self, step: int) -> Action:
        """What happens in step ``step`` (0-based), by steps alone; with ``every_s`` see `timed`."""
        step -= self.skip_first
        if step < 0:
            return "none"
        if self.skip_first_wait:
            step += self.wait
        cycle = self.wait + self.warmup + self.active
        if self.repeat and step >= self.repeat * cycle:
            return "none"
        position = step % cycle
        if position < self.wait:
            return "none"
        if position < self.wait + self.warmup:
            return "warmup"
        return "record" if position < cycle - 1 else "save"

    @property
    def first_window_end(self) -> int:
        """How many steps a run must have for its first window to be complete."""
        wait = 0 if self.skip_first_wait else self.wait
        return self.skip_first + wait + self.warmup + self.active

    def __call__(self, step: int) -> Any:
        if self.every_s is not None:
            raise UsageError("a schedule by time (every_s) needs perfkit.profile: torch's profiler knows steps only")
        from torch.profiler import ProfilerAction

        names = {action: name for name, action in _TORCH_NAMES.items()}
        return ProfilerAction[names[self.action(step)]]


def timed(schedule: Schedule) -> Callable[[int], Action]:
    """Windows by time: the first as the schedule says, each later one ``every_s`` after the one before began.

    Asked for each step in turn; asked again for a step of the open window it answers the same.
    """
    every_ns = round((schedule.every_s or 0) * 1e9)
    first = schedule.skip_first + (0 if schedule.skip_first_wait else schedule.wait)
    length = schedule.warmup + schedule.active
    began_step: int | None = None
    began_ns = 0
    windows = 0

    def action(step: int) -> Action:
        nonlocal began_step, began_ns, windows
        if began_step is None or step >= began_step + length:
            if schedule.repeat and windows >= schedule.repeat:
                return "none"
            due = step >= first if windows == 0 else _clock.now_ns() >= began_ns + every_ns
            if not due:
                return "none"
            began_step, began_ns, windows = step, _clock.now_ns(), windows + 1
        position = step - began_step
        if position < schedule.warmup:
            return "warmup"
        return "record" if position < length - 1 else "save"

    return action


class WithTriggered:
    """A schedule with cycles of a trigger's between its own; asked as a schedule is.

    A cycle of the schedule's that had begun when a triggered one ended is left out: it would be recorded in part, and
    without its warm-up.
    """

    def __init__(self, own: Callable[[int], Action], *, warmup: int, active: int) -> None:
        self._own = own
        self._warmup = warmup
        self._length = warmup + active
        self._began: int | None = None
        self._cut = False

    @property
    def busy(self) -> bool:
        """Whether each step must be asked for: a triggered cycle runs, or one of the schedule's is left out."""
        return self._began is not None or self._cut

    def begin(self, step: int) -> None:
        """A triggered cycle begins with ``step``."""
        self._began = step

    def __call__(self, step: int) -> Action:
        if self._began is not None:
            position = step - self._began
            if position < self._warmup:
                return "warmup"
            if position < self._length:
                return "record" if position < self._length - 1 else "save"
        action = self._own(step)
        cut = self._cut or self._began is not None
        self._began = None
        self._cut = cut and action == "record"
        return "none" if cut and action in ("record", "save") else action


def schedule(
    *,
    wait: int,
    warmup: int,
    active: int,
    repeat: int = 0,
    skip_first: int = 0,
    skip_first_wait: int = 0,
    every_s: float | None = None,
) -> Schedule:
    """Say which steps are recorded, as ``torch.profiler.schedule`` does.

    Args:
        wait: Steps at the start of each cycle in which nothing is recorded.
        warmup: Steps in which the recorder runs and its result is thrown away.
        active: Steps of the window.
        repeat: How many cycles; 0 goes on to the end of the run.
        skip_first: Steps before the first cycle.
        skip_first_wait: Not 0 leaves out the wait of the first cycle.
        every_s: Later cycles begin so many seconds after the one before began, instead of after ``wait`` steps.

    Raises:
        UsageError: a number is negative or no whole number, ``active`` is below 1, or ``every_s`` is not above 0.
    """
    numbers = {
        "wait": wait,
        "warmup": warmup,
        "active": active,
        "repeat": repeat,
        "skip_first": skip_first,
        "skip_first_wait": skip_first_wait,
    }
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise UsageError(f"{name} must be a whole number of steps, got {value!r}")
        if value < 0:
            raise UsageError(f"{name} must not be negative, got {value}")
    if active < 1:
        raise UsageError(f"active must be at least 1 step, got {active}: a window without steps records nothing")
    if every_s is not None and not every_s > 0:
        raise UsageError(f"every_s must be a time above 0 seconds, got {every_s!r}")
    return Schedule(**numbers, every_s=every_s)


#: Without a word from the user: ten steps to get warm, which also give ten clean rows to compare the window
#: with; two of warm-up, because the first recorded step pays for the recorder's own start; three recorded,
#: because one may be odd and more only grow the file. The window is done by step 15, inside the first 30.
DEFAULT = Schedule(wait=10, warmup=2, active=3, repeat=1)


def default_schedule(total_steps: int | None) -> Schedule:
    """The default, shrunk to a run that is known to be short: a third of it waits, one step at least is active."""
    if total_steps is None or total_steps >= DEFAULT.first_window_end + 5:
        return DEFAULT
    active = max(1, min(3, total_steps // 4))
    warmup = 1 if total_steps >= 3 else 0
    return Schedule(wait=max(0, total_steps // 3 - warmup), warmup=warmup, active=active, repeat=1)


def as_action(given: Schedule | Callable[[int], Any]) -> Callable[[int], Action]:
    """Take a perfkit schedule or any of torch's: a callable from step number to ``ProfilerAction``.

    Raises:
        UsageError: it is not callable, or gives something else for step 0.
    """
    if isinstance(given, Schedule):
        return given.action if given.every_s is None else timed(given)
    if not callable(given):
        raise UsageError(
            f"schedule must be perfkit.schedule(...) or a callable from step to ProfilerAction, got {given!r}"
        )

    def action(step: int) -> Action:
        result = given(step)
        name = getattr(result, "name", None)
        if name not in _TORCH_NAMES:
            raise UsageError(f"schedule({step}) must give a torch.profiler.ProfilerAction, got {result!r}")
        return _TORCH_NAMES[name]

    action(0)
    return action
