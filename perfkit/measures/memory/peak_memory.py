"""What a device holds at the peak of a step that was recorded for memory: by kind, phase, module, op, line and path."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from perfkit._format import shown_location
from perfkit._location import Location
from perfkit.measures.memory._lives import Lives
from perfkit.measures.memory._step_allocations import Places, StepPlaces
from perfkit.measures.results.peak_memory import HeldPath, MemoryPart, PeakMemory, StepMemory
from perfkit.run.records import HOLDINGS, PHASES, Holding, LineTimes, MemorySteps, Step
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Ints

#: Rows that are kept of each table, and paths of the flame graph: as many as a page can show, 0.5 MB at most.
_MAX_ROWS, _MAX_PATHS = 100, 1_000


class TracedMemory(NamedTuple):
    """One device's memory in the step that is taken apart.

    ``times`` and ``level`` are all levels of the trace; ``pieces`` are those held at some time in the step, with the
    place and the kind of each.
    """

    lives: Lives
    places: StepPlaces
    times: Ints
    level: Ints
    pieces: Ints
    where: Places
    holding: tuple[Holding, ...]

    def level_at(self, time: int) -> int:
        """What is held right after a time."""
        return int(self.level[np.searchsorted(self.times, time, side="right") - 1])

    def within(self, start: int, end: int) -> slice:
        """The levels between two times, that at the start included."""
        first = int(np.searchsorted(self.times, start, side="right")) - 1
        return slice(max(0, first), int(np.searchsorted(self.times, end, side="left")))

    @property
    def peak(self) -> int:
        """Position of the step's highest level."""
        inside = self.within(self.places.start_ns, self.places.end_ns)
        return int(inside.start) + int(self.level[inside].argmax())


def trace_memory(trace: Trace, record: MemorySteps, lines: LineTimes | None) -> tuple[TracedMemory, ...]:
    """Each device's memory in the last of the recorded steps; empty where the trace does not hold that step."""
    events = trace.is_kind(Kind.MEMORY)
    if not events.any() or not record.steps or not (trace.steps.number == record.steps[-1]).any():
        return ()
    places = StepPlaces(trace, record, lines)
    found = []
    for device in np.unique(trace.device[events]).tolist():
        lives = Lives(trace, device, record)
        pieces = np.flatnonzero((lives.start_ns < places.end_ns) & (lives.end_ns > places.start_ns))
        known = lives.row[pieces] >= 0
        where = places.of(lives.row[pieces[known]])
        # Pieces from before the trace come last, without a place.
        pieces = np.concatenate((pieces[known], pieces[~known]))
        holding = tuple(
            places.holding(lives, piece, where, at) if at < where.op.size else lives.holding.get(piece, "other")
            for at, piece in enumerate(pieces.tolist())
        )
        times, level = lives.levels()
        found.append(TracedMemory(lives, places, times, level, pieces, where, holding))
    return tuple(found)


def measure_peak_memory(
    traced: TracedMemory, record: MemorySteps, rows: Sequence[Step] = (), *, source: str
) -> PeakMemory:
    """What the device holds at the peak of the last recorded step; ``rows`` are of steps.jsonl, for batch sizes."""
    lives, places = traced.lives, traced.places
    peak = traced.peak
    peak_ns, peak_bytes = int(traced.times[peak]), int(traced.level[peak])
    table = _PeakParts(traced, peak_ns, record)
    holding = {kind: held for kind in HOLDINGS if (held := table.by_kind.get(kind, 0))}
    # What no tensor shows: libraries' workspaces, and what the allocator's blocks are larger than their tensors.
    if rest := peak_bytes - sum(holding.values()):
        holding["other"] = holding.get("other", 0) + rest
    at_peak = np.flatnonzero(lives.start_ns[traced.pieces[: traced.where.op.size]] == peak_ns)
    first = int(at_peak[0]) if at_peak.size else None
    op = int(traced.where.op[first]) if first is not None else -1
    outside = record.rss_bytes
    if outside is not None:
        # It was read when the first of the steps began.
        first_step = max(0, places.step - len(record.steps) + 1)
        outside = max(0, outside - traced.level_at(int(places.trace.steps.start_ns[first_step])))
    return PeakMemory(
        device=lives.device,
        source=source,
        step=record.steps[-1],
        peak_bytes=peak_bytes,
        end_bytes=traced.level_at(places.end_ns),
        phase=traced.where.phase[first] if first is not None else None,
        op=places.trace.names[places.trace.name[op]] if op >= 0 else None,
        at=table.line_of[first] if first is not None else None,
        holding=holding,
        steps=tuple(_steps(traced, record, rows)),
        phases=table.phases(),
        modules=table.rows("module"),
        ops=table.rows("op"),
        lines=table.rows("line"),
        paths=table.paths(),
        outside_bytes=outside if lives.device == "cpu" else None,
    )


def _steps(traced: TracedMemory, record: MemorySteps, rows: Sequence[Step]) -> Iterator[StepMemory]:
    samples = {row.step: row.samples for row in rows if row.steps == 1}
    steps = traced.places.trace.steps
    for number, start, end in zip(steps.number.tolist(), steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True):
        if number in record.steps:
            levels = traced.level[traced.within(start, end)]
            yield StepMemory(
                step=number,
                peak_bytes=int(levels.max()),
                end_bytes=traced.level_at(end),
                samples=samples.get(number),
            )


class _Sums:
    """The memory of one part."""

    def __init__(self) -> None:
        self.holding: dict[Holding, int] = defaultdict(int)
        self.allocated = self.allocations = 0
        self.peak: int | None = None
        self.at: Location | None = None


class _PeakParts:
    """Sums by module, op and line."""

    def __init__(self, traced: TracedMemory, peak_ns: int, record: MemorySteps) -> None:
        self._traced = traced
        self._modules = set(record.modules)
        lives, where = traced.lives, traced.where
        self.line_of = traced.places.lines(where)
        self.by_kind: dict[Holding, int] = defaultdict(int)
        self._sums: dict[str, dict[str, _Sums]] = {
            part: defaultdict(_Sums) for part in ("phase", "module", "op", "line")
        }
        self._paths: dict[tuple[Holding, tuple[str, ...]], list[int]] = defaultdict(list)
        start, end = lives.start_ns[traced.pieces], lives.end_ns[traced.pieces]
        held = (start <= peak_ns) & (end > peak_ns)
        in_step = (start >= traced.places.start_ns) & (start < traced.places.end_ns)
        after = np.searchsorted(traced.times, start, side="right") - 1
        self._level = traced.level[np.maximum(after, 0)]
        for i, piece in enumerate(traced.pieces.tolist()):
            self._add(i, piece, is_held=bool(held[i]), in_step=bool(in_step[i]))

    def _add(self, i: int, piece: int, *, is_held: bool, in_step: bool) -> None:
        lives = self._traced.lives
        size, kind = int(lives.bytes[piece]), self._traced.holding[i]
        keys = list(self._keys(i, piece))
        for part, name, at in keys:
            sums = self._sums[part][name]
            sums.at = at
            if is_held:
                sums.holding[kind] += size
            if in_step:
                sums.allocated += size
                sums.allocations += 1
                sums.peak = max(sums.peak or 0, int(self._level[i]))
        if is_held:
            self.by_kind[kind] += size
            self._paths[kind, self._path(i, piece)].append(size)

    def _keys(self, i: int, piece: int) -> Iterator[tuple[str, str, Location | None]]:
        """The parts that a piece belongs to."""
        where, trace = self._traced.where, self._traced.places.trace
        module = None
        if i < where.op.size:
            yield "phase", where.phase[i], None
            if (op := int(where.op[i])) >= 0:
                yield "op", trace.names[trace.name[op]], None
            if (line := self.line_of[i]) is not None:
                yield "line", shown_location(line), line
            module = where.module[i]
        if self._traced.holding[i] in ("parameters", "buffers", "gradients", "optimizer state"):
            module = self._traced.lives.name.get(piece, "").rpartition(".")[0]
        for name in self._with_outer(module):
            yield "module", name, None

    def _with_outer(self, module: str | None) -> Iterator[str]:
        while module:
            if module in self._modules:
                yield module
            module = module.rpartition(".")[0]

    def _path(self, i: int, piece: int) -> tuple[str, ...]:
        lives, where, places = self._traced.lives, self._traced.where, self._traced.places
        if self._traced.holding[i] in ("parameters", "buffers", "gradients", "optimizer state"):
            return tuple(lives.name.get(piece, "unknown").split("."))
        if i >= where.op.size:
            return (lives.name.get(piece, "allocated before the recording"),)
        calls = [
            f"{location.function} {shown_location(location)}"
            for location in (places.calls(int(where.frame[i]), int(where.when[i])) if where.frame[i] >= 0 else ())
        ]
        names = places.trace.names
        ops = [
            names[places.trace.name[row]] for row in dict.fromkeys((int(where.outer[i]), int(where.op[i]))) if row >= 0
        ]
        return (*calls, *([where.module[i] or ""] if where.module[i] else []), *ops) or ("unknown",)

    def rows(self, part: str) -> tuple[MemoryPart, ...]:
        """The parts that allocated or hold anything, by what they hold and then by what they allocated."""
        found = [_part(name, sums) for name, sums in self._sums[part].items()]
        found.sort(key=lambda one: (-one.held_bytes, -one.allocated_bytes, one.name))
        return tuple(found[:_MAX_ROWS])

    def phases(self) -> tuple[MemoryPart, ...]:
        """The phases, in their order."""
        return tuple(_part(name, sums) for name in PHASES if (sums := self._sums["phase"].get(name)) is not None)

    def paths(self) -> tuple[HeldPath, ...]:
        """What is held at the peak by path, largest first."""
        found = [HeldPath(kind, path, sum(sizes), len(sizes)) for (kind, path), sizes in self._paths.items()]
        return tuple(sorted(found, key=lambda one: (-one.bytes, one.path))[:_MAX_PATHS])


def _part(name: str, sums: _Sums) -> MemoryPart:
    return MemoryPart(
        name=name,
        held_bytes=sum(sums.holding.values()),
        holding=dict(sums.holding),
        peak_bytes=sums.peak,
        allocated_bytes=sums.allocated,
        allocations=sums.allocations,
        at=sums.at,
    )
