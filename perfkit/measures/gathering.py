"""Measures everything that a path holds: a run folder, a trace file, or a report of Nsight Compute."""

from __future__ import annotations

import inspect
import os
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

import perfkit.measures
from perfkit._annotations import annotated_type
from perfkit.errors import TraceError
from perfkit.limits.limits_cache import cached_limits_of
from perfkit.measures.device.kernels import with_origins
from perfkit.measures.device.roofline import measure_roofline
from perfkit.measures.host._python_frames import with_frames
from perfkit.measures.host.host_work import measure_host_work
from perfkit.measures.host.source_lines import measure_source_lines
from perfkit.measures.host.traced_loop import other_loop
from perfkit.measures.memory.checkpoint_trades import measure_checkpoint_trades
from perfkit.measures.memory.memory_snapshot import measure_memory_snapshot
from perfkit.measures.memory.peak_memory import measure_peak_memory, trace_memory
from perfkit.measures.ncu.kernel_profiles import gaps_of, measure_kernel_profiles
from perfkit.measures.ops._op_calls import TypicalTimes
from perfkit.measures.ops._typical_times import op_calls, typical_times
from perfkit.measures.ops.patterns import measure_patterns
from perfkit.measures.ops.step_work import measure_step_work
from perfkit.measures.ranks.observed_gpus import ObservedGpus, RankPlace, errors_of, gpu_of_trace
from perfkit.measures.ranks.rank_times import measure_rank_times
from perfkit.measures.results.device import DeviceTime
from perfkit.measures.results.host import HostWork, RangeTime, SourceLines
from perfkit.measures.results.kernels import Kernels, Roofline
from perfkit.measures.results.measurements import Measurements, PlannedSteps, TraceFacts
from perfkit.measures.results.patterns import Patterns
from perfkit.measures.results.steps import MeanStep, Ranks, TypicalStep
from perfkit.measures.results.work import OpShares, StepWork
from perfkit.measures.steps.batch_time import measure_batch_time
from perfkit.measures.steps.forward_start import without_preparation
from perfkit.measures.steps.growing_inputs import measure_growing_inputs
from perfkit.measures.steps.loop_time import measure_loop_time
from perfkit.measures.steps.utilization import measure_utilization
from perfkit.run.arrays import read_line_times
from perfkit.run.ending import unwritten_end
from perfkit.run.merging import merged_steps
from perfkit.run.reading import RankFolder, read_run
from perfkit.run.records import Rank, Step
from perfkit.run.remote import is_url, local_copy
from perfkit.trace import Trace, read_trace
from perfkit.trace.cached_reader import ReadTrace
from perfkit.trace.dcgm import NodeMetrics
from perfkit.trace.memory_snapshot import read_memory_snapshot
from perfkit.trace.nsight.ncu import is_ncu, read_ncu

__all__ = ["measure"]

Progress = Callable[[int, int], None]


def measure(
    path: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    read: ReadTrace = read_trace,
    node_metrics: NodeMetrics | None = None,
) -> Measurements:
    """Measure a run folder, a trace file (Kineto JSON, nsys SQLite), or a report of Nsight Compute.

    Args:
        path: What to read, also as a URL for fsspec (``s3://bucket/run``); a run may still be recording.
        progress: Called with (bytes read, bytes in all) while a trace is read.
        read: Reads traces: a `perfkit.trace.cached_reader.CachedTraceReader` keeps them for the next caller.
        node_metrics: What DCGM observed of the GPUs, in place of perfkit's own samples of them.

    Raises:
        RunError: a folder that holds no run, or an empty one.
        TraceError: a file that is missing or no trace.
        UsageError: ``node_metrics`` has no GPU of what is measured.
    """
    place = local_copy(os.fspath(path)) if is_url(path) else Path(path)
    found = Measurements(str(path))
    if place.is_dir():
        _measure_run(place, progress, read, found, node_metrics)
    elif not place.exists():
        raise TraceError(f"{path} does not exist: name a run folder or a trace file")
    elif is_ncu(place):
        report = read_ncu(place, progress)
        profiles = measure_kernel_profiles(report)
        found.add(profiles)
        found.missing = (*report.lost, *gaps_of(profiles))
    else:
        trace = read(place, progress)
        _measure_lines(trace, _measure_trace(trace, found), found)
        found.missing = tuple(_derived_peaks(found))
        if node_metrics is not None:
            gpu, notes = gpu_of_trace(node_metrics, [device.device for device in found.all(DeviceTime)])
            found.add(gpu.health())
            found.missing = (*found.missing, *notes)
    return found


@cache
def _measures() -> tuple[tuple[Any, Callable[[Any], Any]], ...]:
    """Every ``measure_*`` function of this package that takes one argument, with the type of that."""
    modules = pkgutil.walk_packages(perfkit.measures.__path__, "perfkit.measures.")
    public = [name for _, name, _ in modules if not any(part.startswith("_") for part in name.split("."))]
    found = []
    for name in public:
        if name == __name__:
            continue
        for function_name, function in sorted(vars(import_module(name)).items()):
            # By its name first: to inspect all functions takes as long as to measure a small trace.
            if not function_name.startswith("measure_") or not inspect.isfunction(function):
                continue
            parameters = [*inspect.signature(function).parameters]
            if function.__module__ == name and len(parameters) == 1:
                found.append((annotated_type(function, parameters[0]), function))
    return tuple(found)


def _measures_of(source: Any) -> tuple[Callable[[Any], Any], ...]:
    """Every ``measure_*`` function of this package that takes one argument, of this type."""
    return tuple(function for kind, function in _measures() if kind == source)


def _measure_trace(trace: Trace, found: Measurements) -> TypicalTimes:
    for measure_part in _measures_of(Trace):
        found.add(measure_part(trace))
    found.trace = trace
    return typical_times(trace)


def _measure_lines(trace: Trace, usual: TypicalTimes, found: Measurements) -> None:
    """Those of the user's lines, patterns and work of ops that no step for lines has shown."""
    if found.get(SourceLines) is None:
        found.add(measure_source_lines(trace))
    if found.get(Patterns) is None or found.get(StepWork) is None:
        calls = op_calls(trace, typical=usual)
        if found.get(Patterns) is None:
            found.add(measure_patterns(calls))
        if found.get(StepWork) is None:
            found.add(measure_step_work(calls))


def _derived_peaks(found: Measurements) -> Iterator[str]:
    """A sentence on each device whose peaks are in no document that perfkit knows."""
    about = (roof.about_peaks for roof in found.all(Roofline) if roof.peaks_derived)
    yield from (sentence.rstrip(".") for sentence in dict.fromkeys(about))


def _missing_ranks(missing: Sequence[int]) -> str | None:
    """A sentence on ranks without files; None where all have some."""
    if not missing:
        return None
    named = ", ".join(map(str, missing[:8])) + (f" and {len(missing) - 8:,} more" if len(missing) > 8 else "")
    return f"rank{'s' if len(missing) > 1 else ''} {named} wrote nothing to the folder"


def _measure_run(
    path: Path,
    progress: Progress | None,
    read: ReadTrace,
    found: Measurements,
    node_metrics: NodeMetrics | None,
) -> None:
    run = read_run(path)
    # One rank stands for the run: the lowest that recorded steps. Which others are missing is reported.
    chosen = next((rank for rank in run.ranks.values() if rank.steps), next(iter(run.ranks.values())))
    observed = _observed(node_metrics, run.ranks.values())
    rank, rows = _with_observed(observed, chosen), chosen.steps
    missing = [*filter(None, (_missing_ranks(run.missing_ranks), merged_steps(rows)))]
    for row in chosen.ranges:
        found.add(RangeTime(name=row.name, count=row.count, host_ns=row.total_ns, source="ranges.npz"))
    usual = _measure_windows(chosen, missing, progress, read, found)
    _measure_snapshots(chosen, missing, found)
    _measure_line_steps(chosen, missing, usual, read, found)
    if found.trace is not None and usual is not None:
        try:
            _measure_lines(found.trace, usual, found)
        except TraceError as error:
            missing.append(str(error))
    facts = found.get(TraceFacts)
    if rank is not None:
        missing += [*filter(None, [unwritten_end(rank, chosen.folder)]), *_problems_of(rank, facts)]
    for measure_part in _measures_of(Sequence[Step]):
        found.add(measure_part(rows))
    found.add(measure_loop_time(rows, chosen.lines, rank.end_ns if rank is not None else None))
    typical = found.get(TypicalStep)
    flops = rank.flops if rank is not None else None
    found.add(measure_utilization(flops, typical.median_ns if typical is not None else None))
    found.add((*(part for part in (rank, chosen.lines, chosen.syncs) if part is not None),))
    # A run that is still recording, or one from before limits.json: on its own machine they may be known.
    limits = chosen.limits or (cached_limits_of(rank) if rank is not None else None)
    found.add(limits.during(rank.settings) if limits is not None and rank is not None else limits)
    steps = rank.steps if rank is not None else None
    mean = found.get(MeanStep)
    shares = found.get(OpShares)
    found.add(measure_host_work(chosen.lines, found.get(SourceLines), steps, mean, shares=shares, rank=rank))
    for kind in (TypicalStep, MeanStep):
        found.replace(without_preparation(found.get(kind), found.all(HostWork), mean))
    _measure_peaks(chosen, missing, read, found)
    missing += [*filter(None, [other_loop(chosen.lines)])]
    found.add(_measure_ranks(run.ranks.values(), observed))
    found.add(measure_batch_time(rows, rank.padding if rank is not None else None))
    found.add(measure_growing_inputs(rows))
    if run.run is not None and run.run.total_steps is not None:
        found.add(PlannedSteps(count=run.run.total_steps))
    missing += _derived_peaks(found)
    if observed is not None:
        gpu = observed.gpu_of(chosen.index)
        missing += [*dict.fromkeys(observed.notes), *(errors_of(gpu) if gpu is not None else ())]
    found.missing = (*missing, *run.lost)


#: Type of a device that is not CUDA's or ROCm's -> why a trace of torch's profiler has no work of it
#: (torch.profiler.ProfilerActivity; torch.mps.profiler). `perfkit.record.other_devices` has why there are no times.
_NO_DEVICE_WORK = {
    "mps": "torch's profiler records none on MPS, torch.mps.profiler does for Instruments",
    "xpu": "torch's profiler records it on XPU only where torch was built with Intel's PTI",
}


def _problems_of(rank: Rank, facts: TraceFacts | None) -> Iterator[str]:
    """The problems that the rank recorded itself, and contradictions between its record and the trace of its window."""
    yield from rank.notes
    for error in rank.errors:
        yield f"perfkit's own error: {error}"
    for window in rank.windows:
        if not window.complete:
            yield f"window {window.index} is incomplete: {window.problem}"
    if rank.devices and facts is not None and not facts.device_events:
        reasons = "".join(f"; {_NO_DEVICE_WORK[device]}" for device in rank.devices if device in _NO_DEVICE_WORK)
        yield f"the trace holds no device work although the program used {', '.join(rank.devices)}{reasons}"
    if rank.devices and rank.flops is not None and rank.flops.problem is not None:
        yield f"operations of a step were not counted: {rank.flops.problem}"


def _measure_ranks(ranks: Iterable[RankFolder], observed: ObservedGpus | None) -> Ranks | None:
    """Each rank is read anew and released: of thousands only some numbers are kept."""
    anew = (RankFolder(rank.folder, rank.index) for rank in ranks)
    return measure_rank_times((rank.index, rank.steps, rank.lines, _with_observed(observed, rank)) for rank in anew)


def _observed(metrics: NodeMetrics | None, ranks: Iterable[RankFolder]) -> ObservedGpus | None:
    """The GPUs of the ranks in a file of DCGM; None without one."""
    if metrics is None:
        return None
    records = (RankFolder(rank.folder, rank.index).rank for rank in ranks)
    return ObservedGpus(metrics, [RankPlace.of_record(record) for record in records if record is not None])


def _with_observed(observed: ObservedGpus | None, rank: RankFolder) -> Rank | None:
    """A rank's record, with the health of its GPU as DCGM observed it where it did."""
    if observed is None or rank.rank is None:
        return rank.rank
    health = observed.health_of(rank.rank, rank.steps)
    return msgspec.structs.replace(rank.rank, node=health) if health is not None else rank.rank


def _measure_windows(
    rank: RankFolder, missing: list[str], progress: Progress | None, read: ReadTrace, found: Measurements
) -> TypicalTimes | None:
    """Measure the newest window whose trace can be read."""
    for path in reversed(rank.windows):
        try:
            part = Measurements(str(path))
            usual = _measure_trace(read(path, progress), part)
        except TraceError as error:
            missing.append(str(error))
            continue
        window = rank.window(path)
        facts = part.get(TraceFacts)
        promised = window.last_step - window.first_step + 1 if window is not None and window.complete else None
        if window is not None and (window.reason or "schedule") != "schedule":
            missing.append(f"{path.name} was opened by {window.reason}")
        if promised is not None and facts is not None and facts.steps != promised:
            missing.append(f"{path.name} holds {facts.steps} steps, {promised} were to be recorded")
        found.trace = part.trace
        for results in part:
            found.add(results)
        if facts is not None:
            found.replace(msgspec.structs.replace(facts, path=str(path)))
        return usual
    return None


def _measure_line_steps(
    rank: RankFolder, missing: list[str], usual: TypicalTimes | None, read: ReadTrace, found: Measurements
) -> None:
    """The user's lines, patterns and work of ops from the newest step for lines that can be read."""
    traced = rank.lines.traced if rank.lines is not None else ()
    for path in reversed(rank.stacks):
        try:
            times = read_line_times(path, missing)
            trace = with_frames(read(path), times)
            lines = measure_source_lines(trace, times, traced)
            calls = op_calls(trace, times, traced, usual)
            patterns, work = measure_patterns(calls), measure_step_work(calls)
            rooflines = measure_roofline(trace)
        except TraceError as error:
            missing.append(str(error))
            continue
        found.replace(with_origins(found.get(Kernels), trace, times, traced))
        found.add((*(one for one in (lines, patterns, work) if one is not None),))
        # This step has shapes, which a window has only where the program asked for them.
        if any(one.points for one in rooflines) and not any(one.points for one in found.all(Roofline)):
            found.replace(rooflines)
        return


def _measure_peaks(rank: RankFolder, missing: list[str], read: ReadTrace, found: Measurements) -> None:
    """What holds memory at the peak of a step, and what checkpointing would free of it."""
    typical = found.get(TypicalStep)
    for path in reversed(rank.peaks):
        if (record := rank.memory_steps(path)) is None:
            continue
        try:
            times = read_line_times(path, missing)
            for traced in trace_memory(with_frames(read(path), times), record, times):
                found.add(measure_peak_memory(traced, record, rank.steps, source=path.name))
                forward_ns = typical.phases_ns.forward if typical is not None else None
                found.add(measure_checkpoint_trades(traced, record, forward_ns))
        except TraceError as error:
            missing.append(str(error))
            continue
        return


def _measure_snapshots(rank: RankFolder, missing: list[str], found: Measurements) -> None:
    """Who held memory, from the newest snapshot that can be read."""
    for path in reversed(rank.snapshots):
        try:
            found.add(measure_memory_snapshot(read_memory_snapshot(path)))
        except TraceError as error:
            missing.append(str(error))
        else:
            return
