"""Opens and closes windows by the schedule, for every recorder alike; a recorder's failure never ends training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from perfkit._code_owner import own_work
from perfkit.record.windows.schedules import Action
from perfkit.run.records import StepKind, Window


class WindowRecorder:
    """Something expensive that is recorded in windows. All methods are called between two steps."""

    #: As in ``profile(recorders=...)``.
    name: str

    def open(self, index: int, step: int) -> str | None:
        """Window ``index`` begins with ``step``, with or without warm-up; returns why it cannot, or None."""
        return None

    def activate(self, index: int) -> None:
        """The first step that is kept is about to begin."""

    def advance(self) -> None:
        """Another step of the window begins."""

    def end(self, index: int, *, early: bool) -> None:
        """The window is over; ``early`` if the run ends inside it. Everything that was on is off afterwards."""

    def begin_extra(self, index: int, step: int) -> bool:
        """Window ``index`` is over, and ``step``, which no timing includes, may be used too; returns whether it is."""
        return False

    def end_extra(self, index: int, *, whole: bool) -> None:
        """That step is over; not ``whole`` if it was interrupted. Everything that was on is off afterwards."""

    def wait(self) -> None:
        """Wait until everything that was passed to other threads is done."""

    def problem(self, index: int) -> str | None:
        """What is wrong with window ``index``, None if nothing is."""
        return None

    def file(self, index: int) -> str | None:
        """The name of the window's trace, once it is complete."""
        return None


class WindowController:
    """Drives recorders from step to step.

    Args:
        action: The schedule.
        recorders: What records.
        trouble: Called with what failed, and the error; that recorder is left out from then on.
        on_change: Called between steps with whether a window is open; must not raise.
    """

    def __init__(
        self,
        action: Callable[[int], Action],
        recorders: Sequence[WindowRecorder],
        *,
        trouble: Callable[[str, BaseException | str], None],
        on_change: Callable[[bool], None],
    ) -> None:
        self._action = action
        #: Those that still record, and all.
        self._recorders = list(recorders)
        self._all = tuple(recorders)
        self._trouble = trouble
        self._on_change = on_change
        self._open: list[WindowRecorder] = []
        self._inside = self._active = self._saving = False
        self._first = 0
        self._reason = ""
        #: Recorders that use the running step, the one after a window; and those that failed in such a step.
        self._in_extra: list[WindowRecorder] = []
        self._without_extra: list[WindowRecorder] = []
        #: Whether the running step is the pause between a window and what is recorded after it. torch calls hooks of an
        #: optimizer's step inside a record_function. If a step ends there, and a profiler starts when another has just
        #: stopped, the new one gets the end of that function and writes it into the freed memory of the first: the
        #: process crashed in 7 of 10 runs. For the same reason no window begins to record there (`advance`).
        self._pausing = False
        #: (first step, last step, closed early, why it opened) of each window that is over.
        self._over: list[tuple[int, int, bool, str]] = []
        #: Whether no recorder is left that could open a window; `trouble` has got the reason.
        self.refused = False

    @property
    def index(self) -> int | None:
        """The open window, also in the two steps after it; None otherwise."""
        return len(self._over) if self._inside else len(self._over) - 1 if self.kind == "lines" else None

    @property
    def kind(self) -> StepKind:
        """What the running step is used for; "lines" in the two after a window, the pause and the step for lines."""
        if self._in_extra or self._pausing:
            return "lines"
        return "timed" if not self._inside else "window" if self._active else "warmup"

    @property
    def done(self) -> tuple[Window, ...]:
        """The windows that are over, in their current state: a trace has its name once it is written."""
        return tuple(self._window(index) for index in range(len(self._over)))

    def _window(self, index: int) -> Window:
        first, last, early, reason = self._over[index]
        problems = [problem for recorder in self._all if (problem := recorder.problem(index)) is not None]
        if early:
            problems.append("closed early: the run ended inside it")
        files = [file for recorder in self._all if (file := recorder.file(index)) is not None]
        return Window(
            index=index,
            first_step=first,
            last_step=last,
            file=files[0] if files else None,
            complete=not problems,
            problem="; ".join(problems) or None,
            reason=reason,
        )

    @own_work
    def advance(self, step: int, reason: str = "schedule") -> bool:
        """Step ``step`` begins; returns whether a window has just ended. ``reason`` is that of a window that begins."""
        self._end_extra(whole=True)
        if self.refused:
            return False
        try:
            action = self._action(step)
        except Exception as error:  # noqa: BLE001 - the user's schedule; training continues without windows
            self._trouble("calling the schedule", error)
            self.close(step - 1)
            self.refused = True
            return False
        if action == "none" and not self._inside and not self._pausing:
            return False
        finished = self._inside and self._saving
        if finished:
            self._end(step - 1, early=False)
        elif self._inside:
            self._each(lambda recorder: recorder.advance())
        pausing, self._pausing = self._pausing, False
        if not self._inside and action != "none" and not (finished and action in ("record", "save")):
            self._begin(step)
            self._reason = reason
        if self._inside and not self._active and action in ("record", "save"):
            self._active = True
            self._first = step
            self._each(lambda recorder: recorder.activate(len(self._over)))
        self._saving = action == "save"
        self._on_change(self._inside)
        if pausing and not self._inside:
            self._begin_extra(step)
        self._pausing = finished and not self._inside
        return finished

    def _begin(self, step: int) -> None:
        self._open = []
        for recorder in list(self._recorders):
            try:
                refusal = recorder.open(len(self._over), step)
            except Exception as error:  # noqa: BLE001 - a recorder's failure must not end training
                self._drop(recorder, f"opening a {recorder.name} window", error)
                continue
            if refusal is not None:
                self._drop(recorder, "opening a window", refusal)
            else:
                self._open.append(recorder)
        self._inside = bool(self._open)
        self._active = False
        self._first = step

    def _each(self, do: Callable[[WindowRecorder], None]) -> None:
        for recorder in list(self._open):
            try:
                do(recorder)
            except Exception as error:  # noqa: BLE001 - see _begin
                self._drop(recorder, f"recording a {recorder.name} window", error)

    def _drop(self, recorder: WindowRecorder, what: str, problem: BaseException | str) -> None:
        self._recorders = [one for one in self._recorders if one is not recorder]
        self._open = [one for one in self._open if one is not recorder]
        self.refused = not self._recorders
        self._trouble(what, problem)
        if isinstance(problem, BaseException):
            # It may be half on. The first error is the one to report.
            with suppress(Exception):
                recorder.end(len(self._over), early=True)

    def _end(self, last: int, *, early: bool) -> None:
        index = len(self._over)
        self._inside = self._saving = False
        self._each(lambda recorder: recorder.end(index, early=early))
        if self._active:
            self._over.append((self._first, last, early, self._reason))
        self._open = []

    def _begin_extra(self, step: int) -> None:
        index = len(self._over) - 1
        for recorder in self._recorders:
            if recorder not in self._without_extra and self._in_extra_step(
                recorder, lambda one: one.begin_extra(index, step)
            ):
                self._in_extra.append(recorder)

    def _end_extra(self, *, whole: bool) -> None:
        index = len(self._over) - 1
        ending, self._in_extra = self._in_extra, []
        for recorder in ending:
            self._in_extra_step(recorder, lambda one: one.end_extra(index, whole=whole))

    def _in_extra_step(self, recorder: WindowRecorder, do: Callable[[WindowRecorder], bool | None]) -> bool:
        """Call a recorder; if that fails, it gets no step after a window any more.

        Its windows continue: they are more important.
        """
        try:
            return bool(do(recorder))
        except Exception as error:  # noqa: BLE001 - see _begin
            self._without_extra.append(recorder)
            self._trouble(f"the extra step of {recorder.name} after a window", error)
            with suppress(Exception):
                recorder.end_extra(len(self._over) - 1, whole=False)
            return False

    @own_work
    def close(self, last: int) -> None:
        """The run ends with step ``last``: write what an open window has, and switch everything off."""
        # The step after the last whole one has only begun.
        self._end_extra(whole=False)
        if self._inside:
            self._on_change(False)
            self._end(last, early=True)
        self.wait()

    def wait(self) -> None:
        """Wait until the traces of the windows that are over are written."""
        for recorder in self._all:
            recorder.wait()
