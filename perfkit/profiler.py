"""``profile``: records a training loop into a run folder, and diagnoses it at the end.

It runs the clock and the windows during training, and the diagnosis afterwards. It never changes the outcome of
training: perfkit's own errors are caught here, reported once, written into rank.json, and switch the failing part off.
"""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from perfkit import _env
from perfkit._html import html_text
from perfkit._stderr import print_message, print_once
from perfkit.errors import UsageError
from perfkit.last_window import LastWindow
from perfkit.record.clock.step_followers import follow_steps
from perfkit.record.clock.step_iterator import StepIterator
from perfkit.record.options import FLAGS, DetectSyncs, Options
from perfkit.record.recorded_function import Decorates
from perfkit.record.triggers.trigger_settings import Triggers, as_triggers, check_thread
from perfkit.record.windows.schedules import Schedule, as_action
from perfkit.run.folder_claim import claim_folder, default_folder, launch_id
from perfkit.run.records import MODES, PHASES, Mode, Phase, StartedBy

if TYPE_CHECKING:
    from perfkit.diagnosis import Diagnosis
    from perfkit.record.clock.step_clock import StepClock
    from perfkit.record.run_recorder import RunRecorder
    from perfkit.run.rank_recording import LateLoss

T = TypeVar("T")

#: The profile that is recording in this process.
_active: profile | None = None


class profile(Decorates, LastWindow):
    """Records a training loop: phases of every step, and windows by schedule, into a run folder.

    A context manager, or ``@perfkit.profile()`` on the function that trains, or `start` and `stop`. Inside,
    ``prof.steps(loader)`` or ``prof.step()`` ends a step; without them, fetches and optimizer steps show where.

    Args:
        run: Folder to record into, or a URL for fsspec: then the run is recorded into ``runs/`` and copied
            there after each window and at the end. Default ``runs/<script>-<date>-<time>``. Another run in the folder
            is kept: this one becomes ``<run>-2``.
        schedule: Which steps are recorded in windows: `perfkit.schedule`, or any schedule of torch.profiler.
            Default: a window within the first 15 steps, earlier where the run is known to be shorter.
        activities: Set of ``torch.profiler.ProfilerActivity``; default: all that the machine supports.
        record_shapes, profile_memory, with_stack, with_flops, with_modules: torch's flags for a window.
        recorders: What a window records: "kineto" (torch's profiler, the trace), "cuda_profiler" (opens the
            capture range of nsys and ncu), "memory" (a snapshot of device memory), "ranges"; ``()``: no windows.
        handlers: Callables that get the torch profiler of each finished window; on_trace_ready: one more, as in torch.
        memory: Also record five steps for memory: what holds it at the peak. See ``perfkit explain memory``.
        triggers: What opens windows outside of the schedule: names, or `perfkit.triggers` with numbers. Default "file":
            ``perfkit trigger RUN`` from another shell. On every rank, whatever ``ranks`` is; ``()``: none.
        detect_syncs: "auto" finds host-device syncs: on a GPU in every step, on a CPU by a dry run of two extra steps.
            None: syncs are not detected.
        capture_nvtx: Add ranges that the program marks through nvtx and torch.cuda.nvtx to the run's ranges and windows
            while the profile records; `perfkit.ranges.nvtx_bridge` lists which are captured.
        ranks: Ranks that record windows by the schedule; every rank records its steps.
        budget: Maximum of perfkit's own time as a share of the step (0.01 = 1 %); above it, sampling stops.
        overwrite: Replace a run in the folder.
        stop_after: End the program cleanly (``SystemExit(0)``) after this number of steps.
        total_steps: The number of steps of the run, if known: the default schedule fits it, costs are of all of them.
        quiet: Do not print the verdict.
        report: Also write ``report.html``, the diagnosis as one page, into the run folder.
        hooks: False where a framework's adapter reports phases and steps by `begin`, `end`, `step` and `drop_step`.

    Raises:
        UsageError: an argument has an impossible value.
        MissingDependency: torch is not installed. A folder that cannot be written is reported, and nothing recorded.
    """

    def __init__(
        self,
        run: str | os.PathLike[str] | None = None,
        *,
        schedule: Schedule | Callable[[int], Any] | None = None,
        activities: Iterable[Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        recorders: Iterable[str] = ("kineto",),
        handlers: Iterable[Callable[[Any], Any]] = (),
        on_trace_ready: Callable[[Any], Any] | None = None,
        memory: bool = False,
        triggers: Triggers | str | Iterable[str] | None = None,
        detect_syncs: DetectSyncs | None = None,
        capture_nvtx: bool = False,
        ranks: Iterable[int] = (0,),
        budget: float = 0.01,
        overwrite: bool = False,
        stop_after: int | None = None,
        total_steps: int | None = None,
        quiet: bool = False,
        report: bool = False,
        hooks: bool = True,
    ) -> None:
        given = dict(locals())  # the arguments: nothing else is defined yet
        del given["self"], given["on_trace_ready"]
        given["started_in"] = _env.current_folder()
        given["flags"] = {name: given.pop(name) for name in FLAGS}
        given["action"] = as_action(schedule) if schedule is not None else None
        given["recorders"] = recorders = tuple(recorders)  # it may be a generator
        given["triggers"] = as_triggers(triggers, recorders)
        given["activities"] = tuple(activities) if activities is not None else None
        given["handlers"] = (*handlers, *(() if on_trace_ready is None else (on_trace_ready,)))
        given["ranks"] = tuple(ranks)
        self._options = Options(**given)
        self._options.check()
        #: The run folder, once `start` has made it.
        self.folder: Path | None = None
        self.off = False  # recording could not start; a sentence on stderr has said why
        self.started_by: StartedBy = "perfkit.profile"  # what the user wrote, for sentences about marking steps
        self.loading_ns = 0  # processor time that `perfkit run` took before the program began
        # Whether the run is diagnosed when it ends, and the limits of this machine are written.
        self.diagnoses = True
        #: The result, once the run has ended and rank 0 has diagnosed it.
        self.diagnosis: Diagnosis | None = None
        self._live: RunRecorder | None = None
        self._running = self._started = False
        self._reported: set[str] = set()

    # -- start and stop

    def __enter__(self) -> profile:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop(error)

    def start(self) -> profile:
        """Start recording; the first step begins with the first fetch, `step` or `steps`.

        After `stop` the same run continues: in its folder, with its step numbers and its schedule.

        Raises:
            UsageError: the trigger "signal" is on, and this is not the main thread.
        """
        global _active
        began_ns = time.process_time_ns()
        self._started = True
        if _env.disabled() or self._running:
            return self
        if _active is not None:
            # Profiling twice must not end training; the outer profile records all steps.
            print_message("another profile is recording already; this one records nothing")
            return self
        _env.require_torch("perfkit.profile")
        check_thread(self._options.triggers)
        try:
            live = self._live = self._live or self._claim()
            live.begin()
        except Exception as error:  # noqa: BLE001 - a disk that cannot be written must not end training
            self._live, self.folder, self.off = None, None, True
            print_message(f"nothing is recorded: {type(error).__name__}: {error} (training goes on)")
            return self
        _active = self
        self._running = True
        atexit.register(self.stop)
        live.cost.add("start", time.process_time_ns() - began_ns + self.loading_ns)
        self.loading_ns = 0
        return self

    def _claim(self) -> RunRecorder:
        """Create the run's folder."""
        # Everything that records: a program that only marks ranges does not need it.
        from perfkit.record.run_recorder import RunRecorder

        launch, options = launch_id(), self._options
        wanted = options.folder or options.started_in / default_folder(launch)
        folder = claim_folder(wanted, launch, overwrite=options.overwrite)
        if options.folder is not None and folder != options.folder:
            print_message(f"{wanted} holds another run; this one is recorded into {folder}")
        if options.url is not None:
            print_message(f"recording into {folder}; finished files are copied to {options.url}")
        self.folder = folder
        _forget_in_children(self)
        return RunRecorder(folder, launch, options, self.started_by)

    def stop(self, error: BaseException | None = None) -> None:
        """End the run, which ``error`` has ended, if any: save an open window, undo all patches, write, diagnose."""
        global _active
        live = self._live
        if not self._running or live is None:
            return
        self._running = False
        atexit.unregister(self.stop)
        _active = None
        try:
            live.recording.guarded("ending the recording", lambda: live.end(error))
            if self.diagnoses:
                live.write_limits(error)
                if live.recording.rank.rank == 0:
                    self._diagnose(live)
        finally:  # also at a Ctrl-C
            live.verdict.cancel()
        live.write_cost()
        live.copy_out()

    def _diagnose(self, live: RunRecorder) -> None:
        recording, quiet = live.recording, self._options.quiet
        if self.started_by == "perfkit run":
            # Only printed: what diagnoses is then never loaded in the process that trains.
            recording.guarded("the diagnosis", lambda: live.verdict.print_final(recording.notes, quiet=quiet))
        else:
            recording.guarded("the diagnosis", lambda: self._diagnose_here(live))
            recording.guarded("the figures", lambda: self._draw(live))

    def _diagnose_here(self, live: RunRecorder) -> None:
        from perfkit.reports.run_verdict import diagnose_own_run  # it loads numpy, which importing perfkit must not

        self.diagnosis = diagnose_own_run(live.folder, live.recording.notes, quiet=self._options.quiet)

    def _draw(self, live: RunRecorder) -> None:
        """Write the data of the pages, after the verdict is printed: this reads the window's trace once more."""
        from perfkit.reports.run_verdict import draw_run  # as in `_diagnose_here`

        if self.diagnosis is None:
            return
        if (page := draw_run(self.diagnosis, live.folder, page=self._options.report)) and not self._options.quiet:
            print_message(f"report: {page}")

    def _follow_steps(self, what: str, follow: Callable[[int], bool | None]) -> None:
        """Call ``follow`` with the number of each step that begins: see `follow_steps`."""
        if self._live is not None:
            follow_steps(self._live.clock, self._live.recording, what, follow)

    # -- what a loop calls

    @property
    def step_num(self) -> int:
        """Number of the running step, from 0, over the whole run."""
        return self._live.clock.step_num if self._live is not None else 0

    def steps(self, iterable: Iterable[T]) -> Iterable[T]:
        """Iterate over ``iterable``; each iteration is a step that begins with the wait for its item.

        ``len()`` and attributes of the iterable are forwarded; ``break`` and errors close the last step.
        """
        live = self._live
        if not self._running or live is None:
            self._report_unstarted("steps")
            return iterable if _active is None or _active is self else _active.steps(iterable)
        self._take_boundaries(live)
        live.clock.knows("data")
        return StepIterator(iterable, live.clock, lambda: self._know_length(iterable, live), live.on_epoch_end)

    def _report_unstarted(self, what: str) -> None:
        if not (self._started or _active is not None or _env.disabled()):
            text = f"{what}() records nothing before start(): write `with perfkit.profile(...) as prof:`"
            print_once(text, self._reported)

    def _know_length(self, iterable: Iterable[Any], live: RunRecorder) -> None:
        if live.total is None and not live.plan.begun:
            try:
                # One epoch: where more come, their number is not known.
                live.total = len(iterable)  # type: ignore[arg-type]  # TypeError: unknown
            except TypeError:
                return

    def _take_boundaries(self, live: RunRecorder) -> None:
        """The program marks where steps end, so the hooks no longer do."""
        if live.attachments.hooks is not None:
            live.attachments.hooks.leave_boundaries()

    def log(self, *, samples: int | None = None, tokens: int | None = None, loss: float | None = None) -> None:
        """Log what the running step works on, for throughput, and its loss, for `compare`.

        Args:
            samples: Training examples in the step.
            tokens: Tokens in the step.
            loss: The loss as a Python number that the program already has: reading it from a device is a sync.

        Raises:
            UsageError: ``loss`` is a tensor on a device.
        """
        if getattr(loss, "device", None) is not None and str(getattr(loss, "device", "cpu")) != "cpu":
            raise UsageError(
                "loss must be a Python number: reading it from a device is a sync, pass it where you read it anyway"
            )
        if self._running and self._live is not None:
            self._live.log_step(samples, tokens, None if loss is None else float(loss))
        elif _active is not None and _active is not self:
            _active.log(samples=samples, tokens=tokens, loss=loss)

    def log_later(self, loss: LateLoss) -> None:
        """As `log`, for a loss that is read when the step's row is written; for perfkit's own hooks."""
        if self._running and self._live is not None:
            self._live.recording.late_losses[self.step_num] = loss

    def step(
        self,
        samples: int | None = None,
        tokens: int | None = None,
        *,
        loss: float | None = None,
        mode: Mode = "train",
    ) -> None:
        """End the running step here and begin the next.

        Args:
            samples: Training examples in the step, for throughput.
            tokens: Tokens in the step.
            loss: Its loss, as in `log`.
            mode: What the step does. A run's times are those of its training steps, if it has any.

        Raises:
            UsageError: ``mode`` is none of "train", "validation", "test" and "predict", or ``loss`` is a tensor on a
                device.
        """
        if mode not in MODES:
            raise UsageError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        live = self._live
        if not self._running or live is None:
            self._report_unstarted("step")
            if _active is not None and _active is not self:
                _active.step(samples, tokens, loss=loss, mode=mode)
            return
        self._take_boundaries(live)
        if samples is not None or tokens is not None or loss is not None:
            self.log(samples=samples, tokens=tokens, loss=loss)
        if live.clock.iterating:
            print_once("step() in a loop over steps() ends no step: each iteration is a step", self._reported)
        elif live.clock.running:
            live.clock.close(mode)
        else:
            live.clock.start()

    def drop_step(self) -> None:
        """Discard the unfinished step; the time until the next `step` belongs to no step."""
        if self._running and self._live is not None:
            self._live.drop_step()

    def begin(self, phase: Phase) -> None:
        """Open a phase of the running step; the time until `end` belongs to it."""
        if (clock := self._running_clock(phase)) is not None:
            clock.enter(phase)

    def end(self, phase: Phase) -> None:
        """Close the innermost open phase of that name; one that is not open is ignored."""
        if (clock := self._running_clock(phase)) is not None:
            clock.leave(phase)

    def _running_clock(self, phase: Phase) -> StepClock | None:
        if phase not in PHASES:
            raise UsageError(f"phase must be one of {', '.join(PHASES)}, got {phase!r}")
        clock = self._live.clock if self._running and self._live is not None else None
        return clock if clock is not None and clock.running else None

    def _repr_html_(self) -> str:
        return f"<p>{html_text(repr(self))}</p>{self.diagnosis._repr_html_() if self.diagnosis else ''}"

    def __repr__(self) -> str:
        state = "recording" if self._running else "not recording"
        return f"<perfkit.profile {self.folder or 'no folder yet'}: {state}, {self.step_num} steps>"


def _forget_in_children(prof: profile) -> None:
    """A forked worker must not write into its parent's folder."""
    reference = weakref.ref(prof)

    def forget() -> None:
        global _active
        inherited = reference()
        if inherited is not None and inherited._running:
            inherited._running = False
            _active = None
            if inherited._live is not None:
                inherited._live.forget()
            atexit.unregister(inherited.stop)

    os.register_at_fork(after_in_child=forget)


def steps(iterable: Iterable[T]) -> Iterable[T]:
    """`profile.steps` of the recording profile; the iterable itself if none records."""
    return iterable if _active is None else _active.steps(iterable)


def step(
    samples: int | None = None, tokens: int | None = None, *, loss: float | None = None, mode: Mode = "train"
) -> None:
    """`profile.step` of the recording profile; no effect if none records."""
    if _active is not None:
        _active.step(samples, tokens, loss=loss, mode=mode)
