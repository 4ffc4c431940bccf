"""``profile``: records a training loop into a run folder, and at the end has it diagnosed.

The roof over both columns: it runs the clock and the windows while training runs, and asks the
diagnosis when it is over. Training's own outcome is never changed: what fails here is caught at this
border, told once, written into rank.json, and switched off.
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from perfkit import _clock, _env
from perfkit._say import say, write
from perfkit.capture.schedules import Action, Schedule, as_action, default_schedule
from perfkit.errors import RunError, UsageError
from perfkit.loop.clock import ClosedStep, StepClock
from perfkit.loop.compiles import CompileCounter, graph_breaks
from perfkit.loop.hooks import LoopHooks
from perfkit.loop.iteration import Steps
from perfkit.loop.memory import NOT_READ, MemoryWatch, watch_memory
from perfkit.run.recording import Parts, Recording
from perfkit.run.records import PHASES, Lines, Phase, Run, Step
from perfkit.run.remote import check_url, copy_out, is_url
from perfkit.run.writing import check_folder, claim_folder, default_folder, launch_id, write_atomically, write_run

if TYPE_CHECKING:
    from perfkit.capture.extras import ExtraSteps
    from perfkit.capture.models import WindowRanges
    from perfkit.capture.windows import Recorder as WindowRecorder
    from perfkit.capture.windows import Windows
    from perfkit.diagnosis import Diagnosis
    from perfkit.loop.sampler import StackSampler
    from perfkit.loop.worker_sampler import WorkerSampler
    from perfkit.ranges import Recorder
    from perfkit.ranges.borrowed import BorrowedNvtx
    from perfkit.syncs import SyncDetector

T = TypeVar("T")

DetectSyncs = Literal["auto", "cuda", "dry"]

#: Where no window will come, the extra steps begin here: the first steps do things that no later one does.
_EXTRAS_AT = 5

#: What a window can record.
_RECORDERS = ("kineto", "cuda_profiler", "memory")

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
        detect_syncs: "auto" finds host-device syncs: on a GPU in every step, on a CPU by a dry run in
            two steps of its own. None does not.
        borrow_nvtx: Take the ranges that the program has through nvtx and torch.cuda.nvtx into the run's ranges
            and windows, as long as the profile records; `perfkit.ranges.borrowed` says which can be seen.
        ranks: Ranks that record windows; every rank records its steps.
        budget: perfkit's own time as a share of the step (0.01 = 1 %) above which it stops sampling.
        overwrite: Replace a run that lies in the folder.
        stop_after: End the program cleanly (``SystemExit(0)``) after so many steps.
        total_steps: How many steps the run will have, where that is known: the default schedule fits itself
            to it, and lost time is also told for the whole run.
        quiet: Print no verdict.
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
        detect_syncs: DetectSyncs | None = None,
        borrow_nvtx: bool = False,
        ranks: Iterable[int] = (0,),
        budget: float = 0.01,
        overwrite: bool = False,
        stop_after: int | None = None,
        total_steps: int | None = None,
        quiet: bool = False,
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
        self._schedule = schedule
        self._action = as_action(schedule) if schedule is not None else None
        self._activities = tuple(activities) if activities is not None else None
        self._flags = {
            "record_shapes": record_shapes,
            "profile_memory": profile_memory,
            "with_stack": with_stack,
            "with_flops": with_flops,
            "with_modules": with_modules,
        }
        self._recorders = tuple(recorders)
        unknown = [name for name in self._recorders if name not in _RECORDERS]
        if unknown:
            raise UsageError(f"recorders may hold {', '.join(map(repr, _RECORDERS))}, got {unknown[0]!r}")
        self._handlers = (*handlers, *(() if on_trace_ready is None else (on_trace_ready,)))
        for handler in self._handlers:
            if not callable(handler):
                raise UsageError(f"a handler must be callable with the torch profiler of a window, got {handler!r}")
        if detect_syncs not in (None, "auto", "cuda", "dry"):
            raise UsageError(f"detect_syncs must be 'auto', 'cuda', 'dry' or None, got {detect_syncs!r}")
        if detect_syncs == "cuda" and not _env.cuda_in_use() and _env.torch_if_loaded() is not None:
            raise UsageError("detect_syncs='cuda' needs a CUDA device: use 'dry', which runs on a CPU")
        self._detect = detect_syncs
        self._borrow_nvtx = borrow_nvtx
        self._ranks = tuple(ranks)
        if not 0 < budget <= 1:
            raise UsageError(f"budget must be a share of the step above 0 and at most 1, got {budget!r}")
        self._budget = budget
        self._overwrite = overwrite
        for name, number in (("stop_after", stop_after), ("total_steps", total_steps)):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
                raise UsageError(f"{name} must be a whole number of at least 1 step, got {number!r}")
        self._stop_after = stop_after
        self._quiet = quiet
        self._hooked = hooks

        self.folder: Path | None = None
        #: The result, once the run has ended and rank 0 has diagnosed it.
        self.diagnosis: Diagnosis | None = None
        self._clock = StepClock(self._on_step)
        self._recording: Recording | None = None
        self._hooks: LoopHooks | None = None
        self._windows: Windows | None = None
        self._extras: ExtraSteps | None = None
        self._sampler: StackSampler | None = None
        self._workers: WorkerSampler | None = None
        self._memory: MemoryWatch | None = None
        self._armed: SyncDetector | None = None
        self._recorder: Recorder | None = None
        self._compiles: CompileCounter | None = None
        self._borrowed: BorrowedNvtx | None = None
        self._window_ranges: WindowRanges | None = None
        self._optimizers: list[Any] = []
        self._row_window: int | None = None
        self._row_dry = False
        self._told_early = False
        self._epoch_told = False
        self._overhead_ns = 0
        self._timed_ns = 0
        self._sampled_steps = 0
        self._gc_ns = 0
        self._gc_began = 0
        self._samples: int | None = None
        self._tokens: int | None = None
        self._total = min((n for n in (stop_after, total_steps) if n is not None), default=None)
        if isinstance(schedule, Schedule) and self._total is not None and schedule.first_window_end > self._total:
            raise UsageError(
                f"the schedule's first window needs {schedule.first_window_end} steps, the run has {self._total}: "
                "shorten wait or skip_first, or leave schedule out"
            )
        self._early: subprocess.Popen[str] | None = None
        self._running = False

    # -- life

    def __enter__(self) -> profile:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop(error)

    def start(self) -> profile:
        """Begin to record; the first step begins with the first fetch, `step` or `steps`."""
        global _active
        if _env.disabled() or self._running:
            return self
        if _active is not None:
            # A training must not die because it is profiled twice; the outer profile sees all steps.
            say("a profile is recording already; this one records nothing, see the other's run folder")
            return self
        _env.require_torch("perfkit.profile")
        launch = launch_id()
        folder = claim_folder(self._wanted or default_folder(launch), launch, overwrite=self._overwrite)
        if self._wanted is not None and folder != self._wanted:
            say(f"{self._wanted} holds another run; this one is recorded into {folder}")
        if self._url is not None:
            say(f"recording into {folder}; finished files are copied to {self._url}")
        self.folder = folder
        self._recording = Recording(folder, launch, self._parts)
        if self._recording.rank.rank == 0:
            write_run(folder, self._run_record(launch))
        self._recording.rewrite()
        _active = self
        self._running = True
        atexit.register(self.stop)
        _forget_in_children(self)
        self._recording.guarded("attaching to the loop", self._attach)
        self._clock.start()
        return self

    def _run_record(self, launch: str) -> Run:
        chosen = self._schedule if self._schedule is not None else default_schedule(self._total)
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
            options={"detect_syncs": self._detect or "", "ranks": ",".join(map(str, self._ranks))},
            total_steps=self._total,
        )

    def _attach(self) -> None:
        from perfkit.loop.sampler import StackSampler
        from perfkit.loop.worker_sampler import WorkerSampler
        from perfkit.ranges import borrow_nvtx, start_recorder

        assert self._recording is not None
        clock = self._clock
        if not self._hooked:
            # The hooks still see loaders, batch sizes and optimizers; their phases go to a clock nobody reads.
            clock = StepClock(lambda closed: None)
            clock.start()
        self._hooks = LoopHooks(clock, on_optimizer=self._optimizers.append, on_epoch_end=self._on_epoch_end)
        self._hooks.attach()
        gc.callbacks.append(self._on_gc)
        self._recorder = start_recorder()
        if self._borrow_nvtx:
            self._borrowed = borrow_nvtx()
        if _env.cuda_in_use():
            from perfkit.loop.device_clock import make_cuda_clock

            self._clock.device = make_cuda_clock()
        self._compiles = CompileCounter()
        if self._detect == "cuda" or (self._detect == "auto" and _env.cuda_in_use()):
            from perfkit.syncs import detect_syncs

            self._armed = detect_syncs(mode="cuda")
            self._armed.start()
        self._sampler = StackSampler(threading.get_ident(), self._sampled_phase)
        self._sampler.start()
        self._workers = WorkerSampler(self._recording.workers_folder())
        self._workers.attach()
        self._memory = watch_memory()

    def _sampled_phase(self) -> Phase | None:
        timed = self._clock.running and self._row_window is None and not self._row_dry
        return self._clock.phase if timed and self._clock.step_num > 0 else None

    def stop(self, error: BaseException | None = None) -> None:
        """End the run: save what is open, put everything back, write the folder, and print the verdict.

        Args:
            error: What ended the loop, where it ended by an exception.
        """
        global _active
        if not self._running or self._recording is None:
            return
        self._running = False
        atexit.unregister(self.stop)
        # Each part by itself: none may be left on because an earlier one failed.
        guarded = self._recording.guarded
        if self._hooks is not None:
            if error is None:
                guarded("closing the last step", self._hooks.finish)
            guarded("detaching from the loop", self._hooks.detach)
        self._clock.drop()
        if self._on_gc in gc.callbacks:
            gc.callbacks.remove(self._on_gc)
        if self._extras is not None:
            guarded("ending the extra steps", self._extras.close)
        if self._sampler is not None:
            guarded("ending the sampler", self._sampler.stop)
        if self._workers is not None:
            guarded("ending the samplers of the loader's workers", self._workers.detach)
        if self._windows is not None:
            windows = self._windows
            guarded("closing the window", lambda: windows.close(self._clock.step_num - 1))
        if self._window_ranges is not None:
            guarded("taking the ranges off the modules", self._window_ranges.remove)
        if self._armed is not None:
            guarded("ending sync detection", self._armed.stop)
        if self._borrowed is not None:
            guarded("giving back nvtx", self._borrowed.give_back)
        if self._recorder is not None:
            guarded("ending the range recorder", self._recorder.stop)
            for count, what in ((self._recorder.dropped, "ranges"), (self._recorder.device_dropped, "device times")):
                if count:
                    self._recording.note(
                        f"{count:,} {what} were dropped: there were more than the recorder keeps up with"
                    )
        _active = None
        recording = self._recording
        self._note_what_never_came()
        self._settle(recording)
        guarded("writing the run folder", lambda: recording.finish(self._ending(error)))
        if recording.rank.rank == 0:
            guarded("the diagnosis", self._diagnose)
        self._copy_out()

    def _note_what_never_came(self) -> None:
        assert self._recording is not None
        steps = self._clock.step_num
        if not steps:
            self._recording.note(
                "no step was seen: the loop was not reached, or it has neither a DataLoader nor an optimizer; "
                "say where steps end with prof.steps(iterable) or prof.step()"
            )
        elif self._windows is not None and not self._windows.done and not self._windows.refused:
            self._recording.note(
                f"no window was recorded: the run had {steps} steps and the schedule's first window needs more"
            )

    def _ending(self, error: BaseException | None) -> str:
        if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            steps = self._clock.step_num
            stopped = self._stop_after is not None and steps >= self._stop_after
            return f"stopped after {steps} steps" if stopped else "finished"
        return f"{type(error).__name__}: {error}".rstrip(": ")

    def _diagnose(self) -> None:
        assert self.folder is not None
        assert self._recording is not None
        if self._early is not None and self._early.poll() is None:
            self._early.kill()  # its answer would come after the full one
        from perfkit.diagnosis import diagnose
        from perfkit.reports.terminal import print_diagnosis, stderr_console

        try:
            self.diagnosis = diagnose(self.folder)
        except RunError:
            for note in self._recording.notes:
                say(note)
            return
        write_atomically(self.folder / "diagnosis.json", self.diagnosis.to_json().encode())
        if not self._quiet:
            print_diagnosis(self.diagnosis, stderr_console())

    # -- what a loop calls

    @property
    def step_num(self) -> int:
        """Number of the step that is running, counted from 0 over the whole run."""
        return self._clock.step_num

    def steps(self, iterable: Iterable[T]) -> Iterable[T]:
        """Iterate over ``iterable``, each iteration a step that begins with the wait for its item.

        ``len()`` and attributes of the iterable are forwarded; ``break`` and errors close the last step.
        """
        if not self._running:
            return iterable if _active is None or _active is self else _active.steps(iterable)
        if self._hooks is not None:
            self._hooks.boundaries = False
        self._clock.knows("data")
        return Steps(iterable, self._clock, lambda: self._know_length(iterable), self._on_epoch_end)

    def _know_length(self, iterable: Iterable[Any]) -> None:
        if self._total is None and self._windows is None:
            try:
                # One epoch at least: with an unknown number of epochs the first must hold the window.
                self._total = len(iterable)  # type: ignore[arg-type]  # TypeError is the answer "unknown"
            except TypeError:
                return

    def _on_epoch_end(self) -> None:
        """Say once, at the end of the first epoch, that a window has not come yet: the schedule may be a mistake."""
        if self._epoch_told or self._recording is None or not self._records_here():
            return
        self._epoch_told = True
        steps = self._clock.step_num
        waits = self._windows is not None and not self._windows.done and self._windows.index is None
        if waits and steps and not self._quiet:
            say(f"no window yet: the first epoch had {steps} steps and the schedule's first window comes later")

    def step(self, samples: int | None = None, tokens: int | None = None) -> None:
        """End the running step here and begin the next.

        Args:
            samples: Training examples the step worked on, for throughput.
            tokens: Tokens the step worked on.
        """
        if not self._running:
            if _active is not None and _active is not self:
                _active.step(samples, tokens)
            return
        if self._hooks is not None:
            self._hooks.boundaries = False
        self._samples, self._tokens = samples, tokens
        if self._clock.running:
            self._clock.close()
        else:
            self._clock.start()

    def drop_step(self) -> None:
        """Forget the unfinished step; the time until the next `step` belongs to none."""
        if self._running:
            self._clock.drop()

    def begin(self, phase: Phase) -> None:
        """Open a phase of the running step; the time until `end` is booked there."""
        if phase not in PHASES:
            raise UsageError(f"phase must be one of {', '.join(PHASES)}, got {phase!r}")
        if self._running and self._clock.running:
            self._clock.enter(phase)

    def end(self, phase: Phase) -> None:
        """Close the innermost open phase of that name; one that is not open is ignored."""
        if phase not in PHASES:
            raise UsageError(f"phase must be one of {', '.join(PHASES)}, got {phase!r}")
        if self._running and self._clock.running:
            self._clock.leave(phase)

    # -- between two steps

    def _on_step(self, closed: ClosedStep) -> None:
        began = _clock.now_ns()
        recording = self._recording
        assert recording is not None
        timed = self._row_window is None and not self._row_dry
        try:
            device = self._clock.device
            if device is None:
                recording.add(self._row(closed, timed))
            else:
                self._settle(recording)
                given_up = recording.add(self._row(closed, timed), awaits_device=True)
                if given_up is not None:
                    device.forget(given_up)
            self._prepare(closed.step + 1)
        except Exception as error:  # noqa: BLE001 - nothing of perfkit's may end training
            recording.trouble("recording a step", error)
        if timed and self._row_window is None and not self._row_dry:
            # Opening and closing a window is the window's price, and told as that.
            self._overhead_ns += _clock.now_ns() - began
        if self._stop_after is not None and closed.step + 1 >= self._stop_after:
            raise SystemExit(0)

    def _row(self, closed: ClosedStep, timed: bool) -> Step:
        samples = self._samples
        if samples is None and self._hooks is not None:
            samples = self._hooks.samples
        memory = self._memory.at_end_of(closed.step) if self._memory is not None else NOT_READ
        row = Step(
            step=closed.step,
            mode=closed.mode,
            start_ns=closed.start_ns,
            wall_ns=closed.wall_ns,
            phases_ns=closed.phases_ns,
            samples=samples,
            tokens=self._tokens,
            memory_bytes=memory.memory_bytes,
            memory_peak_bytes=memory.memory_peak_bytes,
            rss_bytes=memory.rss_bytes,
            alloc_retries=memory.alloc_retries,
            device_allocs=memory.device_allocs,
            recompiles=self._compiles.since_last() if self._compiles is not None else None,
            gc_ns=self._gc_ns,
            window=self._row_window,
            dry=self._row_dry,
        )
        self._samples = self._tokens = None
        self._gc_ns = 0
        if timed:
            self._timed_ns += closed.wall_ns
            if closed.step > 0:
                self._sampled_steps += 1
        if self._armed is not None:
            self._armed.step()
        return row

    def _settle(self, recording: Recording) -> None:
        """Hand on the device times that are there by now."""
        if self._clock.device is not None:
            for step, phases in self._clock.device.resolved():
                recording.settle(step, phases)

    def _prepare(self, step: int) -> None:
        """Decide what step ``step`` is: timed, in a window, the traced one, or one of the dry run."""
        self._row_window, self._row_dry = None, False
        if not self._records_here():
            return
        assert self._recording is not None
        if self._extras is not None and not self._extras.done:
            extra = self._extras.advance(step)
            if extra is not None:
                self._row_window, self._row_dry = (None, True) if extra == "dry" else (0, False)
                return
        finished = False
        if self._recorders:
            windows = self._windows or self._make_windows()
            finished = windows.advance(step)
            self._row_window = windows.index
            if finished:
                self._recording.pair_clocks()
                self._copy_out()
        none_will_come = not self._recorders or (self._windows is not None and self._windows.refused)
        if self._extras is None and (finished or (none_will_come and step >= _EXTRAS_AT)):
            self._extras = self._make_extras()
            if self._row_window is None:
                self._prepare(step)
        elif self._extras is not None and self._extras.done and not self._told_early:
            self._told_early = True
            if not self._quiet and self._stop_after is None:
                self._recording.flush()
                self._recording.rewrite()
                self._tell_early()

    def _records_here(self) -> bool:
        return self._recording is not None and self._recording.rank.rank in self._ranks

    def _make_windows(self) -> Windows:
        from perfkit.capture.models import WindowRanges
        from perfkit.capture.windows import Windows

        assert self._recording is not None
        guarded, ranges = self._recording.guarded, WindowRanges(self._optimizers, self._recording.note)
        self._window_ranges = ranges
        action = self._action or default_schedule(self._total).action
        self._windows = Windows(
            action,
            [self._make_recorder(name, action) for name in self._recorders],
            trouble=self._recording.trouble,
            beside=lambda open_: guarded("ranges around modules", lambda: ranges.follow(open_)),
        )
        return self._windows

    def _make_recorder(self, name: str, action: Callable[[int], Action]) -> WindowRecorder:
        recording = self._recording
        assert recording is not None
        if name == "cuda_profiler":
            from perfkit.capture.cuda_profiler import CudaProfilerGate

            return CudaProfilerGate()
        if name == "memory":
            from perfkit.capture.memory import MemorySnapshot

            return MemorySnapshot(recording.memory_file, recording.note)
        from perfkit.capture.kineto import KinetoRecorder

        return KinetoRecorder(
            action,
            file_of=recording.window_file,
            handlers=self._handlers,
            trouble=recording.trouble,
            activities=self._activities,
            flags=self._flags,
        )

    def _make_extras(self) -> ExtraSteps:
        from perfkit.capture.extras import ExtraSteps

        assert self._recording is not None
        return ExtraSteps(
            phase=lambda: self._clock.phase,
            optimizers=self._optimizers,
            dry=self._detect == "dry" or (self._detect == "auto" and not _env.cuda_in_use()),
            note=self._recording.note,
        )

    # -- what is written and told

    def _parts(self) -> Parts:
        """What the recording rewrites: facts for rank.json, lines, ranges and syncs."""
        sampler, lines = self._sampler, None
        sampling_ns = round(sampler.cost_s * 1e9) if sampler is not None else 0
        if sampler is not None:
            self._thin_out(sampler, sampling_ns)
            period_ns, rows = sampler.rows(self._sampled_steps)
            traced = self._extras.lines if self._extras is not None else ()
            in_workers, workers = self._workers.rows(self._clock.step_num) if self._workers is not None else ((), ())
            lines = Lines(
                period_ns=period_ns,
                steps=self._sampled_steps,
                rows=(*rows, *in_workers),
                traced=traced,
                workers=workers,
            )
        detected = self._armed.to_record() if self._armed is not None else None
        return Parts(
            facts={
                "loaders": tuple(self._hooks.loaders.values()) if self._hooks is not None else (),
                "steps": self._clock.step_num,
                "graph_breaks": graph_breaks(),
                "flops": self._extras.flops if self._extras is not None else None,
                "overhead_ns": self._overhead_ns + sampling_ns,
                "windows": self._windows.done if self._windows is not None else (),
            },
            lines=lines,
            ranges=self._recorder.rows() if self._recorder is not None else (),
            syncs=detected or (self._extras.syncs if self._extras is not None else None),
        )

    def _thin_out(self, sampler: StackSampler, sampling_ns: int) -> None:
        """Above the budget, stop the dearest part that training can do without, and say so."""
        assert self._recording is not None
        # Judged on a second of steps at least: one slow file system call is no verdict on the whole.
        over = self._timed_ns > 1_000_000_000 and self._overhead_ns + sampling_ns > self._budget * self._timed_ns
        if over and sampler.running and self._running:
            sampler.stop()
            self._recording.note(f"perfkit took more than {self._budget:.1%} of the step and stopped sampling lines")

    def _copy_out(self) -> None:
        if self._url is not None and self.folder is not None and self._recording is not None:
            folder, url = self.folder, self._url
            self._recording.guarded(f"copying to {url}", lambda: copy_out(folder, url))

    def _tell_early(self) -> None:
        """Have the first verdict worked out and printed by a process of low priority, while training goes on."""
        assert self.folder is not None
        command = [sys.executable, "-m", "perfkit", "diagnose", str(self.folder), "--early"]
        if (nice := shutil.which("nice")) is not None:
            command = [nice, "-n", "10", *command]
        env = {**os.environ, "PERFKIT_DISABLE": "1", "OMP_NUM_THREADS": "1"}
        windows = self._windows

        def tell() -> None:
            if windows is not None:
                windows.wait()
            if not self._running:
                return
            process = self._early = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True, env=env
            )
            text, _ = process.communicate()
            if process.returncode == 0 and self._running:
                write(f"{text}\n")

        threading.Thread(target=tell, name="perfkit first verdict", daemon=True).start()

    def _on_gc(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_began = time.perf_counter_ns()
        elif self._gc_began:
            self._gc_ns += time.perf_counter_ns() - self._gc_began

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
            if inherited._hooks is not None:
                inherited._hooks.detach()
            if inherited._workers is not None:
                inherited._workers.forget()
            atexit.unregister(inherited.stop)

    os.register_at_fork(after_in_child=forget)


def steps(iterable: Iterable[T]) -> Iterable[T]:
    """`profile.steps` of the profile that is recording; the iterable itself where none is."""
    return iterable if _active is None else _active.steps(iterable)


def step(samples: int | None = None, tokens: int | None = None) -> None:
    """`profile.step` of the profile that is recording; nothing where none is."""
    if _active is not None:
        _active.step(samples, tokens)
