"""The step for lines: a step after some windows, recorded with shapes, to find which user line called which op.

``sys.settrace`` follows the user's lines in the same step, on the training thread, and writes them next to the trace
(``stacks-2.lines.npz``). That slows the step, which is part of no timing. torch's own stacks are never used here: they
hook every call, and give the line where a function begins, not the one that it runs.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
from array import array
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from perfkit import _clock
from perfkit._code_owner import USER, function_name, line_of, own_work, owner_of
from perfkit.record.samplers.line_tracer import LineTracer
from perfkit.record.samplers.source_lookup import user_files
from perfkit.record.samplers.trace_functions import Trace, stops_at_error, user_caller
from perfkit.record.windows import torch_profiler
from perfkit.run.arrays import write_line_times
from perfkit.run.file_names import lines_path
from perfkit.run.records import LineTimes, UserCode

#: Maximum size of the trace before compression: it is one step, and torch exports some 100 MB per second.
MAX_BYTES = 256 * 2**20
#: How much larger a step with shapes is at most: they add a third to the file, 45% to its export and nothing that is
#: noticeable to the step (0 to 7%).
MAX_GROWTH = 2
#: Lines that are followed: at 20 bytes each 4 MB, at half a microsecond each 0.1 s of one step. Later ones are unknown.
MAX_LINES = 200_000


#: Comprehensions that are functions of their own (before Python 3.12).
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")
#: Functions that are left and resumed: generators, coroutines, asynchronous generators.
_RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class LineTimeline(LineTracer):
    """When the training thread came to which user line; the innermost user frame counts."""

    def __init__(self) -> None:
        super().__init__(lambda: "other")
        self._times = array("q")
        self._codes = array("i")
        self._numbers = array("i")
        self._depths = array("i")
        #: How many calls of the user's functions are open.
        self._depth = 0
        self._code_of: dict[CodeType, int] = {}
        #: The same by the ids of the codes: Python hashes all that a code holds, each time that it is asked.
        self._number_of: dict[int, int] = {}
        #: Keeps these ids from being used again.
        self._kept: list[CodeType] = []
        self._complete = True
        self.thread = threading.get_native_id()

    def start(self) -> None:
        """Start following; running frames are in the lines that they have come to."""
        super().start()
        if self.refused is None:
            for frame, _ in reversed(self._running_frames):
                self._depth += 1
                self._came_to(frame)

    def stop(self) -> None:
        """Stop following, and restore every frame; what is open counts until now."""
        super().stop()
        self._leave()

    @stops_at_error
    def _called(self, frame: FrameType, event: str, arg: Any) -> Trace | None:
        if owner_of(frame.f_code.co_filename) != USER:
            return None
        self._depth += 1
        if frame.f_code.co_flags & _RESUMED:
            # It continues in the middle of a line, without a line event.
            self._came_to(frame)
        elif frame.f_code.co_name in _COMPREHENSIONS and _has_one_line(frame.f_code):
            # It never leaves its line, and has an event per item.
            self._came_to(frame)
            frame.f_trace_lines = False
        return self._line

    @stops_at_error
    def _moved(self, frame: FrameType, event: str, arg: Any) -> Trace | None:
        if event == "line":
            self._came_to(frame)
        elif event == "return":
            caller = user_caller(frame)
            if caller is not None:
                self._depth = max(1, self._depth - 1)
                self._came_to(caller)
            else:
                self._leave()
        return self._line

    def _came_to(self, frame: FrameType) -> None:
        code = self._number_of.get(id(frame.f_code))
        if code is None:
            code = self._code_of.setdefault(frame.f_code, len(self._code_of))
            self._number_of[id(frame.f_code)] = code
            self._kept.append(frame.f_code)
        line = line_of(frame)
        self._last_frame, self._last = frame, (line, self._phase(), [0])
        if self._times and (self._codes[-1], self._numbers[-1], self._depths[-1]) == (code, line, self._depth):
            return  # it never left the line
        if len(self._times) >= MAX_LINES:
            # What is not followed to its end counts until here.
            sys.settrace(None)
            self._complete = False
            self._leave()
            return
        self._add(code, line)

    def _leave(self) -> None:
        """What runs from now on is in no function of the user's."""
        self._depth, self._last_frame = 0, None
        if self._times:
            self._add(self._codes[-1], self._numbers[-1])

    def _add(self, code: int, line: int) -> None:
        self._times.append(_clock.now_ns())
        self._codes.append(code)
        self._numbers.append(line)
        self._depths.append(self._depth)

    def write(self, path: Path) -> None:
        """Write the timeline in unix time, like Kineto's times."""
        perf_ns, unix_ns = _clock.clock_pair()
        frame_file = torch_profiler.frame_namer()
        codes = tuple(
            UserCode(
                file=code.co_filename,
                frame_file=frame_file(code.co_filename),
                name=code.co_name,
                function=function_name(code),
                line=code.co_firstlineno,
            )
            for code in self._code_of
        )
        times = LineTimes(
            thread=self.thread,
            codes=codes,
            files={frame_file(file): file for file in user_files()} | {code.frame_file: code.file for code in codes},
            time_ns=[time + unix_ns - perf_ns for time in self._times],
            code=self._codes,
            line=self._numbers,
            depth=self._depths,
            complete=self._complete,
        )
        write_line_times(path, times)


@functools.lru_cache(maxsize=1024)  # of a program's comprehensions; hashing one takes as long as a few of its lines
def _has_one_line(code: CodeType) -> bool:
    return len({line for _, _, line in code.co_lines() if line is not None}) == 1


def _after_fork_in_child() -> None:
    # A loader's worker that starts in such a step would trace its own lines.
    if isinstance(getattr(sys.gettrace(), "__self__", None), LineTracer):
        sys.settrace(None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class LinesStep:
    """Records one step for lines into ``path``; `end` returns torch's file, which is still to be compressed."""

    def __init__(self, path: Path, activities: Iterable[Any] | None, *, profile_memory: bool) -> None:
        self.path = path
        self.step = 0
        self._activities = activities
        self._flags = {"record_shapes": True, "profile_memory": profile_memory}
        self._profiler: Any = None
        self._lines = LineTimeline()

    def begin(self, step: int) -> None:
        """Step ``step`` begins."""
        self.step = step
        self._profiler = torch_profiler.start(
            step, lambda number: "record", lambda profiler: None, self._activities, self._flags, self._give_way
        )
        self._lines.start()

    @own_work
    def _give_way(self) -> None:
        """The program starts a profiler of its own: nothing of this step is kept."""
        with suppress(Exception):  # the program's profiler must start
            self.end(whole=False)

    def end(self, *, whole: bool) -> Callable[[], Path] | None:
        """The step is over, and nothing is on afterwards.

        Returns what writes it, for a thread: torch's file, which is still to be compressed, and the lines. None if the
        step is not ``whole``; then nothing is kept. That function raises OSError if the trace or the lines could not be
        written, or are too large.
        """
        profiler, self._profiler = self._profiler, None
        self._lines.stop()
        if profiler is None:
            return None
        torch_profiler.stop(profiler)
        return functools.partial(self._export, profiler) if whole else None

    def _export(self, profiler: Any) -> Path:
        plain = torch_profiler.export(profiler, self.path, MAX_BYTES, "lines come from sampling alone")
        if self._lines.refused is None:
            try:
                self._lines.write(lines_path(self.path))
            except BaseException:
                plain.unlink(missing_ok=True)
                raise
        return plain
