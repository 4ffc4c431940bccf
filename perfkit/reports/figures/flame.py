"""Host time by call path, for a flame graph."""

from __future__ import annotations

import re

import numpy as np

from perfkit._text import clean
from perfkit.measures.steps._trace_steps import whole_steps
from perfkit.reports.figures.data import Flame
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
        name=tuple(code.reshape(-1).tolist()),
        parent=tuple(np.where(parent[kept] >= 0, place[parent[kept]], -1).tolist()),
        total=tuple(total[kept].tolist()),
        count=tuple(count[kept].tolist()),
        names=tuple(clean(_ADDRESS.sub("", trace.names[i])) if i < len(trace.names) else "step" for i in used.tolist()),
        kinds=tuple(_KIND.get(Kind(kind_of_name[i]), "op") for i in used.tolist()),
        hidden_ns=int(total[hidden].sum()),
    )
