"""Threads where nsys recorded them: how long each ran and waited, in which states it was seen, its system calls."""

from __future__ import annotations

from perfkit.reports.tables._definition import TableDefinition, TableField
from perfkit.reports.tables._sources import rows_of_nsys
from perfkit.trace.nsight.nsys_threads import ThreadTime, read_nsys_threads


def _states(row: ThreadTime) -> str | None:
    total = sum(row.states.values())
    ordered = sorted(row.states.items(), key=lambda one: -one[1])
    return ", ".join(f"{state} {count / total:.0%}" for state, count in ordered) or None


TABLE = TableDefinition(
    name="threads",
    title="Threads",
    needs="threads are recorded by nsys: `nsys profile --cpuctxsw process-tree` for their switches, -t osrt for their "
    "system calls, --sample process-tree for their states",
    rows=rows_of_nsys(read_nsys_threads),
    note=lambda source: "Over the recording, not over its steps.",
    fields=(
        TableField("thread", "text", lambda row: row.thread_name or str(row.thread)),
        TableField("process", "text", lambda row: row.process_name or str(row.process)),
        TableField("running", "ns", "running_ns"),
        TableField("waiting", "ns", "waiting_ns"),
        TableField("switches", "count", "switches"),
        TableField("processors", "count", "processors"),
        TableField("OS calls", "count", "os_calls"),
        TableField("in OS calls", "ns", "os_ns"),
        TableField("states", "text", _states),
        TableField("pid", "text", lambda row: str(row.process)),
        TableField("tid", "text", lambda row: str(row.thread)),
    ),
    on_page=False,
)
