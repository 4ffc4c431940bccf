"""GPU metrics in an nsys export: busy SMs, tensor cores, DRAM, PCIe and NVLink of each device, sampled at a rate."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np

from perfkit.trace.nsight._nsys_tables import NsysTables
from perfkit.trace.nsight.nsys_threads import nsys_export_of

_SAMPLES = "GPU_METRICS"
_NAMES = "TARGET_INFO_GPU_METRICS"
#: The device is the last byte of the type of a sample.
_DEVICE = 0xFF
#: ``NVLink RX Requests User Data [Throughput %]``: older versions have no unit.
_NAME = re.compile(r"(.*?)\s*\[(?:Throughput )?([^\]]+)\]")
#: A device has 20 to 40 metrics; more than this many of all devices are damage.
_MAX_METRICS = 10_000
#: No metric comes near this: a percentage, or a clock in MHz or Hz.
_MAX_VALUE = 10**15


class GpuMetric(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of one metric of one device, over the recording.

    ``unit`` is nsys': ``%`` of the peak throughput, ``MHz``; None where the export has none. ``sampled_ns`` is from the
    first sample to the last.
    """

    device: int
    name: str
    unit: str | None
    samples: int
    mean: float
    low: int
    high: int
    sampled_ns: int


class _MetricSums:
    def __init__(self) -> None:
        self.samples = self.total = 0
        self.low, self.high = _MAX_VALUE, -_MAX_VALUE
        self.first_ns, self.last_ns = 2**63 - 1, -(2**63)


def read_gpu_metrics(path: Path) -> tuple[GpuMetric, ...]:
    """Each metric of each device, by device and name; empty where nsys recorded none (``--gpu-metrics-devices=all``).

    Raises:
        TraceError: the file is no SQLite database, or damaged so that nothing can be read.
    """
    with NsysTables(nsys_export_of(path)) as tables:
        names = {
            (kind, metric): str(name)
            for kind, metric, name in tables.values(_NAMES, "typeId", "metricId", "metricName")
            if isinstance(metric, int) and name is not None
        }
        # Some exports name the metrics once, for all devices.
        names |= {(None, metric): name for (_, metric), name in names.items()}
        sums = _sums(tables)
    found = []
    for (kind, metric), one in sums.items():
        name = names.get((kind, metric), names.get((None, metric), f"metric {metric}"))
        match = _NAME.fullmatch(name)
        found.append(
            GpuMetric(
                device=kind & _DEVICE,
                name=match[1] if match else name,
                unit=match[2] if match else None,
                samples=one.samples,
                mean=one.total / one.samples,
                low=one.low,
                high=one.high,
                sampled_ns=one.last_ns - one.first_ns,
            )
        )
    return tuple(sorted(found, key=lambda one: (one.device, one.name)))


def _sums(tables: NsysTables) -> dict[tuple[int, int], _MetricSums]:
    """By type and metric; values that nothing can have are left out."""
    sums: dict[tuple[int, int], _MetricSums] = {}
    columns = {"typeId": 0, "metricId": 0, "value": _MAX_VALUE, "timestamp": 0}
    for block in tables.integers(_SAMPLES, columns):
        usable = np.abs(block["value"]) < _MAX_VALUE
        values, times = block["value"][usable], block["timestamp"][usable]
        kinds, kind_of = np.unique(block["typeId"][usable], return_inverse=True)
        metrics, metric_of = np.unique(block["metricId"][usable], return_inverse=True)
        keys, place = np.unique(kind_of * max(1, metrics.size) + metric_of, return_inverse=True)
        order = np.argsort(place, kind="stable")
        ends = np.cumsum(np.bincount(place, minlength=keys.size))
        for key, rows in zip(keys.tolist(), np.split(order, ends[:-1]), strict=False):
            kind, metric = int(kinds[key // metrics.size]), int(metrics[key % metrics.size])
            if (kind, metric) not in sums and len(sums) >= _MAX_METRICS:
                continue
            one = sums.setdefault((kind, metric), _MetricSums())
            one.samples += rows.size
            one.total += int(values[rows].sum())
            one.low, one.high = min(one.low, int(values[rows].min())), max(one.high, int(values[rows].max()))
            one.first_ns = min(one.first_ns, int(times[rows].min()))
            one.last_ns = max(one.last_ns, int(times[rows].max()))
    return sums
