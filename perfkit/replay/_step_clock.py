"""Times of a recording, scaled to the steps that were not recorded: a recording inflates what the host does."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.steps._phase_times import phase_times
from perfkit.replay._selection import active, loading
from perfkit.replay.replaying import replay
from perfkit.replay.task_graph import TaskGraph, TaskTimes
from perfkit.run.records import PHASES
from perfkit.trace.columns import Kind
from perfkit.trace.intervals import Bools, Ints, covered_before

Floats = npt.NDArray[np.float64]

#: A phase that a recording shows this many times as long or as short is another phase: its own factor is not used.
_MOST = 10.0
#: A recording slows forward and rest by factors that differ less than this; where they differ more, the trace's forward
#: has another beginning than the clock's.
_APART = 1.5
#: A recorded step this many times as long as the median one was interrupted.
_INTERRUPTED = 1.5
#: What the recording of an event takes at most, in ns: with a range around each module, as windows have. Chosen on the
#: tuning pairs of bench_replay, from 0 to 20 µs.
_EVENT_NS = 10_000.0
#: What the recording does at each end of a step or of a range, in ns. In the tuning pairs of bench_replay, in loops
#: that do nothing there, the recorded pieces where steps begin and end take 29 to 75 and 37 to 86 µs at least; next to
#: the ranges of a model and an optimizer they take up to 100.
_HOOKS_NS = 50_000.0
#: The replayed step is the unrecorded one where it differs by less than this share.
_NEAR = 0.001
_TRIES = 16
#: Halvings of the interval in which the recording's time per event lies: a thousandth of it.
_ROUNDS = 10


def unrecorded_times(graph: TaskGraph, budget: StepBudget | None) -> TaskTimes:
    """The recorded times, with those of the host scaled so that the replayed step is the unrecorded one.

    Without a device each phase has its own factor. With one, the loader has, and all else one: found by trying it,
    because a device hides a part of what the host takes. A step that is no longer unrecorded than recorded needs none.
    """
    times = graph.recorded.copy()
    if budget is None or budget.typical is None or budget.traced is None or not graph.steps.row.size:
        return times
    if not graph.on_device:
        for part in _parts(graph, budget):
            _scale_to_typical(graph, times, part, budget.trace_scale)
        return times
    data = loading(graph)
    factor = _factor(budget.typical.phases_ns.data, budget.traced.phases_ns.data)
    if factor is not None:
        times.host[data] = _scaled(times.host[data], factor)
    rest = active(graph).pieces & ~data
    recorded = times.host[rest]

    def beyond(factor: float) -> float:
        """By how much the replayed step with this factor is longer, in ns; the times have it then."""
        times.host[rest] = _scaled(recorded, factor)
        return replay(graph, times).step_ns - budget.wall_ns

    if (excess := beyond(1.0)) > 0:
        _find_zero(beyond, excess, budget.wall_ns * _NEAR)
    return times


def _find_zero(beyond: Callable[[float], float], at_one: float, near: float) -> None:
    """Call a function that rises from 0 to 1 where it is ``near`` zero, last of all; at 0 if it is above zero there.

    By false position with the Illinois rule (Dowell and Jarratt 1971, BIT 11), and by halving where three of these did
    not halve the interval: a step is nearly a straight line of the factor, so four calls find what ten halvings find,
    and flat where the device is the limit.
    """
    low, high, below, above = 0.0, 1.0, beyond(0.0), at_one
    length, side, slow = 1.0, 0, 0
    for _ in range(_TRIES):
        if below >= -near:
            return
        slow = slow + 1 if high - low > length / 2 else 0
        length = high - low
        factor = (low + high) / 2 if slow > 3 else (low * above - high * below) / (above - below)
        excess = beyond(factor)
        if abs(excess) <= near:
            return
        if excess > 0:
            high, above = factor, excess
            below /= 2 if side > 0 else 1
            side = 1
        else:
            low, below = factor, excess
            above /= 2 if side < 0 else 1
            side = -1


def _scaled(ns: Ints | Floats, factor: float) -> Ints:
    return np.asarray(np.rint(ns * factor), np.int64)


def _factor(typical_ns: float | None, traced_ns: float | None) -> float | None:
    if not typical_ns or not traced_ns:
        return None
    factor = typical_ns / traced_ns
    return factor if 1 / _MOST <= factor <= _MOST else None


class _Part(NamedTuple):
    """A part of the step: its pieces of the host, and what it takes in an unrecorded step."""

    inside: Bools
    typical_ns: float


def _parts(graph: TaskGraph, budget: StepBudget) -> list[_Part]:
    """The phases that both the trace and the steps show, and the rest.

    The clock's forward begins at the model, a trace's at its first op: what a loop makes of tensors before the model
    is "other" there and forward here. Where the two disagree, forward and rest are one part.
    """
    assert budget.typical is not None  # the caller made sure
    left, found = active(graph).pieces.copy(), {}
    for phase in PHASES:
        of, typical_ns = phase_times(graph.trace).get(phase), getattr(budget.typical.phases_ns, phase)
        if of is None or not typical_ns:
            continue
        inside = left & (covered_before(of, graph.lanes.ends) > covered_before(of, graph.lanes.starts))
        left &= ~inside
        found[phase] = _Part(inside, typical_ns)
    rest = _Part(left, max(0.0, budget.typical.wall_ns - sum(part.typical_ns for part in found.values())))
    if (forward := found.get("forward")) is not None:
        factors = [
            factor
            for part in (forward, rest)
            if (factor := _factor(part.typical_ns, _step_times(graph, part.inside, graph.recorded.host).mean()))
        ]
        if len(factors) < 2 or max(factors) > _APART * min(factors):
            del found["forward"]
            rest = _Part(rest.inside | forward.inside, rest.typical_ns + forward.typical_ns)
    return [*found.values(), rest]


def _scale_to_typical(graph: TaskGraph, times: TaskTimes, part: _Part, otherwise: float) -> None:
    """Scale a part of the step to what it takes unrecorded, ``otherwise`` where the trace shows another part.

    A recorded step that another program interrupted is much longer than the others, and what it was doing then would
    pass for what takes most of the step: it counts as one of the others first. A recording costs a time at the ends of
    steps and ranges, where its hooks run, and a time per event, which passes in what calls it: these are taken off the
    pieces before all are scaled. What they do not explain is taken off first where nothing has a name.
    """
    recorded = _step_times(graph, part.inside, times.host)
    usual = float(np.median(recorded))
    shorter = np.ones(recorded.size)
    if usual > 0:
        shorter = np.where(recorded > _INTERRUPTED * usual, usual / np.maximum(recorded, 1), 1.0)
    step = np.clip(graph.piece_step[part.inside], 0, recorded.size - 1)
    before = times.host[part.inside] * shorter[step]
    if _factor(part.typical_ns, float((recorded * shorter).mean())) is None:
        times.host[part.inside] = _scaled(before, otherwise)
        return
    typical_ns = part.typical_ns * recorded.size
    timed = _is_timed(graph)[part.inside]

    def excess_ns() -> float:
        return float(left[timed].sum()) - typical_ns

    left = before.copy()
    of_hooks = before - np.minimum(before, _without_hooks(graph)[part.inside])
    if (there := float(of_hooks[timed].sum())) > 0:
        left -= of_hooks * min(1.0, max(0.0, excess_ns()) / there)
    ends = _ends_of_others(graph)
    edges = (ends.before.astype(np.int64) + ends.after)[part.inside]
    left -= np.minimum(left, edges * _edge_ns(left[timed], edges[timed], excess_ns()))
    unnamed = _is_unnamed(graph)[part.inside]
    if (excess := excess_ns()) > 0 and (without_name := float(left[unnamed & timed].sum())) > 0:
        left[unnamed] *= max(0.0, 1 - excess / without_name)
    times.host[part.inside] = _scaled(left, 1.0)
    left_ns = float(_step_times(graph, part.inside, times.host).mean())
    times.host[part.inside] = _scaled(times.host[part.inside], part.typical_ns / max(1.0, left_ns))


def _without_hooks(graph: TaskGraph) -> Floats:
    """What each piece takes at most without what the recording's hooks do in it: no limit but next to steps and ranges.

    A window's first and last step have in their pieces at the window's ends what opens and closes it, too: these count
    as those of the other steps.
    """
    recorded, lanes = graph.recorded.host, graph.lanes
    ends = _ends_of_others(graph)
    is_range = (lanes.row >= 0) & graph.trace.is_kind(Kind.RANGE)[np.maximum(lanes.row, 0)]
    beside = (ends.before & np.roll(is_range, 1)).astype(np.int64) + (ends.after & np.roll(is_range, -1))
    most = np.where(beside > 0, np.maximum(0.0, recorded - beside * _HOOKS_NS), np.inf)
    step = np.where(_is_timed(graph), graph.piece_step, -1)[: lanes.first[1]]
    unnamed = _is_unnamed(graph)
    for other in (np.append(-1, step[:-1]), np.append(step[1:], -1)):
        pieces = np.flatnonzero((step >= 0) & (step != other))
        pieces = pieces[unnamed[pieces]]
        if pieces.size:
            usual = max(0.0, float(np.median(recorded[pieces])) - _HOOKS_NS)
            most[pieces] = np.minimum(most[pieces], usual)
    return np.asarray(most, np.float64)


def _is_timed(graph: TaskGraph) -> Bools:
    """The pieces of the loop's thread in the recorded steps, which are what a step takes."""
    timed = (graph.piece_step >= 0) & (graph.piece_step <= graph.last_step)
    timed[graph.lanes.first[1] :] = False
    return np.asarray(timed, bool)


class _Ends(NamedTuple):
    """For each piece whether its beginning and its end are where something that it called ends and begins."""

    before: Bools
    after: Bools


def _ends_of_others(graph: TaskGraph) -> _Ends:
    trace, lanes = graph.trace, graph.lanes
    row = np.maximum(lanes.row, 0)
    begins = (lanes.row >= 0) & (trace.start_ns[row] == lanes.starts)
    ends = (lanes.row >= 0) & (trace.end_ns[row] == lanes.ends)
    return _Ends(~begins, ~ends)


def _is_unnamed(graph: TaskGraph) -> Bools:
    """The pieces in no event, or in none but that of the step."""
    row, is_step = graph.lanes.row, np.zeros(len(graph.trace), bool)
    is_step[graph.steps.row] = True
    return (row < 0) | is_step[row]


def _edge_ns(pieces: Floats, edges: Ints, excess_ns: float) -> float:
    """What the recording of one end of an event took, at most half of `_EVENT_NS`: that makes up the excess."""
    low, high = 0.0, _EVENT_NS / 2
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        if float(np.minimum(pieces, edges * middle).sum()) > excess_ns:
            high = middle
        else:
            low = middle
    return low


def _step_times(graph: TaskGraph, inside: Bools, host: Ints) -> Floats:
    """What the loop's thread takes in these pieces, of each recorded step, in ns."""
    mine = inside & _is_timed(graph)
    ns = np.bincount(graph.piece_step[mine], weights=host[mine], minlength=graph.last_step + 1)
    return np.asarray(ns, np.float64)
