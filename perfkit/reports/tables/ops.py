"""Ops by name: what each costs on the host and on the device; by shape also what it computes and moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfkit.measures.ops.op_groups import op_groups
from perfkit.measures.results.host import Ops, OpTime
from perfkit.reports.tables._definition import SPREAD, TableDefinition, TableField, TableSource
from perfkit.reports.tables._groups import GROUP_FIELDS, grouped

_NEEDS = "ops are recorded by torch's profiler: a window of `perfkit run`, or a Kineto trace (nsys records none)"


def _memory(row: OpTime) -> int | None:
    """Bytes that the op allocated by itself and kept, over all devices."""
    return sum(change.self_bytes for change in row.memory.values()) if row.memory is not None else None


def _groups(by: str) -> Any:
    def rows(source: TableSource) -> Sequence[Any]:
        return op_groups(source.trace, by, source.found) if source.trace is not None else ()

    return rows


TABLE = TableDefinition(
    name="ops",
    title="Ops",
    needs=_NEEDS,
    rows=lambda source: source.rows(OpTime, Ops),
    fields=(
        TableField("op", "text", "name"),
        TableField("calls", "count", "count"),
        TableField("self", "ns", "self_ns"),
        TableField("share", "share", "share"),
        TableField("total", "ns", "total_ns"),
        TableField("device self", "ns", "device_self_ns"),
        TableField("device", "ns", "device_ns"),
        *SPREAD,
        TableField("backward", "ns", "backward_ns"),
        TableField("device backward", "ns", "backward_device_ns"),
        TableField("memory kept", "bytes", _memory),
    ),
    by=grouped(
        "ops",
        "Ops",
        _NEEDS,
        _groups,
        {
            "shape": (
                TableField("op", "text", "name"),
                TableField("shapes", "text", "key"),
                TableField("precision", "text", "precision"),
            ),
            "module": (TableField("op", "text", "name"), TableField("module", "text", "key")),
            "line": (TableField("op", "text", "name"), TableField("line", "place", "key")),
            "step": (TableField("op", "text", "name"), TableField("step", "count", "key")),
        },
        GROUP_FIELDS,
    ),
)
