"""The critical path of the recorded steps, and what each change alone would save, by replay."""

from __future__ import annotations

from perfkit._format import shown_location
from perfkit.diagnosis import Diagnosis
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.steps import TypicalStep
from perfkit.measures.steps.traced_step import measure_traced_step
from perfkit.replay._answering import answer_of, recording_of
from perfkit.replay.finding_savings import MOST_EVENTS
from perfkit.replay.replaying import replay
from perfkit.replay.results import PathOwner, PathRow, owner_shares, sentences
from perfkit.reports.figures.what_if_data import IfFreeFigure, PathOwnerFigure, WhatIfFigure
from perfkit.trace import Trace

#: The colour of each owner, of those that the page's other sections use.
_KINDS: dict[PathOwner, str] = {
    "loader": "data",
    "python": "python",
    "ops": "op",
    "launches": "api",
    "copy calls": "idle-copy",
    "syncs": "idle-sync",
    "allocation": "idle-allocation",
    "first use": "idle-allocation",
    "optimizer": "optimizer",
    "other calls": "other",
    "kernels": "compute",
    "copies": "copy",
    "memsets": "memset",
    "communication": "communication",
    "graphs": "compute",
    "between kernels": "idle-device",
    "unknown": "idle-unknown",
}


def what_if_of(diagnosis: Diagnosis, trace: Trace) -> WhatIfFigure | None:
    """The figure; None for a trace of nothing that takes time, and one that is too large."""
    if not trace.host_rows.size and not trace.device_rows.size:
        return None
    if len(trace) > MOST_EVENTS:  # it is replayed some thirty times
        return None
    recorded = recording_of(trace, diagnosis.source, _budget(diagnosis, trace))
    answer = answer_of(recorded)
    owners = [*owner_shares(answer.path).items()]
    index = {name: at for at, (name, _) in enumerate(owners)}
    stretches = [one for one in answer.stretches if one.owner in index]
    begin = stretches[0].start_ns if stretches else 0
    return WhatIfFigure(
        verdict=" ".join(sentences(answer)),
        step_ns=answer.step_ns,
        recorded_ns=round(replay(recorded.graph).steps_ns.mean()),
        owners=tuple(_owner(answer.path, name, share, answer.step_ns) for name, share in owners),
        starts=tuple(one.start_ns - begin for one in stretches),
        lengths=tuple(one.end_ns - one.start_ns for one in stretches),
        owner=tuple(index[one.owner] for one in stretches),
        name=tuple(one.name for one in stretches),
        if_free=tuple(
            IfFreeFigure(change=one.change, option=one.option, low_ns=one.saves_low_ns, high_ns=one.saves_high_ns)
            for one in answer.if_free
        ),
        notes=answer.notes,
    )


def _budget(diagnosis: Diagnosis, trace: Trace) -> StepBudget | None:
    """The step outside windows, where the diagnosis is of a run that timed some."""
    step, wall_ns = diagnosis.step, diagnosis.figures.wall_ns
    if not isinstance(step, TypicalStep) or not wall_ns:
        return None
    traced = measure_traced_step(trace)
    return StepBudget(wall_ns=wall_ns, per="step", source=step.source, typical=step, traced=traced)


def _owner(path: tuple[PathRow, ...], name: PathOwner, share: float, step_ns: int) -> PathOwnerFigure:
    largest = next(row for row in path if row.owner == name)
    place = f" at {shown_location(largest.at)}" if largest.at is not None else ""
    mostly = f"{largest.name}{place}" if largest.name != name else ""
    return PathOwnerFigure(name=name, kind=_KINDS[name], ns=round(share * step_ns), share=share, mostly=mostly)
