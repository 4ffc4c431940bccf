"""Which rows of steps.jsonl are timed steps of training after the warm-up, the time of their phases, and their work."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from perfkit.run.records import PHASES, Phase, Step, StepKind

#: The first steps include what happens once (allocator, caches, threads, autotuning): torch's own schedule
#: example waits one step and warms up one. They are left out where enough others remain.
_WARM_UP = 2
#: So many times as long as any other is a first step that imports and makes what is used later (chosen).
_FIRST = 2

#: Recorded steps whose validation takes about as long as in others: no op is intercepted in them.
_LIKE_TIMED: tuple[StepKind, ...] = ("warmup", "window", "lines")


def own_rows(rows: Sequence[Step]) -> list[Step]:
    """The training steps; where nothing trains, those of the first mode (an evaluation, a test, a prediction)."""
    mode = "train" if any(row.mode == "train" for row in rows) else rows[0].mode if rows else None
    return [row for row in rows if row.mode == mode]


def timed_rows(rows: Sequence[Step]) -> tuple[list[Step], dict[str, int]]:
    """The rows whose times count, and how many steps were left out for which reason."""
    own = own_rows(rows)
    timed = [row for row in own if row.kind == "timed"]
    dry = sum(row.steps for row in own if row.kind == "dry")
    excluded = {"in a window": sum(row.steps for row in own if row.kind != "timed") - dry, "dry run": dry}
    if len(timed) > 3 * _WARM_UP:
        # A row that was merged from the warm-up and later steps stays: it represents many.
        kept = [row for row in timed if row.step + row.steps > _WARM_UP]
    else:
        # Of a few steps the very first is left out where it shows what happens once: it takes twice as long as any.
        longest = max((row.wall_ns for row in timed[1:]), default=None)
        is_first = longest is not None and timed[0].step == 0 and timed[0].wall_ns > _FIRST * longest
        kept = timed[1:] if is_first else timed
    excluded["warm-up"] = sum(row.steps for row in timed) - sum(row.steps for row in kept)
    timed = kept
    return timed, {reason: count for reason, count in excluded.items() if count}


def recorded_validation(rows: Sequence[Step], timed: Sequence[Step]) -> tuple[int, int]:
    """Validation that recorded steps alone show, and in how many of them; scaled to the number of timed steps.

    A short run validates once or twice, and that step may be a recorded one. Where timed steps have a validation, they
    stand for all.
    """
    if not timed or any(row.phases_ns.validation for row in timed):
        return 0, 0
    own = own_rows(rows)
    found = [
        min(row.wall_ns, row.phases_ns.validation)
        for row in own
        if row.kind in _LIKE_TIMED and row.steps == 1 and row.phases_ns.validation
    ]
    share = sum(row.steps for row in timed) / sum(row.steps for row in own)
    return round(share * sum(found)), len(found)


def work_column(rows: Sequence[Step]) -> list[int | None]:
    """How much data each step had: tokens, else elements of its batch, else samples; of all rows the same measure."""
    columns = ([getattr(row, name) for row in rows] for name in ("tokens", "batch_elements", "samples"))
    return next((column for column in columns if any(size is not None for size in column)), [None] * len(rows))


def phase_columns(rows: Sequence[Step]) -> dict[Phase, list[int | None]]:
    """The times of each phase, in the order of the rows: a hundred thousand rows are read at once, not one by one."""
    phases = [row.phases_ns for row in rows]
    return {phase: list(map(attrgetter(phase), phases)) for phase in PHASES}
