"""The Kineto recorder: one window = one ``torch.profiler.profile`` = one trace, and one more step for lines.

torch's profiler is created when its window opens and discarded when it closes, because its ``step()`` is expensive
while it waits, and because one object only serves the schedule it began with. It numbers its steps like the run, so
that ``ProfilerStep#N`` in the trace is row N of steps.jsonl.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfkit._code_owner import own_work
from perfkit.record.options import Options
from perfkit.record.windows import lines_step, torch_profiler
from perfkit.record.windows.lines_step import LinesStep
from perfkit.record.windows.schedules import Action
from perfkit.record.windows.trace_files import ExpectedTrace, WriterThreads, compress_trace, copy_trace
from perfkit.record.windows.window_controller import WindowRecorder
from perfkit.run.file_names import stacks_path
from perfkit.run.rank_recording import RankRecording

#: Maximum size of a window's trace before compression: three steps of a large model are some 100 MB, and a hundred
#: times that fills a disk and opens in no viewer (Perfetto's limit is about 2 GB).
MAX_BYTES = 2 * 2**30


class KinetoRecorder(WindowRecorder):
    """Records windows with ``torch.profiler``, passes each to the handlers, and writes its trace.

    ``action`` is the schedule; the step for lines after a window goes next to the window's trace.
    """

    name = "kineto"

    def __init__(self, action: Callable[[int], Action], options: Options, recording: RankRecording) -> None:
        self._action = action
        self._options = options
        self._recording = recording
        self._profiler: Any = None
        self._index = 0
        self._active_steps = 0
        self._early = False
        self._step_bytes = 0
        self._lines: LinesStep | None = None
        self._problems: dict[int, str] = {}
        self._writers = WriterThreads()

    def open(self, index: int, step: int) -> str | None:
        """Start torch's profiler."""
        if torch_profiler.running():
            # Two torch profilers cannot run at once, and the other one was first.
            return "another torch profiler is running; perfkit's windows are skipped"
        self._index, self._active_steps, self._step_bytes, self._early = index, 0, 0, False
        self._profiler = torch_profiler.start(
            step, self._action, self._ready, self._options.activities, self._options.flags, self._give_way
        )
        return None

    @own_work
    def _give_way(self) -> None:
        """The program starts a profiler of its own: it gets what is left of the window."""
        self._problems[self._index] = "the program started a torch profiler of its own in it, which ended it"
        try:
            self.end(self._index, early=True)
        except Exception as error:  # noqa: BLE001 - the program's profiler must start
            self._recording.trouble("ending a window for a profiler of the program", error)

    def activate(self, index: int) -> None:
        """The running step is the first that is kept."""
        self._active_steps = 1

    def advance(self) -> None:
        """Continue with the next step."""
        if self._active_steps:
            self._active_steps += 1
        if self._profiler is not None:
            torch_profiler.advance(self._profiler)

    def end(self, index: int, *, early: bool) -> None:
        """Stop recording; what was recorded is written, also early."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        self._early = early
        try:
            if not early:
                torch_profiler.advance(profiler)  # from the step that saves to none: here torch stops and calls _ready
        finally:
            # Ends the step marker that step() has just begun, or the recording that is cut short.
            torch_profiler.stop(profiler)

    def _ready(self, profiler: Any) -> None:
        index, path = self._index, self._recording.window_file(self._index)
        plain = None
        try:
            plain = torch_profiler.export(
                profiler,
                path,
                MAX_BYTES,
                "record fewer active steps, or leave out record_shapes, with_stack and profile_memory",
            )
        except Exception as error:  # noqa: BLE001 - a full disk must not end training
            self._fail(index, "writing a window's trace", error)
        else:
            exported = plain
            self._step_bytes = exported.stat().st_size // max(1, self._active_steps)
            # torch exports a trace only once; a handler that exports again (torch's own do) gets a copy.
            profiler.export_chrome_trace = lambda target, *_, **__: copy_trace(exported, str(target))
        for handler in self._options.handlers:
            try:
                handler(profiler)
            except Exception as error:  # noqa: BLE001 - a handler's failure must not end training
                self._recording.trouble(f"the trace handler {getattr(handler, '__name__', handler)!s}", error)
        if plain is not None:
            # At the end of the last active step torch is at the next one already, at an early end still in it.
            last = profiler.step_num - 1
            steps = None if self._early else range(last - self._active_steps + 1, last + 1)
            self._write(plain, path, steps, lambda problem: self._fail(index, "a window's trace", problem))

    def _write(self, plain: Path, path: Path, steps: range | None, fail: Callable[[str], None]) -> None:
        """Compress and check a trace in a thread: that takes longer than all the rest."""
        expected = ExpectedTrace(steps, torch_profiler.expects_kernels(self._options.activities))

        def work() -> None:
            try:
                problem = compress_trace(plain, path).problem(expected)
            except OSError as error:
                problem = f"{type(error).__name__}: {error}"
            if problem is not None:
                fail(f"{path.name}: {problem}")

        self._writers.start(work)

    def _fail(self, index: int, what: str, problem: Exception | str) -> None:
        self._problems[index] = problem if isinstance(problem, str) else f"{type(problem).__name__}: {problem}"
        self._recording.trouble(what, problem)

    def begin_extra(self, index: int, step: int) -> bool:
        """Record step ``step`` for lines, unless its trace would be too large."""
        expected = self._step_bytes * lines_step.MAX_GROWTH
        if not self._step_bytes or torch_profiler.running():
            return False
        if expected > lines_step.MAX_BYTES:
            self._recording.note(
                f"no step for lines after window {index}: its trace would have about {expected >> 20} MB, more than "
                f"{lines_step.MAX_BYTES >> 20}; lines come from sampling alone"
            )
            return False
        # Allocations only if the user asked for them: otherwise torch prints a warning.
        memory = bool(self._options.flags.get("profile_memory"))
        self._lines = LinesStep(
            stacks_path(self._recording.window_file(index)), self._options.activities, profile_memory=memory
        )
        self._lines.begin(step)
        return True

    def end_extra(self, index: int, *, whole: bool) -> None:
        """The step for lines is over; if it is not ``whole``, nothing is kept."""
        lines, self._lines = self._lines, None
        plain = lines.end(whole=whole) if lines is not None else None
        if lines is not None and plain is not None:
            steps = range(lines.step, lines.step + 1)
            self._write(
                plain, lines.path, steps, lambda problem: self._recording.trouble("the step for lines", problem)
            )

    def wait(self) -> None:
        """Wait until every trace is written."""
        self._writers.join()

    def problem(self, index: int) -> str | None:
        """What is wrong with the window's trace, or why there is none."""
        return self._problems.get(index)

    def file(self, index: int) -> str | None:
        """The trace's name, once it is written."""
        path = self._recording.window_file(index)
        return path.name if path.is_file() else None
