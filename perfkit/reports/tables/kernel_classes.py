"""Time of kernels by class: products, attention, elementwise, communication ..."""

from __future__ import annotations

from collections.abc import Sequence

from perfkit.measures.results.kernels import KernelClassTime, Kernels, class_times
from perfkit.reports.tables._definition import TableDefinition, TableField, TableSource
from perfkit.reports.tables.kernels import NEEDS


def _rows(source: TableSource) -> Sequence[KernelClassTime]:
    kernels = source.found.get(Kernels)
    return class_times(kernels.classes_ns) if kernels is not None else source.found.all(KernelClassTime)


TABLE = TableDefinition(
    name="kernel-classes",
    title="Kernels by class",
    needs=NEEDS,
    rows=_rows,
    fields=(
        TableField("class", "text", "name"),
        TableField("total", "ns", "total_ns"),
        TableField("share", "share", "share"),
    ),
)
