"""After which windows a step for lines comes: the first one, and those at which something is new.

Such a step is several times as slow as others, and the lines of one explain every window of the same program.
"""

from __future__ import annotations

from collections.abc import Callable

from perfkit.record.windows.window_selection import RecordedWindow

#: Maximum number of such steps in a run; a program that compiles again and again would have one after each window.
MAX_STEPS = 16
#: A window so many times slower than any before whose lines are known does something else.
_SLOWER = 2.0


class LinesDue:
    """``state`` returns what the program trains: an object that is equal as long as that stays the same."""

    def __init__(self, state: Callable[[], object]) -> None:
        self._state = state
        self._last: object = None
        self._slowest_ns = 0.0
        self._count = 0

    def after(self, window: RecordedWindow) -> bool:
        """Whether a step for lines is due after this window: a trigger's is somebody's question."""
        state = self._state()
        new = not self._count or state != self._last or window.step_ns > _SLOWER * self._slowest_ns
        if self._count >= MAX_STEPS or (window.scheduled and not new):
            return False
        self._last = state
        self._slowest_ns = max(self._slowest_ns, window.step_ns)
        self._count += 1
        return True
