"""Everything that can be measured from a path: a run folder or a trace file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from perfkit.errors import TraceError
from perfkit.measures.device.communication import measure_communication
from perfkit.measures.device.copies import measure_copies
from perfkit.measures.device.device_time import measure_device_time
from perfkit.measures.device.kernels import measure_kernels
from perfkit.measures.device.launches import measure_launches
from perfkit.measures.device.roofline import measure_roofline
from perfkit.measures.host._python_frames import with_frames
from perfkit.measures.host.api_calls import measure_api_calls
from perfkit.measures.host.host_work import measure_host_work
from perfkit.measures.host.os_calls import measure_os_calls
from perfkit.measures.host.range_times import measure_range_times
from perfkit.measures.host.source_lines import measure_source_lines
from perfkit.measures.host.sync_calls import measure_sync_calls
from perfkit.measures.memory.device_memory import measure_device_memory
from perfkit.measures.memory.memory_growth import measure_memory_growth
from perfkit.measures.memory.memory_snapshot import measure_memory_snapshot
from perfkit.measures.ncu.kernel_profiles import gaps_of, measure_kernel_profiles
from perfkit.measures.ops._op_calls import TypicalTimes
from perfkit.measures.ops._typical_times import typical_times
from perfkit.measures.ops.op_times import measure_op_times
from perfkit.measures.ops.patterns import measure_patterns
from perfkit.measures.ranks.rank_times import measure_rank_times
from perfkit.measures.results.host import RangeTime
from perfkit.measures.results.measured import Measured
from perfkit.measures.results.memory import MemorySnapshot
from perfkit.measures.results.steps import Ranks
from perfkit.measures.steps.batch_time import measure_batch_time
from perfkit.measures.steps.compile_cost import measure_compile_cost
from perfkit.measures.steps.throughput import measure_throughput
from perfkit.measures.steps.traced_step import measure_traced_step
from perfkit.measures.steps.typical_step import measure_mean_step, measure_typical_step
from perfkit.measures.steps.utilization import measure_utilization
from perfkit.measures.trace_facts import measure_trace_facts
from perfkit.run.arrays import read_line_times
from perfkit.run.reading import RankFolder, read_run
from perfkit.run.remote import is_url, local_copy
from perfkit.trace import Trace, read_trace
from perfkit.trace.cached_reader import ReadTrace
from perfkit.trace.memory_snapshot import read_memory_snapshot
from perfkit.trace.nsight.ncu import is_ncu, read_ncu

__all__ = ["measure"]

Progress = Callable[[int, int], None]


def measure(
    path: str | os.PathLike[str], *, progress: Progress | None = None, read: ReadTrace = read_trace
) -> Measured:
    """Measure a run folder, a trace file (Kineto JSON, nsys SQLite), or a report of Nsight Compute.

    Args:
        path: What to read, also as a URL for fsspec (``s3://bucket/run``); a run may still be recording.
        progress: Called with (bytes read, bytes in all) while a trace is read.
        read: Reads traces: a `perfkit.trace.cached_reader.CachedTraceReader` keeps them for who asks next.

    Raises:
        RunError: a folder that holds no run, or an empty one.
        TraceError: a file that is missing or no trace.
    """
    place = local_copy(os.fspath(path)) if is_url(path) else Path(path)
    if place.is_dir():
        return msgspec.structs.replace(_measure_run(place, progress, read), source=str(path))
    if not place.exists():
        raise TraceError(f"{path} does not exist: name a run folder or a trace file")
    if is_ncu(place):
        report = read_ncu(place, progress)
        profiles = measure_kernel_profiles(report)
        return Measured(source=str(path), kernel_profiles=profiles, missing=(*report.lost, *gaps_of(profiles)))
    parts, _ = _measure_trace(read(place, progress))
    return Measured(source=str(path), **parts)


def _measure_trace(trace: Trace) -> tuple[dict[str, Any], TypicalTimes]:
    facts = measure_trace_facts(trace)
    usual = typical_times(trace)
    parts = {
        "trace": facts,
        "trace_step": measure_traced_step(trace),
        "ops": measure_op_times(trace),
        "ranges": measure_range_times(trace),
        "memory": measure_device_memory(trace),
        "roofline": measure_roofline(trace),
        "devices": measure_device_time(trace),
        "launches": measure_launches(trace),
        "communication": measure_communication(trace),
        "copies": measure_copies(trace),
        "sync_calls": measure_sync_calls(trace),
        "api_calls": measure_api_calls(trace),
        "os_calls": measure_os_calls(trace),
        "kernels": measure_kernels(trace),
        "source_lines": measure_source_lines(trace),
        "patterns": measure_patterns(trace, typical=usual),
        "missing": tuple(facts.lost),
    }
    return parts, usual


def _measure_run(path: Path, progress: Progress | None, read: ReadTrace) -> Measured:
    run = read_run(path)
    # One rank stands for the run; the lowest that recorded steps. Which others are missing is said.
    chosen = next((rank for rank in run.ranks.values() if rank.steps), next(iter(run.ranks.values())))
    rank = chosen.rank
    missing = [f"rank {index} left nothing in the folder" for index in run.missing_ranks]
    parts, usual = _measure_windows(chosen, missing, progress, read)
    parts["memory_history"] = _measure_snapshots(chosen, missing)
    parts |= _measure_stacks(chosen, missing, usual, read)
    if rank is not None:
        missing += rank.notes
        missing += [f"perfkit's own error: {error}" for error in rank.errors]
        missing += [
            f"window {window.index} is incomplete: {window.problem}" for window in rank.windows if not window.complete
        ]
        if rank.devices and (facts := parts.get("trace")) is not None and not facts.device_events:
            missing.append("the trace holds no device work although the machine has a GPU")
    step, every = measure_typical_step(chosen.steps), measure_mean_step(chosen.steps)
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
        every_step=every,
        throughput=measure_throughput(chosen.steps),
        utilization=measure_utilization(flops, step.median_ns if step is not None else None),
        syncs=chosen.syncs,
        lines=chosen.lines,
        host=measure_host_work(
            chosen.lines, parts.get("source_lines"), rank.steps if rank is not None else None, every
        ),
        rank=rank,
        ranks=_measure_ranks(run.ranks.values()),
        growth=measure_memory_growth(chosen.steps),
        compiles=measure_compile_cost(chosen.steps),
        batches=measure_batch_time(chosen.steps, rank.padding if rank is not None else None),
        ranges=ranges,
        planned_steps=run.run.total_steps if run.run is not None else None,
        missing=(*missing, *run.lost, *parts_missing),
        **parts,
    )


def _measure_ranks(ranks: Iterable[RankFolder]) -> Ranks | None:
    """Each rank read anew and let go: of thousands only some numbers are kept."""
    anew = (RankFolder(rank.folder, rank.index) for rank in ranks)
    return measure_rank_times((rank.index, rank.steps, rank.lines, rank.rank) for rank in anew)


def _measure_windows(
    rank: RankFolder, missing: list[str], progress: Progress | None, read: ReadTrace
) -> tuple[dict[str, Any], TypicalTimes | None]:
    """Measure the newest window whose trace can be read."""
    for path in reversed(rank.windows):
        try:
            parts, usual = _measure_trace(read(path, progress))
        except TraceError as error:
            missing.append(str(error))
            continue
        window = rank.window(path)
        promised = window.last_step - window.first_step + 1 if window is not None and window.complete else None
        facts = parts["trace"]
        if window is not None and (window.reason or "schedule") != "schedule":
            missing.append(f"{path.name} was opened by {window.reason}")
        if promised is not None and facts.steps != promised:
            missing.append(f"{path.name} holds {facts.steps} steps, {promised} were to be recorded")
        return {**parts, "trace": msgspec.structs.replace(facts, path=str(path))}, usual
    return {}, None


def _measure_stacks(
    rank: RankFolder, missing: list[str], usual: TypicalTimes | None, read: ReadTrace
) -> dict[str, Any]:
    """The user's lines and patterns in the newest step for lines that can be read; only what it tells."""
    traced = rank.lines.traced if rank.lines is not None else ()
    for path in reversed(rank.stacks):
        try:
            times = read_line_times(path, missing)
            trace = with_frames(read(path), times)
            parts = {
                "source_lines": measure_source_lines(trace, times, traced),
                "patterns": measure_patterns(trace, times, traced, usual),
            }
        except TraceError as error:
            missing.append(str(error))
            continue
        return {name: part for name, part in parts.items() if part is not None}
    return {}


def _measure_snapshots(rank: RankFolder, missing: list[str]) -> tuple[MemorySnapshot, ...]:
    """Who held memory, from the newest snapshot that can be read."""
    found = [
        (int(match[1]), path)
        for path in rank.folder.glob("memory-*.pickle")
        if (match := re.fullmatch(r"memory-(\d{1,9})\.pickle", path.name)) and path.is_file() and not path.is_symlink()
    ]
    for _, path in sorted(found, reverse=True):
        try:
            return measure_memory_snapshot(read_memory_snapshot(path))
        except TraceError as error:
            missing.append(str(error))
    return ()
