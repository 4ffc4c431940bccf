"""The ledger of the thread that trains: its phases, by the ops and the lines that run in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from perfkit._format import percent
from perfkit._location import Location
from perfkit.ledger.rows import LedgerRow, Owner, Partition, apportion
from perfkit.ledger.step_budget import MAJORITY, StepBudget
from perfkit.measures.results.host import HostWork
from perfkit.measures.results.measurements import Measurements
from perfkit.measures.results.steps import Ranks
from perfkit.measures.results.work import OpShares, OpWorkTime, StepWork
from perfkit.run.records import ACCESSES, PHASES, Lines, MachineLimits, Phase, Rank

#: Who owns the time of a phase in which no op runs.
_OWNERS: dict[Phase, Owner] = {
    "data": "data",
    "transfer": "copies",
    "validation": "validation",
    "callbacks": "callbacks",
    "logging": "logging",
    "checkpoint": "checkpoint",
    # The backward runs no Python of the loop: what is between its ops is the autograd engine.
    "backward": "op overhead",
}
#: Phases in which ops are the phase's own work, and not computing.
_OWN_OPS: frozenset[Phase] = frozenset({"data", "transfer"})
#: Phases of training, in which ops run.
_WITH_OPS: frozenset[Phase] = frozenset({"forward", "backward"})
#: A machine that ran below this share of its speed is said to be slower: two runs of one program differ by less.
_SLOWED = 0.9


def host_rows(budget: StepBudget, found: Measurements) -> Partition:
    """The step of the thread that trains, divided by phase, and each phase by its ops and lines."""
    work, limits, lines = found.get(StepWork), found.get(MachineLimits), found.get(Lines)
    others_ns = _without_a_core(budget, found.get(Rank))
    running = 1 - others_ns / budget.wall_ns
    several = found.get(Ranks) is not None
    overheads = _Overheads(work, limits) if work is not None and limits is not None else None
    sources = _Sources(work, found.get(OpShares), limits, overheads, lines, found.all(HostWork), running, several)
    rows: list[LedgerRow] = []
    if others_ns:
        rows.append(LedgerRow(owner="other programs", name="waiting for a core", ns=others_ns))
    phases = _phases(budget, budget.wall_ns - others_ns)
    for phase, ns in phases.items():
        blocked = _in_collectives(phase, ns, budget, found.get(Ranks))
        rows += [*blocked, *_rows_of_phase(phase, ns, sum(row.ns for row in blocked), budget, sources, phases)]
    if work is None:
        unknown = "the shapes of ops were not recorded"
    elif (
        sum(phases.get(phase, 0) for phase in _WITH_OPS - {row.phase for row in work.rows}) > MAJORITY * budget.wall_ns
    ):
        unknown = "the recorded steps are of another loop than most of the run (--schedule 100,2,3 records later ones)"
    elif limits is None:
        unknown = "the limits of the machine were not measured (perfkit doctor measures them)"
    else:
        slower = f", at {percent(limits.speed, 1)} of its speed" if limits.speed < _SLOWED else ""
        return Partition(rows, f"measured on {limits.cpu}{slower}", None)
    return Partition(rows, None, unknown)


class _Overheads:
    """What calls cost in this step, whatever they compute: by what ops touch between two calls of the same op.

    That takes what such a call needs of torch and Python from the caches.
    """

    def __init__(self, work: StepWork, limits: MachineLimits) -> None:
        self._limits = limits
        self._calls: dict[str, float] = defaultdict(float)
        for row in work.rows:
            self._calls[row.op] += row.calls
        # Each thread touches its part, and Python runs where one of them did.
        self._touched = sum(row.calls * (row.bytes or 0) for row in work.rows) / max(1, limits.threads)

    def of_ops(self, row: OpWorkTime) -> float:
        """The ops of a row, in ns per step."""
        limits, touched = self._limits, self._between(row)
        inner_ns = limits.overhead_ns("inner", touched)
        # The engine calls those of the backward, for which Python's arguments need not be read.
        from_python = row.outermost if row.phase != "backward" else 0.0
        return row.ops * inner_ns + from_python * max(0.0, limits.overhead_ns("op", touched) - inner_ns)

    def of_callers(self, rows: Sequence[OpWorkTime]) -> float:
        """Python's part in the calls of these rows, in ns per step."""
        return sum(row.outermost * self._limits.overhead_ns("call", self._between(row)) for row in rows)

    def _between(self, row: OpWorkTime) -> float:
        return self._touched / max(1.0, self._calls[row.op])


class _Sources(msgspec.Struct, frozen=True):
    """What is known about the inside of phases; ``running`` is the share of the step in which the thread had a core.

    ``ranks`` is whether other ranks trained with this one.
    """

    work: StepWork | None
    shares: OpShares | None
    limits: MachineLimits | None
    overheads: _Overheads | None
    lines: Lines | None
    host_work: tuple[HostWork, ...]
    running: float
    ranks: bool


def _without_a_core(budget: StepBudget, rank: Rank | None) -> int:
    """The part of the step in which other programs had the core; it is the machine's and not the program's."""
    if rank is None or rank.core_wait_share is None or budget.typical is None:
        return 0
    # Steps that waited long are no typical ones: what the thread itself ran remains.
    waited_ns = min(rank.core_wait_share * budget.wall_ns, budget.wall_ns - (rank.thread_ns_per_step or 0))
    return max(0, round(waited_ns))


def _phases(budget: StepBudget, whole_ns: int) -> dict[Phase | None, int]:
    """The phases of the step; they sum to ``whole_ns``. Without any the whole step is one part that has no phase."""
    step = budget.typical or budget.traced
    named: dict[Phase, int] = {}
    if step is not None:
        named = {phase: ns for phase in PHASES if (ns := getattr(step.phases_ns, phase))}
    if not named:
        return {None: whole_ns}
    return dict(zip(named, apportion(whole_ns, list(named.values())), strict=True))


def _in_collectives(phase: Phase | None, ns: int, budget: StepBudget, ranks: Ranks | None) -> list[LedgerRow]:
    """The part of a phase in which the thread was blocked in collectives: in the transfer, and in waiting for ranks.

    The latter is what the rank waits beyond the one that waits least; it is known where all ranks' rows are.
    """
    step = budget.typical
    waits, phases = (step.waited_phases_ns, step.phases_ns) if step is not None else (None, None)
    waited_ns = getattr(waits, phase or "other", None)
    if phase is None or not waited_ns:
        return []
    blocked = round(ns * min(1.0, waited_ns / (getattr(phases, phase) or waited_ns)))
    waiting = 0.0
    if ranks is not None and ranks.transfer_ns is not None and step is not None and step.waited_ns:
        waiting = max(0.0, 1 - ranks.transfer_ns / step.waited_ns)
    parts = apportion(blocked, [waiting, 1 - waiting])
    names: tuple[tuple[Owner, str], ...] = (("waiting for ranks", "collectives"), ("communication", "on the host"))
    return [
        LedgerRow(owner=owner, name=name, ns=part, phase=phase)
        for (owner, name), part in zip(names, parts, strict=True)
        if part
    ]


def _rows_of_phase(
    phase: Phase | None, ns: int, blocked: int, budget: StepBudget, sources: _Sources, phases: dict[Phase | None, int]
) -> list[LedgerRow]:
    """The rows of a phase but for what it is ``blocked`` in collectives: its ops, and what is outside of them."""
    work = sources.work
    ops = [row for row in work.rows if phase in (None, row.phase)] if work is not None else []
    in_ops = _in_window(phase, ns, budget, sources, phases.get("backward")) if ops else 0
    if in_ops is None:
        in_ops = _in_step_for_lines(ns, ops, budget, sources)
    own_ns = ns - blocked
    in_ops = min(in_ops, own_ns)
    found = [
        *_op_rows(phase, in_ops, ops, sources),
        *_line_rows(phase, own_ns - in_ops, budget, sources, ops),
    ]
    # The line of the loop itself (``optimizer.step()``) is in no function that the step for lines sees begin.
    usual = _hottest_line(phase, sources)
    return _merged([row if row.at is not None else msgspec.structs.replace(row, at=usual) for row in found])


def _hottest_line(phase: Phase | None, sources: _Sources) -> Location | None:
    """The user's line with most samples of a phase; None where there are none, or the phase is not known."""
    rows = sources.lines.rows if sources.lines is not None and phase is not None else ()
    own = [row for row in rows if row.phase == phase and row.worker is None and row.owner == "user"]
    return max(own, key=lambda row: row.samples).at if own else None


def _in_window(
    phase: Phase | None, ns: int, budget: StepBudget, sources: _Sources, backward_ns: int | None
) -> int | None:
    """The part of a phase in ops, by the window; None where none was recorded.

    Recording lengthens a step outside of ops: by its hooks, the ranges of modules, and torch's profiler. So ops take
    what they took in the window, at the speed that the machine had then; the backward, which has nothing of that
    between its ops, shows this speed. With several ranks it shows another rank's. Time in which samples of other steps
    saw Python without ops stays outside of ops.
    """
    shares = sources.shares
    share = shares.shares.get(phase) if shares is not None and phase is not None else None
    if shares is None or phase is None or share is None:
        return None
    ops_ns = shares.at_speed_of(phase, backward_ns) if not sources.ranks else 0.0
    if ops_ns:
        ops_ns = min(ops_ns, ns - sum(part for _, _, part in _sampled(phase, budget, sources, has_ops=True)))
    return round(min(ns, max(ops_ns, ns * share)))


def _in_step_for_lines(ns: int, ops: Sequence[OpWorkTime], budget: StepBudget, sources: _Sources) -> int:
    """The part of a phase in ops, by their times in the step for lines."""
    if sources.work is None:
        return 0
    return min(ns, round(sum(op.ns for op in ops) * sources.running * budget.wall_ns / max(1, sources.work.step_ns)))


def _op_rows(phase: Phase | None, ns: int, ops: Sequence[OpWorkTime], sources: _Sources) -> Iterator[LedgerRow]:
    """The time in ops: each call's overhead, and the rest with its limit."""
    overheads = sources.overheads
    for op, part in zip(ops, apportion(ns, [op.ns for op in ops]), strict=True):
        overhead = min(part, round(overheads.of_ops(op))) if overheads is not None else 0
        owner: Owner = _OWNERS[phase] if phase in _OWN_OPS else "computing"
        place: dict[str, Any] = {"phase": phase or op.phase, "at": op.at, "count": op.calls}
        if overhead and owner == "computing":
            yield LedgerRow(owner="op overhead", name=op.op, ns=overhead, limit_ns=overhead, bound="overhead", **place)
        elif overhead:
            yield LedgerRow(owner=owner, name=op.op, ns=overhead, **place)
        if part > overhead:
            limit_ns = _limit(op, sources.limits)
            limit_ns = None if limit_ns is None else min(part - overhead, limit_ns)
            bound: Literal["arithmetic", "memory"] = "memory" if op.kind in ACCESSES else "arithmetic"
            yield LedgerRow(
                owner=owner,
                name=op.op,
                ns=part - overhead,
                limit_ns=limit_ns,
                bound=bound if limit_ns is not None else None,
                **place,
            )


def _limit(op: OpWorkTime, limits: MachineLimits | None) -> int | None:
    """What the calls of an op would take at the machine's limit, without the overhead of the op."""
    if limits is None or op.flops is None or op.bytes is None or op.precision is None or op.kind is None:
        return None
    limit_ns = limits.op_limit_ns(op.flops, op.bytes, op.precision, op.kind, op.depth)
    return round(op.calls * (limit_ns - limits.op_ns))


def _line_rows(
    phase: Phase | None, ns: int, budget: StepBudget, sources: _Sources, ops: Sequence[OpWorkTime]
) -> Iterator[LedgerRow]:
    """The time outside of ops, by the sampled lines that run there, and what Python needs to call these ops."""
    if ns <= 0:
        return
    has_ops = bool(ops)
    owner: Owner = "unrecorded"
    if phase is not None:
        owner = _OWNERS.get(phase, "python")
    elif budget.per == "program":
        owner = "python"
    if sources.work is None and phase in ("forward", "backward", "optimizer"):
        owner = "computing"
    lines = list(_sampled(phase, budget, sources, has_ops))
    sampled = min(ns, sum(part for _, _, part in lines))
    parts = apportion(sampled, [part for _, _, part in lines])
    for (name, at, _), part in zip(lines, parts, strict=True):
        if part:
            kind: Owner = "waiting" if name == "waiting" else owner if name in ("", "python") else "python"
            yield LedgerRow(owner=kind, name=name or str(phase), ns=part, phase=phase, at=at)
    if rest := ns - sampled:
        if not (has_ops or lines) and phase == "other":
            owner = "unrecorded"
        limit_ns = None
        if has_ops and owner == "python" and sources.overheads is not None:
            limit_ns = min(rest, round(sources.overheads.of_callers(ops)))
        yield LedgerRow(
            owner=owner,
            name="outside ops" if has_ops else str(phase),
            ns=rest,
            phase=phase,
            limit_ns=limit_ns,
            bound="overhead" if limit_ns is not None else None,
        )


def _sampled(
    phase: Phase | None, budget: StepBudget, sources: _Sources, has_ops: bool
) -> Iterator[tuple[str, Location, int]]:
    """(kind, line, ns per step) of samples in this phase; with ops known, of those lines only that call none."""
    if has_ops or sources.lines is None:
        for work in sources.host_work:
            for line in work.lines:
                if phase in (None, line.phase):
                    yield work.kind, line.at, round(sources.running * budget.of_mean(line.host_ns))
        return
    for row in sources.lines.rows:
        if row.worker is None and phase in (None, row.phase):
            # A fetch that waits, for a disk or a network, is loading all the same.
            waiting = sum((row.waiting or {}).values()) if row.phase != "data" else 0
            waits = row.host_ns * waiting // max(1, row.samples)
            for name, ns in (("waiting", waits), ("", row.host_ns - waits)):
                if ns:
                    yield name, row.at, budget.of_mean(ns)


def _merged(rows: Sequence[LedgerRow]) -> list[LedgerRow]:
    """Rows of the same owner, name and place as one; its limit is known where all of theirs are."""
    same: dict[Any, list[LedgerRow]] = defaultdict(list)
    for row in rows:
        same[row.owner, row.name, row.phase, row.at].append(row)
    merged = []
    for together in same.values():
        limits = [row.limit_ns for row in together]
        known = [limit for limit in limits if limit is not None]
        merged.append(
            msgspec.structs.replace(
                together[0],
                ns=sum(row.ns for row in together),
                limit_ns=sum(known) if len(known) == len(limits) else None,
                count=sum(row.count or 0.0 for row in together) or None,
            )
        )
    return merged
