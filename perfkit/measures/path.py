"""Everything that can be measured from a path: a run folder or a trace file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from perfkit.errors import TraceError
from perfkit.measures.device import measure_devices
from perfkit.measures.facts import measure_facts
from perfkit.measures.ops import measure_ops
from perfkit.measures.ranges import measure_ranges
from perfkit.measures.results import Measured, RangeTime
from perfkit.measures.steps import measure_trace_steps
from perfkit.measures.steps_rows import measure_step_rows
from perfkit.measures.syncs import measure_sync_calls
from perfkit.measures.throughput import measure_throughput
from perfkit.measures.utilization import measure_utilization
from perfkit.run.reading import RankFolder, read_run
from perfkit.run.remote import is_url, local_copy
from perfkit.trace import read_trace

__all__ = ["measure"]

Progress = Callable[[int, int], None]


def measure(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Measured:
    """Measure a run folder or a trace file (Kineto JSON, nsys SQLite).

    Args:
        path: What to read, also as a URL for fsspec (``s3://bucket/run``); a run may still be recording.
        progress: Called with (bytes read, bytes in all) while a trace is read.

    Raises:
        RunError: a folder that holds no run, or an empty one.
        TraceError: a file that is missing or no trace.
    """
    place = local_copy(os.fspath(path)) if is_url(path) else Path(path)
    if place.is_dir():
        return msgspec.structs.replace(_measure_run(place, progress), source=str(path))
    if not place.exists():
        raise TraceError(f"{path} does not exist: name a run folder or a trace file")
    return Measured(source=str(path), **_measure_trace(place, progress))


def _measure_trace(path: Path, progress: Progress | None) -> dict[str, Any]:
    trace = read_trace(path, progress)
    facts = measure_facts(trace)
    return {
        "trace": facts,
        "trace_step": measure_trace_steps(trace),
        "ops": measure_ops(trace),
        "ranges": measure_ranges(trace),
        "devices": measure_devices(trace),
        "sync_calls": measure_sync_calls(trace),
        "missing": tuple(facts.lost),
    }


def _measure_run(path: Path, progress: Progress | None) -> Measured:
    run = read_run(path)
    # One rank stands for the run; the lowest that recorded steps. Which others are missing is said.
    chosen = next((rank for rank in run.ranks.values() if rank.steps), next(iter(run.ranks.values())))
    rank = chosen.rank
    missing = [f"rank {index} left nothing in the folder" for index in run.missing_ranks]
    parts = _measure_windows(chosen, missing, progress)
    if rank is not None:
        missing += rank.notes
        missing += [f"perfkit's own error: {error}" for error in rank.errors]
        missing += [
            f"window {window.index} is incomplete: {window.problem}" for window in rank.windows if not window.complete
        ]
        if rank.devices and (facts := parts.get("trace")) is not None and not facts.device_events:
            missing.append("the trace holds no device work although the machine has a GPU")
    step = measure_step_rows(chosen.steps)
    flops = rank.flops if rank is not None else None
    if rank is not None and rank.devices and flops is not None and flops.problem is not None:
        missing.append(f"operations of a step were not counted: {flops.problem}")
    own_ranges = tuple(
        RangeTime(name=row.name, count=row.count, host_ns=row.total_ns, source="ranges.npz") for row in chosen.ranges
    )
    ranges = (*own_ranges, *parts.pop("ranges", ()))
    parts_missing = parts.pop("missing", ())
    return Measured(
        source=str(path),
        step=step,
        throughput=measure_throughput(chosen.steps),
        utilization=measure_utilization(flops, step.median_ns if step is not None else None),
        syncs=chosen.syncs,
        lines=chosen.lines,
        rank=rank,
        ranges=ranges,
        planned_steps=run.run.total_steps if run.run is not None else None,
        missing=(*missing, *run.lost, *parts_missing),
        **parts,
    )


def _measure_windows(rank: RankFolder, missing: list[str], progress: Progress | None) -> dict[str, Any]:
    """Measure the newest window whose trace can be read."""
    for path in reversed(rank.windows):
        try:
            parts = _measure_trace(path, progress)
        except TraceError as error:
            missing.append(str(error))
            continue
        window = rank.window(path)
        promised = window.last_step - window.first_step + 1 if window is not None and window.complete else None
        facts = parts["trace"]
        if promised is not None and facts.steps != promised:
            missing.append(f"{path.name} holds {facts.steps} steps, {promised} were to be recorded")
        return {**parts, "trace": msgspec.structs.replace(facts, path=str(path))}
    return {}
