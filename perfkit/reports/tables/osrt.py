"""Calls of the operating system by name, which nsys records."""

from __future__ import annotations

from perfkit.measures.results.kernels import OsCall
from perfkit.reports.tables._definition import TIMES, TableDefinition, TableField

TABLE = TableDefinition(
    name="osrt",
    title="OS calls",
    needs="calls of the operating system are recorded by nsys: `perfkit nsys -- python train.py`, or nsys -t osrt",
    rows=lambda source: source.rows(OsCall),
    fields=(TableField("call", "text", "name"), *TIMES),
    on_page=False,
)
