"""The length of each device's queue over time: launches whose work has not begun."""

from __future__ import annotations

from perfkit.measures.device.over_time import queue_over_time
from perfkit.reports.tables._definition import TableField
from perfkit.reports.tables._sources import table_over_time

TABLE = table_over_time(
    "queue",
    "Queue over time",
    queue_over_time,
    "Mean number of launches whose work has not begun, in equal parts of the device's window.",
    (TableField("queued launches", "number", "depth"),),
)
