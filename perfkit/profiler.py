"""``profile``: records a training loop into a run folder, and at the end has it diagnosed.

The roof over both columns: it runs the clock and the windows while training runs, and asks the
diagnosis when it is over. Training's own outcome is never changed: what fails here is caught at this
border, told once, written into rank.json, and switched off.
"""

from __future__ import annotations

import atexit
import gc
import os
import socket
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
from perfkit.capture.schedules import Schedule, as_action, default_schedule
from perfkit.errors import PerfkitError, RunError, UsageError
from perfkit.loop.clock import ClosedStep, StepClock
from perfkit.loop.hooks import LoopHooks
from perfkit.loop.iteration import Steps
from perfkit.run.records import PHASES, ClockPair, Lines, Phase, Rank, Run, Step
from perfkit.run.writing import (
    RankWriter,
    check_folder,
    claim_folder,
    default_folder,
    launch_id,
    write_atomically,
    write_run,
)

if TYPE_CHECKING:
    from perfkit.capture.windows import Windows
    from perfkit.diagnosis import Diagnosis
    from perfkit.loop.line_tracer import LineTracer
    from perfkit.loop.sampler import StackSampler
    from perfkit.ranges import Recorder
    from perfkit.syncs import SyncDetector

T = TypeVar("T")

DetectSyncs = Literal["auto", "cuda", "dry"]

#: Rows wait in memory for at most so many steps or seconds; a kill loses no more than that.
_FLUSH_ROWS = 64
_FLUSH_NS = 1_000_000_000
#: ranges, syncs, lines and rank.json are rewritten this often (DESIGN section 3).
_REWRITE_NS = 30_000_000_000
#: Steps of the dry run: the first pays for set-up and one-off syncs, the second shows what every step has.
_DRY_STEPS = 2

#: The profile that is recording in this process.
_active: profile | None = None


class profile:
    """Records a training loop: phases of every step, and windows by schedule, into a run folder.

    Use it as a context manager, or `start` and `stop` it. Inside, ``prof.steps(loader)`` or
    ``prof.step()`` says where a step ends; with neither, steps are found from the DataLoader's fetches
    and the optimizer's steps.

    Args:
        run: Folder to record into. Default ``runs/<script>-<date>-<time>``. A folder that holds another
            run is left alone: this one becomes ``<run>-2``.
        schedule: Which steps are recorded in windows: `perfkit.schedule`, or any callable of torch's.
            Default: a window within the first 15 steps, earlier where the run is known to be shorter.
        activities: ``torch.profiler.ProfilerActivity`` set; default what the machine has.
        record_shapes, profile_memory, with_stack, with_flops, with_modules: torch's flags for a window.
        recorders: What a window records: ``("kineto",)``, or ``()`` for no windows.
        handlers: Callables that get the torch profiler of each finished window.
        on_trace_ready: One more handler, under torch's name for it.
        detect_syncs: "auto" finds host-device syncs: on a GPU in every step, on a CPU by a dry run in
            two steps of its own. None does not.
        ranks: Ranks that record windows; every rank records its steps.
        budget: perfkit's own time as a share of the step (0.01 = 1 %) above which it stops sampling.
        overwrite: Replace a run that lies in the folder.
        stop_after: End the program cleanly (``SystemExit(0)``) after so many steps.
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
        ranks: Iterable[int] = (0,),
        budget: float = 0.01,
        overwrite: bool = False,
        stop_after: int | None = None,
        quiet: bool = False,
        hooks: bool = True,
    ) -> None:
        if run is not None and "://" in os.fspath(run):
            raise UsageError(
                f"a run is recorded into a local folder, got {run!r}: record locally and copy it afterwards"
            )
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
        unknown = [name for name in self._recorders if name != "kineto"]
        if unknown:
            raise UsageError(f"recorders may hold 'kineto', got {unknown[0]!r}")
        self._handlers = (*handlers, *(() if on_trace_ready is None else (on_trace_ready,)))
        for handler in self._handlers:
            if not callable(handler):
                raise UsageError(f"a handler must be callable with the torch profiler of a window, got {handler!r}")
        if detect_syncs not in (None, "auto", "cuda", "dry"):
            raise UsageError(f"detect_syncs must be 'auto', 'cuda', 'dry' or None, got {detect_syncs!r}")
        if detect_syncs == "cuda" and not _env.cuda_in_use() and _env.torch_if_loaded() is not None:
            raise UsageError("detect_syncs='cuda' needs a CUDA device: use 'dry', which runs on a CPU")
        self._detect = detect_syncs
        self._ranks = tuple(ranks)
        if not 0 < budget <= 1:
            raise UsageError(f"budget must be a share of the step above 0 and at most 1, got {budget!r}")
        self._budget = budget
        self._overwrite = overwrite
        if stop_after is not None and (isinstance(stop_after, bool) or stop_after < 1):
            raise UsageError(f"stop_after must be at least 1 step, got {stop_after!r}")
        self._stop_after = stop_after
        self._quiet = quiet
        self._hooked = hooks

        self.folder: Path | None = None
        #: The result, once the run has ended and rank 0 has diagnosed it.
        self.diagnosis: Diagnosis | None = None
        self._clock = StepClock(self._on_step)
        self._hooks: LoopHooks | None = None
        self._windows: Windows | None = None
        self._writer: RankWriter | None = None
        self._sampler: StackSampler | None = None
        self._tracer: LineTracer | None = None
        self._detector: SyncDetector | None = None
        self._dry_left = 0
        self._dry_done = False
        self._optimizers: list[Any] = []
        self._recorder: Recorder | None = None
        self._rank: Rank | None = None
        self._rows: list[Step] = []
        self._flushed = self._rewritten = 0
        self._extras: list[str] = []
        self._row_window: int | None = None
        self._row_dry = False
        self._told: set[str] = set()
        self._errors: list[str] = []
        self._notes: list[str] = []
        self._pairs: list[ClockPair] = []
        self._overhead_ns = 0
        self._timed_ns = 0
        self._sampled_steps = 0
        self._gc_ns = 0
        self._gc_began = 0
        self._samples: int | None = None
        self._tokens: int | None = None
        self._total: int | None = stop_after
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
            self._say("a profile is recording already; this one records nothing, see the other's run folder")
            return self
        _env.require_torch("perfkit.profile")
        launch = launch_id()
        folder = claim_folder(self._wanted or default_folder(launch), launch, overwrite=self._overwrite)
        if self._wanted is not None and folder != self._wanted:
            self._say(f"{self._wanted} holds another run; this one is recorded into {folder}")
        self.folder = folder
        self._writer = RankWriter(folder, _env.rank())
        self._pairs.append(ClockPair(*_clock.clock_pair()))
        self._rank = Rank(
            rank=_env.rank(),
            launch_id=launch,
            host=socket.gethostname(),
            pid=os.getpid(),
            start_ns=_clock.now_ns(),
            versions=_env.versions(),
            devices=tuple(_env.devices()),
            git_commit=_env.git_commit(os.getcwd()),
        )
        if self._rank.rank == 0:
            write_run(folder, self._run_record(launch))
        self._rewrite()
        _active = self
        self._running = True
        atexit.register(self.stop)
        _forget_in_children(self)
        self._guarded("attaching to the loop", self._attach)
        self._clock.start()
        return self

    def _run_record(self, launch: str) -> Run:
        chosen = self._schedule if self._schedule is not None else default_schedule(self._total)
        numbers = (
            {name: int(getattr(chosen, name)) for name in Schedule.__struct_fields__}
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
        from perfkit.ranges import start_recorder

        clock = self._clock
        if not self._hooked:
            # The hooks still see loaders, batch sizes and optimizers; their phases go to a clock nobody reads.
            clock = StepClock(lambda closed: None)
            clock.start()
        self._hooks = LoopHooks(clock, on_optimizer=self._optimizers.append)
        self._hooks.attach()
        gc.callbacks.append(self._on_gc)
        self._recorder = start_recorder()
        if self._detect == "cuda" or (self._detect == "auto" and _env.cuda_in_use()):
            self._arm_syncs()
        self._sampler = StackSampler(threading.get_ident(), self._sampled_phase)
        self._sampler.start()

    def _sampled_phase(self) -> str | None:
        timed = self._clock.running and self._row_window is None and not self._row_dry
        return self._clock.phase if timed and self._clock.step_num > 0 else None

    def stop(self, error: BaseException | None = None) -> None:
        """End the run: save what is open, put everything back, write the folder, and print the verdict.

        Args:
            error: What ended the loop, where it ended by an exception.
        """
        global _active
        if not self._running:
            return
        # Ctrl-C's traceback ends here as well; nothing below may be skipped because an earlier part failed.
        self._running = False
        atexit.unregister(self.stop)
        steps = self._clock.step_num
        if self._hooks is not None:
            if error is None:
                self._guarded("closing the last step", self._hooks.finish)
            self._guarded("detaching from the loop", self._hooks.detach)
        self._clock.drop()
        if self._on_gc in gc.callbacks:
            gc.callbacks.remove(self._on_gc)
        if self._tracer is not None:
            self._guarded("ending the line trace", self._tracer.stop)
        if self._sampler is not None:
            self._guarded("ending the sampler", self._sampler.stop)
        if self._windows is not None:
            windows = self._windows
            self._guarded("closing the window", lambda: windows.close(max(steps, self._clock.step_num) - 1))
        if self._detector is not None and (self._row_dry or not self._dry_done):
            self._guarded("ending sync detection", self._detector.stop)
        if self._recorder is not None:
            self._guarded("ending the range recorder", self._recorder.stop)
        _active = None
        self._guarded("writing the run folder", lambda: self._finish_writing(error))
        if self._rank is not None and self._rank.rank == 0:
            self._guarded("the diagnosis", self._diagnose)

    def _finish_writing(self, error: BaseException | None) -> None:
        assert self._writer is not None
        self._flush()
        self._check_windows()
        self._rewrite(ending=_ending(error, self._clock.step_num, self._stop_after))
        self._writer.close()

    def _check_windows(self) -> None:
        steps = self._clock.step_num
        if not steps:
            self._notes.append(
                "no step was seen: the loop was not reached, or it has neither a DataLoader nor an optimizer; "
                "say where steps end with prof.steps(iterable) or prof.step()"
            )
        elif (
            "kineto" in self._recorders
            and self._writes_windows()
            and not (self._windows is not None and self._windows.done)
            and "opening a window" not in self._told
        ):
            self._notes.append(
                f"no window was recorded: the run had {steps} steps and the schedule's first window needs more"
            )

    def _diagnose(self) -> None:
        assert self.folder is not None
        if self._early is not None and self._early.poll() is None:
            self._early.kill()  # its answer would come after the full one
        from perfkit.diagnosis import diagnose
        from perfkit.reports.terminal import print_diagnosis, stderr_console

        try:
            self.diagnosis = diagnose(self.folder)
        except RunError:
            for note in self._notes:
                self._say(note)
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
        return Steps(iterable, self._clock, lambda: self._know_length(iterable))

    def _know_length(self, iterable: Iterable[Any]) -> None:
        if self._total is None and self._windows is None:
            try:
                # One epoch at least: with an unknown number of epochs the first must hold the window.
                self._total = len(iterable)  # type: ignore[arg-type]  # TypeError is the answer "unknown"
            except TypeError:
                return

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
        try:
            self._book(closed)
            self._prepare(closed.step + 1)
            now = _clock.now_ns()
            if len(self._rows) >= _FLUSH_ROWS or now - self._flushed > _FLUSH_NS:
                self._flush()
            if now - self._rewritten > _REWRITE_NS:
                self._rewrite()
        except Exception as error:  # noqa: BLE001 - nothing of perfkit's may end training
            self._trouble("recording a step", error)
        if self._row_window is None and not self._row_dry:
            self._overhead_ns += _clock.now_ns() - began
        if self._stop_after is not None and closed.step + 1 >= self._stop_after:
            raise SystemExit(0)

    def _book(self, closed: ClosedStep) -> None:
        samples = self._samples
        if samples is None and self._hooks is not None:
            samples = self._hooks.samples
        self._rows.append(
            Step(
                step=closed.step,
                mode=closed.mode,
                start_ns=closed.start_ns,
                wall_ns=closed.wall_ns,
                phases_ns=closed.phases_ns,
                samples=samples,
                tokens=self._tokens,
                gc_ns=self._gc_ns,
                window=self._row_window,
                dry=self._row_dry,
            )
        )
        self._samples = self._tokens = None
        self._gc_ns = 0
        if self._row_window is None and not self._row_dry:
            self._timed_ns += closed.wall_ns
            if closed.step > 0:
                self._sampled_steps += 1
        if self._detector is not None and not self._dry_done:
            self._detector.step()

    def _prepare(self, step: int) -> None:
        """Decide what step ``step`` is: timed, in a window, the traced one, or one of the dry run."""
        if self._tracer is not None and self._row_window is not None and self._extras[:1] == ["traced"]:
            self._tracer.stop()
            self._extras.pop(0)
            self._row_window = None
        if self._row_dry:
            self._dry_left -= 1
            if self._dry_left > 0:
                return
            self._end_dry_run()
        finished = False
        if self._writes_windows() and "kineto" in self._recorders:
            windows = self._windows or self._make_windows()
            finished = windows.advance(step)
            self._row_window = windows.index
            if finished:
                self._pairs.append(ClockPair(*_clock.clock_pair()))
                if len(windows.done) == 1:
                    self._extras = ["traced", "dry", "verdict"]
            if self._row_window is not None:
                return
        if self._extras:
            self._run_extra()

    def _run_extra(self) -> None:
        if self._extras[0] == "traced":
            from perfkit.loop.line_tracer import LineTracer

            assert self._windows is not None
            self._tracer = LineTracer(lambda: self._clock.phase)
            self._tracer.start()
            if self._tracer.refused is None:
                self._row_window = len(self._windows.done) - 1
                return
            self._notes.append(f"lines were not traced: {self._tracer.refused}")
            self._extras.pop(0)
        if self._extras[0] == "dry":
            self._extras.pop(0)
            if self._detect == "dry" or (self._detect == "auto" and not _env.cuda_in_use()):
                self._begin_dry_run()
                return
        if self._extras[0] == "verdict":
            self._extras.pop(0)
            self._rewrite()
            self._flush()
            if not self._quiet and self._stop_after is None:
                self._tell_early()

    def _writes_windows(self) -> bool:
        return self._rank is not None and self._rank.rank in self._ranks

    def _make_windows(self) -> Windows:
        from perfkit.capture.windows import Windows

        assert self._writer is not None
        action = self._action or default_schedule(self._total).action
        self._windows = Windows(
            action,
            file_of=self._writer.window_file,
            handlers=self._handlers,
            trouble=self._trouble,
            activities=self._activities,
            flags=self._flags,
        )
        return self._windows

    # -- syncs

    def _arm_syncs(self) -> None:
        from perfkit.syncs import detect_syncs

        self._detector = detect_syncs(mode="cuda")
        self._detector.start()

    def _begin_dry_run(self) -> None:
        from perfkit.syncs import detect_syncs

        if not self._optimizers:
            self._dry_done = True
            self._notes.append(
                "syncs were not looked for: no optimizer has stepped, so no model is known; "
                "use perfkit.detect_syncs(device_of=[model]) in the program"
            )
            return
        detector = detect_syncs(mode="dry", device_of=_models_of(self._optimizers))
        detector.start()
        self._detector = detector
        self._row_dry = True
        self._dry_left = _DRY_STEPS

    def _end_dry_run(self) -> None:
        assert self._detector is not None
        self._row_dry = False
        self._dry_done = True
        self._detector.stop()

    # -- writing and telling

    def _flush(self) -> None:
        assert self._writer is not None
        self._flushed = _clock.now_ns()
        rows, self._rows = self._rows, []
        try:
            self._writer.append_steps(rows)
        except OSError as error:
            self._trouble("writing steps.jsonl", error)

    def _rewrite(self, ending: str | None = None) -> None:
        """Write rank.json, lines.json, ranges.npz and syncs.json anew."""
        import msgspec

        assert self._writer is not None
        assert self._rank is not None
        self._rewritten = _clock.now_ns()
        timed = max(1, self._timed_ns)
        sampler = self._sampler
        # A second of steps at least: one slow file system call is no verdict on the whole.
        if (
            sampler is not None
            and sampler.running
            and timed > 1_000_000_000
            and self._overhead_ns + sampler.cost_s * 1e9 > self._budget * timed
        ):
            sampler.stop()
            self._notes.append(f"perfkit took more than {self._budget:.1%} of the step and stopped sampling lines")
        self._rank = msgspec.structs.replace(
            self._rank,
            settings=_env.settings(),
            loaders=tuple(self._hooks.loaders.values()) if self._hooks is not None else (),
            errors=tuple(self._errors),
            notes=tuple(self._notes),
            steps=self._clock.step_num,
            overhead_ns=self._overhead_ns + (round(sampler.cost_s * 1e9) if sampler is not None else 0),
            clock_pairs=tuple(self._pairs),
            windows=tuple(self._windows.done) if self._windows is not None else (),
            end_ns=_clock.now_ns() if ending is not None else None,
            ending=ending,
        )
        self._writer.write_rank(self._rank)
        if sampler is not None:
            period_ns, rows = sampler.rows(self._sampled_steps)
            self._writer.write_lines(
                Lines(
                    period_ns=period_ns,
                    steps=self._sampled_steps,
                    rows=rows,
                    traced=self._tracer.rows() if self._tracer is not None else (),
                )
            )
        if self._recorder is not None:
            self._writer.write_ranges(self._recorder.rows())
        if self._detector is not None:
            self._writer.write_syncs(self._detector.to_record())

    def _trouble(self, what: str, error: BaseException | str) -> None:
        """Tell once, and keep for the report, that a part of perfkit failed."""
        if what in self._told:
            return
        self._told.add(what)
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        self._errors.append(f"{what}: {text}")
        self._say(f"{what}: {text} (training goes on)")

    def _guarded(self, what: str, do: Callable[[], Any]) -> None:
        try:
            do()
        except PerfkitError as error:
            self._trouble(what, error)
        except Exception as error:  # noqa: BLE001 - nothing of perfkit's may end training
            self._trouble(what, error)

    def _say(self, text: str) -> None:
        print(f"perfkit: {text}", file=sys.stderr, flush=True)

    def _tell_early(self) -> None:
        """Have the first verdict worked out and printed by a process of low priority, while training goes on."""
        assert self.folder is not None
        command = [sys.executable, "-m", "perfkit", "diagnose", str(self.folder), "--early"]
        env = {**os.environ, "PERFKIT_DISABLE": "1", "OMP_NUM_THREADS": "1"}
        self._early = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True, env=env
        )
        process = self._early

        def tell() -> None:
            text, _ = process.communicate()
            if process.returncode == 0 and self._running:
                print(text, file=sys.stderr, flush=True)

        threading.Thread(target=tell, name="perfkit first verdict", daemon=True).start()

    def _on_gc(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_began = time.perf_counter_ns()
        elif self._gc_began:
            self._gc_ns += time.perf_counter_ns() - self._gc_began

    def __repr__(self) -> str:
        state = "recording" if self._running else "not recording"
        return f"<perfkit.profile {self.folder or 'no folder yet'}: {state}, {self.step_num} steps>"


def _ending(error: BaseException | None, steps: int, stop_after: int | None) -> str:
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return f"stopped after {steps} steps" if stop_after is not None and steps >= stop_after else "finished"
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _models_of(optimizers: list[Any]) -> list[Any]:
    """The modules that the optimizers train (with their buffers), and the optimizers themselves."""
    import torch

    trained = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    modules = [
        found
        for found in gc.get_objects()
        # type() and not isinstance(): asking a proxy object for its class runs its owner's code.
        if issubclass(type(found), torch.nn.Module) and any(id(p) in trained for p in found.parameters())
    ]
    return [*modules, *optimizers]


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
            atexit.unregister(inherited.stop)

    os.register_at_fork(after_in_child=forget)


def steps(iterable: Iterable[T]) -> Iterable[T]:
    """`profile.steps` of the profile that is recording; the iterable itself where none is."""
    return iterable if _active is None else _active.steps(iterable)


def step(samples: int | None = None, tokens: int | None = None) -> None:
    """`profile.step` of the profile that is recording; nothing where none is."""
    if _active is not None:
        _active.step(samples, tokens)
