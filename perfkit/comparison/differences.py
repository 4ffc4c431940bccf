"""What changed in time and counts, and whether a change of the step is more than noise."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from perfkit.comparison.results import COUNTS, Change, Count, Difference, Kind
from perfkit.comparison.sides import Side
from perfkit.diagnosis import Diagnosis
from perfkit.ledger.ledger import Ledger
from perfkit.ledger.step_budget import NEGLIGIBLE
from perfkit.run.records import PHASES, Step

#: Of ranges, ops and kernels, this many of each are kept, those with the largest changes: as many as a person reads.
_ROWS = 10


def _mean(side: Side, name: str) -> int | None:
    if side.step is None:
        return None
    if name == "step":
        return side.step.wall_ns
    mean: int | None = getattr(side.step.phases_ns, name)
    return mean


def step_differences(first: Side, second: Side) -> list[Difference]:
    """Step and phases, tested against the noise between steps where both sides hold enough of them.

    Steps of run folders are tested by a bootstrap, those of traces by Welch's interval. Where neither side has steps,
    the whole recordings are compared, and cannot be tested. What took no time on both sides is left out.
    """
    # Loads numpy, which `perfkit run`, for which this file is imported too, must leave to the program.
    from perfkit.measures.steps.difference_interval import MIN_STEPS

    means = {name: (_mean(first, name), _mean(second, name)) for name in ("step", *PHASES)}
    known = {name: (b, a) for name, (b, a) in means.items() if b is not None and a is not None and (b or a)}
    if not known:
        return _recordings(first, second)
    tested = min(len(first.steps), len(second.steps)) >= MIN_STEPS
    intervals = _intervals(first.steps, second.steps, list(known)) if tested else {}
    differences = []
    for name, (before, after) in known.items():
        kind: Kind = "step" if name == "step" else "phase"
        traced = not (first.steps or second.steps)
        interval = intervals.get(name) or (sampled_interval(first, second, kind, name) if traced else None)
        differences.append(_tested(kind, name, before, after, interval))
    return differences


def _recordings(first: Side, second: Side) -> list[Difference]:
    """Both whole recordings, where neither has steps."""
    walls = [side.diagnosis.figures.wall_ns for side in (first, second) if side.step is None]
    before, after = walls if len(walls) == 2 else (None, None)
    return [_tested("recording", "recording", before, after, None)] if before and after else []


def _tested(
    kind: Kind, name: str, before: int | None, after: int | None, interval: tuple[int, int] | None
) -> Difference:
    """A difference with what its interval says: that of after - before in ns, None where it is not known."""
    low, high = interval if interval is not None else (None, None)
    answer: Change = "not tested"
    if low is not None and high is not None:
        answer = "faster" if high < 0 else "slower" if low > 0 else "no difference"
    return Difference(kind=kind, name=name, before_ns=before, after_ns=after, low_ns=low, high_ns=high, change=answer)


def sampled_interval(first: Side, second: Side, kind: Kind, name: str) -> tuple[int, int] | None:
    """The interval of a difference over the steps of both traces; None where one holds fewer than three.

    A name that one side does not have took no time in its steps.
    """
    # See above.
    import numpy as np

    # See above.
    from perfkit.measures.steps.difference_interval import few_steps_interval

    if first.samples is None or second.samples is None:
        return None
    before, after = (
        side.times.get((kind, name), np.zeros(side.steps, np.int64)) for side in (first.samples, second.samples)
    )
    interval = few_steps_interval(before, after)
    return (round(interval[0]), round(interval[1])) if interval is not None else None


def _intervals(before: list[Step], after: list[Step], names: list[str]) -> dict[str, tuple[int, int]]:
    # See above.
    import numpy as np

    # See above.
    from perfkit.measures.steps.difference_interval import difference_interval

    times = [np.array([[_time(row, name) for name in names] for row in rows]) for rows in (before, after)]
    low, high = difference_interval(*times)
    return {name: (round(low[column]), round(high[column])) for column, name in enumerate(names)}


def _time(row: Step, name: str) -> float:
    total = row.wall_ns if name == "step" else getattr(row.phases_ns, name)
    # A phase that a step did not have (validation, a checkpoint) took none of its time.
    return (total or 0) / row.steps


def row_differences(first: Side, second: Side) -> list[Difference]:
    """Ranges, ops and kernels whose time per step changed by 5% of the step or more, largest change first.

    Without steps on both sides, of the whole recordings.
    """
    sides = first.diagnosis, second.diagnosis
    wall_ns = min((d.figures.wall_ns for d in sides if d.figures.wall_ns), default=0)
    kinds: tuple[Kind, ...] = ("range", "op", "kernel")
    differences: list[Difference] = []
    for kind in kinds:
        before, after = (_times_per_step(diagnosis, kind) for diagnosis in sides)
        if not before or not after or (first.step is None) != (second.step is None):
            continue  # one side has no such table or no steps, so nothing can be new or missing
        names = sorted(before.keys() | after.keys(), key=lambda n: -abs(after.get(n, 0) - before.get(n, 0)))
        for name in names[:_ROWS]:
            was, is_ = before.get(name, _sampled(first, kind, name)), after.get(name, _sampled(second, kind, name))
            if abs((is_ or 0) - (was or 0)) >= max(1, NEGLIGIBLE * wall_ns):
                differences += _row(first, second, kind, name, was, is_)
    return differences


def _sampled(side: Side, kind: Kind, name: str) -> float | None:
    """The mean over the steps of the trace, for what is not among the longest that a diagnosis keeps."""
    each = side.samples.times.get((kind, name)) if side.samples is not None else None
    return float(each.mean()) if each is not None and each.any() else None


def _row(
    first: Side, second: Side, kind: Kind, name: str, was: float | None, is_: float | None
) -> Iterator[Difference]:
    """The difference of one name; none where one side lacks it by chance.

    What ran in each step of one side and in none of the other is no noise, whatever its spread. What ran in some steps
    of one side only may be missing on the other because its window is short: there the interval decides.
    """
    before, after = (None if one is None else round(one) for one in (was, is_))
    found = _tested(kind, name, before, after, sampled_interval(first, second, kind, name))
    if before is not None and after is not None:
        yield found
        return
    owner = (first if after is None else second).samples
    each = owner.times.get((kind, name)) if owner is not None else None
    if each is not None and bool((each > 0).all()):
        yield msgspec.structs.replace(found, change="faster" if after is None else "slower")
    elif found.change != "no difference":
        yield found


def owner_differences(first: Side, second: Side, step: Difference | None) -> list[Difference]:
    """The owners in the ledgers that take 5% of either step or more, by what changed most; idle time by its cause.

    Empty where one ledger is of a device and the other of the training thread, or both are not of the same unit: they
    divide different times. Owners of a device are tested over the steps of the traces. Those of a host were not
    measured step by step: their interval is as wide as that of the ``step``, of which they are parts.
    """
    ledgers = [side.diagnosis.shown_ledger for side in (first, second)]
    known = [claimed.ledger for claimed in ledgers if claimed is not None]
    if len(known) < len(ledgers) or known[0].basis != known[1].basis or known[0].per != known[1].per:
        return []
    before, after = (_times_of_owners(ledger) for ledger in known)
    least = NEGLIGIBLE * min(ledger.wall_ns for ledger in known)
    names = [name for name in before.keys() | after.keys() if max(before.get(name, 0), after.get(name, 0)) >= least]
    names.sort(key=lambda name: (-abs(after.get(name, 0) - before.get(name, 0)), name))
    found = []
    for name in names:
        was, is_ = before.get(name), after.get(name)
        on_device = known[0].basis == "device" and first.samples is not None and second.samples is not None
        measured = on_device and any(("owner", name) in side.samples.times for side in (first, second) if side.samples)
        interval = sampled_interval(first, second, "owner", name) if measured else None
        if interval is None and step is not None and step.low_ns is not None and step.high_ns is not None:
            interval = step.low_ns, step.high_ns
        found.append(_tested("owner", name, was, is_, _centered(interval, (is_ or 0) - (was or 0))))
    return found


def _centered(interval: tuple[int, int] | None, difference: int) -> tuple[int, int] | None:
    """An interval of the same width around another difference: the ledger's times are scaled to the typical step."""
    if interval is None:
        return None
    half = (interval[1] - interval[0]) // 2
    return difference - half, difference + half


def _times_of_owners(ledger: Ledger) -> dict[str, int]:
    times: dict[str, int] = {}
    for row in ledger.rows:
        name = row.part if row.owner == "idle" else row.owner
        times[name] = times.get(name, 0) + row.ns
    return times


def _times_per_step(diagnosis: Diagnosis, kind: Kind) -> dict[str, float]:
    """The time per traced step by name: of a range on the host, of an op by itself, of a kernel on the device.

    Of a trace without steps, the times in all of it.
    """
    figures = diagnosis.figures
    steps = max(1, figures.trace.steps) if figures.trace is not None else 0
    ranges = ((row.name, row.host_ns) for row in figures.ranges if row.source == "trace")
    ops = ((row.name, row.self_ns) for row in figures.ops)
    kernels = ((row.name, row.total_ns) for row in figures.kernels)
    rows = {"range": ranges, "op": ops, "kernel": kernels}[kind]
    return {name: ns / steps for name, ns in rows if steps}


def count_differences(first: Diagnosis, second: Diagnosis) -> tuple[Count, ...]:
    """The counts that both sides have."""
    before, after = _counted(first), _counted(second)
    return tuple(
        Count(name=name, before=was, after=is_)
        for name in COUNTS
        if (was := before[name]) is not None and (is_ := after[name]) is not None
    )


def _counted(diagnosis: Diagnosis) -> dict[str, float | None]:
    figures, step = diagnosis.figures, diagnosis.step
    return {
        "syncs": figures.syncs_per_step,
        "recompiles": step.recompiles if step is not None else None,
        "graph breaks": figures.graph_breaks,
        "launches": figures.launches_per_step,
        "ops": figures.ops_per_step,
    }
