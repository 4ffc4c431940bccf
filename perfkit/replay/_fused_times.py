"""What remains of the host's pieces once their ops are fused: the time that their data takes, without the rest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from perfkit.ledger.faster_updates import faster_form, update_on_host
from perfkit.ledger.ledger import NEAR_LIMIT
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.ops._optimizer_updates import UPDATE
from perfkit.measures.results.measurements import Measurements
from perfkit.measures.results.patterns import Patterns
from perfkit.measures.results.work import OpShares, StepWork
from perfkit.measures.steps._phase_times import phases_at
from perfkit.replay._selection import below
from perfkit.replay.task_graph import FusedTimes, TaskGraph, TaskTimes
from perfkit.run.records import MachineLimits, Phase, Rank
from perfkit.trace.columns import Kind
from perfkit.trace.intervals import Bools, Ints

#: What an op of torch costs on a CPU before it computes: 1 to 4 µs on machines of perfkit's own tests. A fused op does
#: not pay it again for each op that it replaces, whatever happens to the time that these computed.
OP_OVERHEAD_NS = 2_000


def fused_times(graph: TaskGraph, times: TaskTimes, found: Measurements, budget: StepBudget) -> FusedTimes | None:
    """What remains of each piece of a host that computes; None where the limits of its machine are not known.

    Args:
        graph: The recording.
        times: Its times outside of a recording.
        found: What was measured of its run: the work of the ops, and what the machine reaches.
        budget: The step of the run.
    """
    work, limits = found.get(StepWork), found.get(MachineLimits)
    if graph.on_device or work is None or limits is None:
        return None
    fused = _of_data(graph, times, work, limits)
    for one in _updates(graph, found, budget, limits):
        now = _per_step(graph, times, np.flatnonzero(one.pieces))
        for remains, ns in ((fused.least, one.at_least), (fused.most, one.at_most)):
            remains[one.pieces] = times.host[one.pieces] * min(1.0, ns / max(1.0, now))
        fused.apart[one.pieces] = True
    return fused


class _Remains(NamedTuple):
    """What remains of these pieces together, at least and at most; ns per step."""

    pieces: Bools
    at_least: float
    at_most: float


def _of_data(graph: TaskGraph, times: TaskTimes, work: StepWork, limits: MachineLimits) -> FusedTimes:
    """The time of each op's data at this machine's limit; of an op of unknown work all but its overhead."""
    trace, lanes = graph.trace, graph.lanes
    is_op = trace.is_kind(Kind.OP)
    inside = np.flatnonzero((lanes.row >= 0) & (is_op | (trace.above(is_op) >= 0))[lanes.row])
    has_ops = np.zeros(len(trace), bool)
    has_ops[trace.above(is_op)[is_op & (trace.above(is_op) >= 0)]] = True
    least = np.zeros(times.host.size, np.int64)
    alone = inside[~has_ops[lanes.row[inside]]]
    least[alone] = np.maximum(0, times.host[alone] - OP_OVERHEAD_NS)
    most = least.copy()

    names = {row.op for row in work.rows if row.bytes is not None}
    is_known = np.array([name in names for name in trace.names])[trace.name] & is_op
    rows = lanes.row[inside]
    op = np.where(is_known[rows], rows, trace.above(is_known)[rows])
    inside, op = inside[op >= 0], op[op >= 0]
    phases = phases_at(trace, trace.start_ns[op])
    pieces: dict[tuple[str, Phase], list[int]] = defaultdict(list)
    for piece, code, phase in zip(inside.tolist(), trace.name[op].tolist(), phases, strict=True):
        pieces[trace.names[code], phase].append(piece)
    for key, data in _data_of_ops(work, limits).items():
        of: Ints = np.array(pieces.get(key, ()), np.int64)
        share = data.ns / max(1.0, _per_step(graph, times, of) * data.known)
        least[of] = times.host[of] * min(1.0, share)
        most[of] = times.host[of] * min(1.0, share / NEAR_LIMIT)
    return FusedTimes(least, most, np.zeros(least.size, bool))


def _per_step(graph: TaskGraph, times: TaskTimes, pieces: Ints) -> float:
    """What these pieces take in a step, in ns."""
    step = graph.piece_step[pieces]
    return float(times.host[pieces[(step >= 0) & (step <= graph.last_step)]].sum()) / (graph.last_step + 1)


class _Data(NamedTuple):
    """What the data of an op takes per step at this machine's limit, and the share of its time whose work is known."""

    ns: float
    known: float


def _data_of_ops(work: StepWork, limits: MachineLimits) -> dict[tuple[str, Phase], _Data]:
    sums: dict[tuple[str, Phase], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for row in work.rows:
        of = sums[row.op, row.phase]
        of[2] += row.ns
        if row.bytes is not None:
            limit = limits.op_limit_ns(row.flops or 0, row.bytes, row.precision or "", row.kind or "update", row.depth)
            of[0] += row.calls * (limit - limits.op_ns)
            of[1] += row.ns
    return {key: _Data(ns, known / max(1.0, all_)) for key, (ns, known, all_) in sums.items() if known}


def _updates(graph: TaskGraph, found: Measurements, budget: StepBudget, limits: MachineLimits) -> Iterator[_Remains]:
    """The updates of each class of optimizers that have a faster form."""
    patterns = found.get(Patterns)
    if patterns is None:
        return
    rank, shares = found.get(Rank), found.get(OpShares)
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for update in patterns.updates:
        # One that is written in Python is fused in another way, if at all.
        if (form := faster_form(update)) in ("fused", "foreach"):
            then = update_on_host(update, form, patterns, budget, rank, limits, shares)
            sums[update.name][0] += then.at_least
            sums[update.name][1] += then.at_most
    trace = graph.trace
    of_name = [match[1] if (match := UPDATE.match(name)) else "" for name in trace.names]
    for name, (at_least, at_most) in sums.items():
        rows = np.array([one == name for one in of_name])[trace.name] & trace.is_kind(Kind.RANGE, Kind.OP)
        yield _Remains(below(graph, rows).pieces, at_least, at_most)
