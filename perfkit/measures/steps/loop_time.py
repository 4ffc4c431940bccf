"""The whole time of a loop, divided: the typical step, growth, rare long steps, validation, warm-up, recording."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from perfkit.measures.results.loop import MUCH_LONGER, LoopPart, LoopTime, LoopUse, StepGrowth
from perfkit.measures.steps._rare_lines import line_of
from perfkit.measures.steps._rhythm import Rhythm, find_rhythms, rhythm_of_epochs
from perfkit.measures.steps._timed_rows import own_rows, phase_columns, recorded_validation, timed_rows
from perfkit.measures.steps.step_growth import step_growth
from perfkit.run.records import PHASES, Lines, Phase, Step

#: A step is long from 1.5 times the level on: one in three such steps, the most frequent rhythm, is 17% of the loop,
#: and shorter ones are in the typical step's spread.
_LONG = 0.5
#: It is also so many deviations above the level: few in a rhythm, which chance alone does not have, and more without.
_IN_RHYTHM, _IRREGULAR = 2, 4
#: What precedes the first step's own work, or follows the last step, takes at least this share of a long one, if it is
#: what comes with each epoch (chosen).
_LIKE_A_LONG_ONE = 0.5
#: What comes with each epoch takes at least this share of the longest step; a machine that is disturbed makes others
#: long, which take less (chosen).
_LIKE_THE_LONGEST = 0.25
#: A single step that takes more of the loop is work of its own, by a plain majority.
_MOST = 0.5


def measure_loop_time(rows: Sequence[Step], lines: Lines | None = None, ended_ns: int | None = None) -> LoopTime | None:
    """Divide the loop's time into parts that sum to it exactly; None where no step was timed.

    A step counts with the typical level, and what it took beyond that belongs to its group. Validation and checkpoints
    are phases: their time is theirs, in whichever step it passed. A row of merged steps has as many rare ones as the
    rhythm says, and not more than its time shows. The rare step that was traced by line is one of its rhythm, and
    counts with what the others take. ``ended_ns`` is when the program ended, None where it has not.
    """
    timed, _ = timed_rows(rows)
    if not timed:
        return None
    pieces = [_TimedRow.of(row, position) for row, position in _positions(rows, timed)]
    growth = step_growth(timed)
    single = [piece for piece in pieces if piece.row.steps == 1] or pieces
    usual_ns = round(median(piece.own_ns / piece.row.steps for piece in single))
    typical_ns = growth.first_ns if growth is not None else usual_ns
    after_ns = max(0, ended_ns - rows[-1].start_ns - rows[-1].wall_ns) if ended_ns is not None else 0
    besides = _Besides(_long_recorded(rows), rows[0] if rows[0].step == 0 else None, after_ns)
    split = _TimedParts(pieces, typical_ns, growth, _traced_rare_step(rows, lines), besides)
    validation = recorded_validation(rows, timed)
    parts = [
        *split.parts(lines),
        *_phase_parts(timed),
        *_other_rows(rows, timed, split.traced, validation),
        LoopPart(use="between", total_ns=_between(rows)),
    ]
    found = [part for part in parts if part.total_ns]
    return LoopTime(
        total_ns=sum(part.total_ns for part in found),
        steps=sum(row.steps for row in timed) + (split.traced is not None),
        typical_ns=typical_ns,
        parts=tuple(found),
        after_ns=after_ns,
    )


class _TimedRow(NamedTuple):
    """A row, its first step's position among the training steps, and its time without validation and checkpoints."""

    row: Step
    position: int
    own_ns: int

    @classmethod
    def of(cls, row: Step, position: int) -> _TimedRow:
        return cls(row, position, row.wall_ns - sum(_apart(row).values()))


def _apart(row: Step) -> dict[LoopUse, int]:
    """The time of phases that are no training; together no more than the row's."""
    validation = min(row.wall_ns, row.phases_ns.validation or 0)
    return {"validation": validation, "checkpoint": min(row.wall_ns - validation, row.phases_ns.checkpoint or 0)}


def _positions(rows: Sequence[Step], timed: Sequence[Step]) -> list[tuple[Step, int]]:
    """The timed rows, each with the number of training steps before it: validation steps have numbers as well."""
    chosen = {id(row) for row in timed}
    found, position = [], 0
    for row in own_rows(rows):
        if id(row) in chosen:
            found.append((row, position))
        position += row.steps
    return found


def _traced_rare_step(rows: Sequence[Step], lines: Lines | None) -> _TimedRow | None:
    """The rare step that was traced by line."""
    if lines is None or lines.rare_step is None:
        return None
    traced = [row for row in own_rows(rows) if row.step == lines.rare_step.step and row.steps == 1]
    return next((_TimedRow.of(row, position) for row, position in _positions(rows, traced)), None)


def _long_recorded(rows: Sequence[Step]) -> dict[int, int]:
    """The positions of recorded steps that take much longer than the shortest that was recorded for the same: how much.

    Recording lengthens all steps of a kind.
    """
    own = [row for row in own_rows(rows) if row.kind != "timed" and row.steps == 1]
    shortest = {row.kind: row.wall_ns for row in sorted(own, key=lambda row: -row.wall_ns)}
    much = [row for row in own if row.wall_ns > MUCH_LONGER * shortest[row.kind]]
    return {position: row.wall_ns - shortest[row.kind] for row, position in _positions(rows, much)}


class _Besides(NamedTuple):
    """What else shows epochs: positions of long steps that are not timed, and how much longer they are (ns); the first
    step of all, None where it is not there; and how long the program ran on after the last one.
    """

    recorded: Mapping[int, int]
    first: Step | None
    after_ns: int


class _TimedParts:
    """The timed rows' own time: typical, growth, rare by rhythm, irregular.

    ``traced`` is the rare step that was traced by line, as if it had taken no longer than the others of its rhythm;
    None where it is of none.
    """

    def __init__(
        self,
        pieces: Sequence[_TimedRow],
        typical_ns: int,
        growth: StepGrowth | None,
        traced: _TimedRow | None,
        besides: _Besides,
    ) -> None:
        self._pieces = list(pieces)
        self._typical_ns = typical_ns
        self._growth = growth
        columns = phase_columns([piece.row for piece in pieces])
        #: The usual time of each phase of a step.
        self._usual = {
            phase: median((ns or 0) / piece.row.steps for ns, piece in zip(column, pieces, strict=True))
            for phase, column in columns.items()
        }
        single = [piece for piece in pieces if piece.row.steps == 1]
        beyond = {piece.position: piece.own_ns - self._level(piece) for piece in single}
        timed = frozenset(beyond)
        if traced is not None:
            beyond[traced.position] = traced.own_ns - self._level(traced)
        deviation = 1.48 * median(map(abs, beyond.values())) if beyond else 0.0
        self._limit = max(_LONG * typical_ns, _IRREGULAR * deviation)
        long_ns = max(_LONG * typical_ns, _IN_RHYTHM * deviation)
        self._long = {position: ns for position, ns in beyond.items() if ns > long_ns}
        self._rhythms = find_rhythms(list(beyond), self._long)
        much = {position for position, ns in self._long.items() if ns > (MUCH_LONGER - 1) * typical_ns}
        if not self._rhythms and much:
            epochs = self._epochs({at: beyond[at] for at in much}, timed, besides)
            self._rhythms += [epochs] if epochs is not None else []
        #: What a step of the rhythm takes beyond the level.
        self._each = {
            rhythm: median(ns for position, ns in self._long.items() if rhythm.holds(position) and position in timed)
            for rhythm in self._rhythms
        }
        self.traced = self._like_the_others(traced) if traced is not None and traced.position in self._long else None
        if self.traced is not None:
            self._pieces.append(self.traced)

    def _epochs(self, much: Mapping[int, int], timed: frozenset[int], besides: _Besides) -> Rhythm | None:
        """The rhythm of epochs of much longer steps, or of the longest of them; None where they have none."""
        last = max(piece.position + piece.row.steps for piece in self._pieces) - 1
        for least in (0.0, _LIKE_THE_LONGEST * max(much.values())):
            long = {position: ns for position, ns in much.items() if ns > least}
            if timed.isdisjoint(long):
                continue
            enough = _LIKE_A_LONG_ONE * min(long.values())
            others = (position for position, ns in besides.recorded.items() if ns > least)
            found = rhythm_of_epochs(
                {*long, *others},
                last,
                # What comes before each epoch is in the first step too, and what comes after each in no step at last.
                began_long=self._beyond_of(besides.first, long) > enough,
                goes_on=besides.after_ns > enough,
            )
            if found is not None:
                return found
        return None

    def _beyond_of(self, first: Step | None, long: Collection[int]) -> float:
        """What the first step took beyond the usual in the phase in which these steps did, in ns."""
        if first is None or first.steps > 1:
            return 0.0
        beyond = self._beyond_usual([piece.row for piece in self._pieces if piece.position in long])
        once_ns = (first.gc_ns or 0) + (first.compile_ns or 0)
        return self._beyond_usual([first])[max(beyond, key=lambda one: beyond[one])] - once_ns

    def _beyond_usual(self, rows: Sequence[Step]) -> dict[Phase, float]:
        """What these steps took beyond the usual, by phase; validation and checkpoints are apart."""
        return {
            phase: sum(max(0.0, (getattr(row.phases_ns, phase) or 0) - self._usual[phase]) for row in rows)
            for phase in PHASES
            if phase not in ("validation", "checkpoint")
        }

    def _like_the_others(self, traced: _TimedRow) -> _TimedRow | None:
        rhythm = next((one for one in self._rhythms if one.holds(traced.position)), None)
        if rhythm is None:
            return None
        return traced._replace(own_ns=min(traced.own_ns, self._level(traced) + round(self._each[rhythm])))

    def _level(self, piece: _TimedRow) -> int:
        """What the row's steps take without anything rare."""
        if self._growth is None:
            return self._typical_ns * piece.row.steps
        return self._growth.level_ns(piece.row.step + (piece.row.steps - 1) / 2) * piece.row.steps

    def parts(self, lines: Lines | None) -> Iterable[LoopPart]:
        """The parts, which sum to the pieces' own time."""
        groups: dict[Rhythm | None, list[tuple[_TimedRow, int, int]]] = defaultdict(list)
        grown = 0
        for piece in self._pieces:
            left = max(0, piece.own_ns - self._typical_ns * piece.row.steps)
            rise = min(left, self._level(piece) - self._typical_ns * piece.row.steps) if self._growth is not None else 0
            grown += rise
            for rhythm, count, ns in self._rare(piece, left - rise):
                groups[rhythm].append((piece, count, ns))
        total = sum(piece.own_ns for piece in self._pieces)
        rare = sum(ns for group in groups.values() for _, _, ns in group)
        steps = sum(piece.row.steps for piece in self._pieces)
        yield LoopPart(use="typical", total_ns=total - rare - grown, steps=steps)
        yield LoopPart(
            use="growth", total_ns=grown, steps=steps, phase=self._growth.phase if self._growth is not None else None
        )
        for rhythm, group in groups.items():
            # One step that takes most of the loop is what comes after each epoch, of which this loop has one or two.
            most = [one for one in group if rhythm is None and one[2] > _MOST * total]
            for one in most:
                yield self._part(None, [one], lines, is_most=True)
            if rest := [one for one in group if one not in most]:
                yield self._part(rhythm, rest, lines)

    def _rare(self, piece: _TimedRow, left: int) -> Iterable[tuple[Rhythm | None, int, int]]:
        """The rare steps of a row: their rhythm, their number, and their time beyond the level."""
        if piece.row.steps == 1:
            rhythm = next((one for one in self._rhythms if one.holds(piece.position)), None)
            if left and (left > self._limit if rhythm is None else piece.position in self._long):
                yield rhythm, 1, left
            return
        for rhythm in self._rhythms:
            count = rhythm.within(piece.position, piece.position + piece.row.steps)
            ns = min(left, round(count * self._each[rhythm]))
            if ns > 0:
                yield rhythm, count, ns
                left -= ns

    def _part(
        self,
        rhythm: Rhythm | None,
        group: list[tuple[_TimedRow, int, int]],
        lines: Lines | None,
        *,
        is_most: bool = False,
    ) -> LoopPart:
        steps, total = sum(count for _, count, _ in group), sum(ns for _, _, ns in group)
        single = [piece.row for piece, _, _ in group if piece.row.steps == 1]
        beyond = self._beyond_usual(single)
        longest = max(beyond, key=lambda one: beyond[one])
        phase = longest if beyond[longest] else None
        is_rare = rhythm is not None or is_most
        at, called = line_of(lines, phase, total) if is_rare else (None, None)
        inputs = {(one.file, one.line) for one in lines.training_inputs} if lines is not None else set()
        return LoopPart(
            use="rare" if is_rare else "irregular",
            total_ns=total,
            steps=steps,
            every=rhythm.period if rhythm is not None else None,
            longer=round(1 + total / steps / max(1, self._typical_ns), 2),
            phase=phase,
            gc_ns=min(total, sum(row.gc_ns or 0 for row in single)),
            compile_ns=min(total, sum(row.compile_ns or 0 for row in single)),
            training_ns=min(total, round(beyond["backward"] + beyond["optimizer"])),
            at=at,
            called=called,
            for_training=any(one is not None and (one.file, one.line) in inputs for one in (at, called)),
        )


def _phase_parts(timed: Sequence[Step]) -> Iterable[LoopPart]:
    """Validation and checkpoints in the timed rows."""
    totals: dict[LoopUse, list[int]] = defaultdict(lambda: [0, 0])
    for row in timed:
        for use, ns in _apart(row).items():
            totals[use][0] += ns
            totals[use][1] += ns > 0
    return [LoopPart(use=use, total_ns=ns, steps=steps) for use, (ns, steps) in totals.items()]


def _other_rows(
    rows: Sequence[Step], timed: Sequence[Step], traced: _TimedRow | None, validation: tuple[int, int]
) -> Iterable[LoopPart]:
    """Rows that are not timed steps of training: of another mode, recorded, or the first ones.

    Of the rare step that was ``traced`` they have what its tracing took; the ``validation`` of recorded ones is apart.
    """
    chosen = {id(row) for row in timed}
    own = {id(row) for row in own_rows(rows)}
    totals: dict[LoopUse, list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        if id(row) in chosen:
            continue
        use: LoopUse = "warm-up"
        if row.kind != "timed":
            use = "recorded"
        elif id(row) not in own and row.mode != "train":
            use = row.mode
        counted = traced is not None and row is traced.row
        totals[use][0] += row.wall_ns - (traced.own_ns if counted and traced is not None else 0)
        totals[use][1] += row.steps - counted
    ns, steps = validation
    if ns:
        totals["recorded"][0] -= ns
        totals["recorded"][1] = max(0, totals["recorded"][1] - steps)
        totals["validation"][0] += ns
        totals["validation"][1] += steps
    return [LoopPart(use=use, total_ns=ns, steps=steps) for use, (ns, steps) in totals.items()]


def _between(rows: Sequence[Step]) -> int:
    """The time between the steps. Rows of merged steps of different kinds lie over each other, so each is laid after
    the one before; their own gaps are before the next row.
    """
    total = 0
    end = rows[0].start_ns
    for row in rows:
        total += max(0, row.start_ns - end)
        end = max(end, row.start_ns) + row.wall_ns
    return total
