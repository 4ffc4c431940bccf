"""Memory rises from step to step.

Problem: something that a step makes is still held when the step is over. A tensor with a graph is the worst: it
keeps all that its backward would need, often a whole model's activations, until the memory is full.

How it shows: between two looks at the tensors that are alive, their number rose by one or more for every two
steps, and those of the first look were still there; or one graph gained nodes in every step; or the device's
level at the ends of steps rises steadily.

Causes: `losses.append(loss)`; `total += loss`; outputs kept for pictures or metrics; a list that is never
emptied; hooks that keep activations.

Fix: keep numbers, or what has no graph.

    total += loss.detach()                      # not: total += loss
    previews.append(picture[:8].detach().clone())
    losses.append(loss.detach())                # and read them together, at the end of the epoch

Gain: no time until the memory is full, so none is promised. What is told is how much is kept per step, and where
the device's memory is known, after how many steps it is full.

Source: torch's FAQ, "My model reports cuda runtime error(2): out of memory". The looks come at steps 20, 40, 80
and so on; half a tensor per step and nine in ten still alive tell what is kept from what is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import size
from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._settings import number
from perfkit.run.records import KeptTensors

ID = "memory-growth"

#: Tensors without a graph are told from this many bytes per step on: a list of losses is no leak.
_WORTH = 1_000_000


def check(measured: Measured) -> Iterator[Finding]:
    """Find what is kept from step to step, the line that keeps it, and how fast memory fills."""
    rank, growth = measured.rank, measured.growth
    kept = rank.kept if rank is not None else ()
    graphs = [one for one in kept if one.graph]
    plain = [one for one in kept if not one.graph and one.grown_bytes >= _WORTH * one.steps]
    rising = growth.device_bytes_per_step if growth is not None else None
    if graphs:
        yield _finding(graphs, measured, "warning")
    elif plain:
        yield _finding(plain, measured, "warning" if rising else "info")
    elif rising and growth is not None and rising >= _WORTH:
        yield Finding(
            rule=ID,
            severity="warning",
            message=f"Memory allocated on the device rises by {size(rising)} in every step.",
            advice="Look for what holds last step's tensors; perfkit's recorder \"memory\" names who allocated them.",
            confidence="medium",
            evidence=tuple(_levels(measured)),
        )


def _finding(kept: list[KeptTensors], measured: Measured, severity: str) -> Finding:
    # The largest whose holder is known; its graph keeps the others.
    first = next((one for one in kept if one.places), kept[0])
    place = _place(first, measured)
    per_step = sum(one.grown_bytes / one.steps for one in kept)
    if first.nodes_grown:
        what = f"A graph grows by {first.nodes_grown / first.steps:.0f} nodes in every step"
    else:
        tensors = sum(one.grown / one.steps for one in kept)
        graph = " and their graphs" if first.graph else ""
        what = f"{tensors:.1f} tensors per step ({size(per_step)}){graph} are kept after their step"
    held = f", in {first.name}" if first.name is not None else ""
    advice = (
        f"Keep numbers, or detach first: {first.name or 'losses'}.append(x.detach())."
        if first.graph
        else f"Empty {first.name or 'what holds them'} from time to time, or keep less of each."
    )
    return Finding(
        rule=ID,
        severity="warning" if severity == "warning" else "info",
        message=f"{what}{held}: memory fills up.",
        advice=advice,
        confidence="high" if place is not None else "medium",
        evidence=(
            Evidence("steps between two looks", first.steps, "", "tensors alive between steps"),
            *_levels(measured),
            Evidence("lost", None, "ms", "it costs no time until the memory is full"),
        ),
        file=place.file if place is not None else None,
        line=place.line if place is not None else None,
        function=place.function if place is not None else None,
    )


def _place(kept: KeptTensors, measured: Measured) -> Location | None:
    """The line that fills what holds the tensors: of several that could, one that ran in the step for lines."""
    traced = measured.lines.traced if measured.lines is not None else ()
    ran = {(line.file, line.line) for line in traced}
    return next((place for place in kept.places if (place.file, place.line) in ran), next(iter(kept.places), None))


def _levels(measured: Measured) -> Iterator[Evidence]:
    growth = measured.growth
    if growth is None:
        return
    if growth.process_bytes_per_step is not None:
        source = f"steps.jsonl, {growth.process_readings} readings"
        yield Evidence("the process grows", growth.process_bytes_per_step, "bytes per step", source)
    if growth.device_bytes_per_step:
        source = f"steps.jsonl, {growth.device_readings} readings"
        yield Evidence("the device's memory grows", growth.device_bytes_per_step, "bytes per step", source)
        total = number(measured.rank, "cuda:0.total_bytes") if measured.rank is not None else None
        if total is not None and growth.device_peak_bytes is not None and total > growth.device_peak_bytes:
            left = (total - growth.device_peak_bytes) // growth.device_bytes_per_step
            yield Evidence("full after", left, "steps", f"{size(total)} in all")
