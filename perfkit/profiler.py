"""``profile``: records a training loop into a run folder, and at the end has it diagnosed.

The roof over both columns: it runs the clock and the windows while training runs, and asks the
diagnosis when it is over. Training's own outcome is never changed: what fails here is caught at this
border, told once, written into rank.json, and switched off.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from perfkit import _env
from perfkit._stderr import print_message
from perfkit.errors import RunError, UsageError
from perfkit.record.clock.step_iterator import Steps
from perfkit.record.run_recorder import DetectSyncs, Options, RunRecorder
from perfkit.record.step_plan import RECORDERS
from perfkit.record.triggers.trigger_watch import Triggers, as_triggers, check_thread
from perfkit.record.windows.schedules import Schedule, as_action
from perfkit.run.atomic import write_atomically
from perfkit.run.folder_claim import check_folder, claim_folder, default_folder, launch_id
from perfkit.run.records import MODES, PHASES, Mode, Phase
from perfkit.run.remote import check_url, is_url

if TYPE_CHECKING:
    from perfkit.diagnosis import Diagnosis

T = TypeVar("T")

#: The profile that is recording in this process.
_active: profile | None = None


class profile:
    """Records a training loop: phases of every step, and windows by schedule, into a run folder.

    Use it as a context manager, or `start` and `stop` it. Inside, ``prof.steps(loader)`` or
    ``prof.step()`` says where a step ends; with neither, steps are found from the DataLoader's fetches
    and the optimizer's steps.

    Args:
        run: Folder to record into, or a URL for fsspec: then the run is recorded into ``runs/`` and copied
            there after each window and at the end. Default ``runs/<script>-<date>-<time>``. A folder that holds another
            run is left alone: this one becomes ``<run>-2``.
        schedule: Which steps are recorded in windows: `perfkit.schedule`, or any callable of torch's.
            Default: a window within the first 15 steps, earlier where the run is known to be shorter.
        activities: ``torch.profiler.ProfilerActivity`` set; default what the machine has.
        record_shapes, profile_memory, with_stack, with_flops, with_modules: torch's flags for a window.
        recorders: What a window records: "kineto" (torch's profiler, the trace), "cuda_profiler" (opens the
            capture range of nsys and ncu), "memory" (a snapshot of device memory); ``()`` for no windows.
        handlers: Callables that get the torch profiler of each finished window.
        on_trace_ready: One more handler, under torch's name for it.
        triggers: What opens a window beside the schedule: names, or `perfkit.triggers` with numbers. Default "file":
            ``perfkit trigger RUN`` from another shell. On every rank, whatever ``ranks`` says; ``()`` for none.
        detect_syncs: "auto" finds host-device syncs: on a GPU in every step, on a CPU by a dry run in
            two steps of its own. None does not.
        borrow_nvtx: Take the ranges that the program has through nvtx and torch.cuda.nvtx into the run's ranges
            and windows, as long as the profile records; `perfkit.ranges.nvtx_bridge` says which can be seen.
        ranks: Ranks that record windows by the schedule; every rank records its steps.
        budget: perfkit's own time as a share of the step (0.01 = 1 %) above which it stops sampling.
        overwrite: Replace a run that lies in the folder.
        stop_after: End the program cleanly (``SystemExit(0)``) after so many steps.
        total_steps: How many steps the run will have, where that is known: the default schedule fits itself
            to it, and lost time is also told for the whole run.
        quiet: Print no verdict.
        report: Also write ``report.html``, the diagnosis as one page, into the run folder.
        hooks: False where something else tells the phases and the steps, through `begin`, `end`, `step` and
            `drop_step`: a framework's adapter. Loaders and optimizers are seen all the same.

    Raises:
        UsageError: an argument that cannot be, or a folder that cannot be written.
        MissingDependency: torch is not installed.
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
        triggers: Triggers | str | Iterable[str] | None = None,
        detect_syncs: DetectSyncs | None = None,
        borrow_nvtx: bool = False,
        ranks: Iterable[int] = (0,),
        budget: float = 0.01,
        overwrite: bool = False,
        stop_after: int | None = None,
        total_steps: int | None = None,
        quiet: bool = False,
        report: bool = False,
        hooks: bool = True,
    ) -> None:
        self._url: str | None = None
        if run is not None and is_url(run):
            self._url = os.fspath(run)
            check_url(self._url)
            # Recorded here first: a run is written by renaming and appending, which object stores do not have.
            run = Path("runs") / (self._url.rstrip("/").rsplit("/", 1)[-1] or "run")
        self._wanted = Path(run) if run is not None else None
        if self._wanted is not None:
            check_folder(self._wanted)
        recorders = tuple(recorders)  # it may be a generator
        unknown = [name for name in recorders if name not in RECORDERS]
        if unknown:
            raise UsageError(f"recorders may hold {', '.join(map(repr, RECORDERS))}, got {unknown[0]!r}")
        handlers = (*handlers, *(() if on_trace_ready is None else (on_trace_ready,)))
        for handler in handlers:
            if not callable(handler):
                raise UsageError(f"a handler must be callable with the torch profiler of a window, got {handler!r}")
        chosen = as_triggers(triggers, recorders)
        if detect_syncs not in (None, "auto", "cuda", "dry"):
            raise UsageError(f"detect_syncs must be 'auto', 'cuda', 'dry' or None, got {detect_syncs!r}")
        if detect_syncs == "cuda" and not _env.cuda_in_use() and _env.torch_if_loaded() is not None:
            raise UsageError("detect_syncs='cuda' needs a CUDA device: use 'dry', which runs on a CPU")
        if not 0 < budget <= 1:
            raise UsageError(f"budget must be a share of the step above 0 and at most 1, got {budget!r}")
        self._overwrite = overwrite
        for name, number in (("stop_after", stop_after), ("total_steps", total_steps)):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
                raise UsageError(f"{name} must be a whole number of at least 1 step, got {number!r}")
        self._quiet = quiet
        self._report = report
        self._total = min((n for n in (stop_after, total_steps) if n is not None), default=None)
        if isinstance(schedule, Schedule) and self._total is not None and schedule.first_window_end > self._total:
            raise UsageError(
                f"the schedule's first window needs {schedule.first_window_end} steps, the run has {self._total}: "
                "shorten wait or skip_first, or leave schedule out"
            )
        self._options = Options(
            schedule=schedule,
            action=as_action(schedule) if schedule is not None else None,
            activities=tuple(activities) if activities is not None else None,
            flags={
                "record_shapes": record_shapes,
                "profile_memory": profile_memory,
                "with_stack": with_stack,
                "with_flops": with_flops,
                "with_modules": with_modules,
            },
            recorders=tuple(recorders),
            handlers=tuple(handlers),
            triggers=chosen,
            detect_syncs=detect_syncs,
            borrow_nvtx=borrow_nvtx,
            ranks=tuple(ranks),
            budget=budget,
            stop_after=stop_after,
            quiet=quiet,
            hooks=hooks,
            url=self._url,
        )
        self.folder: Path | None = None
        #: The result, once the run has ended and rank 0 has diagnosed it.
        self.diagnosis: Diagnosis | None = None
        self._live: RunRecorder | None = None
        self._running = False

    # -- life

    def __enter__(self) -> profile:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop(error)

    def start(self) -> profile:
        """Begin to record; the first step begins with the first fetch, `step` or `steps`.

        After `stop` the same run goes on: in its folder, with its step numbers and its schedule.

        Raises:
            UsageError: the trigger "signal" is wanted, and this is not the main thread.
        """
        global _active
        if _env.disabled() or self._running:
            return self
        if _active is not None:
            # A training must not die because it is profiled twice; the outer profile sees all steps.
            print_message("a profile is recording already; this one records nothing, see the other's run folder")
            return self
        _env.require_torch("perfkit.profile")
        check_thread(self._options.triggers)
        live = self._live = self._live or self._claim()
        _active = self
        self._running = True
        atexit.register(self.stop)
        live.begin()
        return self

    def _claim(self) -> RunRecorder:
        """Take the run's folder."""
        launch = launch_id()
        folder = claim_folder(self._wanted or default_folder(launch), launch, overwrite=self._overwrite)
        if self._wanted is not None and folder != self._wanted:
            print_message(f"{self._wanted} holds another run; this one is recorded into {folder}")
        if self._url is not None:
            print_message(f"recording into {folder}; finished files are copied to {self._url}")
        self.folder = folder
        _forget_in_children(self)
        return RunRecorder(folder, launch, self._options, self._total)

    def stop(self, error: BaseException | None = None) -> None:
        """End the run: save what is open, put everything back, write the folder, and print the verdict.

        Args:
            error: What ended the loop, where it ended by an exception.
        """
        global _active
        live = self._live
        if not self._running or live is None:
            return
        self._running = False
        atexit.unregister(self.stop)
        live.end(error)
        _active = None
        if live.recording.rank.rank == 0:
            live.recording.guarded("the diagnosis", lambda: self._diagnose(live))
            live.recording.guarded("the figures", lambda: self._draw(live))
        live.copy_out()

    def _diagnose(self, live: RunRecorder) -> None:
        from perfkit.diagnosis import diagnose
        from perfkit.reports.console import stderr_console
        from perfkit.reports.terminal import print_diagnosis

        try:
            self.diagnosis = diagnose(live.folder)
        except RunError:
            for note in live.recording.notes:
                print_message(note)
            return
        write_atomically(live.folder / "diagnosis.json", self.diagnosis.to_json().encode())
        if not self._quiet:
            print_diagnosis(self.diagnosis, stderr_console())

    def _draw(self, live: RunRecorder) -> None:
        """Write what pages draw, after the verdict is told: it reads the window's trace once more."""
        if self.diagnosis is None:
            return
        from perfkit.reports.figures import figures_of, write_figures

        data = figures_of(self.diagnosis, live.folder)
        write_figures(live.folder, data)
        if self._report:
            from perfkit.reports.html import write_html

            page = write_html(data, live.folder / "report.html")
            if not self._quiet:
                print_message(f"report: {page}")

    # -- what a loop calls

    @property
    def step_num(self) -> int:
        """Number of the step that is running, counted from 0 over the whole run."""
        return self._live.clock.step_num if self._live is not None else 0

    def steps(self, iterable: Iterable[T]) -> Iterable[T]:
        """Iterate over ``iterable``, each iteration a step that begins with the wait for its item.

        ``len()`` and attributes of the iterable are forwarded; ``break`` and errors close the last step.
        """
        live = self._live
        if not self._running or live is None:
            return iterable if _active is None or _active is self else _active.steps(iterable)
        self._take_boundaries(live)
        live.clock.knows("data")
        return Steps(iterable, live.clock, lambda: self._know_length(iterable, live), live.on_epoch_end)

    def _know_length(self, iterable: Iterable[Any], live: RunRecorder) -> None:
        if live.total is None and not live.plan.begun:
            try:
                # One epoch at least: with an unknown number of epochs the first must hold the window.
                live.total = len(iterable)  # type: ignore[arg-type]  # TypeError is the answer "unknown"
            except TypeError:
                return

    def _take_boundaries(self, live: RunRecorder) -> None:
        """The program says itself where steps end; the hooks do not any more."""
        if live.listeners.hooks is not None:
            live.listeners.hooks.boundaries = False

    def tell(self, *, samples: int | None = None, tokens: int | None = None, loss: float | None = None) -> None:
        """Say what the running step works on, and to what result: for throughput, and for `compare`.

        Args:
            samples: Training examples the step worked on.
            tokens: Tokens the step worked on.
            loss: Its loss, as a number that the program has anyway: reading it from a device is a sync.

        Raises:
            UsageError: ``loss`` is a tensor on a device.
        """
        if getattr(loss, "device", None) is not None and str(getattr(loss, "device", "cpu")) != "cpu":
            raise UsageError(
                "loss must be a number: reading it from a device makes the step wait, tell it where you log"
            )
        if self._running and self._live is not None:
            self._live.say_of_step(samples, tokens, None if loss is None else float(loss))
        elif _active is not None and _active is not self:
            _active.tell(samples=samples, tokens=tokens, loss=loss)

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
            samples: Training examples the step worked on, for throughput.
            tokens: Tokens the step worked on.
            loss: Its loss, as `tell` takes it.
            mode: What the step did. Where a run has training steps, its times are those of the training steps.

        Raises:
            UsageError: ``mode`` is none of "train", "validation", "test" and "predict", or ``loss`` is a tensor on a
                device.
        """
        if mode not in MODES:
            raise UsageError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        live = self._live
        if not self._running or live is None:
            if _active is not None and _active is not self:
                _active.step(samples, tokens, loss=loss, mode=mode)
            return
        self._take_boundaries(live)
        if samples is not None or tokens is not None or loss is not None:
            self.tell(samples=samples, tokens=tokens, loss=loss)
        if live.clock.running:
            live.clock.close(mode)
        else:
            live.clock.start()

    def drop_step(self) -> None:
        """Forget the unfinished step; the time until the next `step` belongs to none."""
        if self._running and self._live is not None:
            self._live.drop_step()

    def begin(self, phase: Phase) -> None:
        """Open a phase of the running step; the time until `end` is booked there."""
        if phase not in PHASES:
            raise UsageError(f"phase must be one of {', '.join(PHASES)}, got {phase!r}")
        if self._running and self._live is not None and self._live.clock.running:
            self._live.clock.enter(phase)

    def end(self, phase: Phase) -> None:
        """Close the innermost open phase of that name; one that is not open is ignored."""
        if phase not in PHASES:
            raise UsageError(f"phase must be one of {', '.join(PHASES)}, got {phase!r}")
        if self._running and self._live is not None and self._live.clock.running:
            self._live.clock.leave(phase)

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
    """`profile.steps` of the profile that is recording; the iterable itself where none is."""
    return iterable if _active is None else _active.steps(iterable)


def step(
    samples: int | None = None, tokens: int | None = None, *, loss: float | None = None, mode: Mode = "train"
) -> None:
    """`profile.step` of the profile that is recording; nothing where none is."""
    if _active is not None:
        _active.step(samples, tokens, loss=loss, mode=mode)
