"""Python's garbage collector stops the training.

Problem: a full collection looks at every object of the process that can refer to others: a million of
them take 0.1 to 0.5 s. Everything waits, also the other ranks.

How it shows: collections take 5% of the mean step or more, steps with one included.

Causes: gc.collect() in the loop, "to be safe" (reference counting frees tensors without it); millions of
Python objects that refer to each other and live long (a replay buffer of objects, a dataset as a list of
dicts), so that each automatic collection walks through all of them.

Fix: leave the collector alone, or take what lives long out of its sight.

    dataset = Dataset(...)
    gc.collect(); gc.freeze()          # once, before the loop: what is there now is not looked at again

    states = torch.empty(n, d)         # one tensor, not n objects

    gc.disable(); ...; if step % 500 == 0: gc.collect()    # many ranks: at the same step everywhere

Gain: at most all of it, and on a CPU 15% more, since the rest then finds its caches as it left them. At
least the full collections, less 15% for the error of their mean: those look at what lives long, and are
gone without a gc.collect(), or where what lives long is frozen or a tensor. What young objects cost stays.

Source: the collector's own callbacks, which tell begin and end. From 5% of the mean step on. Time per
million objects: measured on one CPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, percent
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._host_work import mean_step
from perfkit.rules._step_budget import NEGLIGIBLE, severity_of, with_beyond

ID = "gc-pauses"

#: What goes at least of the full collections' time: their mean over the whole run differs from the timed steps' by
#: about as much as two runs do.
_FULL = 0.85


def check(measured: Measured) -> Iterator[Finding]:
    """Find the time of collections, and the line in which most of them began."""
    whole = mean_step(measured)
    every = measured.every_step or measured.step
    if whole is None or every is None or every.gc_ns is None:
        return
    cost_ns = min(whole.wall_ns, every.gc_ns)
    if cost_ns < NEGLIGIBLE * whole.wall_ns:
        return
    collected = [row for row in measured.lines.collected if row.owner == "user"] if measured.lines is not None else []
    most = max(collected, key=lambda row: row.total_ns, default=None)
    full_ns = sum(row.total_ns for row in measured.lines.collected) if measured.lines is not None else 0
    steps = measured.rank.steps if measured.rank is not None else 0
    low_ns = min(cost_ns, round(_FULL * full_ns / steps)) if steps and full_ns else cost_ns // 2
    evidence = [Evidence("garbage collections", round(cost_ns / 1e6, 3), "ms", whole.source)]
    where = ""
    if most is not None:
        mean = ms(most.total_ns / most.count)
        evidence.append(Evidence("full collections that began there", most.count, "", f"{mean} each"))
        where = f"; the {most.count} full ones in {most.function} take {mean} each"
    yield Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole),
        message=(
            f"Garbage collections take {ms(cost_ns)} of the mean step of {ms(whole.wall_ns)} "
            f"({percent(cost_ns, whole.wall_ns)}){where}."
        ),
        advice=(
            "Take gc.collect() out of the loop; keep what lives long in tensors or arrays, or call gc.freeze() once "
            "it is there."
        ),
        confidence="high",
        evidence=tuple(evidence),
        file=most.file if most else None,
        line=most.line if most else None,
        function=most.function if most else None,
        cost_ns=cost_ns,
        saving_low_ns=low_ns,
        saving_high_ns=with_beyond(cost_ns, measured, whole),
    )
