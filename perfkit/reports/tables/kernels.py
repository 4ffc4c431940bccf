"""Kernels by name: times, launch parameters, and the call, the op and the line that launch them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from perfkit.measures.device.work_groups import work_groups
from perfkit.measures.results.kernels import Kernels, KernelTime
from perfkit.reports.tables._definition import TIMES, TableDefinition, TableField, TableSource, dimensions, place
from perfkit.reports.tables._groups import TIME_FIELDS, grouped
from perfkit.trace.columns import Kind

NEEDS = "kernels are recorded on a machine with a GPU: a window of `perfkit run`, a Kineto trace or a report of nsys"
_NAME = TableField("kernel", "text", "name")


def _groups(by: str) -> Callable[[TableSource], Sequence[Any]]:
    return lambda source: work_groups(source.trace, by, Kind.KERNEL) if source.trace is not None else ()


TABLE = TableDefinition(
    name="kernels",
    title="Kernels",
    needs=NEEDS,
    rows=lambda source: source.rows(KernelTime, Kernels),
    fields=(
        _NAME,
        *TIMES[:3],
        TableField("op", "text", "op"),
        TableField("line", "place", lambda row: place(row.at)),
        *TIMES[3:],
        TableField("class", "text", "kernel_class"),
        TableField("precision", "text", "precision"),
        TableField("tensor cores", "text", lambda row: {None: None, True: "yes", False: "no"}[row.tensor_cores]),
        TableField("occupancy", "share", "occupancy"),
        TableField("grid", "text", lambda row: dimensions(row.grid)),
        TableField("block", "text", lambda row: dimensions(row.block)),
        TableField("registers", "count", "registers"),
        TableField("shared memory", "bytes", "shared_bytes"),
        TableField("launched by", "text", "call"),
    ),
    by=grouped(
        "kernels",
        "Kernels",
        NEEDS,
        _groups,
        {
            "shape": (_NAME, TableField("op", "text", "op"), TableField("shapes", "text", "key")),
            "module": (_NAME, TableField("module", "text", "key")),
            "line": (_NAME, TableField("line", "place", "key")),
            "step": (_NAME, TableField("step", "count", "key")),
        },
        TIME_FIELDS,
    ),
)
