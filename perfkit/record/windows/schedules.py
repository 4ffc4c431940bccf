"""Which steps are recorded, in torch's terms: skip_first, wait, warmup, active, repeat."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from perfkit import _clock
from perfkit.errors import UsageError, check_whole_number

Action = Literal["none", "warmup", "record", "save"]

#: torch's names (``ProfilerAction``) -> ours.
_TORCH_NAMES: dict[str, Action] = {
    "NONE": "none",
    "WARMUP": "warmup",
    "RECORD": "record",
    "RECORD_AND_SAVE": "save",
}


def to_torch(action: Action) -> Any:
    """torch's ``ProfilerAction``."""
    # perfkit never imports torch before the program does.
    from torch.profiler import ProfilerAction

    return next(ProfilerAction[name] for name, ours in _TORCH_NAMES.items() if ours == action)


def _in_window(position: int, warmup: int, active: int) -> Action:
    """The action of the step at ``position`` in a window of these lengths."""
    if not 0 <= position < warmup + active:
        return "none"
    if position < warmup:
        return "warmup"
    return "record" if position < warmup + active - 1 else "save"


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """Cycles of wait, warmup and active steps after ``skip_first`` steps; see `schedule`.

    Called with a step number it returns torch's ``ProfilerAction``, so torch.profiler.profile accepts it too.
    """

    wait: int
    warmup: int
    active: int
    repeat: int = 0
    skip_first: int = 0
    skip_first_wait: int = 0
    every_s: float | None = None

    @property
    def _first_window(self) -> int:
        """The first step of the first window, warm-up included."""
        return self.skip_first + (0 if self.skip_first_wait else self.wait)

    def action(self, step: int) -> Action:
        """What happens in step ``step`` (0-based), by steps alone; for ``every_s`` see `timed`."""
        step -= self.skip_first
        if step < 0:
            return "none"
        if self.skip_first_wait:
            step += self.wait
        cycle = self.wait + self.warmup + self.active
        if self.repeat and step >= self.repeat * cycle:
            return "none"
        return _in_window(step % cycle - self.wait, self.warmup, self.active)

    def next_window(self, step: int) -> int:
        """The first step from ``step`` on whose `action` is not "none"; ``sys.maxsize`` where there is none."""
        skipped = self.skip_first - (self.wait if self.skip_first_wait else 0)
        since = max(step, self.skip_first) - skipped
        cycle = self.wait + self.warmup + self.active
        if self.repeat and since >= self.repeat * cycle:
            return sys.maxsize
        return skipped + since + max(0, self.wait - since % cycle)

    @property
    def first_window_end(self) -> int:
        """How many steps a run must have for its first window to be complete."""
        return self._first_window + self.warmup + self.active

    def __call__(self, step: int) -> Any:
        if self.every_s is not None:
            raise UsageError("a schedule by time (every_s) needs perfkit.profile: torch's profiler only knows steps")
        return to_torch(self.action(step))


def timed(schedule: Schedule) -> Callable[[int], Action]:
    """Windows by time: the first by steps, each later one ``every_s`` after the one before began.

    Called for each step in turn; called again for a step of the open window it returns the same.
    """
    every_ns = round((schedule.every_s or 0) * 1e9)
    length = schedule.warmup + schedule.active
    began_step: int | None = None
    began_ns = 0
    windows = 0

    def action(step: int) -> Action:
        nonlocal began_step, began_ns, windows
        if began_step is None or step >= began_step + length:
            if schedule.repeat and windows >= schedule.repeat:
                return "none"
            due = step >= schedule._first_window if windows == 0 else _clock.now_ns() >= began_ns + every_ns
            if not due:
                return "none"
            began_step, began_ns, windows = step, _clock.now_ns(), windows + 1
        return _in_window(step - began_step, schedule.warmup, schedule.active)

    return action


class TriggeredSchedule:
    """A schedule with triggered cycles in between; called like a schedule.

    A cycle of the schedule that has begun when a triggered one ends is skipped: it would be recorded in part, and
    without its warm-up.
    """

    def __init__(self, own: Callable[[int], Action], *, warmup: int, active: int) -> None:
        self._own = own
        self._warmup, self._active = warmup, active
        self._began: int | None = None
        self._skipping = False

    @property
    def busy(self) -> bool:
        """Whether it must be called for each step: a triggered cycle runs, or one of the schedule is skipped."""
        return self._began is not None or self._skipping

    def replace(self, own: Callable[[int], Action]) -> None:
        """Another schedule is in place of its own, which has opened no window yet."""
        self._own = own

    def begin(self, step: int) -> None:
        """A triggered cycle begins with ``step``."""
        self._began = step

    def __call__(self, step: int) -> Action:
        if self._began is not None:
            triggered = _in_window(step - self._began, self._warmup, self._active)
            if triggered != "none":
                return triggered
        action = self._own(step)
        skipping = self.busy
        self._began = None
        self._skipping = skipping and action == "record"
        return "none" if skipping and action in ("record", "save") else action


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
    """Choose which steps are recorded, as ``torch.profiler.schedule`` does.

    Args:
        wait: Steps at the start of each cycle in which nothing is recorded.
        warmup: Steps in which the recorder runs and its result is discarded.
        active: Steps of the window.
        repeat: How many cycles, of which up to 256 are kept; 0 continues to the end of the run, and 12 are kept, the
            slowest, the newest and typical ones. Handlers get every window.
        skip_first: Steps before the first cycle.
        skip_first_wait: If not 0, the first cycle has no wait.
        every_s: Later cycles begin this many seconds after the one before began, instead of after ``wait`` steps.

    Raises:
        UsageError: a number is negative or not whole, ``active`` is below 1, or ``every_s`` is not above 0.
    """
    given = dict(locals())  # the arguments: nothing else is defined yet
    for name, value in given.items():
        if name != "every_s":
            check_whole_number(name, value, minimum=1 if name == "active" else 0)
    if every_s is not None and not every_s > 0:
        raise UsageError(f"every_s must be a time above 0 seconds, got {every_s!r}")
    return Schedule(**given)


#: Ten steps of wait, which also give ten undisturbed rows to compare the window with; two of warm-up, because the first
#: recorded step includes the recorder's own start; three recorded, because one may be unusual and more only grow the
#: file. The window is over by step 15, inside the first 30.
DEFAULT = Schedule(wait=10, warmup=2, active=3, repeat=1)


def default_schedule(total_steps: int | None) -> Schedule:
    """The default, shortened for a run that is known to be short: a third of it waits, at least one step is active."""
    if total_steps is None or total_steps >= DEFAULT.first_window_end + 5:
        return DEFAULT
    active = max(1, min(3, total_steps // 4))
    warmup = 1 if total_steps >= 3 else 0
    return Schedule(wait=max(0, total_steps // 3 - warmup), warmup=warmup, active=active, repeat=1)


#: A run whose length is not known and whose steps are long may have no more than ten of them. Its window begins with
#: one of these steps, where those before, without the first, took so long in the mean (chosen): ten take five seconds.
EARLY_STEPS = (2, 3)
_LONG_NS = 500_000_000


def early_schedule(step: int, walls: Sequence[int]) -> Schedule | None:
    """The schedule of a run whose steps were long before this one; ``walls`` are their times in ns.

    By step 10 the window and the extra steps after it are over. Two steps are recorded, because a loop may update
    twice; for the same reason, and because the first of them may have been cut off, their mean counts.
    """
    known = walls[1 - step :] if step in EARLY_STEPS else []
    if len(known) < step - 1 or not known or sum(known) < len(known) * _LONG_NS:
        return None
    return Schedule(wait=step, warmup=1, active=2, repeat=1)


def as_action(given: Schedule | Callable[[int], Any]) -> Callable[[int], Action]:
    """Step -> action, of a perfkit schedule or any of torch's: a callable from step number to ``ProfilerAction``.

    Such a callable is called once for a step, however often its action is asked for.

    Raises:
        UsageError: it is not callable, or returns something else for step 0.
    """
    if isinstance(given, Schedule):
        return given.action if given.every_s is None else timed(given)
    if not callable(given):
        raise UsageError(
            f"schedule must be perfkit.schedule(...) or a callable from step to ProfilerAction, got {given!r}"
        )

    asked: int | None = None
    known: Action = "none"

    def action(step: int) -> Action:
        nonlocal asked, known
        if step == asked:
            return known
        result = given(step)
        name = getattr(result, "name", None)
        # Anything may come back, also something that cannot be compared.
        if not isinstance(name, str) or name not in _TORCH_NAMES:
            raise UsageError(f"schedule({step}) must return a torch.profiler.ProfilerAction, got {result!r}")
        asked, known = step, _TORCH_NAMES[name]
        return known

    action(0)
    return action
