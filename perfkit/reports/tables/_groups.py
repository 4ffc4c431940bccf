"""Tables in other groups: by shape, module, line and step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from perfkit.reports.tables._definition import SPREAD, TIMES, TableDefinition, TableField, TableSource

#: What has to be recorded for groups, beside what the table itself needs.
_GROUPS_NEED = {
    "shape": "shapes of ops (`record_shapes=True`, or `perfkit run --record-shapes`)",
    "module": "modules (`with_stack=True`, or ranges of `perfkit.annotate_modules`)",
    "line": "Python frames (`with_stack=True`, or `perfkit run --with-stack`)",
    "step": "steps (`prof.step()`, or `prof.steps(loader)`)",
}
#: Columns of a `GroupTime` of ops, after its name and its key.
GROUP_FIELDS = (
    TableField("calls", "count", "count"),
    TableField("self", "ns", "self_ns"),
    TableField("total", "ns", "total_ns"),
    TableField("device", "ns", "device_ns"),
    TableField("share", "share", "share"),
    TableField("efficiency", "share", "efficiency"),
    TableField("limited by", "text", "bound"),
    TableField("FLOP", "number", "flops"),
    TableField("bytes", "bytes", "bytes"),
    TableField("FLOP/s", "flops", "flops_per_s"),
    TableField("bytes/s", "bytes", "bytes_per_s"),
    *SPREAD,
)
#: Those of kernels, copies and API calls.
TIME_FIELDS = TIMES


def grouped(
    name: str,
    title: str,
    needs: str,
    rows_by: Callable[[str], Callable[[TableSource], Iterable[Any]]],
    keys: Mapping[str, Sequence[TableField]],
    fields: Sequence[TableField],
) -> dict[str, TableDefinition]:
    """The definitions of a table's groups: by each of ``keys``, whose columns come first."""
    return {
        by: TableDefinition(
            name=name,
            title=f"{title} by {by}",
            needs=f"{needs}; --by {by} also needs {_GROUPS_NEED[by]}" if by in _GROUPS_NEED else needs,
            rows=rows_by(by),
            fields=(*columns, *fields),
            on_page=False,
        )
        for by, columns in keys.items()
    }
