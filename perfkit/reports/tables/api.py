"""Calls of the device's runtime and driver API by name: what nsys calls its CUDA API summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from perfkit.measures.device.work_groups import call_groups
from perfkit.measures.results.kernels import ApiCall
from perfkit.reports.tables._definition import TIMES, TableDefinition, TableField, TableSource
from perfkit.reports.tables._groups import TIME_FIELDS, grouped

_NEEDS = "calls of the CUDA or HIP API are recorded on a machine with a GPU, by torch's profiler and by nsys -t cuda"
_NAME = TableField("call", "text", "name")


def _groups(by: str) -> Callable[[TableSource], Sequence[Any]]:
    return lambda source: call_groups(source.trace, by) if source.trace is not None else ()


TABLE = TableDefinition(
    name="api",
    title="API calls",
    needs=_NEEDS,
    rows=lambda source: source.rows(ApiCall),
    fields=(_NAME, *TIMES),
    by=grouped(
        "api",
        "API calls",
        _NEEDS,
        _groups,
        {
            "module": (_NAME, TableField("module", "text", "key")),
            "line": (_NAME, TableField("line", "place", "key")),
            "step": (_NAME, TableField("step", "count", "key")),
        },
        TIME_FIELDS,
    ),
)
