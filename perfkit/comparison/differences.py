"""What changed in time and counts, and whether a change of the step is more than noise."""

from __future__ import annotations

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
    """Step and phases, tested against the noise between steps where both sides hold enough of them."""
    # Loads numpy, which `perfkit run`, for which this file is imported too, must leave to the program.
    from perfkit.measures.steps.difference_interval import MIN_STEPS

    means = {name: (_mean(first, name), _mean(second, name)) for name in ("step", *PHASES)}
    known = {name: (b, a) for name, (b, a) in means.items() if b is not None and a is not None}
    tested = known and min(len(first.steps), len(second.steps)) >= MIN_STEPS
    intervals = _intervals(first.steps, second.steps, list(known)) if tested else {}
    differences = []
    for name, (before, after) in known.items():
        low, high = intervals.get(name, (None, None))
        answer: Change = "not tested"
        if low is not None and high is not None:
            answer = "faster" if high < 0 else "slower" if low > 0 else "no difference"
        kind: Kind = "step" if name == "step" else "phase"
        differences.append(
            Difference(kind=kind, name=name, before_ns=before, after_ns=after, low_ns=low, high_ns=high, change=answer)
        )
    return differences


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


def row_differences(first: Diagnosis, second: Diagnosis) -> list[Difference]:
    """Ranges, ops and kernels whose time per step changed by 5% of the step or more, largest change first."""
    wall_ns = min((d.figures.wall_ns for d in (first, second) if d.figures.wall_ns), default=0)
    kinds: tuple[Kind, ...] = ("range", "op", "kernel")
    differences = []
    for kind in kinds:
        before, after = _times_per_step(first, kind), _times_per_step(second, kind)
        if not before or not after:
            continue  # one side has no such table, so nothing can be new or missing
        names = sorted(before.keys() | after.keys(), key=lambda n: -abs(after.get(n, 0) - before.get(n, 0)))
        for name in names[:_ROWS]:
            was, is_ = before.get(name), after.get(name)
            if abs((is_ or 0) - (was or 0)) >= max(1, NEGLIGIBLE * wall_ns):
                differences.append(
                    Difference(
                        kind=kind,
                        name=name,
                        before_ns=None if was is None else round(was),
                        after_ns=None if is_ is None else round(is_),
                    )
                )
    return differences


def owner_differences(first: Diagnosis, second: Diagnosis) -> list[Difference]:
    """The owners in the ledgers that take 5% of either step or more, by what changed most; idle time by its cause.

    Empty where one ledger is of a device and the other of the training thread, or one is not per step: they divide
    different times.
    """
    ledgers = [diagnosis.shown_ledger for diagnosis in (first, second)]
    known = [claimed.ledger for claimed in ledgers if claimed is not None and claimed.ledger.per == "step"]
    if len(known) < len(ledgers) or known[0].basis != known[1].basis:
        return []
    before, after = (_times_of_owners(ledger) for ledger in known)
    least = NEGLIGIBLE * min(ledger.wall_ns for ledger in known)
    names = [name for name in before.keys() | after.keys() if max(before.get(name, 0), after.get(name, 0)) >= least]
    names.sort(key=lambda name: (-abs(after.get(name, 0) - before.get(name, 0)), name))
    return [Difference(kind="owner", name=name, before_ns=before.get(name), after_ns=after.get(name)) for name in names]


def _times_of_owners(ledger: Ledger) -> dict[str, int]:
    times: dict[str, int] = {}
    for row in ledger.rows:
        name = row.part if row.owner == "idle" else row.owner
        times[name] = times.get(name, 0) + row.ns
    return times


def _times_per_step(diagnosis: Diagnosis, kind: Kind) -> dict[str, float]:
    """The time per traced step by name: of a range on the host, of an op by itself, of a kernel on the device."""
    figures = diagnosis.figures
    steps = figures.trace.steps if figures.trace is not None else 0
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
