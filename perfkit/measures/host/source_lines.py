"""What each of the user's lines did in the step for lines: host time, ops, launches, syncs, allocations.

What ran in a node of the backward belongs to the line whose op made the node, on whatever thread it ran.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from perfkit._location import Location
from perfkit.measures._nested import find_open, sum_by
from perfkit.measures._rows import launched_work
from perfkit.measures.host._blocking_calls import blocking_calls
from perfkit.measures.host._line_attribution import LineAttribution, thread_of_frames
from perfkit.measures.host._python_frames import Function, PythonFrames
from perfkit.measures.results.host import SourceLine, SourceLines
from perfkit.measures.steps._trace_steps import step_of, whole_steps
from perfkit.run.records import LineTimes, TracedLine
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Bools, Ints
from perfkit.trace.nesting import Segments, find_innermost, overlap

#: Lines that are kept: a step runs some hundreds.
_MAX_LINES = 2_000
#: The shortest times between lines, in percent of all. Of fewer than this many lines the shortest may be long, and
#: following them took no more than 0.2 ms.
_SHORTEST = 1
_MIN_LINES = 100


def measure_source_lines(
    trace: Trace, times: LineTimes | None = None, traced: Sequence[TracedLine] = ()
) -> SourceLines | None:
    """The user's lines in the steps of a trace (all of it where it has no steps); None where it has no Python frames.

    Args:
        trace: Recorded ``with_stack``, or of `perfkit.measures.host._python_frames.with_frames`.
        times: When the training thread reached which line: see `perfkit.run.reading.read_line_times`.
        traced: The lines of the step that was traced by line.
    """
    frames = PythonFrames(trace, times, traced)
    if not frames.rows.size:
        return None
    steps = whole_steps(trace)
    if steps.row.size:
        inside = step_of(steps, trace.start_ns) >= 0
        low, high = int(steps.start_ns[0]), int(steps.end_ns[-1])
        wall_ns = int((steps.end_ns - steps.start_ns).sum())
        thread = thread_of_frames(trace, frames)
    else:
        inside = np.ones(len(trace), bool)
        host = trace.host_rows
        low, high = int(trace.start_ns[host].min()), int(trace.end_ns[host].max())
        wall_ns = high - low
        thread = thread_of_frames(trace, frames)
    table = _LineSums(frames)
    table.add_times(inside, low, high)
    if times is not None:
        table.add_following(_cost_of_following(times), low, high)
    attribution = LineAttribution(trace, frames, thread)
    exact, function_only = table.add_ops(attribution, inside)
    if trace.device_rows.size:
        table.add_device(attribution, inside)
    table.add_backward(attribution, inside)
    table.add_memory(attribution, inside)
    return SourceLines(
        source=trace.path.name,
        steps=max(1, steps.row.size),
        wall_ns=wall_ns,
        exact=exact,
        function_only=function_only,
        lines=table.lines(),
        complete=times is None or times.complete,
    )


def _cost_of_following(times: LineTimes) -> float:
    """What it takes to follow a thread from one line to the next, in ns.

    The shortest times between two lines are that and little else: in a loop over numbers 1,560 ns where its lines take
    30 to 350 ns.
    """
    between = np.diff(times.time_ns)
    return float(np.percentile(between, _SHORTEST, method="lower")) if between.size >= _MIN_LINES else 0.0


class _LineSums:
    """Sums by line."""

    def __init__(self, frames: PythonFrames) -> None:
        self._frames = frames
        self._sums: dict[Location, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._measured: set[str] = set()

    def _add(self, key: Location | None, field: str, amount: int) -> None:
        if key is not None:
            self._sums[key][field] += amount

    def add_times(self, inside: Bools, low: int, high: int) -> None:
        """Host time of each line: by itself, and with the user's functions it called."""
        frames, trace = self._frames, self._frames.trace
        called = frames.rows[inside[frames.rows] & (frames.around[frames.rows] >= 0)]
        caller = dict(
            zip(called.tolist(), frames.locations(frames.around[called], trace.start_ns[called]), strict=True)
        )
        pieces = self._pieces(low, high)
        # Down the calls and up again, with the lines that are open: one that calls itself is counted once.
        open_rows: list[int] = []
        open_lines: Counter[Location] = Counter()
        rows = frames.rows
        rows = rows[np.lexsort((-trace.end_ns[rows], trace.start_ns[rows], trace.track[rows]))]
        for row, around in zip(rows.tolist(), frames.around[rows].tolist(), strict=True):
            while open_rows and open_rows[-1] != around:
                ended = open_rows.pop()
                if ended in caller:
                    open_lines[caller[ended]] -= 1
            open_rows.append(row)
            if row in caller:
                if not open_lines[caller[row]]:
                    self._add(caller[row], "total_ns", int(min(trace.end_ns[row], high) - trace.start_ns[row]))
                open_lines[caller[row]] += 1
            for key, length in pieces.get(row, ()):
                self._add(key, "self_ns", length)
                if not open_lines[key]:
                    self._add(key, "total_ns", length)

    def add_following(self, cost_ns: float, low: int, high: int) -> None:
        """What following them added to the times of lines, at ``cost_ns`` each time that one was reached."""
        for key, count in self._frames.reached(low, high):
            if key in self._sums:
                self._add(key, "following_ns", round(count * cost_ns))

    def _pieces(self, low: int, high: int) -> dict[int, list[tuple[Location, int]]]:
        """Frame -> for how long it was the innermost one, in which line."""
        frames, trace = self._frames, self._frames.trace
        cuts = frames.cuts()
        ever = np.iinfo(np.int64)
        lines = Segments(np.append(ever.min, cuts), np.append(cuts, ever.max), np.arange(-1, cuts.size))
        found: dict[int, list[tuple[Location, int]]] = defaultdict(list)
        for track in np.unique(trace.track[frames.rows]).tolist():
            mine = frames.rows[trace.track[frames.rows] == track]
            inner = find_innermost(trace.start_ns[mine], trace.end_ns[mine])
            which, _, starts, ends = overlap(lines, np.maximum(inner.starts, low), np.minimum(inner.ends, high))
            rows = mine[inner.owner[which]]
            for row, key, length in zip(
                rows.tolist(), frames.locations(rows, starts), (ends - starts).tolist(), strict=True
            ):
                found[row].append((key, length))
        return found

    def _add_each(self, keys: Sequence[Location | None], **amounts: Ints) -> None:
        """Add the amounts of many rows to their lines; all lines have these fields from then on."""
        self._measured |= amounts.keys()
        for field, values in amounts.items():
            for key, amount in zip(keys, values.tolist(), strict=True):
                self._add(key, field, amount)

    def add_ops(self, attribution: LineAttribution, inside: Bools) -> tuple[float, float]:
        """Ops that lines called; the shares of them whose line is known, and whose function alone is."""
        frames, trace = self._frames, self._frames.trace
        ops = trace.is_kind(Kind.OP)
        above, around = trace.above(ops), frames.around
        # An op may call a function of the user's, as that of an autograd.Function or a custom op: its ops are its own.
        in_op = (above >= 0) & (around >= 0) & (trace.start_ns[around] >= trace.start_ns[above])
        rows = np.flatnonzero(ops & inside & ~attribution.is_node & ((above < 0) | in_op))
        called = frames.rows[above[frames.rows] >= 0]
        outer = around[called]
        called = called[(outer < 0) | (trace.start_ns[outer] < trace.start_ns[above[called]])]
        called_ns = np.zeros(len(trace), np.int64)
        np.add.at(called_ns, above[called], trace.duration_ns[called])
        keys, _ = attribution.keys(rows)
        self._add_each(keys, ops=np.ones_like(rows), op_ns=np.maximum(0, trace.duration_ns[rows] - called_ns[rows]))
        known = sum(key is not None for key in keys)
        exact = sum(key is not None and key.line is not None for key in keys)
        return exact / max(1, rows.size), (known - exact) / max(1, rows.size)

    def add_device(self, attribution: LineAttribution, inside: Bools) -> None:
        """Device work by the line that launched it, and waits for the device."""
        trace = self._frames.trace
        work = launched_work(trace)
        work = work[inside[trace.launch[work]]]
        launches, place = np.unique(trace.launch[work], return_inverse=True)
        device_ns = sum_by(place, trace.duration_ns[work], launches.size)
        keys, made = attribution.keys(launches)
        own = [None if of_node else key for key, of_node in zip(keys, made.tolist(), strict=True)]
        self._add_each(own, launches=np.ones_like(launches), device_ns=device_ns)
        for i in np.flatnonzero(made).tolist():
            self._add(keys[i], "backward_launches", 1)
            self._add(keys[i], "backward_device_ns", int(device_ns[i]))
        waits = blocking_calls(trace)
        waits = waits[inside[waits]]
        keys, _ = attribution.keys(waits)
        self._add_each(keys, syncs=np.ones_like(waits), blocked_ns=trace.duration_ns[waits])

    def add_backward(self, attribution: LineAttribution, inside: Bools) -> None:
        """Host time of nodes by the line whose op made them."""
        trace = self._frames.trace
        nodes = attribution.is_node
        rows = np.flatnonzero(nodes & inside & (trace.above(nodes) < 0))
        keys, made = attribution.keys(rows)
        if made.any():
            chosen = np.flatnonzero(made)
            self._add_each([keys[i] for i in chosen.tolist()], backward_ns=trace.duration_ns[rows[chosen]])
            if trace.device_rows.size:
                self._measured |= {"backward_launches", "backward_device_ns"}

    def add_memory(self, attribution: LineAttribution, inside: Bools) -> None:
        """Allocations, by the line in which they happened."""
        trace = self._frames.trace
        is_memory = trace.is_kind(Kind.MEMORY)
        if not is_memory.any():
            return
        events = np.flatnonzero(is_memory & inside & (trace.bytes > 0))
        holder = find_open(trace, trace.host_rows, trace.track[events], trace.start_ns[events])
        events, holder = events[holder >= 0], holder[holder >= 0]
        keys, _ = attribution.keys(holder, trace.start_ns[events])
        self._add_each(keys, allocations=np.ones_like(events), allocated_bytes=trace.bytes[events])

    def lines(self) -> tuple[SourceLine, ...]:
        """All lines, longest first."""
        functions: dict[tuple[str, str | None], Function] = {
            (function.file, function.name): function
            for function in (self._frames.function(row) for row in self._frames.rows.tolist())
        }
        rows = [
            SourceLine(
                file=key.file,
                line=key.line,
                first_line=functions[key.file, key.function].first_line,
                function=functions[key.file, key.function].name,
                owner=key.owner,
                **dict.fromkeys(self._measured, 0) | sums,
            )
            for key, sums in self._sums.items()
        ]
        return tuple(sorted(rows, key=lambda row: -row.total_ns)[:_MAX_LINES])
