"""Kernels by name, class and precision; copies by direction; how well their grids fill the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from perfkit.measures._durations import Durations, durations_by
from perfkit.measures.device._device_work import counted_work
from perfkit.measures.device._kernel_classes import PRODUCTS, class_of, precision_of, uses_tensor_cores
from perfkit.measures.device._origins import Origin, main_origins
from perfkit.measures.device.copies import direction_of
from perfkit.measures.host._python_frames import PythonFrames
from perfkit.measures.results.kernels import Kernels, KernelTime, NameTime
from perfkit.run.records import LineTimes, TracedLine
from perfkit.trace.columns import DeviceProperties, Kind, Trace
from perfkit.trace.intervals import Ints
from perfkit.trace.occupancy import limits_of, occupancy_percent

#: Kernels whose launch (grid, block, registers) is read: of this many in the middle of the trace, the nearest to the
#: middle of each name, for the names that take most time. Reading arguments again costs as much as reading did, so few
#: parts of the file are read; launches of one name repeat in every step.
WINDOW = 50_000
OF_EACH = 4
NAMES = 200

ARGUMENTS = ("grid", "block", "registers per thread", "shared memory", "blocks per SM", "est. achieved occupancy %")


class _Launch(NamedTuple):
    """How a kernel was launched, as far as the trace shows it."""

    duration_ns: int
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    registers: int | None
    shared_bytes: int | None
    occupancy: float | None
    filled: float | None


def measure_kernels(trace: Trace) -> Kernels | None:
    """Kernels, copies and memsets of the steps (without steps: of the trace), over all devices; None without any.

    Raises:
        TraceError: the file was changed or removed since it was read.
    """
    work = counted_work(trace)
    rows, copies = work[trace.kind[work] == Kind.KERNEL], work[trace.kind[work] != Kind.KERNEL]
    if not rows.size and not copies.size:
        return None
    by_name = durations_by(trace.name[rows], trace.names, trace, rows)
    launches = _launches(trace, rows, [code for code, _ in by_name[:NAMES]])
    origins = main_origins(trace, rows)
    kernels = tuple(_kernel(durations, launches.get(code, []), origins.get(code)) for code, durations in by_name)
    products = [kernel for kernel in kernels if kernel.kernel_class in PRODUCTS]
    return Kernels(
        total_ns=_total(kernels),
        rows=kernels,
        copies=_copies(trace, copies),
        classes_ns=_sums(kernels, lambda kernel: kernel.kernel_class),
        precisions_ns=_sums(kernels, lambda kernel: kernel.precision or "unknown"),
        product_ns=_total(products),
        tensor_core_ns=_total(kernel for kernel in products if kernel.tensor_cores),
        tensor_core_unknown_ns=_total(kernel for kernel in products if kernel.tensor_cores is None),
        occupancy=_mean((kernel.occupancy, kernel.total_ns) for kernel in kernels),
        sm_efficiency=_mean((kernel.sm_efficiency, kernel.total_ns) for kernel in kernels),
    )


def with_origins(
    kernels: Kernels | None, trace: Trace, times: LineTimes | None, traced: Sequence[TracedLine]
) -> Kernels | None:
    """The kernels with the lines that launched kernels of the same names in a step for lines; None for None."""
    rows = np.flatnonzero(trace.is_kind(Kind.KERNEL))
    if kernels is None or not rows.size:
        return None
    found = main_origins(trace, rows, PythonFrames(trace, times, traced))
    at = {trace.names[code]: origin.at for code, origin in found.items()}
    known = (msgspec.structs.replace(one, at=one.at or at.get(one.name)) for one in kernels.rows)
    return msgspec.structs.replace(kernels, rows=tuple(known))


def _kernel(durations: Durations, launches: list[_Launch], origin: Origin | None) -> KernelTime:
    name = durations["name"]
    kernel_class = class_of(name)
    longest = max(launches, key=lambda launch: launch.duration_ns, default=None)
    return KernelTime(
        **durations,
        kernel_class=kernel_class,
        precision=precision_of(name),
        tensor_cores=uses_tensor_cores(name) if kernel_class in PRODUCTS else False,
        grid=longest.grid if longest is not None else None,
        block=longest.block if longest is not None else None,
        registers=longest.registers if longest is not None else None,
        shared_bytes=longest.shared_bytes if longest is not None else None,
        call=origin.call if origin is not None else None,
        op=origin.op if origin is not None else None,
        at=origin.at if origin is not None else None,
        occupancy=_mean((launch.occupancy, launch.duration_ns) for launch in launches),
        sm_efficiency=_mean((launch.filled, launch.duration_ns) for launch in launches),
    )


def _copies(trace: Trace, rows: Ints) -> tuple[NameTime, ...]:
    names = np.where(trace.kind[rows] == Kind.MEMSET, "Memset", np.char.add("Memcpy ", direction_of(trace, rows)))
    known, group = np.unique(names, return_inverse=True)
    return tuple(NameTime(**durations) for _, durations in durations_by(group, known.tolist(), trace, rows))


def _launches(trace: Trace, rows: Ints, wanted: list[int]) -> dict[int, list[_Launch]]:
    """A few launches of each wanted name."""
    chosen = _representatives(trace, rows, wanted)
    if not chosen.size:
        return {}
    fields = trace.fields(chosen, ARGUMENTS)
    grids, blocks = fields["grid"].list(), fields["block"].list()
    registers, shared, each, occupancy = (fields[key].numbers() for key in ARGUMENTS[2:])
    devices = {device.id: device for device in trace.metadata.devices}
    found: dict[int, list[_Launch]] = {}
    for i, row in enumerate(chosen.tolist()):
        device = devices.get(int(trace.device[row]))
        grid, block = _size(grids[i]), _size(blocks[i])
        of_thread = int(registers[i]) if 0 < registers[i] < 2**31 else None
        per_processor = float(each[i])
        if math.isnan(per_processor) and grid is not None and device is not None and device.multiprocessors:
            per_processor = math.prod(grid) / device.multiprocessors
        percent: float | None = float(occupancy[i])
        if not 0 < occupancy[i] <= 100:
            # Kineto writes 0 for what its calculator rejects: all with more than 48 KB of shared memory.
            percent = _percent(device, block, of_thread, float(shared[i]), per_processor)
        found.setdefault(int(trace.name[row]), []).append(
            _Launch(
                duration_ns=int(trace.end_ns[row] - trace.start_ns[row]),
                grid=grid,
                block=block,
                registers=of_thread,
                shared_bytes=int(shared[i]) if 0 <= shared[i] < 2**31 else None,
                occupancy=percent / 100 if percent is not None else None,
                filled=None if math.isnan(per_processor) else min(1.0, per_processor),
            )
        )
    return found


def _percent(
    device: DeviceProperties | None,
    block: tuple[int, int, int] | None,
    registers: int | None,
    shared: float,
    per_processor: float,
) -> float | None:
    limits = limits_of(device.capability) if device is not None else None
    # Comparisons with NaN, which means that the trace has no number, are false.
    if limits is None or block is None or registers is None or not (0 <= shared < 2**31 and per_processor > 0):
        return None
    return occupancy_percent(
        limits,
        threads=math.prod(block),
        registers=registers,
        shared_bytes=int(shared),
        blocks_per_multiprocessor=per_processor,
    )


def _representatives(trace: Trace, rows: Ints, wanted: list[int]) -> Ints:
    """Of each wanted name the kernels nearest to the middle of the trace, in the order of the file."""
    begin = max(0, (rows.size - WINDOW) // 2)
    near = rows[begin : begin + WINDOW]
    is_wanted = np.zeros(len(trace.names), bool)
    is_wanted[wanted] = True
    near = near[is_wanted[trace.name[near]]]
    distance = np.abs(near - (rows[rows.size // 2] if rows.size else 0))
    order = np.lexsort((distance, trace.name[near]))
    names = trace.name[near[order]]
    place = np.arange(names.size) - np.searchsorted(names, names)
    return np.sort(near[order[place < OF_EACH]])


def _size(value: Any) -> tuple[int, int, int] | None:
    if isinstance(value, list) and len(value) == 3 and all(type(one) is int and 0 < one < 2**31 for one in value):
        return value[0], value[1], value[2]
    return None


def _total(kernels: Iterable[KernelTime]) -> int:
    return sum(kernel.total_ns for kernel in kernels)


def _sums(kernels: Iterable[KernelTime], key: Callable[[KernelTime], str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for kernel in kernels:
        found[key(kernel)] = found.get(key(kernel), 0) + kernel.total_ns
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _mean(weighted: Iterator[tuple[float | None, int]]) -> float | None:
    """Mean by weight of the values that are known."""
    known = [(value, weight) for value, weight in weighted if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None
