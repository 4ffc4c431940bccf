"""Streams of each device: busy time, and the gaps between their work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perfkit.measures.results.device import DeviceTime
from perfkit.reports.tables._definition import TableDefinition, TableField, TableSource
from perfkit.reports.tables.kernels import NEEDS


def _rows(source: TableSource) -> Iterator[tuple[int, Any, float]]:
    for device in source.found.all(DeviceTime):
        for stream in device.streams:
            yield device.device, stream, stream.busy_ns / max(1, device.window_ns)


TABLE = TableDefinition(
    name="streams",
    title="Streams",
    needs=NEEDS,
    rows=_rows,
    fields=(
        TableField("stream", "count", lambda row: row[1].stream),
        TableField("device", "count", lambda row: row[0]),
        TableField("device work", "count", lambda row: row[1].count),
        TableField("busy", "ns", lambda row: row[1].busy_ns),
        TableField("share", "share", lambda row: row[2]),
        TableField("late", "ns", lambda row: row[1].late_ns),
        TableField("back to back", "ns", lambda row: row[1].back_to_back_ns),
        TableField("queued", "ns", lambda row: row[1].queued_ns),
        TableField("launch not in the trace", "ns", lambda row: row[1].unlinked_ns),
    ),
    on_page=False,
)
