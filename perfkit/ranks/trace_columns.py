"""One rank's columns from its trace: steps, collectives, and the time of each class of kernels per step."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfkit.measures.device._device_work import device_work
from perfkit.measures.device._kernel_classes import class_of
from perfkit.measures.steps._phase_times import phase_times
from perfkit.measures.steps._trace_steps import whole_steps
from perfkit.ranks._trace_collectives import collectives_of
from perfkit.ranks.rank_columns import RankColumns, within_budget
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import covered_before


def columns_of_trace(
    trace: Trace, rank: int, *, host: str = "", launch: str = "", source: str = "", digest: str = ""
) -> RankColumns:
    """The columns of the rank that recorded a trace, within the budget of a rank."""
    steps = whole_steps(trace)
    walls = steps.end_ns - steps.start_ns
    phases = {
        name: covered_before(of, steps.end_ns) - covered_before(of, steps.start_ns)
        for name, of in phase_times(trace).items()
    }
    if phases:
        phases["other"] = walls - np.sum([*phases.values()], axis=0)
    unknown = np.full(steps.row.size, -1, np.int64)
    collectives = collectives_of(trace)
    return within_budget(
        RankColumns(
            rank=rank,
            world_size=trace.metadata.world_size,
            host=trace.metadata.host or host,
            launch=launch,
            source=source or str(trace.path),
            origin="trace",
            digest=digest,
            lost=(*trace.lost, *_missing(trace, collectives)),
            step_number=steps.number.astype(np.int64),
            step_start_ns=steps.start_ns,
            step_wall_ns=walls,
            phase_names=tuple(phases),
            phases_ns=np.stack([*phases.values()], axis=1) if phases else np.zeros((steps.row.size, 0), np.int64),
            gc_ns=unknown,
            waited_ns=unknown,
            work=unknown,
            **collectives,
            **_kernels(trace),
        )
    )


def _kernels(trace: Trace) -> dict[str, Any]:
    """Time and number of the kernels that each step launched, by class, without those that communicate."""
    steps = whole_steps(trace).row.size
    rows, step = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for work in device_work(trace):
        computing = (trace.kind[work.rows] == int(Kind.KERNEL)) & ~work.is_communication & (work.step >= 0)
        rows.append(work.rows[computing])
        step.append(work.step[computing])
    row, of_step = np.concatenate(rows), np.concatenate(step)
    class_codes = np.zeros(len(trace.names), np.int64)
    class_of_name = {code: class_of(trace.names[code]) for code in np.unique(trace.name[row]).tolist()}
    classes = sorted(set(class_of_name.values()))
    for code, found in class_of_name.items():
        class_codes[code] = classes.index(found)
    spent, number = (np.zeros((steps, len(classes)), np.int64) for _ in range(2))
    at = (of_step, class_codes[trace.name[row]])
    np.add.at(spent, at, trace.duration_ns[row])
    np.add.at(number, at, 1)
    return {"kernel_classes": tuple(classes), "kernel_ns": spent, "kernel_count": number}


def _missing(trace: Trace, collectives: dict[str, Any]) -> list[str]:
    missing = []
    if not whole_steps(trace).row.size:
        missing.append("no step is marked: call prof.step() at the end of each step")
    if not collectives["collective_step"].size:
        missing.append("no collective was recorded")
    devices = np.unique(trace.device[trace.device_rows]).size
    if trace.metadata.format == "nsys" and devices > 1:
        missing.append(f"it holds the work of {devices} devices: several ranks in one file are not told apart")
    return missing
