"""Kernels that Nsight Compute profiled one by one, before and after."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perfkit._format import ms, relative_change
from perfkit.comparison.results import ProfileChange
from perfkit.diagnosis import Diagnosis
from perfkit.measures.results.kernel_profiles import KernelProfile


def profile_changes(first: Diagnosis, second: Diagnosis) -> tuple[ProfileChange, ...]:
    """Match the kernels of both reports, longest first; empty unless both sides are reports."""
    sides = first.figures.kernel_profiles, second.figures.kernel_profiles
    if sides[0] is None or sides[1] is None:
        return ()
    before, after = (list(side.rows) for side in sides if side is not None)
    changes = []
    same: Sequence[Callable[[KernelProfile], object]] = (
        lambda row: (row.name, row.grid, row.block),
        lambda row: row.name,
    )
    for key in same:
        waiting: dict[object, list[KernelProfile]] = {}
        for row in after:
            waiting.setdefault(key(row), []).append(row)
        left = []
        for row in before:
            matches = waiting.get(key(row))
            if matches:
                changes.append(ProfileChange(name=row.name, before=row, after=matches.pop(0)))
            else:
                left.append(row)
        before, after = left, [row for rows in waiting.values() for row in rows]
    changes += [ProfileChange(name=row.name, before=row, after=None) for row in before]
    changes += [ProfileChange(name=row.name, before=None, after=row) for row in after]
    return tuple(sorted(changes, key=_longest, reverse=True))


def _longest(one: ProfileChange) -> int:
    return max((row.total_ns or 0 for row in (one.before, one.after) if row is not None), default=0)


def profile_verdict(first: Diagnosis, second: Diagnosis, changes: Sequence[ProfileChange]) -> str | None:
    """The verdict of two reports of ncu; None where neither side is one."""
    sides = first.figures.kernel_profiles, second.figures.kernel_profiles
    if sides == (None, None):
        return None
    if None in sides:
        return "The two cannot be compared: one is a report of Nsight Compute, the other is not."
    pairs = [
        (one.before.mean_ns * one.before.launches, one.after.mean_ns * one.before.launches)
        for one in changes
        if one.before is not None and one.after is not None and one.before.mean_ns and one.after.mean_ns is not None
    ]
    if not pairs:
        return "The two cannot be compared: no kernel was profiled, with its time, on both sides."
    before, after = (sum(times) for times in zip(*pairs, strict=True))
    kernels = "kernel that both profiled takes" if len(pairs) == 1 else f"{len(pairs)} kernels that both profiled take"
    return (
        f"The {kernels} {ms(before)} before, {ms(after)} after ({relative_change(before, after)}) for as many "
        "launches; whether that is more than noise was not tested."
    )
