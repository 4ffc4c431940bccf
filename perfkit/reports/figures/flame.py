"""Host time by call path, for a flame graph: of a run's samples, else of a trace."""

from __future__ import annotations

import os
import re

import numpy as np

from perfkit._format import ms, share_of
from perfkit._location import Location
from perfkit._text import clean
from perfkit.measures.host.phase_scale import ScaledPaths, samples_below
from perfkit.measures.steps._trace_steps import whole_steps
from perfkit.reports.figures.data import Flame
from perfkit.run.records import PHASES, Phase
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Ints

#: Deeper calls are merged: 60 rows are more than a person follows.
_MAX_DEPTH = 60
#: A path with a smaller share of the time is narrower than a pixel.
_MIN_SHARE = 1 / 4_000
#: Paths that are kept, longest first; about 100 kB.
_MAX_PATHS = 3_000

#: ``<built-in method acquire of _thread.lock object at 0x7f...>``
_ADDRESS = re.compile(r" (?:object )?at 0x[0-9a-fA-F]+")
_KIND = {Kind.OP: "op", Kind.RANGE: "range", Kind.PYTHON: "python", Kind.RUNTIME: "api"}
#: What a trace cannot show, with what would.
_AS_RECORDED = (
    "Times are those of the recording, which slows Python and short ops more than long ones: proportions are not those "
    "of an ordinary step. A run recorded by perfkit has samples of ordinary steps."
)


def flame_of_samples(scaled: ScaledPaths) -> Flame:
    """The call paths of a run's samples below the phases of its typical step, or of the whole program without steps."""
    rows = _SampleRows(scaled)
    total_ns = sum(scaled.clock_ns.values()) or rows.roots_ns
    return Flame(
        source="samples",
        total_ns=total_ns,
        steps=1 if scaled.clock_ns else 0,
        unit="samples",
        notes=tuple(_notes_on(scaled, total_ns)),
        name=tuple(rows.name),
        parent=tuple(rows.parent),
        total=tuple(rows.total),
        count=tuple(rows.count),
        names=tuple(rows.names),
        kinds=tuple(rows.names.values()),
        hidden_ns=rows.hidden_ns,
    )


class _SampleRows:
    """The columns of the boxes: a phase, below it the nodes whose samples count for that phase."""

    def __init__(self, scaled: ScaledPaths) -> None:
        self.names: dict[str, str] = {}
        self.name: list[int] = []
        self.parent: list[int] = []
        self.total: list[int] = []
        self.count: list[int] = []
        self.hidden_ns = self.roots_ns = 0
        self._scaled = scaled
        self._below = samples_below(scaled.paths)
        self._labels = [_label(frame) for frame in scaled.paths.frames]
        targets = {target for shares in scaled.scale.values() for target in shares}
        for phase in PHASES:
            if phase in targets or phase in scaled.clock_ns:
                self._add_phase(phase)

    def _add_phase(self, phase: Phase) -> None:
        paths = self._scaled.paths
        sample_ns = {source: shares[phase] for source, shares in self._scaled.scale.items() if phase in shares}
        outermost = [at for at, parent in enumerate(paths.parent) if parent < 0 and paths.phase[at] in sample_ns]
        own = {source: ns / sum(self._scaled.scale[source].values()) for source, ns in sample_ns.items()}
        samples = round(sum(self._below[at] * own[paths.phase[at]] for at in outermost))
        sampled_ns = sum(self._below[at] * sample_ns[paths.phase[at]] for at in outermost)
        phase_ns = self._scaled.clock_ns.get(phase, round(sampled_ns))
        self.roots_ns += phase_ns
        root = self._add(phase, phase, -1, phase_ns, samples)
        minimum_ns = max(1.0, _MIN_SHARE * (sum(self._scaled.clock_ns.values()) or phase_ns))
        places: dict[int, int] = {-1: root}
        for node, parent in enumerate(paths.parent):
            each_ns = sample_ns.get(paths.phase[node])
            if each_ns is None or parent not in places:
                continue
            ns = self._below[node] * each_ns
            if ns < minimum_ns or len(self.total) >= _MAX_PATHS:
                self.hidden_ns += round(ns)
                continue
            label, kind = self._labels[paths.frame[node]]
            count = round(own[paths.phase[node]] * self._below[node])
            places[node] = self._add(label, kind, places[parent], round(ns), count)

    def _add(self, label: str, kind: str, parent: int, ns: int, samples: int) -> int:
        self.names.setdefault(label, kind)
        self.name.append(list(self.names).index(label))
        self.parent.append(parent)
        self.total.append(ns)
        self.count.append(samples)
        return len(self.total) - 1


def _label(frame: Location) -> tuple[str, str]:
    """The text of a frame and its kind: ``HelpTexts.__getitem__ train.py:58``, ``SGD.step torch.optim``."""
    where = f"{os.path.basename(frame.file)}:{frame.line}" if frame.line is not None else frame.file
    return clean(f"{frame.function or ''} {where}".strip()), "python" if frame.owner == "user" else "api"


def _notes_on(scaled: ScaledPaths, total_ns: int) -> list[str]:
    samples = sum(scaled.paths.samples)
    error = 1 / max(1, samples) ** 0.5
    if not scaled.clock_ns:
        return [f"{samples:,} samples of the whole program, because no step was timed: times are the sampler's."]
    notes = [
        f"{samples:,} samples of steps that nothing recorded. The phases are those of the step clock, "
        f"{ms(total_ns)} together; the samples of each phase share its time. With so many samples, a part of 10% of "
        f"the step has a standard error of {share_of(0.3 * error)}."
    ]
    if short := scaled.without_samples:
        named = ", ".join(f"{phase} {ms(ns)}" for phase, ns in short.items())
        notes.append(f"No sample was taken in {named}: what it consists of is not known.")
    if outside := scaled.outside:
        notes.append(f"Not drawn: {', '.join(outside)}, which the typical step does not have.")
    return notes


def flame_of(trace: Trace) -> Flame | None:
    """Sum the time of host events over equal call paths; only of what began in the steps, where there are any.

    Threads that ran no op and called no API are left out: most of them wait for something.
    """
    rows, steps = trace.host_rows, whole_steps(trace)
    works = np.bincount(trace.track[trace.is_kind(Kind.OP, Kind.RUNTIME)], minlength=len(trace.tracks)) > 0
    rows = rows[works[trace.track[rows]]]
    if steps.row.size:
        inside = (trace.start_ns[rows] >= steps.start_ns[0]) & (trace.start_ns[rows] < steps.end_ns[-1])
        rows = rows[inside]
    if not rows.size:
        return None
    # Steps are one path, whatever their numbers, and so are methods of objects at other addresses.
    first: dict[str, int] = {}
    same = [first.setdefault(_ADDRESS.sub("", text), code) for code, text in enumerate(trace.names)]
    name = np.array(same, np.int64)[trace.name]
    any_step = len(trace.names)
    name[trace.steps.row] = any_step
    path = np.full(len(trace) + 1, -1, np.int64)  # one more: index -1 is "nothing above"
    waiting = rows
    chosen = np.zeros(len(trace) + 1, bool)
    chosen[rows] = True
    parents, names, totals, counts = [], [], [], []
    size = 0
    length = trace.end_ns - trace.start_ns
    current = rows[~chosen[trace.parent[rows]]]
    for _ in range(_MAX_DEPTH):
        if not current.size:
            break
        above = path[trace.parent[current]]
        above = np.where(chosen[trace.parent[current]], above, -1)
        key = (above + 1) * (any_step + 1) + name[current]
        unique, place = np.unique(key, return_inverse=True)
        place = place.reshape(-1)
        total = np.zeros(unique.size, np.int64)
        np.add.at(total, place, length[current])
        path[current] = size + place
        parents.append(unique // (any_step + 1) - 1)
        names.append(unique % (any_step + 1))
        totals.append(total)
        counts.append(np.bincount(place, minlength=unique.size))
        size += unique.size
        waiting = waiting[path[waiting] < 0]
        current = waiting[path[trace.parent[waiting]] >= 0]
    return _pruned(trace, steps.row.size, *(np.concatenate(column) for column in (parents, names, totals, counts)))


def _pruned(trace: Trace, steps: int, parent: Ints, name: Ints, total: Ints, count: Ints) -> Flame | None:
    sum_ns = int(total[parent < 0].sum())
    if not sum_ns:
        return None
    # A path is kept only if its parent is, which may be shorter where events cross.
    keep = np.zeros(total.size, bool)
    keep[np.argsort(-total, kind="stable")[:_MAX_PATHS]] = True
    keep &= total >= sum_ns * _MIN_SHARE
    for i in range(total.size):  # parents come before their children
        if keep[i] and parent[i] >= 0 and not keep[parent[i]]:
            keep[i] = False
    kept = np.flatnonzero(keep)
    place = np.full(total.size, -1, np.int64)
    place[kept] = np.arange(kept.size)
    hidden = ~keep & (parent >= 0)
    hidden[hidden] = keep[parent[hidden]]
    used, code = np.unique(name[kept], return_inverse=True)
    kind_of_name = np.zeros(len(trace.names) + 1, np.int64)
    kind_of_name[trace.name[trace.host_rows]] = trace.kind[trace.host_rows]
    kind_of_name[-1] = Kind.RANGE
    return Flame(
        source=trace.path.name,
        total_ns=sum_ns,
        steps=steps,
        notes=(_AS_RECORDED,),
        name=tuple(code.reshape(-1).tolist()),
        parent=tuple(np.where(parent[kept] >= 0, place[parent[kept]], -1).tolist()),
        total=tuple(total[kept].tolist()),
        count=tuple(count[kept].tolist()),
        names=tuple(clean(_ADDRESS.sub("", trace.names[i])) if i < len(trace.names) else "step" for i in used.tolist()),
        kinds=tuple(_KIND.get(Kind(kind_of_name[i]), "op") for i in used.tolist()),
        hidden_ns=int(total[hidden].sum()),
    )
