"""Bandwidth of copies over time, by device and direction."""

from __future__ import annotations

from perfkit.measures.device.over_time import bandwidth_over_time
from perfkit.reports.tables._definition import TableField
from perfkit.reports.tables._sources import table_over_time

TABLE = table_over_time(
    "bandwidth",
    "Bandwidth over time",
    bandwidth_over_time,
    "Bytes of copies in equal parts of the device's window; parts without a copy are left out.",
    (
        TableField("direction", "text", "direction"),
        TableField("bytes", "bytes", "bytes"),
        TableField("bytes/s", "bytes", "bytes_per_s"),
    ),
)
