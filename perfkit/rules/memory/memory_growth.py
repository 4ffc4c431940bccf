"""Memory rises from step to step.

Problem: something that a step creates is still held after the step. A tensor with a graph is the worst case: it holds
everything its backward would need, often the activations of the whole model, until memory is full.

How it shows: between two checks of the tensors that are alive, their number rose by at least one for every two steps
and those of the first check were still there; or one graph gained nodes in every step; or the device's memory at the
ends of steps rises steadily, or that of the process.

Causes: `losses.append(loss)`; `total += loss`; outputs stored for pictures or metrics; a list that is never emptied;
hooks that store activations.

Fix: store numbers, or tensors without a graph.

    total += loss.detach()                      # not: total += loss
    previews.append(picture[:8].detach().clone())
    losses.append(loss.detach())                # and read them together, at the end of the epoch

Saving: no time until memory is full, so none is reported. The finding shows how much is held per step and after how
many steps the memory is full; it is critical where a device's is full before the run ends. Where steps take longer for
it, that finding has the cost.

Source: torch's FAQ, "My model reports cuda runtime error(2): out of memory". The checks run at steps 20, 40, 80 and so
on. Half a tensor per step, with nine in ten still alive, separates what is held from what is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from perfkit._format import size
from perfkit.findings import Evidence, Finding, Severity
from perfkit.measures.results.measurements import PlannedSteps
from perfkit.measures.results.memory import MemoryGrowth
from perfkit.rules._settings import number
from perfkit.rules.memory._held_tensors import largest_held, storing_line
from perfkit.run.records import KeptTensors, Lines, Rank

ID = "memory-growth"
FOLLOWS = ("growing-step",)

#: Growth below this many bytes per step is not reported without a graph: a list of losses is no leak (chosen).
_MIN_BYTES = 1_000_000
#: Readings of a level without which its growth is not extrapolated over the run: four rises in a row are no chance.
_READINGS = 5


_DEVICE = "device memory"


class _Level(NamedTuple):
    """A level of memory that rises: of what, by how much, how full it is, and how much there is in all."""

    name: str
    bytes_per_step: int
    readings: int
    used: int | None
    total: int | None

    @property
    def full_after(self) -> int | None:
        """The number of further steps until the memory is full; None where that is not known."""
        if self.used is None or self.total is None or self.total <= self.used or not self.bytes_per_step:
            return None
        return (self.total - self.used) // self.bytes_per_step

    def is_full_within(self, steps: int) -> bool:
        """Whether the memory is full before so many further steps are over."""
        return self.readings >= _READINGS and self.full_after is not None and self.full_after < steps


#: Where the memory of the process rises, and where that of a device does.
_ADVICE = (
    "Find what the program or a library keeps: no tensors that stay alive were seen.",
    "Find what holds the last step's tensors; perfkit's recorder \"memory\" names who allocated them.",
)


def check(
    rank: Rank | None = None,
    growth: MemoryGrowth | None = None,
    lines: Lines | None = None,
    planned: PlannedSteps | None = None,
) -> Iterator[Finding]:
    """Find what is held from step to step, the line that stores it, and how fast memory fills."""
    kept = rank.kept if rank is not None else ()
    graphs = [one for one in kept if one.graph]
    plain = [one for one in kept if not one.graph and one.grown_bytes >= _MIN_BYTES * one.steps]
    levels = list(_levels(growth, rank)) if growth is not None else []
    left = planned.count - rank.steps if planned is not None and rank is not None else 0
    ends = {one.name for one in levels if one.is_full_within(left)}
    rising = {one.name for one in levels if one.bytes_per_step >= _MIN_BYTES}
    evidence = tuple(item for one in levels for item in _evidence(one))
    # Pages of a mapped file count as the process's, and the system takes them back: no problem before memory is full.
    problem = bool(graphs or ends or _DEVICE in rising)
    severity: Severity = "critical" if _DEVICE in ends else "warning" if problem else "info"
    if graphs or plain:
        yield _finding(graphs or plain, severity, evidence, lines)
    elif rising:
        most = max(levels, key=lambda one: one.bytes_per_step)
        full = f": full after {most.full_after:,} more steps" if most.full_after is not None else ""
        yield Finding(
            severity=severity,
            message=f"The {most.name} rises by {size(most.bytes_per_step)} in every step{full}.",
            advice=_ADVICE[most.name == _DEVICE],
            evidence=evidence,
        )


def _finding(
    kept: Sequence[KeptTensors], severity: Severity, levels: tuple[Evidence, ...], lines: Lines | None
) -> Finding:
    first = largest_held(kept) or kept[0]
    spent = storing_line(first, lines)
    if first.nodes_grown:
        what = f"A graph grows by {first.nodes_grown / first.steps:.0f} nodes in every step"
    else:
        tensors = sum(one.grown / one.steps for one in kept)
        amount = size(sum(one.grown_bytes / one.steps for one in kept))
        what = f"{tensors:.1f} tensors per step ({amount}){' and their graphs' if first.graph else ''} stay alive"
    return Finding(
        severity=severity,
        message=f"{what}{f', in {first.name}' if first.name is not None else ''}: memory fills up.",
        advice=(
            f"Store numbers, or detach first: {first.name or 'losses'}.append(x.detach())."
            if first.graph
            else f"Empty {first.name or 'what holds them'} from time to time, or store less of each."
        ),
        confidence="high" if spent is not None else "medium",
        evidence=(
            Evidence("steps between two checks", first.steps, "", "tensors alive between steps"),
            *levels,
            Evidence("cost", None, "ms", "it takes no time until memory is full"),
        ),
        spent=spent,
    )


def _levels(growth: MemoryGrowth, rank: Rank | None) -> Iterator[_Level]:
    if growth.process_bytes_per_step is not None:
        total = number(rank, "memory_bytes")
        yield _Level(
            "memory of the process", growth.process_bytes_per_step, growth.process_readings, growth.process_bytes, total
        )
    if growth.device_bytes_per_step:
        total = number(rank, "cuda:0.total_bytes")
        yield _Level(_DEVICE, growth.device_bytes_per_step, growth.device_readings, growth.device_peak_bytes, total)


def _evidence(level: _Level) -> Iterator[Evidence]:
    source = f"steps.jsonl, {level.readings} readings"
    yield Evidence(f"growth of the {level.name}", level.bytes_per_step, "bytes per step", source)
    if level.full_after is not None:
        yield Evidence("full after", level.full_after, "steps", f"{size(level.total or 0)} in all")
