"""Opens and closes windows by the schedule, for every recorder alike; a recorder's failure never ends training.

A window opens only once the one before is written: torch exports a trace while nothing else records, no more than one
window waits in memory, and a disk that is slower than the schedule loses windows, never the training's time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from perfkit import _clock
from perfkit._code_owner import own_work
from perfkit.record.watchers.step_memory import resident_bytes
from perfkit.record.windows.schedules import Action
from perfkit.record.windows.window_selection import BY_SCHEDULE, RecordedWindow, WindowSelection
from perfkit.run.records import StepKind, Window

#: For how long training waits, in the whole run, until the window before is written. torch's own export lets it wait
#: for every file; a few windows close together need some 10 ms each, and a disk that needs longer is too slow for them.
PATIENCE_S = 2.0
#: Maximum number of active steps, and maximum growth of the process's memory in them. torch keeps every op of a window
#: in memory until it ends, and a schedule may never say that it does.
MAX_STEPS = 1_000
MAX_GROWTH = 4 * 2**30
#: Steps between two readings of the memory: one takes 40 us.
_MEMORY_EVERY = 10


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
        """The window is over; ``early`` if it ends inside of a cycle. Everything that was on is off afterwards."""

    def write(self, index: int) -> None:
        """The window that has just ended is kept: begin to write it."""

    def discard(self, index: int) -> None:
        """The window is not kept: drop what is in memory of it, or remove its files."""

    @property
    def writing_ns(self) -> int:
        """Wall time of writing so far, in other threads."""
        return 0

    def begin_extra(self, index: int, step: int) -> bool:
        """Window ``index`` is over, and ``step``, which no timing includes, may be used too; returns whether it is."""
        return False

    def end_extra(self, index: int, *, whole: bool) -> None:
        """That step is over; not ``whole`` if it was interrupted. Everything that was on is off afterwards."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until everything that was passed to other threads is done, or for a time; returns whether it is."""
        return True

    def problem(self, index: int) -> str | None:
        """What is wrong with window ``index``, None if nothing is."""
        return None

    def file(self, index: int) -> str | None:
        """The name of the window's trace, once it is complete."""
        return None

    def size(self, index: int) -> int:
        """Bytes of the window's files."""
        return 0


class WindowController:
    """Drives recorders from step to step.

    Args:
        action: The schedule.
        recorders: What records.
        trouble: Called with what failed, and the error; that recorder is left out from then on.
        on_change: Called between steps with whether a window is open; must not raise.
        selection: Which windows are kept.
        extra_due: Called with each window that is over; returns whether recorders may use a step after it.
    """

    def __init__(
        self,
        action: Callable[[int], Action],
        recorders: Sequence[WindowRecorder],
        *,
        trouble: Callable[[str, BaseException | str], None],
        on_change: Callable[[bool], None],
        selection: WindowSelection | None = None,
        extra_due: Callable[[RecordedWindow], bool] = lambda window: True,
    ) -> None:
        self._action = action
        #: Those that still record, and all.
        self._recorders = list(recorders)
        self._all = tuple(recorders)
        self._trouble = trouble
        self._on_change = on_change
        self.selection = selection or WindowSelection()
        self._extra_due = extra_due
        self._open: list[WindowRecorder] = []
        self._inside = self._active = self._saving = False
        #: Whether the cycle that the schedule is in is left out.
        self._skipping = False
        #: How many windows are over, those that are not kept included.
        self.over = 0
        self._first = self._began_ns = self._resident = 0
        self._reason = ""
        self._patience_s = PATIENCE_S
        #: Recorders that use the running step, the one after a window; and those that failed in such a step.
        self._in_extra: list[WindowRecorder] = []
        self._without_extra: list[WindowRecorder] = []
        #: The window after which a step for recorders is due.
        self._extra_of: int | None = None
        #: Whether the running step is the pause between a window and what is recorded after it. torch calls hooks of an
        #: optimizer's step inside a record_function. If a step ends there, and a profiler starts when another has just
        #: stopped, the new one gets the end of that function and writes it into the freed memory of the first: the
        #: process crashed in 7 of 10 runs. For the same reason no window begins to record there (`advance`).
        self._pausing = False
        #: Window -> why it is not complete.
        self._problems: dict[int, str] = {}
        #: Whether no recorder is left that could open a window; `trouble` has got the reason.
        self.refused = False

    @property
    def index(self) -> int | None:
        """The open window, also in the two steps after it; None otherwise."""
        return self.over if self._inside else self._extra_of if self.kind == "lines" else None

    @property
    def kind(self) -> StepKind:
        """What the running step is used for; "lines" in the two after a window, the pause and the step for lines."""
        if self._in_extra or self._pausing:
            return "lines"
        return "timed" if not self._inside else "window" if self._active else "warmup"

    @property
    def done(self) -> tuple[Window, ...]:
        """The windows that are over and kept, in their current state: a trace has its name once it is written."""
        return tuple(map(self._window, self.selection.kept))

    def _window(self, window: RecordedWindow) -> Window:
        index = window.index
        problems = [problem for recorder in self._all if (problem := recorder.problem(index)) is not None]
        if (own := self._problems.get(index)) is not None:
            problems.append(own)
        files = [file for recorder in self._all if (file := recorder.file(index)) is not None]
        return Window(
            index=index,
            first_step=window.first_step,
            last_step=window.last_step,
            file=files[0] if files else None,
            complete=not problems,
            problem="; ".join(problems) or None,
            reason=window.reason,
        )

    @own_work
    def advance(self, step: int, reason: str = BY_SCHEDULE) -> bool:
        """Step ``step`` begins; returns whether a window that is kept has just ended.

        ``reason`` is that of a window that begins.
        """
        self._end_extra(whole=True)
        if self.refused:
            return False
        try:
            action = self._action(step)
        except Exception as error:  # noqa: BLE001 - the user's schedule; training continues without windows
            self._trouble("calling the schedule", error)
            self._stop(step - 1)
            self.refused = True
            return False
        if action == "none" and not self._inside and self._extra_of is None:
            self._skipping = False
            return False
        ends = self._inside and (self._saving or self._is_too_long(step))
        kept = False
        if ends:
            self._skipping = not self._saving  # one that was too long: the rest of its cycle is left out
            kept = self._end(step - 1, early=not self._saving)
        elif self._inside:
            self._each(lambda recorder: recorder.advance())
        pausing, self._pausing = self._pausing, False
        if not self._inside and action != "none" and not (ends and action in ("record", "save")):
            self._begin(step, reason)
        if action in ("none", "save"):
            self._skipping = False
        if self._inside and not self._active and action in ("record", "save"):
            self._activate(step)
        self._saving = action == "save"
        self._on_change(self._inside)
        if self._extra_of is not None and not self._inside:
            if ends:
                self._pausing = True
            elif self.is_written(may_wait=pausing):
                self._begin_extra(step)
        return kept

    def _begin(self, step: int, reason: str) -> None:
        if self._skipping:
            return
        if not self.is_written(may_wait=True):
            self._skipping = True
            self.selection.skipped += 1
            return
        self._open = []
        for recorder in list(self._recorders):
            try:
                refusal = recorder.open(self.over, step)
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
        self._reason = reason

    def is_written(self, *, may_wait: bool) -> bool:
        """Whether the windows that are over are written; ``may_wait`` for it, as long as there is patience left."""
        began_ns = _clock.now_ns()
        try:
            return all(recorder.wait(max(0.0, self._patience_s) if may_wait else 0.0) for recorder in self._all)
        finally:
            self._patience_s -= (_clock.now_ns() - began_ns) / 1e9

    def _activate(self, step: int) -> None:
        self._active = True
        self._first = step
        self._began_ns, self._resident = _clock.now_ns(), 0
        self._each(lambda recorder: recorder.activate(self.over))

    def _is_too_long(self, step: int) -> bool:
        steps = step - self._first
        if not self._active or not steps or steps % _MEMORY_EVERY:
            return False
        resident = resident_bytes() or 0
        self._resident = self._resident or resident
        too_long = steps >= MAX_STEPS or resident - self._resident > MAX_GROWTH
        if too_long:
            self._problems[self.over] = f"ended after {steps} steps: the schedule did not end it"
        return too_long

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
                recorder.end(self.over, early=True)

    def _end(self, last: int, *, early: bool) -> bool:
        """End the open window; returns whether it is kept."""
        index, took_ns = self.over, _clock.now_ns() - self._began_ns
        self._inside = self._saving = False
        self._each(lambda recorder: recorder.end(index, early=early))
        kept = False
        if self._active:
            self.over += 1
            steps = last - self._first + 1
            window = RecordedWindow(index, self._first, last, self._reason, took_ns / max(1, steps))
            kept = self.selection.add(window, sum(recorder.writing_ns for recorder in self._all))
            self._each(lambda recorder: recorder.write(index) if kept else recorder.discard(index))
            if kept:
                self._remove_surplus()
            else:
                self._problems.pop(index, None)
            if not early and self._extra_due(window):
                self._extra_of = index
        self._open = []
        return kept

    def _remove_surplus(self) -> None:
        kept, all_ = self.selection.kept, self._all
        size = sum(recorder.size(one.index) for recorder in all_ for one in kept)
        while (window := self.selection.take_surplus(size, self._has_failed)) is not None:
            index = window.index
            size -= sum(recorder.size(index) for recorder in all_)
            self._problems.pop(index, None)
            for recorder in all_:
                try:
                    recorder.discard(index)
                except OSError as error:
                    self._trouble("removing a window that is not kept", error)

    def _has_failed(self, index: int) -> bool:
        return any(recorder.problem(index) is not None for recorder in self._all)

    def _begin_extra(self, step: int) -> None:
        index = self._extra_of
        assert index is not None
        for recorder in self._recorders:
            if recorder not in self._without_extra and self._in_extra_step(
                recorder, lambda one: one.begin_extra(index, step)
            ):
                self._in_extra.append(recorder)
        if not self._in_extra:
            self._extra_of = None

    def _end_extra(self, *, whole: bool) -> None:
        ending, self._in_extra = self._in_extra, []
        index = self._extra_of
        for recorder in ending:
            self._in_extra_step(recorder, lambda one: one.end_extra(index or 0, whole=whole))
        if ending:
            self._extra_of = None

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
                recorder.end_extra(self.over - 1, whole=False)
            return False

    @own_work
    def close(self, last: int) -> None:
        """The run ends with step ``last``: write what an open window has, and switch everything off."""
        self._stop(last)
        self.wait()

    def _stop(self, last: int) -> None:
        # The step after the last whole one has only begun.
        self._end_extra(whole=False)
        if self._inside:
            self._on_change(False)
            self._problems[self.over] = "closed early: the run ended inside it"
            self._end(last, early=True)

    def wait(self) -> None:
        """Wait until the traces of the windows that are over are written."""
        for recorder in self._all:
            recorder.wait()
