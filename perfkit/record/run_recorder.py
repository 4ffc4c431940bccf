"""A run while it is recorded: its folder, what listens, what each step is, and what is written when.

`profile` decides what is wanted and when a run begins and ends; here is what happens in between.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from perfkit import _clock, _env
from perfkit._stderr import print_message
from perfkit.record.attachments import Listeners
from perfkit.record.clock.step_clock import StepClock
from perfkit.record.clock.step_sums import ClosedStep
from perfkit.record.first_verdict import FirstVerdict
from perfkit.record.step_plan import StepPlan, Wanted, foreseeable
from perfkit.record.step_rows import Said, StepRows
from perfkit.record.triggers.failure import failure_of, in_words
from perfkit.record.triggers.trigger_watch import Triggers, TriggerWatch
from perfkit.record.watchers.compilations import break_lines, graph_breaks
from perfkit.record.watchers.settings_probe import Inspection, device_bytes
from perfkit.record.watchers.step_memory import next_reading
from perfkit.record.watchers.tensor_leaks import TensorWatch
from perfkit.record.windows.schedules import Action, Schedule, default_schedule
from perfkit.run.rank_recording import FLUSH_NS, Parts, RankRecording
from perfkit.run.rank_writer import write_record
from perfkit.run.records import Phase, Run, Window
from perfkit.run.remote import copy_out

DetectSyncs = Literal["auto", "cuda", "dry"]

#: Work between steps is done for so many steps at once as take this long, up to so many: each time it costs about
#: 0.2 ms. A kill loses no more than this, or 64 steps.
_PAUSE_NS, _MOST_STEPS = 20_000_000, 250
#: The settings of a program of ordinary steps are read no sooner again: 40 us are then below a thousandth of the time.
_LOOK_NS = 50_000_000


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What `profile` was asked for, checked; ``action`` is the schedule as it is asked, None for the default one."""

    schedule: Schedule | Callable[[int], Any] | None
    action: Callable[[int], Action] | None
    activities: tuple[Any, ...] | None
    flags: dict[str, bool]
    recorders: tuple[str, ...]
    handlers: tuple[Callable[[Any], Any], ...]
    triggers: Triggers
    detect_syncs: DetectSyncs | None
    borrow_nvtx: bool
    ranks: tuple[int, ...]
    budget: float
    stop_after: int | None
    quiet: bool
    hooks: bool
    url: str | None


class RunRecorder:
    """Records into ``folder``, from `begin` to `end`, and again: the run then goes on."""

    def __init__(self, folder: Path, launch: str, options: Options, total: int | None) -> None:
        self.folder = folder
        self._options = options
        #: How many steps the run will have, None where that is not known.
        self.total = total
        self.clock = StepClock(self._on_steps, self._on_due)
        self.recording = RankRecording(folder, launch, self._parts)
        if self.recording.rank.rank == 0:
            write_record(folder, self._record(launch))
        self.listeners = Listeners(self.clock, self.recording, phase=self._sampled_phase)
        self._optimizers: list[Any] = []
        self._inspection = Inspection(self._optimizers)
        self._tensors = TensorWatch()
        self.triggers = TriggerWatch(
            options.triggers,
            (folder, self.recording.window_file(0).parent),
            wake=self._wake,
            tell=self._write_note,
        )
        self.plan = self._make_plan()
        self._rows = StepRows(self.clock, self.recording, self.listeners)
        self._verdict = FirstVerdict(folder)
        self._recorded = False
        self._told_early = False
        self._epoch_told = False
        self._dropped: int | None = None
        self._looked_ns = -_LOOK_NS
        #: What perfkit had taken, of how much time of steps, when its cost was judged last.
        self._judged: tuple[int, int] | None = None
        #: Step and time of the last pause.
        self._paused = 0, _clock.now_ns()

    def _record(self, launch: str) -> Run:
        options = self._options
        chosen = options.schedule if options.schedule is not None else default_schedule(self.total)
        numbers = (
            {name: getattr(chosen, name) for name in Schedule.__struct_fields__}
            if isinstance(chosen, Schedule)
            else None
        )
        return Run(
            launch_id=launch,
            command=tuple(sys.argv),
            folder=os.getcwd(),
            world_size=_env.world_size(),
            schedule=numbers,
            options={
                "detect_syncs": options.detect_syncs or "",
                "ranks": ",".join(map(str, options.ranks)),
                "recorders": ",".join(options.recorders),
                "triggers": ",".join(options.triggers.kinds),
            },
            total_steps=self.total,
        )

    def _make_plan(self) -> StepPlan:
        options = self._options
        detect = options.detect_syncs
        recorders = options.recorders
        if (tool := _env.nsight_tool()) is not None and "kineto" in recorders:
            # CUPTI serves one at a time: with torch's profiler too, it or the tool would have no kernels.
            recorders = tuple(dict.fromkeys("cuda_profiler" if name == "kineto" else name for name in recorders))
            print_message(
                f"this program runs under {tool}: windows open its capture range, and torch's profiler stays off"
            )
        wanted = Wanted(
            action=options.action,
            recorders=recorders,
            activities=options.activities,
            flags=options.flags,
            handlers=options.handlers,
            here=self.recording.rank.rank in options.ranks,
            dry=detect == "dry" or (detect == "auto" and not _env.cuda_in_use()),
            foreseeable=foreseeable(options.schedule),
        )
        return StepPlan(
            wanted,
            self.recording,
            self.triggers,
            phase=lambda: self.clock.phase,
            total=lambda: self.total,
            optimizers=self._optimizers,
        )

    # -- beginning and end

    def begin(self) -> None:
        """Attach to the loop and begin a step; what cannot be attached is told and left out."""
        self._recorded = True
        self.recording.rewrite()
        self.clock.due = 0
        self.recording.guarded("attaching to the loop", self._attach)
        self.recording.guarded("listening for triggers", self.triggers.attach)
        self.clock.start()

    def _attach(self) -> None:
        detect = self._options.detect_syncs
        self.listeners.attach(
            hooked=self._options.hooks,
            borrow_nvtx=self._options.borrow_nvtx,
            detect_cuda=detect == "cuda" or (detect == "auto" and _env.cuda_in_use()),
            on_optimizer=self._optimizers.append,
            on_epoch_end=self.on_epoch_end,
            on_evaluation=lambda goes_on: self._inspection.look_at_evaluation(goes_on=goes_on),
        )

    def _sampled_phase(self) -> Phase | None:
        timed = self.clock.running and self.plan.timed
        return self.clock.phase if timed and self.clock.step_num > 0 else None

    def end(self, error: BaseException | None) -> None:
        """Save what is open, put everything back, and write the folder."""
        self._recorded = False
        self.recording.guarded("giving back the triggers", self.triggers.detach)
        if error is not None and self.triggers.keeps(error):
            self.recording.guarded("keeping the exception", lambda: self._keep_failure(error))
        self.listeners.leave_loop(close_last=error is None)
        self.clock.drop()
        self.plan.close(self.clock.step_num - 1)
        self.listeners.detach()
        self._optimizers.clear()  # they hold their models
        self._note_what_never_came()
        self.recording.guarded("taking the last device times", self._rows.settle)
        self.recording.guarded("writing the run folder", lambda: self.recording.finish(self._ending(error)))
        self._verdict.call_off()

    def _note_what_never_came(self) -> None:
        steps = self.clock.step_num
        if not steps:
            self.recording.note(
                "no step was seen: the loop was not reached, or it has neither a DataLoader nor an optimizer; "
                "say where steps end with prof.steps(iterable) or prof.step()"
            )
        elif self.plan.waiting:
            self.recording.note(
                f"no window was recorded: the run had {steps} steps and the schedule's first window needs more"
            )

    def _keep_failure(self, error: BaseException) -> None:
        failure = failure_of(error, self.clock, dropped=self._dropped, window=self.plan.window)
        write_record(self.recording.window_file(0).parent, failure)
        self.recording.note(in_words(failure))

    def _ending(self, error: BaseException | None) -> str:
        if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            steps = self.clock.step_num
            stopped = self._options.stop_after is not None and steps >= self._options.stop_after
            return f"stopped after {steps} steps" if stopped else "finished"
        return f"{type(error).__name__}: {error}".rstrip(": ")

    def forget(self) -> None:
        """In a forked child: put the patches back and leave the rest, whose parent goes on."""
        self._recorded = False
        self.listeners.forget()

    # -- between two steps

    def on_epoch_end(self) -> None:
        """Say once, at the end of the first epoch, that a window has not come yet: the schedule may be a mistake."""
        if self._epoch_told:
            return
        self._epoch_told = True
        steps = self.clock.step_num
        if self.plan.waiting and steps and not self._options.quiet:
            print_message(
                f"no window yet: the first epoch had {steps} steps and the schedule's first window comes later"
            )

    def drop_step(self) -> None:
        """Forget the unfinished step; an error may have ended it."""
        self._dropped = self.clock.step_num
        self.clock.drop()

    def say_of_step(self, samples: int | None, tokens: int | None, loss: float | None) -> None:
        """What the running step works on, in the program's own words; what was said of it before stays."""
        said = self._rows.said
        before = said.get(self.clock.step_num, Said())
        said[self.clock.step_num] = Said(
            before.samples if samples is None else samples,
            before.tokens if tokens is None else tokens,
            before.loss if loss is None else loss,
        )

    def _on_steps(self, closed: list[ClosedStep]) -> None:
        try:
            if self.plan.timed:
                self.triggers.judge(closed)
            self._rows.add(closed)
            self._rows.write_due()
        except Exception as error:  # noqa: BLE001 - nothing of perfkit's may end training
            self.recording.trouble("recording steps", error)

    def _on_due(self, step: int) -> bool:
        """Step ``step`` is about to begin, and something may be due; whether this was of perfkit's everyday work."""
        recording, plan, rows, clock = self.recording, self.plan, self._rows, self.clock
        timed, looked, triggers = plan.timed, False, self.triggers
        try:
            triggers.look(self.listeners.compiles)
            if not timed:
                triggers.window_recorded()
            if plan.advance(step):
                recording.pair_clocks()
                self._tell_of_triggered(plan.windows[-1])
                self.copy_out()
            rows.kind, rows.window = plan.kind, plan.window
            if plan.extras_done and not self._told_early:
                self._told_early = True
                self._tell_early()
            looked = self._look(step, timed=timed)
            stop = self._options.stop_after or sys.maxsize
            clock.due = min(plan.next_step(step), self._next_pause(step), self._tensors.next, stop)
            clock.due_ns = _clock.now_ns() + FLUSH_NS
        except Exception as error:  # noqa: BLE001 - nothing of perfkit's may end training
            recording.trouble("recording a step", error)
        if self._options.stop_after is not None and step >= self._options.stop_after:
            raise SystemExit(0)
        # Opening and closing a window is the window's price, and told as that; a look at all tensors comes seldom.
        return timed and plan.timed and not looked

    def _wake(self) -> None:
        """Make the end of the running step a pause; called from a signal's handler."""
        self.clock.due = 0

    def _write_note(self, text: str) -> None:
        """Keep a sentence of the triggers, where whoever waits for a window reads it."""
        if text not in self.recording.notes:
            self.recording.note(text)
            self.recording.rewrite()

    def _tell_of_triggered(self, window: Window) -> None:
        """Somebody may wait for the window of a trigger, and nobody else expects it."""
        if window.reason is None or not window.reason.startswith("trigger: "):
            return
        self.recording.rewrite()
        if not self._options.quiet:
            why = window.reason.removeprefix("trigger: ")
            print_message(
                f"window {window.index} holds steps {window.first_step} to {window.last_step}, opened by: {why}"
            )

    def _next_pause(self, step: int) -> int:
        """When memory is read and rows are written again: of short steps, as many later as take `_PAUSE_NS`."""
        now = _clock.now_ns()
        (last, last_ns), self._paused = self._paused, (step, now)
        passed_ns = now - last_ns
        short = (step - last) * _PAUSE_NS // passed_ns if passed_ns > 0 else 0
        first = next_reading(0)  # is never put off: there is one in every run of so many steps
        return next_reading(step + min(short, _MOST_STEPS)) if step >= first else first

    def _look(self, step: int, *, timed: bool) -> bool:
        """Read what is read between two steps; whether all tensors were looked at."""
        now = _clock.now_ns()
        if not timed or now - self._looked_ns > _LOOK_NS:
            self._looked_ns = now
            self._inspection.look(step, timed=timed)
        self.listeners.batches.look()
        if self.listeners.node is not None:
            self.listeners.node.look()
        return self._tensors.look(step)

    # -- what is written and told

    def _parts(self) -> Parts:
        """What the recording rewrites: facts for rank.json, lines, ranges and syncs."""
        listeners, plan, rows = self.listeners, self.plan, self._rows
        self._thin_out()
        return Parts(
            facts={
                "loaders": listeners.loaders,
                "steps": self.clock.step_num,
                "graph_breaks": graph_breaks(),
                "break_lines": break_lines(),
                "compilations": listeners.compiles.compilations if listeners.compiles is not None else (),
                "optimizers": self._inspection.optimizers,
                "cpu_ns_per_step": self._inspection.cpu_ns_per_step,
                "calls": self._inspection.calls(),
                "evaluated_with_grad": self._inspection.evaluated_with_grad,
                "kept": self._tensors.kept,
                "padding": listeners.batches.padding,
                "flops": plan.flops,
                "node": listeners.node_health,
                "overhead_ns": self.clock.overhead_ns + listeners.sampling_ns(rows.timed_ns),
                "overhead_bytes": self._most_held(),
                "windows": plan.windows,
            },
            settings=self._inspection.settings | device_bytes(),
            lines=listeners.lines(sampled_steps=rows.sampled_steps, steps=self.clock.step_num, traced=plan.lines),
            ranges=listeners.ranges,
            syncs=listeners.syncs or plan.syncs,
        )

    def _thin_out(self) -> None:
        """Above the budget, stop the dearest part that training can do without, and say so."""
        listeners, timed_ns = self.listeners, self._rows.timed_ns
        own_ns = self.clock.overhead_ns + listeners.sampling_ns(timed_ns)
        if not self._recorded or not timed_ns:
            return
        if self._judged is None:
            # What the first steps and the first window cost comes once: thinning out what follows gains none of it.
            self._judged = own_ns, timed_ns
        # Judged on a second of steps at least: one slow file system call is no verdict on the whole.
        since_ns = timed_ns - self._judged[1]
        if since_ns <= 1_000_000_000:
            return
        over = own_ns - self._judged[0] > self._options.budget * since_ns
        self._judged = own_ns, timed_ns
        if over and listeners.stop_sampling():
            self.recording.note(
                f"perfkit took more than {self._options.budget:.1%} of the step and stopped sampling lines"
            )

    def _most_held(self) -> int | None:
        seen = (
            self.recording.rank.overhead_bytes,
            self.listeners.held_bytes(self.recording, self._rows, self.plan),
        )
        return max((number for number in seen if number is not None), default=None)

    def copy_out(self) -> None:
        """Copy finished files to where the run is wanted, if that is not here."""
        if (url := self._options.url) is not None:
            self.recording.guarded(f"copying to {url}", lambda: copy_out(self.folder, url))

    def _tell_early(self) -> None:
        if self._options.quiet or self._options.stop_after is not None:
            return
        self.recording.flush()
        self.recording.rewrite()
        self._verdict.tell(self.plan.wait)
