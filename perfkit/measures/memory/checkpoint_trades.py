"""What checkpointing would free at the peak of a step, and what it would cost, from the step's own allocations.

The step is replayed with the checkpointed activations held for a shorter time: until their segment's forward is over,
and again from where its backward begins. What a segment returns stays, since the next one gets it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from perfkit.measures._rows import launched_work, time_of
from perfkit.measures.memory._step_allocations import StepPlaces
from perfkit.measures.memory.peak_memory import TracedMemory
from perfkit.measures.ops._backward import pair_backward
from perfkit.measures.results.peak_memory import CheckpointTrade
from perfkit.measures.steps._phase_times import phase_times
from perfkit.run.records import MemorySteps
from perfkit.trace.columns import Kind
from perfkit.trace.intervals import Bools, Ints, Union, clip, common

#: Activations of a chain or module below this share of the peak are not worth the recomputation.
_LEAST = 0.10
#: Chains and modules that are looked at, those with most activations.
_MAX_PLACES = 3


class _Segment(NamedTuple):
    """Modules that are computed again together, the time of their forward, and when their backward begins."""

    modules: tuple[str, ...]
    start_ns: int
    end_ns: int
    backward_ns: int


def measure_checkpoint_trades(
    traced: TracedMemory, record: MemorySteps, forward_ns: int | None
) -> tuple[CheckpointTrade, ...]:
    """What can be checkpointed, what frees most first.

    Args:
        traced: The recorded step.
        record: What was recorded with it.
        forward_ns: The forward of a step that nothing recorded; None: it was not timed.
    """
    if not traced.places.has_backward:
        return ()
    found = [
        trade
        for call, segments in _choices(traced, record)
        if (trade := _trade(traced, call, segments, forward_ns)) is not None
    ]
    return tuple(sorted(found, key=lambda one: -one.freed_bytes))


def _choices(traced: TracedMemory, record: MemorySteps) -> Iterator[tuple[str, list[_Segment]]]:
    """The code that checkpoints something, and the segments that it makes."""
    calls = _calls_in_forward(traced)
    peak_bytes = int(traced.level[traced.peak])
    sums = {name: _activations_of(traced, {name}) for name in calls}
    chains = {
        name: children
        for name, children in record.chains.items()
        if all(child in calls for child in children)
        and all(calls[one][1] <= calls[two][0] for one, two in pairwise(children))
        and sum(sums[child] for child in children) >= _LEAST * peak_bytes
    }
    largest = sorted(chains, key=lambda name: -sum(sums[child] for child in chains[name]))[:_MAX_PLACES]
    for name in largest:
        children = chains[name]
        yield f"checkpoint(block, x) for each of {name}", [_segment(traced, calls, (child,)) for child in children]
        count = max(2, round(math.sqrt(len(children))))
        if len(children) > count:
            # The last segment is not checkpointed, and gets the rest: torch.utils.checkpoint.checkpoint_sequential.
            size = len(children) // count
            parts = [children[at * size : (at + 1) * size] for at in range(count - 1)]
            yield f"checkpoint_sequential({name}, {count}, x)", [_segment(traced, calls, part) for part in parts]
    inside = {child for name in largest for child in chains[name]} | set(largest)
    alone = [
        name
        for name in calls
        if sums[name] >= _LEAST * peak_bytes
        and not any(name == one or name.startswith(f"{one}.") or one.startswith(f"{name}.") for one in inside)
        and "." in name
    ]
    for name in sorted(alone, key=lambda name: (-sums[name], name))[:_MAX_PLACES]:
        yield f"checkpoint({name}, x)", [_segment(traced, calls, (name,))]


def _calls_in_forward(traced: TracedMemory) -> dict[str, tuple[int, int]]:
    """Module -> start and end of its first call in the step, of those that it was called once in the forward."""
    places, trace = traced.places, traced.places.trace
    rows = places.modules
    rows = rows[(trace.start_ns[rows] >= places.start_ns) & (trace.start_ns[rows] < places.end_ns)]
    rows = rows[trace.above(places.is_node)[rows] < 0]
    found: dict[str, tuple[int, int]] = {}
    again = set()
    for row in rows.tolist():
        name = trace.names[trace.name[row]]
        again |= {name} & found.keys()
        found[name] = (int(trace.start_ns[row]), int(trace.end_ns[row]))
    return {name: call for name, call in found.items() if name not in again}


def _activations_of(traced: TracedMemory, modules: set[str]) -> int:
    """Bytes of the activations that these modules and those in them computed."""
    return sum(
        int(traced.lives.bytes[piece])
        for at, piece in enumerate(traced.pieces[: traced.where.op.size].tolist())
        if traced.holding[at] == "activations" and _is_in(traced.where.module[at], modules)
    )


def _is_in(module: str | None, modules: set[str]) -> bool:
    while module:
        if module in modules:
            return True
        module = module.rpartition(".")[0]
    return False


def _segment(traced: TracedMemory, calls: dict[str, tuple[int, int]], modules: Sequence[str]) -> _Segment:
    trace = traced.places.trace
    start, end = calls[modules[0]][0], calls[modules[-1]][1]
    backward = pair_backward(trace)
    made = (trace.start_ns[backward.maker] >= start) & (trace.start_ns[backward.maker] < end)
    begins = trace.start_ns[backward.node[made]]
    return _Segment(tuple(modules), start, end, int(begins.min()) if begins.size else end)


def _trade(traced: TracedMemory, call: str, segments: list[_Segment], forward_ns: int | None) -> CheckpointTrade | None:
    """The trade; None where nothing would be freed."""
    inside = traced.within(traced.places.start_ns, traced.places.end_ns)
    times, level = traced.times[inside], traced.level[inside].copy()
    peak_bytes = int(level.max())
    highest = []
    freed = np.zeros(level.size, np.int64)
    for segment in segments:
        sizes = traced.lives.bytes[_kept_inside(traced, segment)]
        away = (times >= segment.end_ns) & (times < segment.backward_ns)
        freed[away] += int(sizes.sum())
    for segment in segments:
        at = max(0, int(np.searchsorted(times, segment.backward_ns, side="right")) - 1)
        forward = traced.level[traced.within(segment.start_ns, segment.end_ns)]
        # What the forward itself needs for a moment, it needs again.
        excess = max(0, int(forward.max()) - traced.level_at(segment.end_ns)) if forward.size else 0
        returned = int(level[at]) - int(freed[at])
        highest.append(returned + excess)
    with_bytes = max(int((level - freed).max()), *highest)
    if with_bytes >= peak_bytes:
        return None
    share, device_ns = _forward_share(traced.places, segments)
    added_ns = device_ns if device_ns is not None else round(share * forward_ns) if forward_ns is not None else None
    return CheckpointTrade(
        device=traced.lives.device,
        call=call,
        modules=tuple(name for segment in segments for name in segment.modules),
        peak_bytes=peak_bytes,
        with_bytes=with_bytes,
        forward_share=share,
        added_ns=added_ns,
    )


def _kept_inside(traced: TracedMemory, segment: _Segment) -> Ints:
    """The activations that a segment keeps for its backward, without what it returns."""
    lives = traced.lives
    returned = {
        piece
        for time, piece, module in lives.outputs
        if module == segment.modules[-1] and segment.start_ns <= time < segment.end_ns
    }
    return np.array(
        [
            piece
            for at, piece in enumerate(traced.pieces[: traced.where.op.size].tolist())
            if traced.holding[at] == "activations"
            and segment.start_ns <= lives.start_ns[piece] < segment.end_ns < lives.end_ns[piece]
            and lives.end_ns[piece] > segment.backward_ns
            and piece not in returned
        ],
        np.int64,
    )


def _forward_share(places: StepPlaces, segments: Sequence[_Segment]) -> tuple[float, int | None]:
    """The share of the forward that segments are, and the device's time in them where it works.

    By the time of ops and kernels, which the lines that are followed do not slow; the median of the recorded steps,
    since another program may have had the core in one of them.
    """
    trace = places.trace
    forward = phase_times(trace).get("forward")
    if forward is None:
        return 0.0, None
    names = {name for segment in segments for name in segment.modules}
    rows = places.modules[trace.above(places.is_node)[places.modules] < 0]
    rows = rows[[trace.names[code] in names for code in trace.name[rows].tolist()]]
    modules = time_of(trace, rows)
    work = launched_work(trace)
    starts, lengths = trace.start_ns[trace.launch[work]], trace.duration_ns[work]
    ops = time_of(trace, np.flatnonzero(trace.is_kind(Kind.OP)))
    parts, shares = [], []
    for start, end in zip(trace.steps.start_ns.tolist(), trace.steps.end_ns.tolist(), strict=True):
        mine, whole = clip(modules, start, end), clip(forward, start, end)
        if work.size:
            part, all_ = (int(lengths[_inside(of, starts)].sum()) for of in (mine, whole))
        else:
            part, all_ = (common(ops, of).length_ns for of in (mine, whole))
        parts.append(part)
        shares.append(min(1.0, part / max(1, all_)))
    return float(np.median(shares)), round(float(np.median(parts))) if work.size else None


def _inside(of: Union, times: Ints) -> Bools:
    if not of.starts.size:
        return np.zeros(times.size, bool)
    at = np.searchsorted(of.starts, times, side="right") - 1
    return (at >= 0) & (times < of.ends[np.maximum(at, 0)])
