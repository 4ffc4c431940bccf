"""Unified memory where nsys recorded it: page faults and migrations."""

from __future__ import annotations

from perfkit.reports.tables._definition import TableDefinition, TableField, per_call
from perfkit.reports.tables._sources import rows_of_nsys
from perfkit.trace.nsight.nsys_unified_memory import read_unified_memory

TABLE = TableDefinition(
    name="unified-memory",
    title="Unified memory",
    needs="page faults are recorded by nsys: `nsys profile --cuda-um-cpu-page-faults=true "
    "--cuda-um-gpu-page-faults=true`",
    rows=rows_of_nsys(read_unified_memory),
    note=lambda source: "Over the recording, not over its steps.",
    fields=(
        TableField("kind", "text", "kind"),
        TableField("count", "count", "count"),
        TableField("total", "ns", "total_ns"),
        TableField("bytes", "bytes", "bytes"),
        TableField("mean", "ns", per_call),
    ),
    on_page=False,
)
