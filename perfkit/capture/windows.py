"""Opens and closes windows by the schedule, one recorder at a time, and never lets one take training down."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfkit.capture.kineto import KinetoWindow, profiler_running, save_trace
from perfkit.capture.schedules import Action
from perfkit.run.records import Window


class Windows:
    """Drives the Kineto recorder from step to step.

    ``file_of(index)`` gives the path of a window's trace, ``handlers`` get the torch profiler of each
    finished window, ``trouble(what, error)`` is told what went wrong: nothing is raised from here.
    """

    def __init__(
        self,
        action: Callable[[int], Action],
        *,
        file_of: Callable[[int], Path],
        handlers: tuple[Callable[[Any], Any], ...],
        trouble: Callable[[str, BaseException | str], None],
        activities: tuple[Any, ...] | None,
        flags: dict[str, bool],
    ) -> None:
        self._action = action
        self._file_of = file_of
        self._handlers = handlers
        self._trouble = trouble
        self._activities = activities
        self._flags = flags
        self._open: KinetoWindow | None = None
        self._first = 0
        self._last = 0
        self._ended_early = False
        self._off = False
        #: Whether a window could not be opened, or the recorder has failed; `trouble` was told why.
        self.refused = False
        self.done: list[Window] = []

    @property
    def index(self) -> int | None:
        """The open window, None between windows."""
        return len(self.done) if self._open is not None else None

    def advance(self, step: int) -> bool:
        """Step ``step`` is about to begin. Whether a window was finished just now."""
        if self._off:
            return False
        finished = False
        try:
            if self._open is not None:
                self._last = step - 1
                if not self._open.step():
                    self._open = None
                    finished = True
            if self._open is None and self._action(step) != "none":
                self._start(step)
        except Exception as error:  # noqa: BLE001 - a recorder's failure must not end training
            self._give_up("recording a window", error)
        return finished

    def _start(self, step: int) -> None:
        if profiler_running():
            # Two torch profilers cannot run at once, and the first was there first.
            self.refused = True
            self._trouble("opening a window", "another torch profiler is running; perfkit's windows are skipped")
            return
        self._first = step
        self._open = KinetoWindow(step, self._action, self._ready, activities=self._activities, flags=self._flags)

    def _ready(self, profiler: Any) -> None:
        index = len(self.done)
        path = self._file_of(index)
        problem = None
        try:
            save_trace(profiler, path)
        except Exception as error:  # noqa: BLE001 - a full disk must not end training
            problem = f"{type(error).__name__}: {error}"
            self._trouble(f"writing {path.name}", error)
        for handler in self._handlers:
            try:
                handler(profiler)
            except Exception as error:  # noqa: BLE001 - a handler's failure must not end training
                self._trouble(f"the trace handler {getattr(handler, '__name__', handler)!s}", error)
        if self._ended_early:
            problem = problem or "closed early: the run ended inside it"
        first = next(
            (step for step in range(self._first, self._last + 1) if self._action(step) in ("record", "save")), None
        )
        self.done.append(
            Window(
                index=index,
                first_step=self._first if first is None else first,
                last_step=self._last,
                file=path.name if path.is_file() else None,
                complete=problem is None,
                problem=problem,
            )
        )

    def close(self, step: int) -> None:
        """The run ends during step ``step``: save what an open window has, and leave no profiler enabled."""
        if self._open is None:
            return
        self._last = step
        self._ended_early = True
        window, self._open = self._open, None
        try:
            window.close()
        except Exception as error:  # noqa: BLE001 - see advance
            self._give_up("closing a window", error)

    def _give_up(self, what: str, error: Exception) -> None:
        self._off = self.refused = True
        window, self._open = self._open, None
        if window is not None and profiler_running():
            try:
                window.close()
            except Exception:  # noqa: BLE001 - it is being abandoned; the first error is the one to tell
                pass
        self._trouble(what, error)
