"""The Python frames of the user's code in a trace, and the line that each was in at a time.

A frame has the name of its function and the line that begins it. The line that was running comes from the times of
lines that perfkit writes next to such a trace; without them from the step that was traced by line, where only one line
of the function ran in it; else only the function is known.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from perfkit._code_owner import USER, owner_of
from perfkit._location import Location
from perfkit.measures._rows import mask_of
from perfkit.run.records import LineTimes, TracedLine
from perfkit.trace.columns import Field, Kind, Trace
from perfkit.trace.intervals import Ints

#: ``file.py(12): function``, as torch writes the frame of a Python function.
FRAME = re.compile(r"^(.+)\((\d+)\): (.+)$")
#: Between the start of a call and its first line less than this passes, the difference of the two clocks included
#: (0.3 and 0.5 us were measured).
_SKEW_NS = 1_000


class Function(NamedTuple):
    """A function of the user's or of a library's; ``code`` is its number in the times of lines, -1 for none."""

    file: str
    first_line: int
    name: str
    owner: str
    code: int


class PythonFrames:
    """The user's Python frames, and a library's where no frame of the user's is.

    ``rows`` are their rows, ``around`` for every row of the trace the innermost of them that contains it, -1 for none.
    """

    def __init__(self, trace: Trace, times: LineTimes | None, traced: Sequence[TracedLine]) -> None:
        self.trace = trace
        self._times = times
        self._functions: list[Function] = []
        self._of_name = np.full(len(trace.names) + 1, -1, np.int64)
        python = np.flatnonzero(trace.is_kind(Kind.PYTHON))
        codes = _FollowedFunctions(times)
        for name in np.flatnonzero(np.bincount(trace.name[python])).tolist():
            if (match := FRAME.match(trace.names[name])) is not None:
                function = codes.find(match[1], int(match[2]), match[3])
                if function.owner not in ("perfkit", "torch", "python"):
                    self._of_name[name] = len(self._functions)
                    self._functions.append(function)
        known = python[self._of_name[trace.name[python]] >= 0]
        users = np.array([function.owner == USER for function in self._functions] + [False])
        is_mine = users[self._of_name[trace.name[known]]]
        around = trace.above(mask_of(trace, known[is_mine]))
        self.rows = known[is_mine | (around[known] < 0)]
        self.is_frame = mask_of(trace, self.rows)
        self.around = trace.above(self.is_frame)
        followed = str(times.thread) if times is not None else None
        self._in_thread = np.array([*(track.thread == followed for track in trace.tracks), False])
        self._only = _only_lines(traced)
        #: Whether frames are known of the followed thread alone.
        self.of_one_thread = times is not None and bool(self._in_thread[trace.track[self.rows]].all())

    def function(self, row: int) -> Function:
        """The function of a frame."""
        return self._functions[int(self._of_name[self.trace.name[row]])]

    def locations(self, frames: Ints, at: Ints) -> list[Location]:
        """The line that each of these frames was in at a time; without a line where the function alone is known."""
        functions = [self._functions[number] for number in self._of_name[self.trace.name[frames]].tolist()]
        return [
            Location(
                file=one.file, line=line or self._only.get((one.file, one.name)), function=one.name, owner=one.owner
            )
            for one, line in zip(functions, self._lines(frames, at).tolist(), strict=True)
        ]

    def _lines(self, frames: Ints, at: Ints) -> Ints:
        found = np.zeros(frames.size, np.int64)
        times = self._times
        if times is None:
            return found
        codes = np.array([function.code for function in self._functions] + [-1])
        code = codes[self._of_name[self.trace.name[frames]]]
        followed = self._in_thread[self.trace.track[frames]] & (code >= 0)
        for one in np.unique(code[followed]).tolist():
            wanted = np.flatnonzero(followed & (code == one))
            entries = np.flatnonzero(times.code == one)
            if not entries.size:
                continue
            entries = entries[np.argsort(times.time_ns[entries], kind="stable")]
            reached = times.time_ns[entries]
            last = np.searchsorted(reached, at[wanted], side="right") - 1
            began = self.trace.start_ns[frames[wanted]] - _SKEW_NS
            entered = (last >= 0) & (reached[np.maximum(last, 0)] >= began)
            # A call has begun before its first line is followed.
            last = np.where(entered, last, np.minimum(last + 1, reached.size - 1))
            valid = entered | (np.abs(reached[last] - at[wanted]) < _SKEW_NS)
            found[wanted[valid]] = times.line[entries[last[valid]]]
        return found

    def reached(self, low: int, high: int) -> Iterator[tuple[Location, int]]:
        """How often the followed thread came to each line from ``low`` to ``high``."""
        if self._times is None:
            return
        times = self._times
        functions = {function.code: function for function in self._functions if function.code >= 0}
        # A row of depth 0 is where a line was left.
        during = (times.time_ns >= low) & (times.time_ns < high) & (times.depth > 0)
        lines = int(times.line.max(initial=0)) + 1
        places, counts = np.unique(times.code[during].astype(np.int64) * lines + times.line[during], return_counts=True)
        for place, count in zip(places.tolist(), counts.tolist(), strict=True):
            code, line = divmod(place, lines)
            if (one := functions.get(code)) is not None:
                yield Location(file=one.file, line=line, function=one.name, owner=one.owner), count

    def cuts(self) -> Ints:
        """When a followed thread reached another line."""
        return np.sort(self._times.time_ns) if self._times is not None else np.zeros(0, np.int64)


def with_frames(trace: Trace, times: LineTimes | None) -> Trace:
    """The trace with a Python frame for each call of the user's functions that was followed.

    The step for lines is recorded without torch's stacks. A trace that has Python frames, or that lacks the thread
    that was followed, is returned as it is. Rows keep their numbers; the frames come after them, with the names that
    torch gives to frames.
    """
    if times is None or trace.is_kind(Kind.PYTHON).any():
        return trace
    thread = str(times.thread)
    track = next((i for i, one in enumerate(trace.tracks) if one.thread == thread and not one.device), -1)
    code, start, end = _calls(times, _last_op_end(trace, track, times))
    if track < 0 or not code.size:
        return trace
    count = len(trace)
    none = np.full(code.size, -1, np.int32)

    def args(rows: Sequence[int]) -> list[dict[str, Any]]:
        known = iter(trace.args([row for row in rows if row < count]))
        return [next(known) if row < count else {} for row in rows]

    def fields(rows: Ints, keys: Sequence[str]) -> dict[str, Field]:
        known = rows < count
        found = {}
        for key, field in trace.fields(rows[known], keys).items():
            codes = np.full(rows.size, -1, np.int32)
            codes[known] = field.codes
            found[key] = Field(codes, field.values)
        return found

    return replace(
        trace,
        names=(*trace.names, *(f"{one.frame_file}({one.line}): {one.name}" for one in times.codes)),
        start_ns=np.append(trace.start_ns, start),
        end_ns=np.append(trace.end_ns, end),
        name=np.append(trace.name, (len(trace.names) + code).astype(np.int32)),
        track=np.append(trace.track, np.full_like(none, track)),
        kind=np.append(trace.kind, np.full(code.size, Kind.PYTHON, np.int8)),
        correlation=np.append(trace.correlation, none.astype(np.int64)),
        device=np.append(trace.device, none),
        stream=np.append(trace.stream, none),
        bytes=np.append(trace.bytes, none.astype(np.int64)),
        sequence=np.append(trace.sequence, none.astype(np.int64)),
        args_reader=args,
        fields_reader=fields,
    )


def _last_op_end(trace: Trace, track: int, times: LineTimes) -> int:
    """The end of the op that the last line began: lines are followed until the step ends, which may be within it."""
    if times.time_ns.size < 2:
        return 0
    began = (trace.track == track) & (trace.start_ns > times.time_ns[-2]) & (trace.start_ns < times.time_ns[-1])
    return int(trace.end_ns[began].max(initial=0))


def _calls(times: LineTimes, ended: int) -> tuple[Ints, Ints, Ints]:
    """(code, start, end) of each call of the user's functions, from the thread's lines and depth over time.

    A call that is open at the last row lasts until ``ended``, where that is later.
    """
    found: list[tuple[int, int, int]] = []
    opened: list[tuple[int, int, int]] = []  # depth, code, start
    moments = times.time_ns.tolist()
    if moments:
        moments[-1] = max(moments[-1], ended)
    at = 0
    for at, code, depth in zip(moments, times.code.tolist(), times.depth.tolist(), strict=True):
        while opened and (opened[-1][0] > depth or (opened[-1][0] == depth and opened[-1][1] != code)):
            _, ended, began = opened.pop()
            found.append((ended, began, at))
        if depth > 0 and (not opened or opened[-1][0] < depth):
            # Before its first line: until then its caller was in the line that calls it, also where it calls itself.
            opened.append((depth, code, at - 1))
    found += [(code, began, at) for _, code, began in opened]
    columns = np.array(found, np.int64).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]


class _FollowedFunctions:
    """Finds the function of a frame among those that were followed."""

    def __init__(self, times: LineTimes | None) -> None:
        self._times = times
        self._exact: dict[tuple[str, int, str], int] = {}
        self._by_name: dict[tuple[str, str], list[int]] = defaultdict(list)
        for number, code in enumerate(times.codes if times is not None else ()):
            self._exact[code.frame_file, code.line, code.name] = number
            self._by_name[code.frame_file, code.name].append(number)

    def find(self, file: str, line: int, name: str) -> Function:
        """The function of a frame's name. A frame that was open at the start is named after the line it was in."""
        if self._times is None:
            return Function(file, line, name, _owner(file), -1)
        number = self._exact.get((file, line, name), -1)
        alike = self._by_name[file, name]
        if number < 0 and len(alike) == 1:
            number = alike[0]
        if number >= 0:
            code = self._times.codes[number]
            return Function(code.file, code.line, code.function, USER, number)
        if file in self._times.files:
            return Function(self._times.files[file], line, name, USER, -1)
        owner = _owner(file)
        # All of the user's files are known.
        return Function(file, line, name, "python" if owner == USER else owner, -1)


def _owner(file: str) -> str:
    """The owner of a file by a frame's name for it, which lacks the folder of ``sys.path`` that contains it."""
    if file.startswith(("/", "<")) or file[1:3] == ":\\":
        return owner_of(file)
    top = re.split(r"[/\\]", file)[0].removesuffix(".py")
    if top in sys.stdlib_module_names:
        return "python"
    # A file in no package is next to the launched script; a package may be the user's or not, and is named.
    return USER if top == file.removesuffix(".py") else top


def _only_lines(traced: Sequence[TracedLine]) -> dict[tuple[str, str], int]:
    """Functions of which one line alone ran in the traced step -> that line."""
    lines: dict[tuple[str, str], set[int]] = defaultdict(set)
    for row in traced:
        lines[row.file, row.function].add(row.line)
    return {function: next(iter(found)) for function, found in lines.items() if len(found) == 1}
