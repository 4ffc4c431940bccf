"""The longest idle times of each device, with their main cause."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from perfkit.measures.results.device import DeviceTime, Gap
from perfkit.reports.tables._definition import TableDefinition, TableField, TableSource
from perfkit.reports.tables.kernels import NEEDS


class DeviceGap(NamedTuple):
    """An idle time of a device, and how long after the first one of the table it began."""

    device: int
    gap: Gap
    after_ns: int


def _rows(source: TableSource) -> Iterator[DeviceGap]:
    gaps = [(device.device, gap) for device in source.found.all(DeviceTime) for gap in device.longest]
    first_ns = min((gap.start_ns for _, gap in gaps), default=0)
    for device, gap in gaps:
        yield DeviceGap(device, gap, gap.start_ns - first_ns)


TABLE = TableDefinition(
    name="gaps",
    title="Longest idle times",
    needs=NEEDS,
    rows=_rows,
    note=lambda source: "Of each device, with its main cause.",
    fields=(
        TableField("cause", "text", "gap.cause"),
        TableField("idle", "ns", "gap.duration_ns"),
        TableField("host event", "text", "gap.event"),
        TableField("range", "text", "gap.range"),
        TableField("step", "count", "gap.step"),
        TableField("ended by", "text", "gap.before"),
        TableField("after the first", "ns", "after_ns"),
        TableField("device", "count", "device"),
    ),
)
