"""The ops of a trace by name, with the names and units that torch's profiler has for them."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from perfkit.errors import UsageError
from perfkit.measures.ops.op_groups import op_groups
from perfkit.measures.ops.op_times import measure_op_times
from perfkit.measures.results.host import Ops
from perfkit.measures.results.measurements import Measurements
from perfkit.measures.trace_facts import measure_trace_facts
from perfkit.reports.tables import nearest
from perfkit.reports.tables._definition import TableDefinition, TableField, TableSource
from perfkit.reports.tables._writing import arranged, print_rows
from perfkit.trace import read_trace


class OpAverage(msgspec.Struct, frozen=True, kw_only=True):
    """One op by name: sums over its calls, in µs as torch's profiler has them; None for what was not recorded.

    ``self_`` times leave out the ops that it called. Device times are those of the kernels, copies and memsets that it
    launched. ``input_shapes`` is empty unless the rows are by shape.
    """

    key: str
    count: int
    self_cpu_time_total: float
    cpu_time_total: float
    self_device_time_total: float | None = None
    device_time_total: float | None = None
    input_shapes: str = ""

    @property
    def cpu_time(self) -> float:
        """The mean of a call on the host, µs."""
        return self.cpu_time_total / self.count

    @property
    def device_time(self) -> float | None:
        """The mean of a call on the device, µs."""
        return None if self.device_time_total is None else self.device_time_total / self.count

    @property
    def self_cuda_time_total(self) -> float | None:
        """`self_device_time_total` under torch's older name."""
        return self.self_device_time_total

    @property
    def cuda_time_total(self) -> float | None:
        """`device_time_total` under torch's older name."""
        return self.device_time_total


#: What rows can be sorted by.
_SORT_KEYS = (
    *("self_cpu_time_total", "cpu_time_total", "cpu_time", "self_device_time_total", "device_time_total"),
    *("device_time", "self_cuda_time_total", "cuda_time_total", "count"),
)


def _ns(field: str) -> TableField:
    def value(row: OpAverage) -> int | None:
        us = getattr(row, field)
        return None if us is None else round(us * 1000)

    return TableField(field.replace("_time_total", " total").replace("_time", " avg").replace("_", " "), "ns", value)


class OpAverages(Sequence[OpAverage]):
    """The ops of a window, those with most own time first; prints as a table."""

    def __init__(self, rows: Sequence[OpAverage], note: str) -> None:
        self._rows = tuple(rows)
        self._note = note

    def __getitem__(self, at):  # type: ignore[no-untyped-def]  # an index or a slice, as a tuple has it
        return self._rows[at]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[OpAverage]:
        return iter(self._rows)

    @property
    def self_cpu_time_total(self) -> float:
        """The time in any op, µs."""
        return sum(row.self_cpu_time_total for row in self._rows)

    def table(self, sort_by: str | None = None, row_limit: int = 100) -> str:
        """The rows as text.

        Args:
            sort_by: "self_cpu_time_total" (default), "cpu_time_total", "self_device_time_total", "device_time_total",
                "cpu_time", "device_time", "count"; largest first.
            row_limit: How many rows; -1 for all.

        Raises:
            UsageError: an unknown ``sort_by``.
        """
        wanted = sort_by or "self_cpu_time_total"
        if wanted not in _SORT_KEYS:
            keys = ", ".join(_SORT_KEYS)
            raise UsageError(f"sort_by must be one of {keys}, got {sort_by!r}{nearest(wanted, _SORT_KEYS)}")
        rows = sorted(self._rows, key=lambda row: -(getattr(row, wanted) or 0))
        definition = TableDefinition(
            name="key-averages",
            title="Ops",
            needs="",
            rows=lambda _: rows,
            note=lambda _: self._note,
            fields=(
                TableField("name", "text", "key"),
                TableField("shapes", "text", lambda row: row.input_shapes or None),
                _ns("self_cpu_time_total"),
                TableField("self cpu %", "share", self._share),
                _ns("cpu_time_total"),
                _ns("cpu_time"),
                _ns("self_device_time_total"),
                _ns("device_time_total"),
                TableField("calls", "count", "count"),
            ),
        )
        made = definition.make(TableSource(Measurements("")))
        text = io.StringIO()
        shown = arranged(made, None, None if row_limit < 0 else row_limit)
        print_rows(shown, len(rows), Console(file=text, width=120, force_terminal=False, markup=False, highlight=False))
        return text.getvalue()

    def _share(self, row: OpAverage) -> float | None:
        total = self.self_cpu_time_total
        return row.self_cpu_time_total / total if total else None

    def __repr__(self) -> str:
        return self.table(row_limit=20)


def read_op_averages(path: Path, *, by_shape: bool = False) -> OpAverages:
    """The ops in the steps of a trace.

    Raises:
        UsageError: the trace has no shapes.
        TraceError: it cannot be read.
    """
    trace = read_trace(path)
    facts = measure_trace_facts(trace)
    note = f"Totals over {facts.steps} steps of {path.name}." if facts.steps else f"Totals over {path.name}."
    if by_shape:
        groups = op_groups(trace, "shape", Measurements(str(path)))
        if not groups:
            raise UsageError(f"{path.name} has no shapes: record with perfkit.profile(record_shapes=True)")
        rows = [
            OpAverage(
                key=one.name,
                count=one.count,
                self_cpu_time_total=(one.self_ns or 0) / 1e3,
                cpu_time_total=one.total_ns / 1e3,
                device_time_total=one.device_ns / 1e3 if one.device_ns is not None else None,
                input_shapes=str(one.key or ""),
            )
            for one in groups
        ]
        return OpAverages(rows, note)
    ops: Ops | None = measure_op_times(trace)
    return OpAverages(
        [
            OpAverage(
                key=one.name,
                count=one.count,
                self_cpu_time_total=one.self_ns / 1e3,
                cpu_time_total=one.total_ns / 1e3,
                self_device_time_total=one.device_self_ns / 1e3 if one.device_self_ns is not None else None,
                device_time_total=one.device_ns / 1e3 if one.device_ns is not None else None,
            )
            for one in (ops.rows if ops is not None else ())
        ],
        note,
    )
