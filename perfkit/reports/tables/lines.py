"""The user's lines in the step that was recorded for lines: host time, ops, launches, syncs, allocations."""

from __future__ import annotations

from perfkit.measures.results.host import SourceLine, SourceLines
from perfkit.reports.tables._definition import TableDefinition, TableField, TableSource, place


def _note(source: TableSource) -> str:
    lines = source.found.get(SourceLines)
    if lines is None:
        return "Of the step that was recorded for lines."
    n = lines.steps
    return f"Over {n} step{'s' if n != 1 else ''} of {lines.source}, which following lines made slower."


TABLE = TableDefinition(
    name="lines",
    title="Lines",
    needs="lines are recorded by `perfkit run` in a step of their own, and by torch's profiler with with_stack=True",
    rows=lambda source: source.rows(SourceLine, SourceLines, "lines"),
    note=_note,
    fields=(
        TableField("line", "place", place),
        TableField("function", "text", "function"),
        TableField("self", "ns", "self_ns"),
        TableField("total", "ns", "total_ns"),
        TableField("ops", "count", "ops"),
        TableField("in ops", "ns", "op_ns"),
        TableField("device", "ns", "device_ns"),
        TableField("launches", "count", "launches"),
        TableField("syncs", "count", "syncs"),
        TableField("waited", "ns", "blocked_ns"),
        TableField("backward", "ns", "backward_ns"),
        TableField("device backward", "ns", "backward_device_ns"),
        TableField("launches backward", "count", "backward_launches"),
        TableField("allocated", "bytes", "allocated_bytes"),
        TableField("allocations", "count", "allocations"),
    ),
    on_page=False,
)
