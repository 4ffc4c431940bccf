"""Processes where nsys recorded them, with their threads.

A list and no tree: exports name no parent (``PROCESSES`` has globalPid, pid and name), and the calls that would show it
do not either: in a real export ``returnValue`` of ``fork`` and ``waitpid`` is 0, where the child's number would be.
"""

from __future__ import annotations

from perfkit.reports.tables._definition import TableDefinition, TableField
from perfkit.reports.tables._sources import rows_of_nsys
from perfkit.trace.nsight.nsys_threads import read_nsys_processes

TABLE = TableDefinition(
    name="processes",
    title="Processes",
    needs="processes are recorded by nsys, with -t osrt or --cpuctxsw process-tree",
    rows=rows_of_nsys(read_nsys_processes),
    note=lambda source: "Those with a thread that ran or called the system, over the recording.",
    fields=(
        TableField("process", "text", lambda row: row.name or str(row.process)),
        TableField("pid", "text", lambda row: str(row.process)),
        TableField("threads", "count", "threads"),
    ),
    on_page=False,
)
