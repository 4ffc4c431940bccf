"""Ranges by name, on the host and projected onto the device."""

from __future__ import annotations

from perfkit.measures.results.host import RangeTime, distinct_ranges
from perfkit.reports.tables._definition import SPREAD, TableDefinition, TableField, TableSource


def _note(source: TableSource) -> str:
    n = source.steps
    over = f"over the {n} step{'s' if n != 1 else ''} of" if n else "over"
    return f'Totals {over} the trace; over the recording or the run where "from" says so.'


TABLE = TableDefinition(
    name="ranges",
    title="Ranges",
    needs="ranges are marked with perfkit.range, torch's record_function or NVTX, and recorded by a run, torch's "
    "profiler or nsys -t nvtx",
    rows=lambda source: distinct_ranges(source.rows(RangeTime)),
    note=_note,
    fields=(
        TableField("range", "text", "name"),
        TableField("calls", "count", "count"),
        TableField("host", "ns", "host_ns"),
        TableField("host self", "ns", "self_ns"),
        TableField("device busy", "ns", "device_busy_ns"),
        TableField("projected", "ns", "projected_ns"),
        TableField("device work", "count", "device_work"),
        TableField("backward", "ns", "backward_ns"),
        *SPREAD,
        TableField("device busy self", "ns", "device_self_busy_ns"),
        TableField("device backward", "ns", "backward_device_busy_ns"),
        TableField("from", "text", "source"),
    ),
)
