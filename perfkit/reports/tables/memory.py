"""What held the memory of each device at its peak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from perfkit.measures.results.measurements import Measurements
from perfkit.measures.results.memory import DeviceMemory, MemoryHolder, MemorySnapshot
from perfkit.reports.tables._definition import TableDefinition, TableField, TableSource
from perfkit.reports.tables._table import Table


class HeldMemory(NamedTuple):
    """One holder of a device's memory at its peak, and its share of that (0 to 1)."""

    device: str
    holder: MemoryHolder
    share: float


def _held(memory: DeviceMemory) -> Iterator[HeldMemory]:
    """The holders that are known, then the sum of all others and what was held before the recording began."""
    rest = (
        MemoryHolder(bytes=count, allocations=0, function=name)
        for name, count in (
            ("all others", memory.other_bytes),
            ("allocated before the recording began", memory.before_bytes),
        )
        if count
    )
    for holder in (*memory.held, *rest):
        yield HeldMemory(memory.device, holder, holder.bytes / max(1, memory.peak_bytes))


def _rows(source: TableSource) -> Iterator[HeldMemory]:
    for memory in (*source.found.all(DeviceMemory), *source.found.all(MemorySnapshot)):
        yield from _held(memory)


def _note(source: TableSource) -> str:
    return "At the peak of each device; of the recording alone where levels count from its start."


_FIELDS: Sequence[TableField] = (
    TableField("bytes", "bytes", "holder.bytes"),
    TableField("share", "share", "share"),
    TableField("allocations", "count", lambda row: row.holder.allocations or None),
    TableField("function", "text", "holder.function"),
    TableField("range", "text", "holder.range"),
    TableField("called op", "text", "holder.top_op"),
    TableField("op", "text", "holder.op"),
    TableField("step", "count", "holder.step"),
)
TABLE = TableDefinition(
    name="memory",
    title="Held at the peak",
    needs="memory is recorded with profile_memory=True, or in a snapshot (recorders=('kineto', 'memory') on a GPU), "
    "both of perfkit.profile",
    rows=_rows,
    note=_note,
    fields=(TableField("device", "text", "device"), *_FIELDS),
    on_page=False,
)


def holders_of(id: str, memory: DeviceMemory) -> Table:
    """The same table for one device, as a page shows it below that device's levels."""
    one = TableDefinition(
        name=id, title="Held at the peak", needs="", fields=_FIELDS, rows=lambda _: _held(memory), note=lambda _: ""
    )
    return one.make(TableSource(Measurements(memory.device)))
