"""Memory rises from step to step.

Problem: something that a step creates is still held after the step. A tensor with a graph is the worst case: it holds
everything its backward would need, often the activations of the whole model, until memory is full.

How it shows: between two checks of the tensors that are alive, their number rose by at least one for every two steps
and those of the first check were still there; or one graph gained nodes in every step; or the device's memory at the
ends of steps rises steadily.

Causes: `losses.append(loss)`; `total += loss`; outputs stored for pictures or metrics; a list that is never emptied;
hooks that store activations.

Fix: store numbers, or tensors without a graph.

    total += loss.detach()                      # not: total += loss
    previews.append(picture[:8].detach().clone())
    losses.append(loss.detach())                # and read them together, at the end of the epoch

Saving: no time until memory is full, so none is reported. The finding shows how much is held per step and, where the
device's memory is known, after how many steps it is full.

Source: torch's FAQ, "My model reports cuda runtime error(2): out of memory". The checks run at steps 20, 40, 80 and so
on. Half a tensor per step, with nine in ten still alive, separates what is held from what is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfkit._format import size
from perfkit._location import Location
from perfkit.findings import Evidence, Finding, Severity
from perfkit.measures.results.memory import MemoryGrowth
from perfkit.rules._settings import number
from perfkit.run.records import KeptTensors, Lines, Rank

ID = "memory-growth"

#: Growth below this many bytes per step is not reported without a graph: a list of losses is no leak (chosen).
_MIN_BYTES = 1_000_000


def check(
    rank: Rank | None = None, growth: MemoryGrowth | None = None, lines: Lines | None = None
) -> Iterator[Finding]:
    """Find what is held from step to step, the line that stores it, and how fast memory fills."""
    kept = rank.kept if rank is not None else ()
    graphs = [one for one in kept if one.graph]
    plain = [one for one in kept if not one.graph and one.grown_bytes >= _MIN_BYTES * one.steps]
    rising = (growth.device_bytes_per_step if growth is not None else None) or 0
    levels = tuple(_levels(growth, rank)) if growth is not None else ()
    if graphs or plain:
        yield _finding(graphs or plain, "warning" if graphs or rising else "info", levels, lines)
    elif rising >= _MIN_BYTES:
        yield Finding(
            severity="warning",
            message=f"Memory allocated on the device rises by {size(rising)} in every step.",
            advice="Find what holds the last step's tensors; perfkit's recorder \"memory\" names who allocated them.",
            evidence=levels,
        )


def _finding(
    kept: Sequence[KeptTensors], severity: Severity, levels: tuple[Evidence, ...], lines: Lines | None
) -> Finding:
    # The largest whose holder is known; its graph holds the others.
    first = next((one for one in kept if one.places), kept[0])
    spent = _line(first, lines)
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


def _line(kept: KeptTensors, lines: Lines | None) -> Location | None:
    """The line that stores the tensors: of several that could, one that ran in the step traced by line."""
    ran = {(line.file, line.line) for line in (lines.traced if lines is not None else ())}
    return next((at for at in kept.places if (at.file, at.line) in ran), next(iter(kept.places), None))


def _levels(growth: MemoryGrowth, rank: Rank | None) -> Iterator[Evidence]:
    if growth.process_bytes_per_step is not None:
        source = f"steps.jsonl, {growth.process_readings} readings"
        yield Evidence("growth of the process", growth.process_bytes_per_step, "bytes per step", source)
    if growth.device_bytes_per_step:
        source = f"steps.jsonl, {growth.device_readings} readings"
        yield Evidence("growth of device memory", growth.device_bytes_per_step, "bytes per step", source)
        total = number(rank, "cuda:0.total_bytes")
        if total is not None and growth.device_peak_bytes is not None and total > growth.device_peak_bytes:
            steps = (total - growth.device_peak_bytes) // growth.device_bytes_per_step
            yield Evidence("full after", steps, "steps", f"{size(total)} in all")
