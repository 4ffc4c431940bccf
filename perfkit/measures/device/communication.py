"""Collectives: their overlap with compute, their bandwidth, and how long they waited for other ranks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from perfkit.measures._rows import find_rows, mask_of, name_codes, nearest_above
from perfkit.measures.device._device_work import DeviceWork, device_work
from perfkit.measures.results.device import Collective, Communication
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Ints, clip, common, covered_before, joined, union, without

#: Maximum of kernels whose arguments are read again from the file, which is slower the further apart they are (3 ms
#: each, where reading the whole file takes 10 s): collectives repeat every step, so the first ones are enough.
MAX_READ = 256
#: A source of arguments that has none for this many kernels has none for others.
TRIED = 8

#: More elements than any memory, and more ranks than any machine has: a damaged file.
MAX_ELEMENTS, MAX_RANKS = 2**48, 2**31

#: c10d's names for dtypes, as in the arguments (``Float``), and torch's (``float``, ``c10::Half``).
ITEM_BYTES = {
    **dict.fromkeys(("double", "long", "longint", "int64", "unsignedlong", "complexfloat"), 8),
    **dict.fromkeys(("float", "int", "int32", "unsignedint"), 4),
    **dict.fromkeys(("half", "bfloat16", "short", "int16"), 2),
    **dict.fromkeys(("byte", "char", "bool", "unsignedchar", "signedchar", "int8", "uint8"), 1),
}
#: What spellings of one collective (``_allgather_base``, ``nccl:all_gather``) have in common; tried in this order.
NAMES = (
    "allreduce",
    "reducescatter",
    "allgather",
    "alltoall",
    "broadcast",
    "gather",
    "scatter",
    "reduce",
    "send",
    "recv",
)
#: Name, size of the group and dtype; None where the trace does not show it.
_Kind = tuple[str, int | None, str | None]
COLLECTIVE_RANGE = re.compile(r"^(?:nccl|gloo):")
RECORDED = re.compile(r"^record_param_comms$")


def measure_communication(trace: Trace) -> tuple[Communication, ...]:
    """Communication of each device that communicated, in the window of `DeviceWork`."""
    return tuple(_measure(trace, work) for work in device_work(trace) if work.communication.starts.size)


def _measure(trace: Trace, work: DeviceWork) -> Communication:
    hiding = joined(work.compute, work.copying)
    rows = work.rows[work.is_communication]
    kinds, kind, size = kinds_of(trace, rows, MAX_READ)
    waiting = _waiting(kind, size, trace.duration_ns[rows])
    # A collective waits before it transfers.
    begin = trace.start_ns[rows]
    waits = clip(union(begin, begin + np.maximum(waiting, 0)), work.low, work.high)
    return Communication(
        device=work.device,
        steps=max(1, work.steps.row.size),
        total_ns=work.communication.length_ns,
        overlap_ns=common(work.communication, work.compute).length_ns,
        exposed_ns=without(work.communication, hiding).length_ns,
        exposed_waiting_ns=without(waits, hiding).length_ns if (waiting >= 0).any() else None,
        collectives=tuple(sorted(_collectives(trace, work, kinds, kind, size, waiting), key=lambda one: -one.total_ns)),
    )


def _collectives(
    trace: Trace, work: DeviceWork, kinds: list[_Kind], kind: Ints, size: Ints, waiting: Ints
) -> Iterator[Collective]:
    rows = work.rows[work.is_communication]
    starts, ends = np.maximum(trace.start_ns[rows], work.low), np.minimum(trace.end_ns[rows], work.high)
    hiding = joined(work.compute, work.copying)
    exposed = ends - starts - (covered_before(hiding, ends) - covered_before(hiding, starts))
    length = trace.duration_ns[rows]
    for i, (name, group_size, dtype) in enumerate(kinds):
        mine = kind == i
        sized = mine & (size > 0) & (length > 0)
        rate = size[sized] / (length[sized] / 1e9)
        mean = float(size[sized].sum() / (length[sized].sum() / 1e9)) if sized.any() else None
        factor = bus_factor(name, group_size)
        yield Collective(
            name=name,
            group_size=group_size,
            dtype=dtype,
            count=int(mine.sum()),
            sized=int(sized.sum()),
            bytes=int(size[sized].sum()) if sized.any() else None,
            total_ns=int((ends - starts)[mine].sum()),
            exposed_ns=int(exposed[mine].sum()),
            algorithm_bytes_per_s=mean,
            bus_bytes_per_s=mean * factor if mean is not None and factor is not None else None,
            best_bus_bytes_per_s=float(rate.max()) * factor if rate.size and factor is not None else None,
            waiting_ns=int(waiting[mine & (waiting >= 0)].sum()) if (waiting[mine] >= 0).any() else None,
        )


def kinds_of(trace: Trace, rows: Ints, max_read: int) -> tuple[list[_Kind], Ints, Ints]:
    """The kinds of collectives among these kernels, the kind of each as an index, and its bytes (0: not known).

    The arguments of ``max_read`` of them are read.
    """
    index: dict[_Kind, int] = {}
    kind = np.full(rows.size, -1, np.int64)
    size = np.zeros(rows.size, np.int64)
    for i, (of_message, bytes_) in enumerate(_messages(trace, rows[:max_read])):
        kind[i] = index.setdefault(of_message, len(index))
        size[i] = bytes_
    # Those not read count as the first kernel of the same name.
    names = trace.name[rows]
    for code in np.unique(names[max_read:]).tolist():
        read = np.flatnonzero(names[:max_read] == code)
        unknown: _Kind = (trace.names[code], None, None)
        as_ = int(kind[read[0]]) if read.size else index.setdefault(unknown, len(index))
        kind[max_read:][names[max_read:] == code] = as_
    return list(index), kind, size


def waiting_times(trace: Trace, rows: Ints) -> Ints:
    """How long each of these kernels waited for other ranks, as far as one trace shows it (ns); -1 where unknown."""
    _, kind, size = kinds_of(trace, rows, MAX_READ)
    return _waiting(kind, size, trace.duration_ns[rows])


def _waiting(kind: Ints, size: Ints, length: Ints) -> Ints:
    """The time of each collective beyond the fastest of its kind and of its size or a larger one; -1 where unknown.

    A larger message takes at least as long to transfer, so what is beyond that is waiting.
    """
    waiting = np.full(kind.size, -1, np.int64)
    for one in np.unique(kind).tolist():
        mine = np.flatnonzero((kind == one) & (size > 0) & (length > 0))
        if mine.size < 2:
            continue
        order = mine[np.argsort(-size[mine], kind="stable")]
        fastest = np.minimum.accumulate(length[order])
        # All of one size are compared with each other.
        last = np.searchsorted(-size[order], -size[order], side="right") - 1
        waiting[order] = length[order] - fastest[last]
    return waiting


def bus_factor(name: str, group_size: int | None) -> float | None:
    """What the algorithm's bandwidth is multiplied by to compare with a link's, as nccl-tests does it."""
    n = group_size
    if n is None:
        return None
    if name == "allreduce":
        return 2 * (n - 1) / n
    if name in ("allgather", "reducescatter", "alltoall", "gather", "scatter"):
        return (n - 1) / n
    return 1.0 if name in ("broadcast", "reduce", "send", "recv") else None


def _messages(trace: Trace, rows: Ints) -> list[tuple[_Kind, int]]:
    """The kind of each communication kernel and the bytes it moved (0: not known).

    From its own arguments, the op that recorded it, or its range's shapes.
    """
    launch = trace.launch[rows]
    recorded = mask_of(trace, find_rows(trace, RECORDED, Kind.OP))
    ranges = mask_of(trace, find_rows(trace, COLLECTIVE_RANGE, Kind.RANGE, Kind.OP))
    recorder = np.where(launch >= 0, nearest_above(trace, launch, recorded), -1)
    inside = np.where(launch >= 0, nearest_above(trace, launch, ranges), -1)
    known: list[Mapping[str, Any]] = [{} for _ in range(rows.size)]
    # Each source is read only for what the ones before it did not have.
    for source, key in ((rows, "In msg nelems"), (recorder, "In msg nelems"), (inside, "Input Dims")):
        open_ = [i for i, row in enumerate(source.tolist()) if row >= 0 and not known[i]]
        for tried in (open_[:TRIED], open_[TRIED:]):
            found = [args if key in args else {} for args in trace.args(source[tried].tolist())]
            for i, args in zip(tried, found, strict=True):
                known[i] = args
            if not any(found):
                break
    names = [trace.names[code] for code in trace.name[rows].tolist()]
    around = [trace.names[code] if code >= 0 else None for code in name_codes(trace, inside).tolist()]
    group_size = trace.metadata.world_size
    return [message_of(*one, group_size) for one in zip(known, names, around, strict=True)]


def message_of(
    args: Mapping[str, Any], kernel: str, range_name: str | None, world_size: int | None
) -> tuple[_Kind, int]:
    """The kind of a collective and the bytes it moved (0: not known), from its arguments or its range's."""
    if "In msg nelems" in args:
        name = collective_name(str(args.get("Collective name", ""))) or kernel
        group = args.get("Group size")
        dtype = str(args.get("dtype", ""))
        counts = [n for n in (args["In msg nelems"], args.get("Out msg nelems")) if isinstance(n, int)]
        # Of gather and scatter the larger side is the whole message, of the others both are.
        elements = max(counts, default=0)
        group = group if isinstance(group, int) and 0 < group < MAX_RANKS else None
    elif range_name is not None:
        name = collective_name(range_name)
        group = world_size
        dims, types = args.get("Input Dims"), args.get("Input type")
        dtype = str(types[0]) if isinstance(types, list) and types else ""
        elements = _elements(dims)
    else:
        return (kernel, None, None), 0
    item = ITEM_BYTES.get(dtype.removeprefix("c10::").replace(" ", "").lower())
    if item is None and "float8" in dtype.lower():
        item = 1
    size = elements * item if item is not None and 0 < elements < MAX_ELEMENTS else 0
    return (name, group, dtype or None), size


def collective_name(spelling: str) -> str:
    """What spellings of one collective have in common: ``allgather`` for ``nccl:_all_gather_base``."""
    plain = re.sub(r"[^a-z0-9]", "", COLLECTIVE_RANGE.sub("", spelling.lower()))
    return next((name for name in NAMES if name in plain), plain)


def _elements(dims: Any) -> int:
    """The elements of the first tensor of ``Input Dims``."""
    first = dims[0] if isinstance(dims, list) and dims else None
    if not isinstance(first, list) or not all(isinstance(n, int) for n in first):
        return 0
    return math.prod(first)
