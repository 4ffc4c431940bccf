"""The roofline of kernels: whether arithmetic, memory or neither limits them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from perfkit.limits.device_peaks import Peaks, peaks_of_device
from perfkit.measures._nested import groups, sum_by
from perfkit.measures._rows import nearest_above
from perfkit.measures.device._device_work import communicates
from perfkit.measures.device._kernel_classes import class_of
from perfkit.measures.ops._op_work import FORMULAS, OpWork, work_of
from perfkit.measures.results.kernels import Bound, Roofline, RooflinePoint
from perfkit.measures.steps._trace_steps import step_of, whole_steps
from perfkit.trace.columns import Kind, Trace
from perfkit.trace.intervals import Bools, Ints

#: Below this share of both peaks neither is the limit. Nsight Compute's SpeedOfLight rule draws that line at 60 % of
#: what the hardware measured ("latency issues"); half of it here, since this counts the minimum that an op
#: must compute and move, without padding, spilling and reading twice.
NEITHER = 0.3
#: Maximum of calls whose arguments are read, in whole steps: reading them costs a third of loading their text, and
#: steps are alike.
MAX_CALLS = 20_000
#: Points that are listed.
MAX_POINTS = 50
#: A share above this is not a rounding error: the numbers contradict each other.
MAX_SHARE = 1.05

#: Kernels that compute float32 in TF32: by name, and nvjet, which is built on tensor cores alone.
TF32 = re.compile(r"tf32|s1688gemm|nvjet", re.IGNORECASE)

ARGUMENTS = ("Input Dims", "Input dims", "Input type", "Concrete Inputs")


def measure_roofline(trace: Trace) -> tuple[Roofline, ...]:
    """Placement of the kernels launched in the steps (if the trace has any), device by device; () without devices.

    A kernel belongs to the nearest op above its launch whose work follows from its shapes (``record_shapes=True``).
    Calls with equal arguments make one point. Of a long trace some steps in its middle represent all.
    """
    kernels = trace.device_rows[trace.kind[trace.device_rows] == Kind.KERNEL]
    launch = trace.launch[kernels]
    steps = whole_steps(trace)
    in_step = step_of(steps, np.where(launch >= 0, trace.start_ns[launch], -1))
    if steps.row.size:
        kernels, launch, in_step = kernels[in_step >= 0], launch[in_step >= 0], in_step[in_step >= 0]
    if not kernels.size:
        return ()
    able = trace.is_kind(Kind.OP) & np.array([name in FORMULAS for name in trace.names])[trace.name]
    op = np.where(launch >= 0, nearest_above(trace, launch, able), -1)
    count = 1
    if steps.row.size:
        first, stop = _chosen_steps(op, in_step, steps.row.size)
        chosen = (in_step >= first) & (in_step < stop)
        kernels, op, count = kernels[chosen], op[chosen], stop - first
    return tuple(
        _measure(trace, device, kernels[mine], op[mine], count) for device, mine in groups(trace.device[kernels])
    )


def _chosen_steps(op: Ints, in_step: Ints, steps: int) -> tuple[int, int]:
    """The steps around the middle that have `MAX_CALLS` calls at most, and at least one that has any."""
    called = np.unique(op[op >= 0], return_index=True)[1]
    calls = np.bincount(in_step[op >= 0][called], minlength=steps)
    busy = np.flatnonzero(calls)
    first = int(busy[busy.size // 2]) if busy.size else 0
    stop = first + 1
    while (first > 0 or stop < steps) and calls[max(first - 1, 0) : stop + 1].sum() <= MAX_CALLS:
        first, stop = max(first - 1, 0), min(stop + 1, steps)
    return first, stop


def _measure(trace: Trace, device: int, kernels: Ints, op: Ints, steps: int) -> Roofline:
    properties = next((one for one in trace.metadata.devices if one.id == device), None)
    name = (properties.name if properties is not None else None) or None
    total_ns = int(trace.duration_ns[kernels].sum())
    placed = np.zeros(kernels.size, bool)
    peaks = peaks_of_device(properties) if properties is not None else None
    problem = None
    points: list[RooflinePoint] = []
    if peaks is None:
        problem = f"the peaks of {name} are not known" if name else "the trace does not name the device"
    else:
        points, placed = _points(trace, kernels, op, peaks)
        if not points:
            problem = "no op with shapes launched these kernels: record with record_shapes=True"
    time_ns: dict[str, int] = dict.fromkeys(("compute", "memory", "neither", "unknown"), 0)
    for point in points:
        time_ns[point.bound] += point.device_ns
    time_ns["unknown"] += total_ns - sum(time_ns.values())
    return Roofline(
        device=device,
        name=name,
        steps=steps,
        device_ns=total_ns,
        time_ns=time_ns,
        unknown_ns=_classes(trace, kernels[~placed & ~communicates(trace, kernels)]),
        peaks_source=peaks.source if peaks is not None else None,
        peaks_derived=peaks is not None and peaks.derived,
        ridges=peaks.ridges if peaks is not None else {},
        problem=problem,
        points=tuple(sorted(points, key=lambda point: -point.device_ns)[:MAX_POINTS]),
    )


def _classes(trace: Trace, kernels: Ints) -> dict[str, int]:
    """The time of kernels by class, longest first."""
    found: dict[str, int] = {}
    times = sum_by(trace.name[kernels], trace.duration_ns[kernels], len(trace.names))
    for code in np.flatnonzero(times).tolist():
        kernel_class = class_of(trace.names[code])
        found[kernel_class] = found.get(kernel_class, 0) + int(times[code])
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _points(trace: Trace, kernels: Ints, op: Ints, peaks: Peaks) -> tuple[list[RooflinePoint], Bools]:
    """The points, and which of the kernels belong to one."""
    with_op = np.flatnonzero(op >= 0)
    is_placed = np.zeros(kernels.size, bool)
    kernels, op = kernels[with_op], op[with_op]
    rows, call = np.unique(op, return_inverse=True)
    if not rows.size:
        return [], is_placed
    spent = sum_by(call, trace.duration_ns[kernels], rows.size)
    in_tf32 = sum_by(call, trace.name_matches(TF32)[kernels].astype(np.int64), rows.size) > 0
    fields = trace.fields(rows, ARGUMENTS)
    keys = np.stack([trace.name[rows], *(fields[key].codes for key in ARGUMENTS), in_tf32], axis=1)
    _, first, place = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    times = sum_by(place.reshape(-1), spent, first.size)
    counts = np.bincount(place.reshape(-1), minlength=first.size)
    found = []
    known = np.zeros(first.size, bool)
    for i, at in enumerate(first.tolist()):
        dims, old_dims, types, concrete = (
            fields[key].values[code] if (code := int(fields[key].codes[at])) >= 0 else None for key in ARGUMENTS
        )
        dims = dims if dims is not None else old_dims
        op_name = trace.names[trace.name[rows[at]]]
        work = work_of(op_name, dims, types, concrete)
        if work is None or not times[i]:
            continue
        if work.precision == "float32" and in_tf32[at]:
            work = work._replace(precision="tf32")
        point = place_point(op_name, shapes_text(dims), work, int(counts[i]), int(times[i]), peaks)
        if point is not None:
            found.append(point)
            known[i] = True
    is_placed[with_op] = known[place.reshape(-1)][call.reshape(-1)]
    return found, is_placed


def place_point(op: str, shapes: str, work: OpWork, count: int, device_ns: int, peaks: Peaks) -> RooflinePoint | None:
    """One point; None where the device's peak for its precision is not known.

    Without the memory's bandwidth, only what arithmetic limits can be placed.
    """
    precision = work.precision
    # No FLOP peak bounds integers and booleans; their bytes count.
    peak = peaks.tflops.get(
        precision if precision in ("tf32", "float8", "float16", "bfloat16", "float64") else "float32"
    )
    if peak is None or not work.bytes:
        return None
    seconds = device_ns / 1e9
    flops_per_s, bytes_per_s = work.flops * count / seconds, work.bytes * count / seconds
    compute = flops_per_s / (peak * 1e12)
    memory = bytes_per_s / (peaks.bandwidth * 1e9) if peaks.bandwidth is not None else None
    if memory is None and compute < NEITHER:
        return None
    share = max(compute, memory or 0.0)
    bound: Bound = "neither"
    if share >= NEITHER:
        bound = "compute" if share == compute else "memory"
    return RooflinePoint(
        op=op,
        shapes=shapes,
        precision=precision,
        count=count,
        device_ns=device_ns,
        flops=work.flops,
        bytes=work.bytes,
        intensity=work.flops / work.bytes,
        flops_per_s=flops_per_s,
        bytes_per_s=bytes_per_s,
        compute_share=compute,
        memory_share=memory,
        bound=bound,
        confidence="high" if work.certain and not peaks.derived and share <= MAX_SHARE else "low",
    )


def shapes_text(dims: Any) -> str:
    """The shapes of the tensors, as a person writes them: ``788x768 768x768``; lists of tensors by their number."""
    texts = []
    for shape in dims:
        if not isinstance(shape, list) or not shape:
            continue
        is_list = isinstance(shape[0], list)
        texts.append(f"{len(shape)} tensors" if is_list else "x".join(str(length) for length in shape))
    return " ".join(texts)
