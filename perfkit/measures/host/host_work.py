"""What the host does in a step outside of ops: by kind, with the user's lines.

Samples show in which line and library time passes, the step for lines which lines call ops, and the step that was
traced by line which lines run before the model. Of a run that is too short for samples the step for lines says how long
lines take, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from perfkit._code_owner import USER
from perfkit._location import Location
from perfkit.measures.host._event_loops import lines_around_the_model, waits_for_requests
from perfkit.measures.host._followed_lines import CALLS_OPS, FollowedLine, followed_lines
from perfkit.measures.host._libraries import kind_of
from perfkit.measures.results.host import HostKind, HostLine, HostWork, SourceLines
from perfkit.measures.results.steps import MeanStep
from perfkit.measures.results.work import OpShares
from perfkit.measures.sample_counts import show_share
from perfkit.run.records import KNOWN_AT_ONCE, PHASES, LineRow, Lines, Phase, Rank, TracedLine

#: From this share of a function's host work on, all of it is of that kind: calls that release the interpreter lock (a
#: write, a flush) draw samples from the lines around them.
_JOINS = 0.2
#: From this share of a line's samples in the same libraries on, all of them wait: whether a thread waits is not seen in
#: each that is looked at, least of all on a busy machine: there 0.47 of a ``time.sleep`` were, 0.94 of a socket's read.
_WAITS = 0.4
#: Clock and samples of a phase differ by less than this factor where both saw the same steps: of 20 samples the error
#: is a fifth. Where they differ more, the samples include steps that the mean leaves out because they compiled.
_SAME_TIME = 1.5
#: A run with fewer samples than this has fewer than ten in a tenth of the step, which is the least cost of a warning:
#: too few to say how long it takes.
_FEW_OF_ALL, _A_TENTH = 100, 0.1


class _Piece(NamedTuple):
    """Samples of one line in the same libraries, in which the thread waited or did not."""

    row: LineRow
    within: str
    samples: float
    waits: bool = False
    before_model: bool = False


def measure_host_work(
    lines: Lines | None,
    source: SourceLines | None,
    steps: int | None,
    every: MeanStep | None = None,
    *,
    shares: OpShares | None = None,
    rank: Rank | None = None,
) -> tuple[HostWork, ...]:
    """Host work by kind, most first; () where no lines were sampled.

    Args:
        lines: What the sampler and the traced step recorded.
        source: The step for lines. Without it a line's own code cannot be separated from the ops it calls, and only
            time in libraries is reported.
        steps: Steps of the whole run, over which ``lines.collected`` counts.
        every: The mean of all timed steps. With it samples only divide the time that the clock has for a phase.
        shares: How much of each phase runs in ops. With it the step for lines stands in for samples that are too few.
        rank: What is known of the processor time of the thread.
    """
    if lines is None or not lines.steps:
        return ()
    line_times = _LineTimes(source, lines.traced)
    before = {(row.file, row.line): bool(row.before_model) for row in reversed(lines.traced)}
    pieces: dict[HostKind, list[_Piece]] = defaultdict(list)
    for piece in _without_collections(lines, steps):
        before_model = before.get((piece.row.file, piece.row.line), False)
        kind = kind_of(piece.within, before_model, piece.waits)
        if kind is None:
            continue
        own_code = piece.within == "" or kind == "python"
        if share := line_times.python_share(piece.row) if own_code else 1.0:
            pieces[kind].append(piece._replace(samples=piece.samples * share, before_model=before_model))
    _join_functions(pieces)
    sample_ns = _sample_times(lines, every, pieces)
    total = sum(row.samples for row in lines.rows if row.worker is None)
    works = {kind: _work(kind, found, total, sample_ns, line_times) for kind, found in pieces.items() if found}
    if total < _FEW_OF_ALL:
        followed = followed_lines(
            lines, source, every, shares, rank, python_share=line_times.python_share, joined=_final
        )
        works |= _followed_work(works, followed, total, before, line_times)
    return tuple(sorted(works.values(), key=lambda work: -work.host_ns))


def _followed_work(
    works: Mapping[HostKind, HostWork],
    followed: Sequence[FollowedLine],
    total: int,
    before: Mapping[tuple[str, int], bool],
    line_times: _LineTimes,
) -> Iterator[tuple[HostKind, HostWork]]:
    """The work of kinds with too few samples, where the step for lines knows more of it.

    Without the lines of work that stays as sampled, and the functions that wait, log or save: their Python is of that.
    """
    stays = {kind: work for kind, work in works.items() if show_share(work.samples, total, _A_TENTH)}
    lines = {(line.file, line.line) for work in stays.values() for line in work.lines}
    apart = [work for kind, work in works.items() if kind not in ("python", "preprocessing")]
    functions = {(line.file, line.function) for work in apart for line in work.lines}
    pieces: dict[HostKind, list[_Piece]] = defaultdict(list)
    for row, within, ns in followed:
        if (row.file, row.line) in lines or (row.file, row.function) in functions:
            continue
        before_model = before.get((row.file, row.line), False)
        if (kind := kind_of(within, before_model)) is not None:
            pieces[kind].append(_Piece(row, within, ns, before_model=before_model))
    for kind, found in pieces.items():
        if kind in stays:
            continue
        work = _work(kind, found, total, lambda phase: 1.0, line_times)
        rows = tuple(msgspec.structs.replace(line, samples=0) for line in work.lines)
        yield kind, msgspec.structs.replace(work, samples=0, lines=rows, followed=True)


_Function = tuple[str, str | None]


class _LineTimes:
    """Times of lines in the step for lines."""

    def __init__(self, source: SourceLines | None, traced: Sequence[TracedLine]) -> None:
        self._source = source
        #: Own time of a line, its time in ops, and its time with the user's functions that it called.
        self._times: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0, 0])
        #: Functions that ran in that step, and those with ops whose line is not known.
        self._ran: set[_Function] = set()
        self._vague: set[_Function] = set()
        self._op_ns: dict[_Function, int] = defaultdict(int)
        #: The user's functions that a line or a function calls.
        self._called: dict[tuple[str, int | str | None], set[_Function]] = defaultdict(set)
        #: Lines whose time passes in the engine, which is no op.
        self._in_engine = {
            (row.file, row.line)
            for row in traced
            if row.gradients is not None and row.gradients.host_ns > CALLS_OPS * row.host_ns
        }
        for row in traced:
            for by in row.callers:
                self._called[by.file, by.line].add((row.file, row.function))
                self._called[by.file, by.function].add((row.file, row.function))
        for line in source.lines if source is not None else ():
            self._op_ns[line.file, line.function] += line.op_ns
            self._ran.add((line.file, line.function))
            if line.line is not None:
                times = self._times[line.file, line.line]
                for i, ns in enumerate((line.self_ns, line.op_ns, line.total_ns)):
                    times[i] += ns
            elif line.ops:
                self._vague.add((line.file, line.function))

    def own_ns(self, row: LineRow) -> int:
        """Time of a line without the user's functions that it called; at least 1."""
        return max(1, self._times.get((row.file, row.line), (0,))[0])

    def python_share(self, row: LineRow) -> float:
        """The share of its own time outside of ops; 0 where it calls ops or a backward, or nothing is known of it."""
        if self._source is None or (row.file, row.line) in self._in_engine:
            return 0.0
        times = self._times.get((row.file, row.line))
        if times is None:
            # Nothing is known of a function that only rare steps call.
            function = (row.file, row.function)
            return 1.0 if self._source.complete and function in self._ran - self._vague else 0.0
        own, ops, total = times
        share = ops / own if own else 0.0
        if share > CALLS_OPS and (called := self._called_below(row)):
            # On a busy machine samples of a function fall on the line that calls it, where an op releases the
            # interpreter lock: then the line counts with all that it called.
            share = (ops + sum(self._op_ns[function] for function in called)) / total if total else share
        return 0.0 if share > CALLS_OPS else 1.0 - share

    def _called_below(self, row: LineRow) -> set[_Function]:
        """The user's functions that a line calls, and all that these call."""
        below: set[_Function] = set()
        todo = list(self._called.get((row.file, row.line), ()))
        while todo:
            function = todo.pop()
            if function not in below:
                below.add(function)
                todo.extend(self._called.get(function, ()))
        return below


def _without_collections(lines: Lines, steps: int | None) -> Iterator[_Piece]:
    """The samples of the training thread's own lines, outside fetches and validation, less the garbage collections.

    Nor what an event loop around the model waits for requests: that belongs to no step of work.
    """
    period = max(1, lines.period_ns)
    around_model = lines_around_the_model(lines)
    collected = {(row.file, row.line): row.total_ns for row in lines.collected}
    for row in lines.rows:
        if row.worker is not None or row.owner != USER or row.phase in ("data", "validation"):
            continue
        # Collections count over the whole run, samples over the sampled steps of it.
        collecting = collected.pop((row.file, row.line), 0) / period * lines.steps / max(steps or lines.steps, 1)
        for within, samples in row.within.items():
            if row.at in around_model and waits_for_requests(within):
                continue
            left = max(0.0, samples - collecting) if within == "" else samples
            waiting = min(left, (row.waiting or {}).get(within, 0))
            if waiting >= _WAITS * left:
                waiting = left
            if waiting:
                yield _Piece(row, within, waiting, waits=True)
            if left > waiting:
                yield _Piece(row, within, left - waiting)


def _join_functions(pieces: dict[HostKind, list[_Piece]]) -> None:
    """Add plain Python to logging or a checkpoint where that is much of its function: the lines around a write."""
    by_function: dict[_Function, dict[HostKind, float]] = defaultdict(lambda: defaultdict(float))
    for kind, found in pieces.items():
        for piece in found:
            by_function[piece.row.file, piece.row.function][kind] += piece.samples
    for piece in pieces.pop("python", []):
        kinds = by_function[piece.row.file, piece.row.function]
        writing = {kind: samples for kind, samples in kinds.items() if kind in ("logging", "checkpoint")}
        most = max(writing, key=lambda kind: writing[kind], default=None)
        joins = most is not None and writing[most] >= _JOINS * sum(kinds.values())
        pieces[most if most is not None and joins else "python"].append(piece)


def _sample_times(
    lines: Lines, every: MeanStep | None, pieces: Mapping[HostKind, Sequence[_Piece]]
) -> Callable[[Phase], float]:
    """What a sample in a phase stands for, in ns of the mean step.

    The clock knows a phase's time exactly, the samples know which line had it: counted per phase, a line's error is
    that of its share of the phase, and not of how many samples fell into the phase. All ``pieces`` of a phase together
    never take longer than the phase.
    """
    usual = lines.period_ns / lines.steps
    if every is None or usual <= 0:
        return lambda phase: usual
    samples: dict[Phase, int] = defaultdict(int)
    clock_ns: dict[Phase, int] = defaultdict(int)
    for row in lines.rows:
        if row.worker is None:
            samples[_final(row.phase)] += row.samples
    for name in PHASES:
        clock_ns[_final(name)] += getattr(every.phases_ns, name) or 0
    times = {phase: clock_ns[phase] / max(1, count) for phase, count in samples.items()}
    counted: dict[Phase, float] = defaultdict(float)
    for piece in chain.from_iterable(pieces.values()):
        counted[_final(piece.row.phase)] += piece.samples
    at_most = {phase: clock_ns[phase] / count for phase, count in counted.items() if count and clock_ns[phase]}
    known = {
        phase: ns if 1 / _SAME_TIME <= ns / usual <= _SAME_TIME else min(usual, at_most.get(phase, usual))
        for phase, ns in times.items()
    }
    return lambda phase: known.get(_final(phase), usual)


def _final(phase: Phase) -> Phase:
    """The phase, or "other" where the clock may move its time later: a forward is known once its backward starts."""
    return phase if phase in KNOWN_AT_ONCE else "other"


def _work(
    kind: HostKind, pieces: list[_Piece], total: int, sample_ns: Callable[[Phase], float], line_times: _LineTimes
) -> HostWork:
    samples: dict[Location, float] = defaultdict(float)
    times: dict[Location, float] = defaultdict(float)
    functions: dict[_Function, float] = defaultdict(float)
    largest: dict[Location, _Piece] = {}
    for piece in pieces:
        row = piece.row
        samples[row.at] += piece.samples
        times[row.at] += piece.samples * sample_ns(row.phase)
        functions[row.file, row.function] += piece.samples
        if row.at not in largest or piece.samples > largest[row.at].samples:
            largest[row.at] = piece

    def order(at: Location) -> tuple[float, str, str, float, float]:
        row = largest[at].row
        # Samples favour lines that release the interpreter lock, stacks favour lines that call much: the hottest line
        # is hot in both.
        heat = samples[at] * line_times.own_ns(row)
        return -functions[row.file, row.function], row.file, row.function, -heat, -samples[at]

    rows = tuple(
        HostLine(
            file=row.file,
            line=row.line,
            function=row.function,
            # The clock counts as forward what leads to a backward.
            phase="other" if before_model and row.phase == "forward" else row.phase,
            samples=round(samples[row.at]),
            host_ns=round(times[row.at]),
            within=within,
            called_from=row.called_from,
            waits_for=row.waits_for if kind == "waiting" else "",
            before_model=before_model and _final(row.phase) == "other",
        )
        for row, within, _, _, before_model in (largest[at] for at in sorted(samples, key=order))
    )
    return HostWork(
        kind=kind,
        samples=round(sum(samples.values())),
        total_samples=total,
        host_ns=round(sum(times.values())),
        lines=rows,
    )
