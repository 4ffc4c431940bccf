"""Lines in which the host waits for the device."""

from __future__ import annotations

from perfkit.reports.tables._definition import TableDefinition, TableField
from perfkit.run.records import SyncEvent, Syncs

TABLE = TableDefinition(
    name="syncs",
    title="Syncs",
    needs="syncs are recorded in a run: `perfkit run --syncs auto`, or perfkit.profile(detect_syncs='auto')",
    rows=lambda source: sorted(source.rows(SyncEvent, Syncs, "events"), key=lambda row: -row.count),
    note=lambda source: "Lines in which the host waits for the device.",
    fields=(
        TableField("line", "place", lambda row: f"{row.file}:{row.line}"),
        TableField("function", "text", "function"),
        TableField("op", "text", "op"),
        TableField("kind", "text", "kind"),
        TableField("calls", "count", "count"),
        TableField("per step", "number", "per_step"),
        TableField("host waited", "ns", "blocked_ns"),
        TableField("certainty", "text", "certainty"),
        TableField("instead", "text", "advice"),
    ),
)
