"""torch.compile compiles the same function again and again.

Problem: compiled code is valid for what it was compiled for: shapes, Python numbers, flags. Where one of them changes
in every step, every step compiles, which takes a hundred to many thousand times as long as running.

How it shows: graphs are still compiled in the second half of the run's steps, in at least one of twenty, or four times.
In a trace alone: the device is idle while something is compiled in at least three steps, the last one included and the
program's first not counted. Compiling in the first steps is normal for torch.compile.

Causes: a length that differs in every batch with `dynamic=False`; a Python number that the model increments
(`self.calls += 1`); a learning rate or a flag that is read as a number; a raised `recompile_limit` that hides the
warning.

Fix: keep what changes out of the guards.

    model = torch.compile(model, dynamic=True)        # lengths differ
    torch._dynamo.mark_dynamic(x, 1)                  # this dimension does
    self.register_buffer("seen", torch.zeros(()))     # a tensor that counts, not a Python number
    x = F.pad(x, (0, longest - x.shape[1]))           # or: few different lengths

Saving: at most the time that torch reports for compiling, per step in the second half, and on a CPU 15% more, because
the rest of the step then finds its caches as it left them. At least 70% of it: what runs instead (padding, symbolic
shapes) is slower than code for one shape. In a trace alone at most that idle time, and at least 70% of it.

Source: torch's recompilation guide; the reason and the times are Dynamo's own. The threshold is 5% of the step. Fewer
than one step of twenty, and than four (as in each epoch), do not recur. 70% was chosen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from perfkit._format import ms, times
from perfkit._location import Location
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING, PYTHON, Selector
from perfkit.ledger.step_budget import NEGLIGIBLE, StepBudget
from perfkit.measures.results.device import IdleCause
from perfkit.measures.results.steps import CompileCost
from perfkit.run.records import Compilation, Rank

ID = "recompiles"
#: Idle time of a device in which something is compiled in several steps.
_CAUSE: IdleCause = "recompiling"
CLAIMS = (Selector(owner="idle", names=(_CAUSE,)), *COMPUTING, *PYTHON)

#: The share of the second half's steps with compiling from which on it recurs, and the number of graphs (chosen): a
#: number of the epoch compiles once in each.
_RECURS, _MANY = 0.05, 4
#: The share of the compile time that is saved at least: chosen.
_MINIMUM = 0.7
_ADVICE = "Keep what changes out of the guards: dynamic=True or mark_dynamic for lengths, a tensor for a counter."
#: A guard on the size of a tensor, as Dynamo words it.
_OF_SIZE = re.compile(r"size mismatch|stride mismatch|\.size\(\)|\.stride\(\)")


def check(typical: StepBudget, compiles: CompileCost | None = None, rank: Rank | None = None) -> Iterator[Finding]:
    """Find compiling that continues, what is compiled again and why, and the time it takes."""
    if compiles is None:
        yield from _in_trace(typical)
        return
    steps, graphs = compiles.late_steps, compiles.late_graphs
    if not steps or graphs < min(_MANY, max(2, _RECURS * steps)):
        return
    # Compiling makes single steps long, so it is counted against the mean of the same steps, not the typical one.
    source = f"steps.jsonl, the last {steps} steps"
    step = msgspec.structs.replace(typical, wall_ns=round(compiles.late_wall_ns / steps), per="step", source=source)
    cost = min(step.wall_ns, typical.wall_ns, round(compiles.late_ns / steps))
    if step.is_negligible(cost):
        return
    again = [one for one in (rank.compilations if rank is not None else ()) if one.recompiles]
    worst = max(again, key=lambda one: one.total_ns, default=None)
    evidence = [
        Evidence.ms("compiling", cost, f"torch's own times, {source}"),
        Evidence("graphs compiled", graphs, "", source),
    ]
    compiled, because = "a graph", ""
    if worst is not None:
        compiled = worst.compiled
        evidence.append(Evidence("compiled again", worst.recompiles, "times", f"{compiled}, the whole run"))
        if worst.reason is not None:
            evidence.append(Evidence("because", worst.reason, "", "the guard that failed last"))
        if worst.reason:
            # Without the source that Dynamo quotes after it.
            because = f": {worst.reason.split(' # ')[0][:120]}"
    yield step.finding(
        cost=cost,
        saving=(_MINIMUM * cost, step.maximum_saving(cost)),
        spent=worst.called_from if worst is not None else None,
        change=_changes(worst) if worst is not None else None,
        message=(
            f"torch.compile compiles {compiled} again {_how_often(graphs, steps)}, {ms(cost)} of "
            f"{ms(step.wall_ns)}{because}."
        ),
        advice=_ADVICE,
        confidence="high",
        evidence=tuple(evidence),
    )


def _in_trace(step: StepBudget) -> Iterator[Finding]:
    """Compiling that recurs in a trace alone, by the time in which the device is idle for it."""
    device = step.device
    cost = step.of_device(device.causes.get(_CAUSE, 0)) if device is not None else 0
    if device is None or step.is_negligible(cost):
        return
    again = sum(one.causes.get(_CAUSE, 0) >= NEGLIGIBLE * one.wall_ns for one in device.per_step)
    places: dict[Location, int] = {}
    for one in device.idle:
        if one.cause == _CAUSE and one.at is not None:
            places[one.at] = places.get(one.at, 0) + one.ns
    source = f"device {device.device}, idle while something is compiled"
    yield step.finding(
        cost=cost,
        saving=(_MINIMUM * cost, cost),
        spent=max(places, key=lambda at: places[at], default=None),
        message=(
            f"torch.compile still compiles in {again} of the {device.steps} steps, the last one included: the device "
            f"waits {ms(cost)} of {ms(step.wall_ns)} for it."
        ),
        advice=f"{_ADVICE} TORCH_LOGS=recompiles prints what changed.",
        evidence=(
            Evidence.ms("idle while compiling", cost, f"{source}, per step"),
            Evidence("steps that compile", again, "", f"{source}, the program's first step not counted"),
        ),
    )


def _how_often(graphs: int, steps: int) -> str:
    """Per step, or once in so many steps."""
    return f"{times(graphs / steps)} per step" if 2 * graphs >= steps else f"in one of {round(steps / graphs)} steps"


def _changes(worst: Compilation) -> Location | None:
    """The line to edit: the call of torch.compile where lengths differ, else the line that reads what changes."""
    of_size = worst.guarded_at is None or _OF_SIZE.search(worst.reason or "") is not None
    return worst.compiled_at if of_size else worst.guarded_at
