"""What step N is: timed, in a window, recorded for lines, traced by line, counted, or one of the dry run.

Windows come by the schedule and by triggers, each with a step for its stacks after it where the next does not follow
at once. The other extra steps come once, after the first window, or after a few steps where no window will come.
Everything here happens between two steps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from perfkit.record.triggers.trigger_watch import TriggerWatch
from perfkit.record.windows.schedules import Action, Schedule, WithTriggered, default_schedule
from perfkit.run.rank_recording import RankRecording
from perfkit.run.records import Phase, StepFlops, StepKind, Syncs, TracedLine, Window

if TYPE_CHECKING:
    from perfkit.record.windows.extra_steps import ExtraSteps
    from perfkit.record.windows.model_ranges import WindowRanges
    from perfkit.record.windows.window_controller import Recorder, Windows

#: Where no window will come, the extra steps begin here: the first steps do things that no later one does.
_EXTRAS_AT = 5

#: What a window can record.
RECORDERS = ("kineto", "cuda_profiler", "memory", "ranges")


#: How far ahead the schedule is asked at once.
_AHEAD = 256


def foreseeable(schedule: Schedule | Callable[[int], Any] | None) -> bool:
    """Whether what a schedule says of a step depends on its number alone: perfkit's by steps, and torch's own."""
    if schedule is None or isinstance(schedule, Schedule):
        return schedule is None or schedule.every_s is None
    return getattr(schedule, "__module__", None) == "torch.profiler.profiler"


def _never(step: int) -> Action:
    return "none"


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a profile was asked to record.

    ``action`` is the schedule, None for the default one, and ``foreseeable`` whether it may be asked ahead of time;
    ``flags`` are torch's; ``here`` is False on a rank that records no windows but those of triggers;
    ``dry`` whether syncs are looked for by a dry run.
    """

    action: Callable[[int], Action] | None
    recorders: tuple[str, ...]
    activities: tuple[Any, ...] | None
    flags: dict[str, bool]
    handlers: tuple[Callable[[Any], Any], ...]
    here: bool
    dry: bool
    foreseeable: bool


class StepPlan:
    """Decides what each step is, and opens and closes what that needs.

    ``triggers`` asks for windows beside the schedule. ``phase`` gives the running phase, ``total`` the number of steps
    the run will have, None where that is not known; ``optimizers`` are those that have stepped so far.
    """

    def __init__(
        self,
        wanted: Wanted,
        recording: RankRecording,
        triggers: TriggerWatch,
        *,
        phase: Callable[[], Phase],
        total: Callable[[], int | None],
        optimizers: list[Any],
    ) -> None:
        self._wanted = wanted
        self._recording = recording
        self._triggers = triggers
        self._phase = phase
        self._total = total
        self._optimizers = optimizers
        self._windows: Windows | None = None
        self._ranges: WindowRanges | None = None
        self._extras: ExtraSteps | None = None
        #: The schedule by itself, and with what triggers put between.
        self._schedule: Callable[[int], Action] = _never
        self._action = WithTriggered(_never, warmup=0, active=1)
        self._clear_until = 0
        #: What the running step is used for, and the index of the window that it belongs to.
        self.kind: StepKind = "timed"
        self.window: int | None = None

    @property
    def timed(self) -> bool:
        """Whether the running step is an ordinary one."""
        return self.kind == "timed"

    @property
    def waiting(self) -> bool:
        """Whether windows are to come and none has come yet."""
        windows = self._windows if self._wanted.here else None
        return windows is not None and not windows.done and windows.index is None and not windows.refused

    @property
    def begun(self) -> bool:
        """Whether the schedule has been asked, so that it cannot change any more."""
        return self._windows is not None

    @property
    def extras_done(self) -> bool:
        """Whether the extra steps are over."""
        return self._extras is not None and self._extras.done

    @property
    def windows(self) -> tuple[Window, ...]:
        """The windows that are over."""
        return self._windows.done if self._windows is not None else ()

    @property
    def flops(self) -> StepFlops | None:
        """Operations of one step; None until they were counted."""
        return self._extras.flops if self._extras is not None else None

    @property
    def lines(self) -> tuple[TracedLine, ...]:
        """What the traced step gave."""
        return self._extras.lines if self._extras is not None else ()

    @property
    def syncs(self) -> Syncs | None:
        """What the dry run gave; None where there was none."""
        return self._extras.syncs if self._extras is not None else None

    def advance(self, step: int) -> bool:
        """Step ``step`` is about to begin: decide what it is. Whether a window was finished just now."""
        # A window of a trigger begins after an ordinary step only: see `Windows`, where another has just ended.
        reason = self._begin_triggered(step) if self._triggers.pending is not None and self.timed else None
        self.kind, self.window = "timed", None
        if not self._wanted.here and self._windows is None:
            return False
        # Inside a window nothing but it is recorded: a schedule may open the next one right after the first.
        inside = self._windows is not None and self._windows.index is not None
        if not inside and self._extra(step):
            return False
        finished = False
        if self._wanted.recorders:
            windows = self._windows or self._make_windows()
            finished = windows.advance(step, reason or "schedule")
            self.kind, self.window = windows.kind, windows.index
        if self.timed and self._wanted.here:
            none_will_come = not self._wanted.recorders or (self._windows is not None and self._windows.refused)
            if self._extras is None and (self.windows or (none_will_come and step >= _EXTRAS_AT)):
                # Not in the step for lines, which would hold the imports of this.
                self._extras = self._make_extras()
            self._extra(step)
        return finished

    def next_step(self, step: int) -> int:
        """The next step after ``step`` that `advance` must be called for; until then nothing changes."""
        if not self._wanted.here and self._windows is None:
            return sys.maxsize
        if not self.timed or self._action.busy or (self._extras is not None and not self._extras.done):
            return step + 1
        if self._triggers.pending is not None and not self._another_runs():
            return step + 1
        if not self._wanted.here:
            return sys.maxsize
        if not self._wanted.recorders or (self._windows is not None and self._windows.refused):
            return sys.maxsize if self._extras is not None else max(step + 1, _EXTRAS_AT)
        if not self._wanted.foreseeable or self._windows is None:
            return step + 1
        if self._clear_until <= step:
            self._clear_until = step + 1
            while self._clear_until < step + _AHEAD and self._schedule(self._clear_until) == "none":
                self._clear_until += 1
        return self._clear_until

    def _begin_triggered(self, step: int) -> str | None:
        """Begin the window that a trigger asks for, where that can be now; why it opens."""
        if not self._wanted.recorders:
            self._triggers.refuse("recorders=() records none")
            return None
        windows = self._windows or self._make_windows()
        if windows.refused:
            self._triggers.refuse("this run records no windows any more, rank.json says why")
            return None
        if self._another_runs() or self._action.busy or self._due(step):
            return None
        self._action.begin(step)
        return self._triggers.take()

    def _another_runs(self) -> bool:
        """Whether the program's own torch profiler is on: two cannot be, and a trigger can wait."""
        from perfkit.record.windows import torch_profiler

        return "kineto" in self._wanted.recorders and torch_profiler.running()

    def _due(self, step: int) -> bool:
        """Whether the schedule's own window begins with this step."""
        try:
            return self._action(step) != "none"
        except Exception:  # noqa: BLE001 - the user's schedule; `Windows` asks it again, and tells
            return True

    def _extra(self, step: int) -> bool:
        if self._extras is None or self._extras.done:
            return False
        self.kind = self._extras.advance(step) or "timed"
        return not self.timed

    def _make_windows(self) -> Windows:
        from perfkit.record.windows.model_ranges import WindowRanges
        from perfkit.record.windows.window_controller import Windows

        recording = self._recording
        ranges = self._ranges = WindowRanges(self._optimizers, recording.note)
        if self._wanted.here:
            self._schedule = self._wanted.action or default_schedule(self._total()).action
        triggers = self._triggers
        action = self._action = WithTriggered(self._schedule, warmup=triggers.warmup, active=triggers.active)
        self._windows = Windows(
            action,
            [self._make_recorder(name, action) for name in self._wanted.recorders],
            trouble=recording.trouble,
            beside=lambda open_: recording.guarded("ranges around modules", lambda: ranges.follow(open_)),
        )
        return self._windows

    def _make_recorder(self, name: str, action: Callable[[int], Action]) -> Recorder:
        recording = self._recording
        if name == "cuda_profiler":
            from perfkit.record.windows.cuda_profiler import CudaProfilerGate

            return CudaProfilerGate()
        if name == "memory":
            from perfkit.record.windows.memory_snapshot import MemorySnapshot

            return MemorySnapshot(recording.memory_file, recording.note)
        if name == "ranges":
            from perfkit.record.windows.range_spans import RangesRecorder

            return RangesRecorder(recording.window_file, recording.trouble, recording.note)
        from perfkit.record.windows.kineto import KinetoRecorder

        return KinetoRecorder(
            action,
            file_of=recording.window_file,
            handlers=self._wanted.handlers,
            trouble=recording.trouble,
            note=recording.note,
            activities=self._wanted.activities,
            flags=self._wanted.flags,
        )

    def _make_extras(self) -> ExtraSteps:
        from perfkit.record.windows.extra_steps import ExtraSteps

        return ExtraSteps(
            phase=self._phase, optimizers=self._optimizers, dry=self._wanted.dry, note=self._recording.note
        )

    def wait(self) -> None:
        """Until the traces of the windows that are over are written."""
        if self._windows is not None:
            self._windows.wait()

    def close(self, last: int) -> None:
        """The run ends with step ``last``: save what an open window has, and leave nothing on."""
        guarded = self._recording.guarded
        if self._extras is not None:
            guarded("ending the extra steps", self._extras.close)
        if self._windows is not None:
            windows = self._windows
            guarded("closing the window", lambda: windows.close(last))
        if self._ranges is not None:
            guarded("taking the ranges off the modules", self._ranges.remove)
