"""Copies and memsets by direction and kind of memory: bytes, bandwidth, overlap, and how long the host waited."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from perfkit.measures.device.work_groups import work_groups
from perfkit.measures.results.device import CopyTime
from perfkit.reports.tables._definition import TableDefinition, TableField, TableSource, per_call
from perfkit.reports.tables._groups import TIME_FIELDS, grouped
from perfkit.reports.tables.kernels import NEEDS
from perfkit.trace.columns import Kind

_NAME = TableField("copy", "text", "name")


def _groups(by: str) -> Callable[[TableSource], Sequence[Any]]:
    return lambda source: work_groups(source.trace, by, Kind.COPY, Kind.MEMSET) if source.trace is not None else ()


TABLE = TableDefinition(
    name="copies",
    title="Copies",
    needs=NEEDS,
    rows=lambda source: source.rows(CopyTime),
    fields=(
        TableField("kind", "text", "kind"),
        TableField("direction", "text", "direction"),
        TableField("from", "text", "source"),
        TableField("to", "text", "target"),
        TableField("calls", "count", "count"),
        TableField("total", "ns", "total_ns"),
        TableField("bytes", "bytes", "bytes"),
        TableField("bytes/s", "bytes", "bytes_per_s"),
        TableField("mean", "ns", per_call),
        TableField("overlapped by compute", "ns", "overlap_ns"),
        TableField("blocking", "count", "blocking"),
        TableField("host waited", "ns", "blocked_ns"),
        TableField("median", "ns", "median_ns"),
        TableField("min", "ns", "min_ns"),
        TableField("max", "ns", "max_ns"),
        TableField("deviation", "ns", lambda row: None if row.deviation_ns is None else round(row.deviation_ns)),
        TableField("largest", "bytes", "largest_bytes"),
        TableField("device", "count", "device"),
    ),
    by=grouped(
        "copies",
        "Copies",
        NEEDS,
        _groups,
        {
            "module": (_NAME, TableField("module", "text", "key")),
            "line": (_NAME, TableField("line", "place", "key")),
            "step": (_NAME, TableField("step", "count", "key")),
        },
        TIME_FIELDS,
    ),
)
