"""Communication: collectives by name, group and type; by size the bandwidth of each message size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from perfkit.measures.device.collective_sizes import collective_sizes
from perfkit.measures.results.device import Collective, Communication
from perfkit.reports.tables._definition import SPREAD, TableDefinition, TableField, TableSource

_NEEDS = "collectives are recorded with NCCL or RCCL, on a job of several ranks with GPUs"


def _rows(source: TableSource) -> Iterator[tuple[int, Collective]]:
    for device in source.found.all(Communication):
        for one in device.collectives:
            yield device.device, one


def _sizes(source: TableSource) -> Sequence[Any]:
    return collective_sizes(source.trace) if source.trace is not None else ()


_SIZES = TableDefinition(
    name="collectives",
    title="Communication by size",
    needs=f"{_NEEDS}, whose arguments torch's profiler writes since torch 2.2",
    rows=_sizes,
    fields=(
        TableField("collective", "text", "name"),
        TableField("message", "bytes", "message_bytes"),
        TableField("calls", "count", "count"),
        TableField("total", "ns", "total_ns"),
        TableField("bus bytes/s", "bytes", "bus_bytes_per_s"),
        TableField("best bus bytes/s", "bytes", "best_bus_bytes_per_s"),
        TableField("bytes/s", "bytes", "bytes_per_s"),
        *SPREAD,
        TableField("ranks", "count", "group_size"),
        TableField("type", "text", "dtype"),
        TableField("device", "count", "device"),
    ),
    on_page=False,
)
TABLE = TableDefinition(
    name="collectives",
    title="Communication",
    needs=_NEEDS,
    rows=_rows,
    fields=(
        TableField("collective", "text", lambda row: row[1].name),
        TableField("calls", "count", lambda row: row[1].count),
        TableField("total", "ns", lambda row: row[1].total_ns),
        TableField("exposed", "ns", lambda row: row[1].exposed_ns),
        TableField("bytes", "bytes", lambda row: row[1].bytes),
        TableField("bus bytes/s", "bytes", lambda row: row[1].bus_bytes_per_s),
        TableField("waiting for others", "ns", lambda row: row[1].waiting_ns),
        TableField("mean", "ns", lambda row: round(row[1].total_ns / row[1].count) if row[1].count else None),
        TableField("ranks", "count", lambda row: row[1].group_size),
        TableField("type", "text", lambda row: row[1].dtype),
        TableField("device", "count", lambda row: row[0]),
    ),
    by={"size": _SIZES},
)
