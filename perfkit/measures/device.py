"""What a device did: busy with what, idle, and what the host was doing at that very instant.

Idle time is charged by time. If the work that ends an idle interval was launched before the interval
began, the device waited for its own queue (a dependency, a graph). If not, the host was late: until the
launch the interval belongs to whatever the launching thread was in, piece by piece, and from the launch
on to launch latency.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from perfkit.measures.results import DeviceTime, Gap, IdleCause
from perfkit.measures.steps import step_of, whole_steps
from perfkit.trace.columns import STEP_NAME, Kind, Steps, Trace
from perfkit.trace.intervals import (
    Ints,
    Union,
    clip,
    common,
    covered_before,
    free,
    joined,
    union,
    without,
)
from perfkit.trace.nesting import find_innermost, overlap

#: Two queued kernels with less between them ran back to back: scheduling one takes some microseconds.
BACK_TO_BACK_NS = 10_000
#: Idle intervals that are listed.
LONGEST = 10

#: Kernels that communicate: NCCL's and RCCL's, and those of libraries that write their own.
COMMUNICATION = re.compile(
    r"nccl|rccl|nvshmem|deep_ep|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce"
    r"|multimem|Broadcast_RING|SendRecv|::ep::internode|::ep::intranode",
    re.IGNORECASE,
)
DIRECTION = re.compile(r"HtoD|DtoH|DtoD")
PAGEABLE = re.compile(r"Pageable")
GRAPH_LAUNCH = re.compile(r"^\w*GraphLaunch")

#: What the host does in an event of this name, or in one that it contains. Tried in this order.
HOST_CAUSES: tuple[tuple[IdleCause, re.Pattern[str]], ...] = (
    (
        "sync",
        re.compile(
            r"^(?:cuda|hip|cu)(?:Device|Stream|Event|Ctx)Synchronize|^(?:cuda|hip)EventQuery|^hipMemcpyWithStream"
            r"|^(?:cudaMemcpy|hipMemcpy|aten::(?:item|_local_scalar_dense|nonzero|is_nonzero))$"
        ),
    ),
    (
        "allocation",
        re.compile(
            r"^(?:cuda|hip|cu)(?:Malloc|Free|HostAlloc|HostRegister"
            r"|Mem(?:AllocHost|Alloc|Free|Create|Map|Unmap|HostAlloc))"
        ),
    ),
    (
        "module load",
        # cudaFuncGetAttributes makes the runtime load a module that it had put off.
        re.compile(r"^cuModuleLoad|^cuLibraryLoad|^cudaFuncGetAttributes|^hipModuleLoad|^cuLinkCreate"),
    ),
    (
        "data loading",
        re.compile(r"enumerate\((?:DataLoader|DataPipe)\)|dataloader\.py\(\d+\): __next__|_next_data|pin_memory"),
    ),
    ("copy call", re.compile(r"^(?:cuda|hip|cu)Mem(?:cpy|set)")),
    (
        "launch call",
        re.compile(r"^(?:cuda|hip|cu)\w*?(?:Launch(?:Cooperative)?Kernel|GraphLaunch|ModuleLaunch|ExtLaunch)"),
    ),
    ("communication call", re.compile(r"^nccl|c10d::|ProcessGroup")),
    ("optimizer", re.compile(r"^Optimizer\.")),
)

CAUSES: tuple[IdleCause, ...] = (
    *(cause for cause, _ in HOST_CAUSES),
    "python",
    "operators",
    "uninstrumented",
    "other host work",
    "launch latency",
    "queued back to back",
    "dependency",
    "graph",
    "no launch in the trace",
    "profiler",
)
CODE = {cause: code for code, cause in enumerate(CAUSES)}


def measure_devices(trace: Trace) -> tuple[DeviceTime, ...]:
    """Busy and idle time of each device that worked.

    The window reaches over the steps, up to the end of the work launched in them, since a device runs
    late; without steps over all the device's work. A trace without steps counts as one.
    """
    if not trace.device_rows.size:
        return ()
    steps = whole_steps(trace)
    causes = _host_causes(trace)
    overhead = trace.is_kind(Kind.OVERHEAD)
    profiler = union(trace.start_ns[overhead], trace.end_ns[overhead])
    names = {device.id: device.name for device in trace.metadata.devices}
    of = trace.device[trace.device_rows]
    return tuple(
        _measure(trace, device, names.get(device), trace.device_rows[of == device], steps, causes, profiler)
        for device in np.unique(of).tolist()
    )


def _measure(
    trace: Trace, device: int, name: str | None, rows: Ints, steps: Steps, causes: Ints, profiler: Union
) -> DeviceTime:
    low, high = _window(trace, rows, steps)

    def covered(chosen: Ints) -> Union:
        return clip(union(trace.start_ns[chosen], trace.end_ns[chosen]), low, high)

    unlinked = float((trace.launch[rows] < 0).mean())
    everything = rows
    rows = rows[(trace.end_ns[rows] > low) & (trace.start_ns[rows] < high)]
    kind = trace.kind[rows]
    is_communication = (kind == Kind.KERNEL) & trace.name_matches(COMMUNICATION)[rows]
    compute = covered(rows[(kind == Kind.KERNEL) & ~is_communication])
    communication = covered(rows[is_communication])
    copies = rows[kind == Kind.COPY]
    copying = covered(copies)
    busy = covered(rows)
    idle = free(busy, low, high)
    pieces = _charge(trace, everything, idle, high, steps, causes)
    # The profiler's own time is not the program's: taken out of whatever it fell into.
    disturbed = covered_before(profiler, pieces.ends) - covered_before(profiler, pieces.starts)
    total = np.zeros(len(CAUSES), np.int64)
    np.add.at(total, pieces.cause, pieces.ends - pieces.starts - disturbed)
    total[CODE["profiler"]] += disturbed.sum()

    direction_of = [match[0] if (match := DIRECTION.search(n)) else "other" for n in trace.names]
    directions: dict[str, list[int]] = {}
    for row in copies.tolist():
        directions.setdefault(direction_of[trace.name[row]], []).append(row)
    kernels = rows[kind == Kind.KERNEL]
    calls = np.flatnonzero(trace.is_kind(Kind.RUNTIME) & trace.name_matches(GRAPH_LAUNCH))
    return DeviceTime(
        device=device,
        name=name or None,
        window_ns=high - low,
        busy_ns=busy.length_ns,
        idle_ns=idle.length_ns,
        compute_ns=compute.length_ns,
        communication_ns=communication.length_ns,
        copy_ns=copying.length_ns,
        memset_ns=covered(rows[kind == Kind.MEMSET]).length_ns,
        copies_ns={key: covered(np.array(found)).length_ns for key, found in sorted(directions.items())},
        copy_bytes={key: int(np.maximum(trace.bytes[found], 0).sum()) for key, found in sorted(directions.items())},
        pageable_ns=covered(copies[trace.name_matches(PAGEABLE)[copies]]).length_ns,
        overlap_ns=common(communication, compute).length_ns,
        exposed_communication_ns=without(communication, joined(compute, copying)).length_ns,
        exposed_copy_ns=without(copying, compute).length_ns,
        kernels=kernels.size,
        mean_kernel_ns=int((trace.end_ns - trace.start_ns)[kernels].mean()) if kernels.size else None,
        causes={CAUSES[code]: int(total[code]) for code in np.argsort(-total, kind="stable") if total[code]},
        longest=tuple(_longest(trace, idle, pieces)),
        unlinked_share=unlinked,
        graph_launches=int(((trace.start_ns[calls] >= low) & (trace.start_ns[calls] < high)).sum()),
        steps=max(1, steps.row.size),
    )


def _window(trace: Trace, rows: Ints, steps: Steps) -> tuple[int, int]:
    if not steps.row.size:
        return int(trace.start_ns[rows].min()), int(trace.end_ns[rows].max())
    launch = trace.launch[rows]
    inside = (launch >= 0) & (step_of(steps, trace.start_ns[launch]) >= 0)
    last = trace.end_ns[rows[inside]].max(initial=0)
    return int(steps.start_ns[0]), max(int(steps.end_ns[-1]), int(last))


def _host_causes(trace: Trace) -> Ints:
    """For each host event the cause that its time is charged to while it is innermost."""
    by_name = np.full(len(trace.names), -1, np.int64)
    for code, name in enumerate(trace.names):
        by_name[code] = next((CODE[cause] for cause, pattern in HOST_CAUSES if pattern.search(name)), -1)
    if not len(trace):
        return by_name
    own = by_name[trace.name]
    own[~trace.is_kind(Kind.OP, Kind.RANGE, Kind.PYTHON, Kind.RUNTIME)] = -1
    above = trace.above(own >= 0)
    cause = np.where(own >= 0, own, np.where(above >= 0, own[above], -1))
    fallback = np.full(max(Kind) + 1, CODE["other host work"], np.int64)
    fallback[Kind.OP] = CODE["operators"]
    fallback[Kind.PYTHON] = CODE["python"]
    # A step says no more than that the loop ran: in it and in nothing else means that nothing was recorded.
    steps = trace.name_matches(STEP_NAME) & trace.is_kind(Kind.RANGE)
    plain = np.where(steps, CODE["uninstrumented"], fallback[trace.kind])
    return np.where(cause >= 0, cause, plain)


class _Pieces(NamedTuple):
    """Idle time by cause: ``[starts, ends)`` of idle interval ``interval``, spent in event ``row`` (-1: none)."""

    interval: Ints
    cause: Ints
    starts: Ints
    ends: Ints
    row: Ints


def _charge(trace: Trace, rows: Ints, idle: Union, high: int, steps: Steps, causes: Ints) -> _Pieces:
    """Cut each idle interval into pieces by cause; they sum to it exactly."""
    begin, end = idle.starts, idle.ends
    order = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    starts = trace.start_ns[order]
    at = np.searchsorted(starts, end, side="left")
    following = order[np.minimum(at, order.size - 1)]
    ends_window = (end == high) & ((at >= order.size) | (starts[np.minimum(at, order.size - 1)] != end))
    launch = np.where(ends_window, -1, trace.launch[following])
    launched = np.where(launch >= 0, trace.start_ns[launch], 0)

    whole = np.full(end.size, -1, np.int64)
    queued = (launch >= 0) & (launched <= begin)
    graph = np.zeros(end.size, bool)
    if len(trace):
        graph = (launch >= 0) & trace.name_matches(GRAPH_LAUNCH)[launch]
    whole[(launch < 0) & ~ends_window] = CODE["no launch in the trace"]
    whole[queued] = CODE["dependency"]
    whole[queued & graph] = CODE["graph"]
    whole[queued & (end - begin < BACK_TO_BACK_NS)] = CODE["queued back to back"]

    parts: list[_Pieces] = []
    known = np.flatnonzero(whole >= 0)
    parts.append(_Pieces(known, whole[known], begin[known], end[known], launch[known]))
    late = np.flatnonzero(whole < 0)
    # At the end of the window nothing was launched: what the loop's thread did is the cause to the end.
    until = np.where(ends_window[late], end[late], np.minimum(launched[late], end[late]))
    latency = np.full(late.size, CODE["launch latency"])
    parts.append(_Pieces(late, latency, until, end[late], launch[late]))
    thread = np.where(launch[late] >= 0, trace.track[launch[late]], steps.track[0] if steps.row.size else -1)
    host = trace.host_rows
    for track in np.unique(thread).tolist():
        mine = thread == track
        waiting = Union(begin[late[mine]], until[mine])
        events = host[trace.track[host] == track]
        segments = find_innermost(trace.start_ns[events], trace.end_ns[events])
        which, owner, first, last = overlap(segments, waiting.starts, waiting.ends)
        owner = events[owner]
        parts.append(_Pieces(late[mine][which], causes[owner], first, last, owner))
        rest = without(waiting, union(first, last))
        which = np.searchsorted(waiting.starts, rest.starts, side="right") - 1
        nothing = np.full(which.size, CODE["uninstrumented"])
        parts.append(_Pieces(late[mine][which], nothing, *rest, np.full(which.size, -1)))
    return _Pieces(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _longest(trace: Trace, idle: Union, pieces: _Pieces) -> Iterator[Gap]:
    length = idle.ends - idle.starts
    for interval in np.argsort(-length, kind="stable")[:LONGEST].tolist():
        mine = np.flatnonzero(pieces.interval == interval)
        spent = pieces.ends[mine] - pieces.starts[mine]
        by_cause = np.bincount(pieces.cause[mine], weights=spent)
        main = int(by_cause.argmax())
        blamed = (pieces.cause[mine] == main) & (pieces.row[mine] >= 0)
        event = None
        if blamed.any():
            by_name = np.bincount(trace.name[pieces.row[mine][blamed]], weights=spent[blamed])
            event = trace.names[int(by_name.argmax())]
        yield Gap(
            start_ns=int(idle.starts[interval]),
            duration_ns=int(length[interval]),
            cause=CAUSES[main],
            event=event,
        )
