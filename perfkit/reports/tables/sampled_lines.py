"""The hottest lines by sampling, per step and without recording a window."""

from __future__ import annotations

from perfkit.reports.tables._definition import TableDefinition, TableField
from perfkit.run.records import LineRow, Lines

TABLE = TableDefinition(
    name="sampled-lines",
    title="Hottest lines, sampled",
    needs="samples of lines are in a run folder: `perfkit run train.py`, or perfkit.profile",
    rows=lambda source: sorted(source.rows(LineRow, Lines), key=lambda row: -row.host_ns),
    note=lambda source: "Per step, without recording a window.",
    fields=(
        TableField("line", "place", lambda row: f"{row.file}:{row.line}"),
        TableField("function", "text", "function"),
        TableField("phase", "text", "phase"),
        TableField("host per step", "ns", "host_ns"),
        TableField("samples", "count", "samples"),
        TableField("worker of", "text", "worker"),
    ),
)
