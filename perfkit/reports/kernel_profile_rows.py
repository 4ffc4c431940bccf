"""Profiled kernels as rows of text, for a terminal and for markdown; also before and after."""

from __future__ import annotations

from collections.abc import Sequence

from perfkit._format import ms, percent
from perfkit.comparison.results import ProfileChange
from perfkit.measures.results.kernel_profiles import KernelProfile, KernelProfiles, short_name

#: The columns of `profile_rows`: heading and width on a terminal; the name gets what is left. From "limited by" on
#: they need a terminal of 119 columns, all of them one of 163.
PROFILE_COLUMNS = (
    ("kernel", 0),
    ("launches", 9),
    ("each", 9),
    ("share", 6),
    ("compute", 8),
    ("memory", 7),
    ("DRAM", 5),
    ("warps", 6),
    ("regs", 5),
    ("top stall", 22),
    ("limited by", 14),
    ("spills", 7),
    ("roof", 5),
    ("L1 hit", 7),
    ("L2 hit", 7),
    ("no elig", 8),
    ("threads", 8),
    ("sectors", 8),
    ("tensor", 7),
)
#: The columns of `change_rows`.
CHANGE_COLUMNS = (
    ("kernel", 0),
    ("before", 8),
    ("after", 8),
    ("change", 7),
    ("compute", 9),
    ("memory", 9),
    ("warps", 9),
    ("regs", 9),
    ("DRAM", 10),
    ("L2 hit", 10),
    ("no elig", 10),
    ("threads", 10),
    ("sectors", 10),
    ("tensor", 10),
)
#: The fields of `KernelProfile` in them, in parts of 1 but for the numbers.
_CHANGES = (
    "compute",
    "memory",
    "occupancy",
    "registers",
    "dram",
    "l2_hit",
    "no_eligible",
    "threads_per_warp",
    "sector_use",
    "tensor_pipe",
)
_NUMBERS = ("registers", "threads_per_warp")

Columns = Sequence[tuple[str, int]]
#: Minimum width of a name.
_NAME = 16
#: Shown for a value that the report does not contain.
_NONE = "-"


def profile_rows(profiles: KernelProfiles) -> list[tuple[str, ...]]:
    """A row per kernel, grid and block, longest first, as `PROFILE_COLUMNS`.

    "warps" is the occupancy reached, "limited by" what allows no more of it, and "roof" the part of what its arithmetic
    intensity allows. "no elig" are cycles in which no warp can issue, "threads" those of a warp that are active, and
    "sectors" the part of them that is used.
    """
    return [
        (
            short_name(row.name),
            f"{row.launches:,}",
            _time(row.mean_ns),
            _part(row.share),
            _part(row.compute),
            _part(row.memory),
            _part(row.dram),
            _part(row.occupancy),
            _NONE if row.registers is None else str(row.registers),
            _stall(row),
            ", ".join(row.limiters) or _NONE,
            _NONE if row.spills is None else f"{round(row.spills):,}",
            _part(row.roof.roof_share if row.roof is not None else None),
            _part(row.l1_hit),
            _part(row.l2_hit),
            _part(row.no_eligible),
            _NONE if row.threads_per_warp is None else f"{row.threads_per_warp:.1f}",
            _part(row.sector_use),
            _part(row.tensor_pipe),
        )
        for row in profiles.rows
    ]


def change_rows(changes: Sequence[ProfileChange]) -> list[tuple[str, ...]]:
    """A row per kernel, as `CHANGE_COLUMNS`: the time of a launch before and after, and what else changed."""
    rows = []
    for one in changes:
        before, after = one.before, one.after
        rows.append(
            (
                short_name(one.name),
                _time(before.mean_ns if before is not None else None),
                _time(after.mean_ns if after is not None else None),
                one.changed,
                *(f"{_bare(before, name)}→{_bare(after, name)}" for name in _CHANGES),
            )
        )
    return rows


def aligned(columns: Columns, rows: Sequence[tuple[str, ...]], width: int) -> list[str]:
    """A heading and rows in columns for a terminal of this width; columns that do not fit it are left out, from the
    right."""
    shown = len(columns)
    while shown > 2 and sum(space for _, space in columns[:shown]) + _NAME > width:
        shown -= 1
    left = width - sum(space for _, space in columns[:shown])
    lines = []
    for cells in (tuple(heading for heading, _ in columns), *rows):
        name = cells[0] if len(cells[0]) <= left else f"{cells[0][: left - 1]}…"
        numbers = "".join(
            f"{cell[: space - 1]:>{space}}" for cell, (_, space) in zip(cells[1:shown], columns[1:], strict=False)
        )
        lines.append(f"{name:<{left}}{numbers}")
    return lines


def _time(ns: float | None) -> str:
    return _NONE if ns is None else ms(ns)


def _part(part: float | None) -> str:
    return _NONE if part is None else percent(part, 1)


def _bare(row: KernelProfile | None, name: str) -> str:
    value = getattr(row, name) if row is not None else None
    if value is None:
        return _NONE
    return f"{value:.3g}" if name in _NUMBERS else f"{percent(value, 1)}"


def _stall(row: KernelProfile) -> str:
    if not row.stalls:
        return _NONE
    top = row.stalls[0]
    return f"{top.reason} {percent(top.share, 1)}" if top.share is not None else top.reason
