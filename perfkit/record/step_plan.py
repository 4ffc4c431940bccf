"""What each step is used for (`StepKind`): opens and closes windows and starts the extra steps, between two steps.

The schedule and triggers open windows. A step with stacks follows the first window, and others where something is new
(`LinesDue`). The other extra steps come once, after the first window, or after a few steps where there will be none;
then one of the steps that come rarely is traced by line (`RareStepTracer`). Where training begins after the windows (an
evaluation came before, or what a reference model answers), another window is opened, and the extra steps come again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from perfkit import _env
from perfkit._stderr import print_message
from perfkit.record.clock.step_clock import StepClock
from perfkit.record.clock.step_sums import ClosedStep
from perfkit.record.options import Options
from perfkit.record.other_devices import missing_on, trained_on
from perfkit.record.triggers.trigger_watch import TriggerWatch
from perfkit.record.watchers.compilations import compiled_graphs
from perfkit.record.windows import torch_profiler
from perfkit.record.windows.cuda_profiler import CudaProfilerRecorder
from perfkit.record.windows.extra_steps import ExtraSteps
from perfkit.record.windows.kineto import KinetoRecorder
from perfkit.record.windows.lines_due import LinesDue
from perfkit.record.windows.memory_snapshot import MemoryRecorder
from perfkit.record.windows.memory_steps import MemoryStepsRecorder
from perfkit.record.windows.model_ranges import ModelRanges
from perfkit.record.windows.range_spans import RangesRecorder
from perfkit.record.windows.rare_step import RareStepTracer
from perfkit.record.windows.schedules import (
    DEFAULT,
    EARLY_STEPS,
    Action,
    Schedule,
    TriggeredSchedule,
    default_schedule,
    early_schedule,
)
from perfkit.record.windows.window_controller import WindowController, WindowRecorder
from perfkit.record.windows.window_selection import BY_SCHEDULE, KEEP, WindowSelection
from perfkit.run.rank_recording import RankRecording
from perfkit.run.records import StepKind, Window

#: Without any window, the extra steps begin here: the first steps do what no later one does.
_EXTRAS_AT = 5

#: The number of steps for which the schedule is called ahead.
_AHEAD = 256


def foreseeable(schedule: Schedule | Callable[[int], Any] | None) -> bool:
    """Whether a schedule's result depends on the step's number alone: perfkit's by steps, and torch's own."""
    if schedule is None or isinstance(schedule, Schedule):
        return schedule is None or schedule.every_s is None
    return getattr(schedule, "__module__", None) == "torch.profiler.profiler"


def _never(step: int) -> Action:
    return "none"


class StepPlan:
    """Decides what each step is used for, and opens and closes what that needs.

    ``triggers`` requests windows outside of the schedule. ``total`` returns the number of steps that the run will have,
    None: unknown; ``optimizers`` are those that have stepped so far.
    """

    def __init__(
        self,
        options: Options,
        recording: RankRecording,
        triggers: TriggerWatch,
        *,
        clock: StepClock,
        total: Callable[[], int | None],
        optimizers: list[Any],
    ) -> None:
        self._options = options
        recorders = options.recorders
        if (tool := _env.nsight_tool()) is not None and "kineto" in recorders:
            # CUPTI serves one at a time: with torch's profiler too, it or the tool would have no kernels.
            recorders = tuple(dict.fromkeys("cuda_profiler" if name == "kineto" else name for name in recorders))
            print_message(
                f"this program runs under {tool}: windows open its capture range, and torch's profiler stays off"
            )
        self._recorders = recorders
        #: Whether this rank records windows by the schedule.
        self._by_schedule = recording.rank.rank in options.ranks
        self._foreseeable = foreseeable(options.schedule)
        self._recording = recording
        self._triggers = triggers
        self._total = total
        self._optimizers = optimizers
        self._windows: WindowController | None = None
        self._ranges = ModelRanges(optimizers, recording.note)
        detect = options.detect_syncs
        self._memory = MemoryStepsRecorder(options, recording, optimizers) if options.memory else None
        self._new_extras = partial(
            ExtraSteps,
            phase=lambda: clock.phase,
            ended_at=lambda: clock.paused_at,
            optimizers=optimizers,
            # Asked when it is due: a program starts to use CUDA after perfkit.
            dry=lambda: detect == "dry" or (detect == "auto" and not _env.cuda_in_use()),
            fits=self._is_free,
            note=recording.note,
            memory=self._memory,
        )
        self.extras = self._new_extras()
        #: Steps of training so far; whether a window was recorded before the first; and, once one is requested for
        #: training, the windows before it.
        self._trained = 0
        self._recorded_others = False
        self._before_training: int | None = None
        self.rare = RareStepTracer(lambda: clock.phase, ended_at=lambda: clock.paused_at)
        #: The schedule by itself, and with the windows of triggers.
        self._schedule: Callable[[int], Action] = _never
        self._action = TriggeredSchedule(_never, warmup=0, active=1)
        self._clear_until = 0
        #: The first step from a step on that the schedule uses, where it can compute that.
        self._next_window: Callable[[int], int] | None = None
        #: Whether the default schedule may still be replaced by `early_schedule`, and the times of the latest steps.
        self._may_be_early = False
        self._latest: list[int] = []
        #: What the running step is used for, and the index of the window that it belongs to.
        self.kind: StepKind = "timed"
        self.window: int | None = None

    @property
    def timed(self) -> bool:
        """Whether the running step is an ordinary one."""
        return self.kind == "timed"

    @property
    def waiting(self) -> bool:
        """Whether windows will open and none has opened yet."""
        windows = self._windows if self._by_schedule else None
        return windows is not None and not windows.over and windows.index is None and not windows.refused

    @property
    def begun(self) -> bool:
        """Whether the schedule is in use, so that it cannot change any more."""
        return self._windows is not None

    @property
    def windows(self) -> tuple[Window, ...]:
        """The windows that are over and kept."""
        return self._windows.done if self._windows is not None else ()

    def add(self, closed: list[ClosedStep]) -> None:
        """These steps have ended."""
        self._trained += sum(one.mode == "train" for one in closed)
        self._latest = [*self._latest, *(one.wall_ns for one in closed)][1 - max(EARLY_STEPS) :]
        if self._recorded_others and self._trained >= _EXTRAS_AT and self._windows is not None:
            self._recorded_others, self._before_training = False, self._windows.over
            self._triggers.request("training", "training begins after other steps")
        if self.timed:
            self._triggers.check_steps(closed)
        else:
            self.extras.add(closed[-1].wall_ns, self.rare.typical_ns)
        self.rare.add(closed, timed=self.timed)

    def advance(self, step: int) -> bool:
        """Decide what the next step, ``step``, is used for; returns whether a window that is kept has just ended."""
        # A triggered window only begins after an ordinary step: see `WindowController`.
        if self._may_be_early and step >= min(EARLY_STEPS):
            self._begin_early(step)
        reason = self._begin_triggered(step) if self._triggers.pending is not None and self.timed else None
        self.kind, self.window = "timed", None
        self.rare.close()
        if not self._by_schedule and self._windows is None:
            return False
        # Inside a window nothing but it is recorded: a schedule may open the next one right after the first.
        inside = self._windows is not None and self._windows.index is not None
        if not inside and self._extra(step):
            return False
        finished = False
        if self._recorders:
            windows = self._windows or self._make_windows()
            if self._memory is not None:
                # torch exports a trace while nothing else records.
                self._memory.wait()
            finished = windows.advance(step, reason or BY_SCHEDULE)
            self.kind, self.window = windows.kind, windows.index
            self._recorded_others |= windows.index is not None and not self._trained
        if self.timed and self._by_schedule:
            none_will_come = not self._recorders or (self._windows is not None and self._windows.refused)
            windows_over = self._windows.over if self._windows is not None else 0
            recorded = windows_over > 0
            if self._before_training is not None and self.extras.done and windows_over > self._before_training:
                self.extras, self._before_training = self._new_extras(), None
            if recorded or (none_will_come and step >= _EXTRAS_AT):
                self.extras.begun = True
            if not self._extra(step) and self.extras.done and self.rare.advance(step):
                self.kind = "lines"
        return finished

    @property
    def asks(self) -> Callable[[int], bool] | None:
        """For a schedule that nobody can foresee: whether `advance` must be called for a step, `next_step` or not."""
        return None if self._foreseeable or self._windows is None or self._windows.refused else self._begins

    def _begins(self, step: int) -> bool:
        try:
            return self._schedule(step) != "none"
        except Exception:  # noqa: BLE001 - the user's schedule; `WindowController` calls it again and reports
            return True

    def next_step(self, step: int) -> int:
        """The next step after ``step`` that `advance` must be called for; until then nothing changes but by `asks`."""
        planned = self._next_planned(step)
        return min(planned, self.rare.next_step(step + 1)) if self.extras.done else planned

    def _next_planned(self, step: int) -> int:
        if not self._by_schedule and self._windows is None:
            return sys.maxsize
        if not self.timed or self._action.busy or (self.extras.begun and not self.extras.done):
            return step + 1
        if self._triggers.pending is not None and not self._another_runs():
            return step + 1
        if not self._by_schedule:
            return sys.maxsize
        if not self._recorders or (self._windows is not None and self._windows.refused):
            return sys.maxsize if self.extras.begun else max(step + 1, _EXTRAS_AT)
        if self._windows is None:
            return step + 1
        if not self._foreseeable:
            return sys.maxsize
        if self._next_window is not None:
            planned = self._next_window(step + 1)
            return min(planned, max(step + 1, min(EARLY_STEPS))) if self._may_be_early else planned
        if self._clear_until <= step:
            self._clear_until = step + 1
            while self._clear_until < step + _AHEAD and self._schedule(self._clear_until) == "none":
                self._clear_until += 1
        return self._clear_until

    def _begin_early(self, step: int) -> None:
        """Begin the window with this step, where the default schedule is in use and steps are long."""
        # A graph that is compiled again takes long, and the steps after it do not.
        chosen = early_schedule(step, self._latest) if not compiled_graphs() else None
        self._may_be_early = chosen is None and step < max(EARLY_STEPS)
        if chosen is not None:
            self._schedule, self._next_window = chosen.action, chosen.next_window
            self._action.replace(chosen.action)

    def _begin_triggered(self, step: int) -> str | None:
        """Begin the window that a trigger requests, if possible now; returns why it opens."""
        if not self._recorders:
            self._triggers.refuse("recorders=() records none")
            return None
        windows = self._windows or self._make_windows()
        if windows.refused:
            self._triggers.refuse("this run no longer records windows: see the errors in rank.json")
            return None
        if self._another_runs() or self._action.busy or self._due(step) or not windows.is_written(may_wait=True):
            return None
        self._action.begin(step)
        return self._triggers.take()

    def _another_runs(self) -> bool:
        """Whether the program's own torch profiler runs: only one can, and a trigger can wait."""
        return "kineto" in self._recorders and torch_profiler.taken()

    def _due(self, step: int) -> bool:
        """Whether the schedule's own window begins with this step."""
        try:
            return self._action(step) != "none"
        except Exception:  # noqa: BLE001 - the user's schedule; `WindowController` calls it again and reports
            return True

    def _extra(self, step: int) -> bool:
        if not self.extras.begun or self.extras.done:
            return False
        self.kind = self.extras.advance(step) or "timed"
        return not self.timed

    def _is_free(self, step: int, steps: int) -> bool:
        """Whether none of a few windows that were asked for is lost if extra steps take ``step`` and those after it."""
        if not self._foreseeable or not 0 < getattr(self._options.schedule, "repeat", 0) <= KEEP:
            return True  # unknown, or there are many
        return all(self._schedule(step + number) == "none" for number in range(steps))

    def _make_windows(self) -> WindowController:
        recording, ranges = self._recording, self._ranges
        if self._by_schedule:
            given, default = self._options.schedule, default_schedule(self._total())
            self._schedule = self._options.action or default.action
            chosen = given if given is not None else default
            if isinstance(chosen, Schedule) and chosen.every_s is None:
                self._next_window = chosen.next_window
            self._may_be_early = chosen is DEFAULT and given is None and self._total() is None
        triggers = self._triggers.settings
        action = self._action = TriggeredSchedule(self._schedule, warmup=triggers.warmup, active=triggers.active)
        self._windows = WindowController(
            action,
            [self._make_recorder(name, action) for name in self._recorders],
            trouble=recording.trouble,
            on_change=lambda open_: recording.guarded("ranges around modules", lambda: ranges.update(open_)),
            # A schedule that says how many windows it opens is believed.
            selection=WindowSelection(getattr(self._options.schedule, "repeat", 0) or KEEP),
            extra_due=LinesDue(lambda: ranges.state).after,
        )
        return self._windows

    def _make_recorder(self, name: str, action: Callable[[int], Action]) -> WindowRecorder:
        recording = self._recording
        if name == "cuda_profiler":
            return CudaProfilerRecorder()
        if name == "memory":
            return MemoryRecorder(recording.memory_file, recording.note)
        if name == "ranges":
            return RangesRecorder(recording.window_file, recording.trouble, recording.note)
        return KinetoRecorder(action, self._options, recording)

    def wait(self) -> None:
        """Wait until the traces of finished windows and steps are written."""
        if self._windows is not None:
            self._windows.wait()
        if self._memory is not None:
            self._memory.wait()

    def close(self, last: int) -> None:
        """The run ends with step ``last``: save an open window, and switch everything off."""
        guarded = self._recording.guarded
        guarded("ending the extra steps", self.extras.close)
        guarded("ending the trace of a rare step", self.rare.close)
        if kinds := trained_on(self._optimizers):
            self._recording.note(missing_on(kinds))
        elif self._options.detect_syncs == "cuda" and not _env.cuda_in_use():
            self._recording.note("syncs were not detected: the program did not use CUDA")
        if self._windows is not None:
            windows = self._windows
            guarded("closing the window", lambda: windows.close(last))
            if (lost := windows.selection.sentence) is not None:
                self._recording.note(lost)
        guarded("removing the ranges from the modules", self._ranges.remove)
        if self._memory is not None:
            guarded("writing what was recorded for memory", self._memory.wait)
            if self._by_schedule and not self._memory.settled:
                self._recording.note(
                    f"memory was not recorded: the run ended with step {last}, and the steps for it come after the "
                    "first window; a longer run has them, or one with an earlier window (schedule 1,1,1)"
                )
