"""A few ranks over a few steps on one time line: a late one, an ordinary one, and the first."""

from __future__ import annotations

import numpy as np

from perfkit.ranks.path_diagnosis import DiagnosedRanks
from perfkit.ranks.rank_columns import RankColumns
from perfkit.reports.figures.columns import packed
from perfkit.reports.figures.data import Items, Lane, Role, Timeline
from perfkit.reports.ranks.answers import worth_opening
from perfkit.run.records import PHASES
from perfkit.trace.intervals import Ints

#: Steps that are drawn: a late rank shows in each, and their parts are wide enough to read.
_STEPS = 5
#: Collectives of one rank that are drawn; tensor parallelism has some thousand in a step.
_COLLECTIVES = 2_000
#: Steps by which clocks that no collective aligns are placed.
_PLACED_BY = 200
#: Phases before the end of the backward, where ranks that share gradients meet.
_TOGETHER = ("data", "transfer", "forward", "backward")
_WAITING = "waits in collectives"


def timeline_of_ranks(found: DiagnosedRanks) -> tuple[Timeline | None, str]:
    """The time line, or None and a sentence that says why there is none."""
    if found.compared is None or found.diagnosis.wall_ns is None:
        return None, ""
    why = {one.rank: one.why for one in worth_opening(found) if one.why != "waits most"}
    first = [one.rank for one in found.compared.facts[:2]]
    order = list(dict.fromkeys([*why, *first]))[:3]
    columns = found.compared.of_ranks(order)
    shared = _shared_steps(columns, found)
    if len(columns) < 2 or not shared.size:
        return None, "The ranks have no steps in common that could be drawn on one time line."
    ahead, note = _offsets(columns, found)
    if ahead is None:
        return None, note
    return _Drawn(columns, shared, ahead).timeline(why, note), ""


def _shared_steps(columns: dict[int, RankColumns], found: DiagnosedRanks) -> Ints:
    """Some successive steps that all of them have, from the one before the first late one on."""
    shared: Ints | None = None
    for one in columns.values():
        shared = one.step_number if shared is None else np.intersect1d(shared, one.step_number)
    if shared is None or not shared.size:
        return np.zeros(0, np.int64)
    findings = found.diagnosis.findings
    # The first steps of a run compile and fill caches: of a rank that is always late, some in the middle are drawn.
    middle = int(shared[max(0, shared.size // 2 - _STEPS // 2)])
    begins = (
        findings[0].steps[0] - 1 if findings and findings[0].steps and findings[0].shape != "persistent" else middle
    )
    at = min(int(np.searchsorted(shared, begins)), max(0, shared.size - _STEPS))
    stretch: Ints = shared[at : at + _STEPS]
    close: Ints = stretch[stretch - stretch[0] < 2 * _STEPS]
    return close


def _offsets(
    columns: dict[int, RankColumns], found: DiagnosedRanks
) -> tuple[dict[int, tuple[int, float, int]] | None, str]:
    """For each rank what its clock is behind, how that grows, and since when; how they are known, or why not."""
    facts = found.compared.facts if found.compared is not None else ()
    position = {one.rank: at for at, one in enumerate(facts)}
    clocks = found.clocks
    if clocks is not None and all(clocks.aligned[position[rank]] for rank in columns):
        return {
            rank: (round(clocks.offset_ns[at]), float(clocks.drift[at]), int(clocks.origin_ns[at]))
            for rank in columns
            for at in (position[rank],)
        }, "The clocks are aligned by the ends of collectives, which are the same moment on all ranks."
    hosts = {one.host for one in columns.values()}
    if len(hosts) == 1 and hosts != {""}:
        return dict.fromkeys(columns, (0, 0.0, 0)), "The ranks are on one host, and have the same clock."
    if any(one.origin == "trace" for one in columns.values()):
        return None, "The clocks of the hosts could not be aligned, so their ranks cannot be drawn on one time line."
    first, *others = columns
    ahead = {first: (0, 0.0, 0)}
    for rank in others:
        numbers, mine, reference = np.intersect1d(
            columns[rank].step_number, columns[first].step_number, return_indices=True
        )
        chosen = slice(max(0, numbers.size // 2 - _PLACED_BY // 2), numbers.size // 2 + _PLACED_BY // 2)
        apart = _meet_ns(columns[first])[reference[chosen]] - _meet_ns(columns[rank])[mine[chosen]]
        ahead[rank] = round(float(np.median(apart))), 0.0, 0
    return ahead, (
        "Rows do not tell how far the clocks of hosts are apart: the ranks are placed so that their backwards end "
        "together, as those of ranks that wait for each other do."
    )


def _meet_ns(one: RankColumns) -> Ints:
    """When each step's backward ends; without phases, the step."""
    if "backward" not in one.phase_names:
        return one.step_start_ns + one.step_wall_ns
    inside = [at for at, name in enumerate(one.phase_names) if name in _TOGETHER]
    meets: Ints = one.step_start_ns + np.maximum(one.phases_ns[:, inside], 0).sum(axis=1)
    return meets


class _Drawn:
    """Some steps of some ranks on the clock of the first."""

    def __init__(self, columns: dict[int, RankColumns], steps: Ints, ahead: dict[int, tuple[int, float, int]]) -> None:
        self._columns = columns
        self._steps = steps
        self._ahead = ahead
        self._names: dict[str, int] = {}
        self._kinds: list[str] = []
        rows = {rank: np.isin(one.step_number, steps) for rank, one in columns.items()}
        starts = {rank: self._placed(rank, one.step_start_ns[rows[rank]]) for rank, one in columns.items()}
        self._start = min(int(start.min()) for start in starts.values())
        self._end = max(int((starts[rank] + one.step_wall_ns[rows[rank]]).max()) for rank, one in columns.items())

    def timeline(self, why: dict[int, str], note: str) -> Timeline:
        """Draw them; ``why`` says of ranks what they are."""
        lanes = [lane for rank, one in self._columns.items() for lane in self._lanes(one, why.get(rank, "first"))]
        events = sum(lane.events for lane in lanes)
        notes = [note]
        if any(one.origin == "rows" for one in self._columns.values()):
            notes.append(
                "Rows have the sum of each phase in a step, and of the waiting: phases are drawn one after another and "
                "waiting at the end of the longer of forward and backward."
            )
        return Timeline(
            title=f"steps {self._steps[0]} to {self._steps[-1]}",
            start_ns=self._start,
            span_ns=max(1, self._end - self._start),
            events=events,
            shown=events,
            names=tuple(self._names),
            kinds=tuple(self._kinds),
            lanes=tuple(lanes),
            notes=tuple(notes),
        )

    def _placed(self, rank: int, times_ns: Ints) -> Ints:
        offset, drift, origin = self._ahead[rank]
        placed: Ints = times_ns + offset + np.rint(drift * (times_ns - origin)).astype(np.int64)
        return placed

    def _lanes(self, one: RankColumns, what: str) -> list[Lane]:
        group = f"rank {one.rank}"
        rows = np.flatnonzero(np.isin(one.step_number, self._steps))
        rows = rows[np.argsort(one.step_start_ns[rows], kind="stable")]
        start = self._placed(one.rank, one.step_start_ns[rows])
        wall = one.step_wall_ns[rows]
        names = [f"step {number}" for number in one.step_number[rows].tolist()]
        lanes = [self._lane(group, what, "steps", start, wall, names, ["step"] * rows.size)]
        if one.collective_step.size:
            lanes.append(self._collectives(one, group))
        elif one.phase_names:
            lanes.append(self._phases(one, group, rows, start))
        return lanes

    def _phases(self, one: RankColumns, group: str, rows: Ints, start: Ints) -> Lane:
        order = [one.phase_names.index(name) for name in PHASES if name in one.phase_names]
        starts, lengths, names = [], [], []
        for row, at in zip(rows.tolist(), start.tolist(), strict=True):
            phases = {one.phase_names[index]: max(0, int(one.phases_ns[row, index])) for index in order}
            holds = max(("forward", "backward"), key=lambda name: phases.get(name, 0))
            waited = min(max(0, int(one.waited_ns[row])), phases.get(holds, 0))
            for name, ns in phases.items():
                own = ns - waited if name == holds else ns
                for part, length in ((name, own), *(((_WAITING, waited),) if name == holds else ())):
                    if length:
                        starts.append(at)
                        lengths.append(length)
                        names.append(part)
                    at += length
        kinds = ["communication" if name == _WAITING else name for name in names]
        return self._lane(group, "phases", "ranges", np.array(starts), np.array(lengths), names, kinds)

    def _collectives(self, one: RankColumns, group: str) -> Lane:
        known = (one.collective_start_ns >= 0) & (one.collective_end_ns >= one.collective_start_ns)
        rows = np.flatnonzero(known & np.isin(one.collective_step, self._steps))
        rows = rows[np.argsort(one.collective_start_ns[rows], kind="stable")][:_COLLECTIVES]
        start = self._placed(one.rank, one.collective_start_ns[rows])
        inside = (start >= self._start) & (start < self._end)
        rows, start = rows[inside], start[inside]
        names = [one.kind_names[code] for code in one.collective_kind[rows].tolist()]
        length = np.minimum(one.collective_end_ns[rows] - one.collective_start_ns[rows], self._end - start)
        return self._lane(group, "collectives", "stream", start, length, names, ["communication"] * rows.size)

    def _lane(
        self, group: str, label: str, role: Role, start: Ints, length: Ints, names: list[str], kinds: list[str]
    ) -> Lane:
        for name, kind in zip(names, kinds, strict=True):
            if name not in self._names:
                self._names[name] = len(self._names)
                self._kinds.append(kind)
        code = np.array([self._names[name] for name in names], np.int64)
        items = Items(start=packed(np.diff(start, prepend=self._start)), length=packed(length), name=packed(code))
        return Lane(group=group, label=label, role=role, events=len(names), items=items)
