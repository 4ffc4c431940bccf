"""One rank's columns from its folder in a run: its timed steps, without a window."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfkit.measures.steps._timed_rows import own_rows, phase_columns, work_column
from perfkit.ranks.rank_columns import RankColumns, within_budget
from perfkit.run.ending import unwritten_end
from perfkit.run.reading import RankFolder
from perfkit.run.records import Rank
from perfkit.trace.intervals import Ints


def columns_of_rows(
    folder: RankFolder, *, world_size: int | None = None, launch: str = "", source: str = "", digest: str = ""
) -> RankColumns:
    """The columns of a rank's rows, within the budget of a rank.

    Steps that were recorded in a window, or for lines or ops, are left out, because that slowed them; so are rows of
    merged steps.
    """
    rows, rank = own_rows(folder.steps), folder.rank
    ordinary = [row for row in rows if row.kind == "timed" and row.steps == 1]
    ordinary = sorted({row.step: row for row in ordinary}.values(), key=lambda row: row.step)
    merged = sum(row.steps for row in rows if row.steps > 1)
    lost = [*folder.lost]
    if rank is None:
        lost.append("rank.json is missing: its host and the time of its clock are not known")
    else:
        lost += [one for one in (unwritten_end(rank, folder.folder),) if one is not None]
    if merged:
        lost.append(f"{merged:,} older steps are merged into rows of several, which are left out")
    if not ordinary:
        lost.append("no ordinary step was recorded")
    phases = {name: _numbers(values) for name, values in phase_columns(ordinary).items()}
    phases = {name: column for name, column in phases.items() if (column >= 0).any()}
    n = len(ordinary)
    return within_budget(
        RankColumns(
            rank=folder.index,
            world_size=world_size,
            host=rank.host if rank is not None else "",
            launch=rank.launch_id if rank is not None else launch,
            source=source or str(folder.folder),
            origin="rows",
            digest=digest,
            lost=tuple(lost),
            step_number=np.array([row.step for row in ordinary], np.int64),
            step_start_ns=_unix_time(np.array([row.start_ns for row in ordinary], np.int64), rank),
            step_wall_ns=np.array([row.wall_ns for row in ordinary], np.int64),
            phase_names=tuple(phases),
            phases_ns=np.stack([*phases.values()], axis=1) if phases else np.zeros((n, 0), np.int64),
            gc_ns=_numbers([row.gc_ns for row in ordinary]),
            waited_ns=_numbers([row.waited_ns for row in ordinary]),
            work=_numbers(work_column(ordinary)),
            group_names=(),
            kind_names=(),
            collective_group=np.zeros(0, np.int32),
            collective_kind=np.zeros(0, np.int32),
            **{f"collective_{name}": np.zeros(0, np.int64) for name in _NO_COLLECTIVES},
            kernel_classes=(),
            kernel_ns=np.zeros((n, 0), np.int64),
            kernel_count=np.zeros((n, 0), np.int64),
        )
    )


_NO_COLLECTIVES = ("sequence", "bytes", "step", "arrive_ns", "start_ns", "end_ns", "busy_ns")


def _numbers(values: Sequence[int | None]) -> Ints:
    return np.array([-1 if value is None else value for value in values], np.int64)


def _unix_time(perf_ns: Ints, rank: Rank | None) -> Ints:
    """Times of the run's clock as unix time, where the rank wrote both; between two pairs by a straight line."""
    pairs = sorted(rank.clock_pairs, key=lambda pair: pair.perf_ns) if rank is not None else []
    if not pairs:
        return perf_ns
    offsets = [pair.unix_ns - pair.perf_ns for pair in pairs]
    # Differences between the pairs are small, and exact as floats; the offsets themselves are not.
    drift = np.interp(perf_ns, [pair.perf_ns for pair in pairs], [offset - offsets[0] for offset in offsets])
    return np.asarray(perf_ns + offsets[0] + np.rint(drift).astype(np.int64), np.int64)
