"""The Kineto recorder: one window = one ``torch.profiler.profile`` = one trace, and one more step for lines.

torch's profiler is created when its window opens and discarded when it is written, because its ``step()`` is expensive
while it waits, and because one object only serves the schedule it began with. It numbers its steps like the run, so
that ``ProfilerStep#N`` in the trace is row N of steps.jsonl.

torch exports a trace without the interpreter lock, so a thread does it while training continues; where the user's
handlers get the window, it is exported before they do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from perfkit._code_owner import own_work
from perfkit.record.options import Options
from perfkit.record.windows import lines_step, torch_profiler
from perfkit.record.windows.lines_step import LinesStep
from perfkit.record.windows.schedules import Action
from perfkit.record.windows.trace_files import BackgroundWriter, ExpectedTrace, compress_trace, copy_trace
from perfkit.record.windows.window_controller import WindowRecorder
from perfkit.run.file_names import stacks_path
from perfkit.run.rank_recording import RankRecording

#: Maximum size of a window's trace before compression: three steps of a large model are some 100 MB, and a hundred
#: times that fills a disk and opens in no viewer (Perfetto's limit is about 2 GB).
MAX_BYTES = 2 * 2**30
_TOO_LARGE = "record fewer active steps, or leave out record_shapes, with_stack and profile_memory"


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
        #: What returns torch's file of the window that has just ended, and the steps that it must contain.
        self._exported: Callable[[], Path] | None = None
        self._steps: range | None = None
        #: Size of a step in torch's file of the last window that was written.
        self._step_bytes = 0
        self._lines: LinesStep | None = None
        self._problems: dict[int, str] = {}
        self._writer = BackgroundWriter()

    def open(self, index: int, step: int) -> str | None:
        """Start torch's profiler."""
        if torch_profiler.taken():
            # Two torch profilers cannot run at once, and the other one was first.
            return "another torch profiler is running; perfkit's windows are skipped"
        self._index, self._active_steps, self._exported = index, 0, None
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
            self._profiler.step()

    def end(self, index: int, *, early: bool) -> None:
        """Stop recording; what was recorded can be written, also early."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        try:
            if not early:
                torch_profiler.finish(profiler)  # from the step that saves to none: here torch stops and calls _ready
        finally:
            # Ends the step marker that step() has just begun, or the recording that is cut short.
            torch_profiler.stop(profiler)
        # At the end of the last active step torch is at the next one already, at an early end still in it.
        last = profiler.step_num - 1
        self._steps = None if early else range(last - self._active_steps + 1, last + 1)

    def _ready(self, profiler: Any) -> None:
        export = partial(torch_profiler.export, profiler, self._path(self._index), MAX_BYTES, _TOO_LARGE)
        self._exported = export
        if not self._options.handlers:
            return
        try:
            exported = export()
        except Exception as error:  # noqa: BLE001 - a full disk must not end training
            self._exported = None
            self._fail(self._index, "writing a window's trace", error)
        else:
            self._exported = lambda: exported
            # torch exports a trace only once; a handler that exports again (torch's own do) gets a copy.
            profiler.export_chrome_trace = lambda target, *_, **__: copy_trace(exported, str(target))
        for handler in self._options.handlers:
            try:
                handler(profiler)
            except Exception as error:  # noqa: BLE001 - a handler's failure must not end training
                self._recording.trouble(f"the trace handler {getattr(handler, '__name__', handler)!s}", error)

    def _path(self, index: int) -> Path:
        return self._recording.window_file(index)

    def write(self, index: int) -> None:
        """Export, compress and check the window's trace in a thread."""
        export, self._exported = self._exported, None
        self._step_bytes, active = 0, max(1, self._active_steps)

        def exported() -> Path:
            assert export is not None
            plain = export()
            self._step_bytes = plain.stat().st_size // active
            return plain

        if export is not None:
            self._start(exported, self._path(index), self._steps, partial(self._fail, index))

    def _start(
        self,
        export: Callable[[], Path],
        path: Path,
        steps: range | None,
        fail: Callable[[str, Exception | str], None],
    ) -> None:
        expected = ExpectedTrace(steps, torch_profiler.expects_kernels(self._options.activities))

        def work() -> None:
            try:
                plain = export()
            except Exception as error:  # noqa: BLE001 - a full disk must not end training
                fail("writing a window's trace", error)
                return
            try:
                problem = compress_trace(plain, path).problem(expected)
            except OSError as error:
                problem = f"{type(error).__name__}: {error}"
            if problem is not None:
                fail("a window's trace", f"{path.name}: {problem}")

        self._writer.start(work)

    def _fail(self, index: int, what: str, problem: Exception | str) -> None:
        self._problems[index] = problem if isinstance(problem, str) else f"{type(problem).__name__}: {problem}"
        self._recording.trouble(what, problem)

    def discard(self, index: int) -> None:
        """Drop the window that has just ended, or remove the trace of an earlier one.

        The step for lines after it stays: it is of no other window.
        """
        export, self._exported = self._exported, None
        self._problems.pop(index, None)
        if export is None:
            self._path(index).unlink(missing_ok=True)
        elif self._options.handlers:
            export().unlink(missing_ok=True)

    def begin_extra(self, index: int, step: int) -> bool:
        """Record step ``step`` for lines, unless its trace would be too large."""
        expected = self._step_bytes * lines_step.MAX_GROWTH
        if not self._step_bytes or torch_profiler.taken():
            return False
        if expected > lines_step.MAX_BYTES:
            self._recording.note(
                f"no step for lines after window {index}: its trace would have about {expected >> 20} MB, more than "
                f"{lines_step.MAX_BYTES >> 20}; lines come from sampling alone"
            )
            return False
        # Allocations only if the user asked for them: otherwise torch prints a warning.
        memory = bool(self._options.flags.get("profile_memory"))
        self._lines = LinesStep(stacks_path(self._path(index)), self._options.activities, profile_memory=memory)
        self._lines.begin(step)
        return True

    def end_extra(self, index: int, *, whole: bool) -> None:
        """The step for lines is over; if it is not ``whole``, nothing is kept."""
        lines, self._lines = self._lines, None
        if lines is not None and (export := lines.end(whole=whole)) is not None:
            self._start(export, lines.path, range(lines.step, lines.step + 1), self._fail_lines)

    def _fail_lines(self, what: str, problem: Exception | str) -> None:
        self._recording.trouble("the step for lines", problem)

    @property
    def writing_ns(self) -> int:
        """Wall time of the thread so far."""
        return self._writer.spent_ns

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until every trace is written."""
        return self._writer.wait(timeout_s)

    def problem(self, index: int) -> str | None:
        """What is wrong with the window's trace, or why there is none."""
        return self._problems.get(index)

    def file(self, index: int) -> str | None:
        """The trace's name, once it is written."""
        path = self._path(index)
        return path.name if path.is_file() else None

    def size(self, index: int) -> int:
        """Bytes of the window's trace."""
        path = self._path(index)
        return path.stat().st_size if path.is_file() else 0
