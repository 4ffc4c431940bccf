"""Budgets of a comparison: how much slower a step may be, and how many more of something are allowed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from perfkit._format import relative_change
from perfkit.comparison.memory import MEMORY, MemoryDifference, broken_memory_budget
from perfkit.comparison.results import COUNTS, Count, Difference
from perfkit.errors import UsageError


def check_budgets(max_slowdown: float | None, max_more: Mapping[str, float]) -> None:
    """Raise UsageError for a budget that is negative, not finite, or for an unknown count."""
    if max_slowdown is not None and not (math.isfinite(max_slowdown) and max_slowdown >= 0):
        raise UsageError(f"max_slowdown must be a share of at least 0 (0.03 = 3%), got {max_slowdown!r}")
    for name, more in max_more.items():
        if name not in (*COUNTS, MEMORY):
            raise UsageError(f"max_more takes {', '.join((*COUNTS, MEMORY))}, got {name!r}")
        if not (math.isfinite(more) and more >= 0):
            raise UsageError(f"max_more for {name} must be a number of at least 0, got {more!r}")


def broken_budgets(
    differences: Sequence[Difference],
    counts: Sequence[Count],
    memory: tuple[MemoryDifference, ...],
    max_slowdown: float | None,
    max_more: Mapping[str, float],
) -> tuple[str, ...]:
    """A sentence for each budget that the second side exceeds, or that cannot be checked."""
    broken = []
    for name in (name for name in COUNTS if name in max_more):
        count = next((count for count in counts if count.name == name), None)
        allowed = f"at most {max_more[name]:g} more are allowed"
        if count is None:
            broken.append(f"{name} were not counted on both sides, {allowed}")
        elif count.after - count.before > max_more[name]:
            broken.append(f"{name}: {count.before:g} → {count.after:g}, {allowed}")
    if MEMORY in max_more and (sentence := broken_memory_budget(memory, max_more[MEMORY])) is not None:
        broken.append(sentence)
    if max_slowdown is not None:
        step = next((d for d in differences if d.kind == "step"), None)
        if step is None or not step.before_ns or step.after_ns is None:
            broken.append("no step was measured on both sides, so its budget cannot be kept")
        elif step.change != "no difference" and step.after_ns > step.before_ns * (1 + max_slowdown):
            broken.append(
                f"the step is {relative_change(step.before_ns, step.after_ns)}, at most +{max_slowdown:.3g} is allowed"
            )
    return tuple(broken)
