"""Is a recording complete enough for a verdict? What it lacks, with numbers, and what to record instead.

Profilers lose events without saying so: CUPTI drops what does not fit into its buffers, another profiler holds the
device, a process ends while its trace is written. What is left looks like a trace of an idle device, or of a step
without communication.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from perfkit._format import percent
from perfkit.measures._rows import find_rows, mask_of, nearest_above
from perfkit.measures.device._device_work import GRAPH_LAUNCH, communicates
from perfkit.measures.device._idle import HOST_CAUSES
from perfkit.measures.results.completeness import Completeness, RecordingProblem
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Bools, Ints

#: Of the launches of complete recordings 0 to 0.5% have no device event (CALIBRATION.md). From twice that share on some
#: are lost, and few of them may be most of the time: a collective is one launch.
LOST = 0.01
#: Fewer than this many may be the last ones before the profiler stopped, unless they are all.
FEW = 3
#: From this share on the device events without a launch are no longer those that were launched before the recording
#: began or by a graph (4% in a complete recording with graphs): their steps and the idle time before them are unknown.
UNLINKED = 0.1
#: From this share on steps without an op, or without a launch, are not steps that the loop skipped.
EMPTY_STEPS = 0.25
#: A step has at least this many ops, and launches if it uses a device, if it does anything.
OPS = 10

KERNEL_LAUNCH = re.compile(HOST_CAUSES["launch call"])
COPY_CALL = re.compile(r"^(?:cuda|hip|cu)Memcpy")
LAUNCH_CALL = re.compile(f"{KERNEL_LAUNCH.pattern}|{COPY_CALL.pattern}")
BEGIN_CAPTURE = re.compile(r"^(?:cuda|hip|cu)StreamBeginCapture")
END_CAPTURE = re.compile(r"^(?:cuda|hip|cu)StreamEndCapture")
#: Collectives of NCCL, which run on a device; gloo's run on the host.
NCCL = re.compile(r"^nccl:")
COLLECTIVE = re.compile(r"^nccl:|^record_param_comms$|^c10d::")
#: Ops that exist for a device only. The check whether cuDNN can be used runs on a CPU too, as do ops ``_for_cpu``.
DEVICE_OP = re.compile(
    r"^aten::(?:_?cudnn_(?!is_acceptable)|miopen_|_thnn_fused_"
    r"|_(?:flash|efficient)_attention_|_scaled_dot_product_(?:cudnn|efficient)_attention)"
)

_FEWER = (
    "Record fewer steps at once (3 are enough), without with_stack and profile_memory, and synchronize the device"
    " before the profiler stops."
)
_DEVICE = (
    "Record with ProfilerActivity.CUDA where CUPTI may be used: no other profiler on the device, and in a container the"
    " permission to profile. Where the program runs on the CPU only, record ProfilerActivity.CPU alone."
)
_AGAIN = "Record again, and let the profiler finish writing before the program ends or the file is copied."
_LAUNCHES = "Record host and device together: ProfilerActivity.CPU and .CUDA, or `nsys profile --trace=cuda,nvtx`."


def measure_completeness(trace: Trace) -> Completeness:
    """What the trace lacks; without problems a verdict may rest on it."""
    launches = _find_launches(trace)
    problems = [*_of_file(trace), *_of_device(trace, launches), *_of_steps(trace, launches)]
    share, unlinked = _unlinked(trace)
    problems += unlinked
    return Completeness(
        problems=tuple(sorted(problems, key=lambda problem: not problem.fatal)),
        launches=launches.rows.size,
        launches_lost=int(launches.lost.sum()),
        unlinked_share=share,
    )


class _Launches(NamedTuple):
    """The calls that put kernels, graphs and copies on a device, and which of them have no device event.

    Memsets are aside: complete recordings lack many of them (49 of 51 in one).
    """

    rows: Ints
    lost: Bools


def _find_launches(trace: Trace) -> _Launches:
    rows = find_rows(trace, LAUNCH_CALL, Kind.RUNTIME)
    # What is launched while a graph is captured does not run then.
    begins = np.sort(trace.start_ns[find_rows(trace, BEGIN_CAPTURE, Kind.RUNTIME)])
    ends = np.sort(trace.start_ns[find_rows(trace, END_CAPTURE, Kind.RUNTIME)])
    times = trace.start_ns[rows]
    captured = np.searchsorted(begins, times, side="right") > np.searchsorted(ends, times, side="right")
    rows = rows[~captured]
    correlation = trace.correlation[rows]
    # np.isin() would hash a million ids, which takes several times as long as sorting them.
    known = np.sort(trace.correlation[trace.device_rows])
    at = np.minimum(np.searchsorted(known, correlation), max(0, known.size - 1))
    is_known = known[at] == correlation if known.size else np.zeros(rows.size, bool)
    return _Launches(rows, ~is_known | (correlation <= 0))


def _of_file(trace: Trace) -> Iterator[RecordingProblem]:
    if trace.cut is not None:
        yield RecordingProblem(sentence=f"{trace.cut[0].upper()}{trace.cut[1:]}.", advice=_AGAIN, fatal=True)
    total = len(trace) + trace.skipped
    if trace.skipped:
        yield RecordingProblem(
            sentence=f"{trace.skipped:,} of {total:,} events could not be read.",
            advice=_AGAIN,
            fatal=trace.skipped > LOST * total,
        )


def _of_device(trace: Trace, launches: _Launches) -> Iterator[RecordingProblem]:
    if not trace.device_rows.size:
        if (reason := _device_expected(trace, launches)) is not None:
            yield RecordingProblem(sentence=f"{reason}, but it holds no device event.", advice=_DEVICE, fatal=True)
        return
    # Without any id the launches cannot be compared: then all device events are unlinked.
    if not (trace.correlation[launches.rows] > 0).any():
        return
    is_graph = mask_of(trace, find_rows(trace, GRAPH_LAUNCH, Kind.RUNTIME))[launches.rows]
    is_copy = mask_of(trace, find_rows(trace, COPY_CALL, Kind.RUNTIME))[launches.rows]
    collectives = mask_of(trace, find_rows(trace, COLLECTIVE, Kind.OP, Kind.RANGE))
    in_collective = (nearest_above(trace, launches.rows, collectives) >= 0) & ~is_copy
    groups = {
        "launches of CUDA graphs": is_graph,
        "launches of collectives": in_collective & ~is_graph,
        "kernel launches": ~is_graph & ~is_copy & ~in_collective,
        "copy calls": is_copy,
    }
    reported = False
    for name, group in groups.items():
        for problem in _lost_launches(trace, name, launches.rows[group], launches.lost[group]):
            reported |= name == "launches of collectives"
            yield problem
    nccl = _nccl_collectives(trace)
    if nccl and not reported and not communicates(trace, trace.device_rows).any():
        yield RecordingProblem(
            sentence=f"The trace holds {nccl:,} collectives of NCCL and not one of their kernels.",
            advice=_FEWER,
            fatal=True,
        )


def _device_expected(trace: Trace, launches: _Launches) -> str | None:
    """What shows that a device worked, None for nothing."""
    if launches.rows.size:
        return f"The trace holds {launches.rows.size:,} launches of device work"
    if nccl := _nccl_collectives(trace):
        return f"The trace holds {nccl:,} collectives of NCCL"
    if ops := find_rows(trace, DEVICE_OP, Kind.OP).size:
        return f"The trace holds {ops:,} ops that only run on a device"
    if allocations := int((trace.is_kind(Kind.MEMORY) & (trace.device >= 0)).sum()):
        return f"The trace holds {allocations:,} allocations on a device"
    if trace.metadata.devices:
        return f"The trace describes a device ({trace.metadata.devices[0].name or 'without a name'})"
    return None


def _nccl_collectives(trace: Trace) -> int:
    """The number of NCCL's collectives between at least two ranks."""
    if trace.metadata.world_size == 1:
        return 0
    nccl = "nccl" in (trace.metadata.backend or "")
    return int(find_rows(trace, COLLECTIVE if nccl else NCCL, Kind.OP, Kind.RANGE).size)


def _lost_launches(trace: Trace, name: str, rows: Ints, lost: Bools) -> Iterator[RecordingProblem]:
    count = int(lost.sum())
    if not count or (count < FEW and count < rows.size):
        return
    yield RecordingProblem(
        sentence=f"{count:,} of {rows.size:,} {name} have no device event ({100 * count / rows.size:.1f}%; complete"
        f" recordings lack at most 0.5%){_since(trace, rows[lost])}.",
        advice=_FEWER,
        fatal=count > LOST * rows.size,
    )


def _since(trace: Trace, lost: Ints) -> str:
    """Where in the recording the device events end, if the launches that lack them are the last ones."""
    rows = trace.device_rows
    first, last = int(trace.start_ns[trace.host_rows].min()), int(trace.end_ns[trace.host_rows].max())
    ended = int(trace.end_ns[rows].max())
    if (trace.start_ns[lost] < ended).mean() > LOST or last <= first:
        return ""
    return f": the device's events end after {percent(ended - first, last - first)} of the recording"


def _unlinked(trace: Trace) -> tuple[float | None, list[RecordingProblem]]:
    """The share of device events whose launch is not in the trace, and what that means."""
    rows = trace.device_rows
    if not rows.size:
        return None, []
    unlinked = trace.launch[rows] < 0
    share = float(unlinked.mean())
    # Before the first event with a launch the device does what was launched before the recording began.
    linked = trace.start_ns[rows[~unlinked]]
    later = unlinked & (trace.start_ns[rows] >= linked.min()) if linked.size else unlinked
    count = int(later.sum())
    if count < FEW and count < rows.size:
        return share, []
    sentence = f"{count:,} of {rows.size:,} device events have no launch in the trace ({100 * count / rows.size:.1f}%)."
    if count <= LOST * rows.size:
        return share, []
    return share, [RecordingProblem(sentence=sentence, advice=_LAUNCHES, fatal=count > UNLINKED * rows.size)]


def _of_steps(trace: Trace, launches: _Launches) -> Iterator[RecordingProblem]:
    steps = trace.steps
    if not steps.row.size:
        return
    mine = steps.track == np.bincount(steps.track).argmax()
    number = np.unique(steps.number[mine])
    jumps = np.flatnonzero(np.diff(number) > 1)
    if jumps.size:
        gap = int(number[-1] - number[0]) + 1 - number.size
        yield RecordingProblem(
            sentence=f"{gap:,} step{'s' if gap > 1 else ''} between step {number[0]} and step {number[-1]}"
            f" {'are' if gap > 1 else 'is'} missing, the first after step {number[jumps[0]]}.",
            advice=_AGAIN,
            fatal=True,
        )
    yield from _empty_steps(trace, steps.start_ns[mine], steps.end_ns[mine], launches)


def _empty_steps(trace: Trace, starts: Ints, ends: Ints, launches: _Launches) -> Iterator[RecordingProblem]:
    """Steps in which nothing happens, on the host or on the device, while much happens in the others."""
    ops = np.flatnonzero(trace.is_kind(Kind.OP, Kind.RUNTIME))
    order = np.argsort(starts)
    starts, ends = starts[order], ends[order]
    for what, rows in (("hold no op", ops), ("launch no device work", launches.rows)):
        times = trace.start_ns[rows]
        step = np.searchsorted(starts, times, side="right") - 1
        inside = (step >= 0) & (times < ends[np.maximum(step, 0)])
        # torch.profiler opens a step when it ends one: the last may be empty.
        counts = np.bincount(step[inside], minlength=starts.size)[:-1]
        empty = int((counts == 0).sum())
        usual = float(np.median(counts[counts > 0])) if empty < counts.size else 0.0
        if empty and usual >= OPS:
            yield RecordingProblem(
                sentence=f"{empty:,} of {counts.size:,} steps {what}, the others {usual:,.0f}.",
                advice=_FEWER,
                fatal=empty >= EMPTY_STEPS * counts.size,
            )
            return
