"""Bandwidth of collectives by the size of their message."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfkit.measures._durations import durations_by
from perfkit.measures.device._device_work import DeviceWork, device_work
from perfkit.measures.device.communication import bus_factor, kinds_of
from perfkit.measures.results.groups import MessageTime
from perfkit.trace.columns import Trace

#: Collectives whose arguments are read: all of a usual window. What is beyond counts without its size.
MAX_READ = 20_000


def collective_sizes(trace: Trace) -> list[MessageTime]:
    """Collectives of the window by device, kind and message size; the largest messages of each kind first."""
    found = [one for work in device_work(trace) if work.is_communication.any() for one in _sizes(trace, work)]
    return sorted(found, key=lambda one: (one.device, one.name, -(one.message_bytes or 0)))


def _sizes(trace: Trace, work: DeviceWork) -> Iterator[MessageTime]:
    rows = work.rows[work.is_communication]
    kinds, kind, size = kinds_of(trace, rows, MAX_READ)
    pairs, group = np.unique(np.stack([kind, size], axis=1), axis=0, return_inverse=True)
    names = [kinds[number][0] for number in pairs[:, 0].tolist()]
    for number, times in durations_by(group.reshape(-1), names, trace, rows):
        of, message = kinds[int(pairs[number, 0])], int(pairs[number, 1])
        name, group_size, dtype = of
        factor = bus_factor(name, group_size)
        mean, best = (message / ns * 1e9 if message and ns else None for ns in (times["mean_ns"], times["min_ns"]))
        yield MessageTime(
            **times,
            device=work.device,
            group_size=group_size,
            dtype=dtype,
            message_bytes=message or None,
            bytes_per_s=mean,
            bus_bytes_per_s=mean * factor if mean is not None and factor is not None else None,
            best_bus_bytes_per_s=best * factor if best is not None and factor is not None else None,
        )
