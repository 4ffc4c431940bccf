"""One run while it is recorded: connects the clock, the attachments, the step plan and the run folder.

`perfkit.profile` starts and stops it; everything between two steps happens here.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from perfkit import _clock, _env
from perfkit._stderr import print_message
from perfkit.record.attachments import Attachments
from perfkit.record.clock.step_clock import StepClock
from perfkit.record.clock.step_sums import ClosedStep
from perfkit.record.machine_limits import write_limits
from perfkit.record.missing_steps import no_step
from perfkit.record.options import Options
from perfkit.record.step_plan import StepPlan
from perfkit.record.step_rows import StepRows
from perfkit.record.stepped_optimizers import SteppedOptimizers
from perfkit.record.triggers.failure import failure_of, sentence, text_of
from perfkit.record.triggers.trigger_watch import TriggerWatch
from perfkit.record.verdict_process import VerdictProcess
from perfkit.record.watchers.compilations import break_lines, graph_breaks
from perfkit.record.watchers.own_cost import OwnCost
from perfkit.record.watchers.processor_time import ProcessorTime
from perfkit.record.watchers.settings_probe import SettingsProbe, device_bytes
from perfkit.record.watchers.step_memory import next_reading
from perfkit.record.watchers.tensor_leaks import TensorLeakWatch
from perfkit.record.windows.schedules import Schedule, default_schedule
from perfkit.run.rank_recording import FLUSH_NS, Parts, RankRecording
from perfkit.run.rank_writer import write_record
from perfkit.run.records import Phase, Run, StartedBy, StepBoundary, WholeProgram, Window
from perfkit.run.remote import copy_out

#: Time between two pauses, and the maximum of steps between them: each pause costs about 0.2 ms. A kill loses no more
#: than this, or 64 steps.
_PAUSE_NS, _MAX_STEPS_BETWEEN = 20_000_000, 250
#: Minimum time between two readings of the program's settings: the 40 us are then below a thousandth of the time.
_PROBE_NS = 50_000_000


class RunRecorder:
    """Records into ``folder``, from `begin` to `end`; another `begin` continues the run."""

    def __init__(self, folder: Path, launch: str, options: Options, started_by: StartedBy) -> None:
        self.folder = folder
        self._started_by: StartedBy = started_by
        #: Wall time and processor time at the start.
        self._began = _clock.now_ns(), time.process_time_ns()
        self._options = options
        #: The number of steps that the run will have, None where unknown.
        self.total = options.total
        self.clock = StepClock(self._on_steps, self._on_due)
        self.recording = RankRecording(folder, launch, self._parts)
        if self.recording.rank.rank == 0:
            write_record(folder, self._record(launch))
        self._optimizers = SteppedOptimizers()
        self.attachments = Attachments(self.clock, self.recording, self._optimizers, phase=self._sampled_phase)
        self._settings = SettingsProbe(self._optimizers)
        self.cost = OwnCost()
        self._processor = ProcessorTime(lambda: self.cost.own_time)
        self._ended_ns = 0
        self._leaks = TensorLeakWatch()
        self.triggers = TriggerWatch(
            options.triggers, (folder, self.recording.folder), wake=self._wake, note=self._write_note
        )
        self.plan = StepPlan(
            options,
            self.recording,
            self.triggers,
            clock=self.clock,
            total=lambda: self.total,
            optimizers=self._optimizers,
        )
        self._rows = StepRows(self.clock, self.recording, self.attachments)
        self.verdict = VerdictProcess(folder)
        self._recorded = self._early_verdict = self._epoch_ended = False
        self._dropped: int | None = None
        #: When settings were read last, and whether all steps since then were ordinary.
        self._probed_ns, self._measuring = -_PROBE_NS, False
        #: perfkit's own time and the time of the steps, when the budget was checked last.
        self._budget_checked: tuple[int, int] | None = None
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

    # -- start and end

    def begin(self) -> None:
        """Attach to the loop and begin a step; a part that cannot be attached is reported and left out."""
        self._recorded = True
        self.recording.guarded("writing the run folder", self.recording.rewrite)
        self.clock.due = 0
        self.recording.guarded("attaching to the loop", self._attach)
        self.recording.guarded("listening for triggers", self.triggers.attach)
        self.clock.start()

    def _attach(self) -> None:
        detect = self._options.detect_syncs
        self.attachments.attach(
            hooked=self._options.hooks,
            capture_nvtx=self._options.capture_nvtx,
            detect_cuda=detect in ("auto", "cuda"),
            at_import=self._started_by == "perfkit run" and not self.clock.step_num,
            on_optimizer=self._optimizers.add,
            on_epoch_end=self.on_epoch_end,
        )

    def _sampled_phase(self) -> Phase | None:
        return self.clock.phase if self.clock.running and self.plan.timed else None

    def end(self, error: BaseException | None) -> None:
        """Save an open window, undo all patches, and write the folder."""
        self._recorded = False
        self._ended_ns = self.cost.steps_and_rest_ns
        if not self.plan.timed:
            self._processor.read(self.clock.step_num, timed=False)
        self.verdict.end_early()
        self.recording.guarded("detaching the triggers", self.triggers.detach)
        if error is not None and self.triggers.keeps_failure(error):
            self.recording.guarded("recording the exception", lambda: self._record_failure(error))
        self.attachments.leave_loop(close_last=error is None)
        self.clock.drop()
        self.plan.close(self.clock.step_num - 1)
        self.attachments.detach()
        self._note_missing()
        self.recording.guarded("reading the last device times", self._rows.settle)
        self.recording.guarded("writing the run folder", lambda: self.recording.finish(self._ending(error)))
        self._optimizers.clear()  # they hold their models

    def write_limits(self, error: BaseException | None) -> None:
        """Write what this machine could do; after the run, because it may be measured first."""
        ended = error is None or isinstance(error, SystemExit)
        quiet = self._options.quiet
        self.recording.guarded(
            "the limits of this machine", lambda: write_limits(self.recording, may_measure=ended, quiet=quiet)
        )

    def write_cost(self) -> None:
        """Write what perfkit cost, once nothing else is left to do."""
        self.cost.add("end", self.cost.steps_and_rest_ns - self._ended_ns)
        parts = self.cost.parts(self._processor.windows_ns)
        self.recording.guarded("writing what perfkit cost", lambda: self.recording.amend(fixed_overhead_ns=parts))

    def _note_missing(self) -> None:
        steps = self.clock.step_num
        boundary = self.attachments.boundary
        if boundary is not None and boundary.module is not None and not boundary.training:
            self.recording.note(
                f"each step is a call of {boundary.module} in evaluation mode; perfkit latency measures how long one "
                "takes by batch size"
            )
        if not steps:
            self.recording.note(no_step(self._started_by))
        elif self.plan.waiting:
            self.recording.note(
                f"no window was recorded: the run had {steps} steps and the schedule's first window needs more"
            )

    def _record_failure(self, error: BaseException) -> None:
        failure = failure_of(error, self.clock, dropped=self._dropped, window=self.plan.window)
        write_record(self.recording.folder, failure)
        self.recording.note(sentence(failure))

    def _ending(self, error: BaseException | None) -> str:
        if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            steps = self.clock.step_num
            stopped = self._options.stop_after is not None and steps >= self._options.stop_after
            return f"stopped after {steps} steps" if stopped else "finished"
        return text_of(error)

    def forget(self) -> None:
        """In a forked child: undo the patches, and leave everything else to the parent."""
        self._recorded = False
        self.attachments.forget()

    # -- between two steps

    def on_epoch_end(self) -> None:
        """Report once, after the first epoch, that no window has opened yet: the schedule may be a mistake."""
        if self._epoch_ended:
            return
        self._epoch_ended = True
        steps = self.clock.step_num
        if self.plan.waiting and steps and not self._options.quiet:
            print_message(
                f"no window yet: the first epoch had {steps} steps and the schedule's first window comes later"
            )

    def drop_step(self) -> None:
        """Discard the unfinished step; an error may have ended it."""
        self._dropped = self.clock.step_num
        self.clock.drop()

    def log_step(self, samples: int | None, tokens: int | None, loss: float | None) -> None:
        """Keep what the program logs about the running step; None keeps the value that it logged before."""
        logged = {"samples": samples, "tokens": tokens, "loss": loss}
        values = self._rows.logged.setdefault(self.clock.step_num, {})
        values.update((name, value) for name, value in logged.items() if value is not None)

    def _on_steps(self, closed: list[ClosedStep]) -> None:
        try:
            self.plan.add(closed)
            self._rows.add(closed)
            self._rows.write_due()
        except Exception as error:  # noqa: BLE001 - nothing of perfkit's may end training
            self.recording.trouble("recording steps", error)

    def _on_due(self, step: int) -> bool:
        """A pause is due before step ``step``; returns whether its work was everyday work, not a window's."""
        recording, plan, rows, clock = self.recording, self.plan, self._rows, self.clock
        timed, scanned, triggers = plan.timed, False, self.triggers
        self.cost.begin_pause()
        with self.attachments.resting():
            recording.guarded("watching the collectives and the device", self.attachments.attach_late)
            try:
                triggers.poll(self.attachments.compiles)
                if not timed:
                    triggers.start_cooldown()
                if plan.advance(step):
                    recording.pair_clocks()
                    self._report_triggered(plan.windows[-1])
                    self.copy_out()
                rows.kind, rows.window = plan.kind, plan.window
                if plan.extras.done and not self._early_verdict:
                    self._early_verdict = True
                    self._print_early_verdict()
                scanned = self._probe(step)
                stop = self._options.stop_after or sys.maxsize
                clock.due = min(plan.next_step(step), self._next_pause(step), self._leaks.next_step, stop)
                clock.asks, clock.due_ns = plan.asks, _clock.now_ns() + FLUSH_NS
            except Exception as error:  # noqa: BLE001 - nothing of perfkit's may end training
                recording.trouble("recording a step", error)
        # Opening and closing a window is part of the window's cost; all tensors are scanned only seldom.
        everyday = timed and plan.timed and not scanned
        self.cost.end_pause(None if everyday else "checks" if scanned else "windows")
        if self._options.stop_after is not None and step >= self._options.stop_after:
            raise SystemExit(0)
        return everyday

    def _wake(self) -> None:
        """Make the end of the running step a pause; called from a signal handler."""
        self.clock.due = 0

    def _write_note(self, text: str) -> None:
        """Write a sentence of the triggers into rank.json at once: someone may wait for the window."""
        if text not in self.recording.notes:
            self.recording.note(text)
            self.recording.rewrite()

    def _report_triggered(self, window: Window) -> None:
        """Report the window of a trigger: someone may wait for it, and the schedule does not announce it."""
        if window.reason is None or not window.reason.startswith("trigger: "):
            return
        self.recording.rewrite()
        if not self._options.quiet:
            why = window.reason.removeprefix("trigger: ")
            print_message(
                f"window {window.index} holds steps {window.first_step} to {window.last_step}, opened by: {why}"
            )

    def _next_pause(self, step: int) -> int:
        """The step of the next pause: after as many short steps as take `_PAUSE_NS`."""
        now = _clock.now_ns()
        (last, last_ns), self._paused = self._paused, (step, now)
        passed_ns = now - last_ns
        short = (step - last) * _PAUSE_NS // passed_ns if passed_ns > 0 else 0
        first = next_reading(0)  # never later: every run with enough steps has this reading
        return next_reading(step + min(short, _MAX_STEPS_BETWEEN)) if step >= first else first

    def _probe(self, step: int) -> bool:
        """Read what is read between two steps; returns whether all tensors were scanned."""
        now, timed = _clock.now_ns(), self._measuring
        if now - self._probed_ns > _PROBE_NS or (timed and not self.plan.timed):
            self._probed_ns, self._measuring = now, self.plan.timed
            self._settings.read(ordinary=self.plan.timed)
            self._processor.read(step, timed=timed)
        self.attachments.batches.count_padding()
        return self._leaks.check(step)

    # -- what is written and reported

    def _parts(self) -> Parts:
        """The contents of rank.json, lines.json, ranges.npz and syncs.json now."""
        attachments, plan, rows = self.attachments, self.plan, self._rows
        padded = attachments.batches.is_padded or plan.extras.reads_padding
        self._keep_budget()
        return Parts(
            facts={
                "devices": tuple(_env.devices()) or self._settings.other_devices,
                "loaders": attachments.loaders,
                "steps": self.clock.step_num,
                "started_by": self._started_by,
                "step_boundary": self._boundary(),
                "program": self._program(),
                "graph_breaks": graph_breaks(),
                "break_lines": break_lines(),
                "compilations": attachments.compiles.compilations,
                "optimizers": self._settings.optimizers,
                **self._processor.facts,
                "process_group": attachments.reduced.group,
                "calls": self._settings.calls(padded, attachments.unused.models),
                "evaluated_with_grad": attachments.evaluation.line,
                "unused_gradients": (*attachments.unused.found(), *attachments.cleared.found()),
                "kept": self._leaks.leaks,
                "padding": attachments.batches.padding,
                "flops": plan.extras.flops,
                "node": attachments.node_health,
                "energy": attachments.energy,
                "overhead_ns": self.clock.overhead_ns + attachments.sampling_ns(rows.timed_ns),
                "fixed_overhead_ns": self.cost.parts(self._processor.windows_ns),
                "overhead_bytes": self._peak_held_bytes(),
                "windows": plan.windows,
            },
            settings=self._settings.settings | device_bytes(),
            lines=attachments.lines(sampled_steps=rows.sampled_steps, steps=self.clock.step_num, plan=plan),
            ranges=attachments.ranges,
            syncs=attachments.syncs or plan.extras.syncs,
        )

    def _boundary(self) -> StepBoundary:
        return (self.attachments.boundary if self.clock.step_num else None) or StepBoundary(by="program")

    def _program(self) -> WholeProgram | None:
        """The whole program, where no step has ended."""
        if self.clock.step_num:
            return None
        began_ns, cpu_ns = self._began
        return WholeProgram(
            wall_ns=_clock.now_ns() - began_ns,
            cpu_ns=time.process_time_ns() - cpu_ns,
            import_ns=self.attachments.import_ns,
        )

    def _keep_budget(self) -> None:
        """Above the budget, stop the most expensive part that is optional, and report that."""
        attachments, timed_ns = self.attachments, self._rows.timed_ns
        own_ns = self.clock.overhead_ns + attachments.sampling_ns(timed_ns)
        if not self._recorded or not timed_ns:
            return
        if self._budget_checked is None:
            # The cost of the first steps and the first window comes once: stopping later parts saves none of it.
            self._budget_checked = own_ns, timed_ns
        # At least a second of steps, so that one slow file system call does not decide.
        since_ns = timed_ns - self._budget_checked[1]
        if since_ns <= 1_000_000_000:
            return
        over = own_ns - self._budget_checked[0] > self._options.budget * since_ns
        self._budget_checked = own_ns, timed_ns
        if over and attachments.stop_sampling():
            self.recording.note(
                f"perfkit took more than {self._options.budget:.1%} of the step and stopped sampling lines"
            )

    def _peak_held_bytes(self) -> int | None:
        seen = (
            self.recording.rank.overhead_bytes,
            self.attachments.held_bytes(self.recording, self._rows, self.plan),
        )
        return max((number for number in seen if number is not None), default=None)

    def copy_out(self) -> None:
        """Copy finished files to the run's URL, if it has one."""
        if (url := self._options.url) is not None:
            self.recording.guarded(f"copying to {url}", lambda: copy_out(self.folder, url))

    def _print_early_verdict(self) -> None:
        if self._options.quiet or self._options.stop_after is not None:
            return
        self.recording.flush()
        self.recording.rewrite()
        self.verdict.print_soon(self.plan.wait)
