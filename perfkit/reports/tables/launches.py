"""Each kernel, copy and memset by itself, in order of time: when, where, how it was launched and by what."""

from __future__ import annotations

from perfkit.measures.device.launch_list import list_launches
from perfkit.reports.tables._definition import TableDefinition, TableField, dimensions, of_steps, place
from perfkit.reports.tables.kernels import NEEDS

TABLE = TableDefinition(
    name="launches",
    title="Launches",
    needs=NEEDS,
    rows=lambda source: list_launches(source.trace) if source.trace is not None else (),
    note=lambda source: f"{of_steps(source)} Each kernel, copy and memset; times from the first.",
    fields=(
        TableField("name", "text", "name"),
        TableField("start", "ns", "start_ns"),
        TableField("duration", "ns", "duration_ns"),
        TableField("device", "count", "device"),
        TableField("stream", "count", "stream"),
        TableField("step", "count", "step"),
        TableField("op", "text", "op"),
        TableField("line", "place", lambda row: place(row.at)),
        TableField("launch latency", "ns", "latency_ns"),
        TableField("launched by", "text", "call"),
        TableField("grid", "text", lambda row: dimensions(row.grid)),
        TableField("block", "text", lambda row: dimensions(row.block)),
        TableField("registers", "count", "registers"),
        TableField("shared memory", "bytes", "shared_bytes"),
        TableField("bytes", "bytes", "bytes"),
        TableField("bytes/s", "bytes", "bytes_per_s"),
        TableField("correlation", "count", "correlation"),
    ),
    on_page=False,
)
