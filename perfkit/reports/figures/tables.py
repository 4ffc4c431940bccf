"""The tables of a page: a column is a heading, a unit and a value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter, itemgetter
from types import SimpleNamespace
from typing import Any, NamedTuple

from perfkit.diagnosis import Diagnosis, Figures
from perfkit.measures.results.memory import MemoryHolder
from perfkit.measures.steps.typical_step import measure_typical_step
from perfkit.reports.figures.data import Column, Table, Unit
from perfkit.run.reading import RankFolder, RunFolder

Cell = int | float | str | None

#: Ranks whose rows are read for the table of ranks: each is a file.
_RANKS = 256


class _Field(NamedTuple):
    """A column and its value of an item: the item's attribute of this name, or what a function returns for it."""

    heading: str
    unit: Unit
    value: str | Callable[[Any], Cell]

    def of(self, item: Any) -> Cell:
        cell: Cell = attrgetter(self.value)(item) if isinstance(self.value, str) else self.value(item)
        return cell


def tables_of(diagnosis: Diagnosis, run: RunFolder | None) -> Iterator[Table]:
    """Each table that has rows."""
    tables = [*_tables_of_figures(diagnosis.figures), *([_ranks(run)] if run is not None else [])]
    yield from (table for table in tables if table.rows)


def _table(id: str, title: str, items: Iterable[Any], fields: Sequence[_Field], note: str = "") -> Table:
    """A table with a row for each item, without empty columns."""
    rows = [tuple(field.of(item) for field in fields) for item in items]
    kept = [i for i in range(len(fields)) if any(row[i] is not None for row in rows)]
    return Table(
        id=id,
        title=title,
        columns=tuple(Column(fields[i].heading, fields[i].unit) for i in kept),
        rows=tuple(tuple(row[i] for i in kept) for row in rows),
        note=note,
    )


def _tables_of_figures(figures: Figures) -> Iterator[Table]:
    steps = figures.trace.steps if figures.trace is not None else 0
    totals = f"Totals over {steps} step{'s' if steps != 1 else ''} of the trace." if steps else "Totals over the trace."
    of_trace = totals if figures.trace is not None else ""

    def longest(rows: Sequence[Any]) -> str:
        return f"The {len(rows)} longest. {of_trace}".strip()

    yield _table("syncs", "Syncs", figures.syncs, _SYNC, "Lines in which the host waits for the device.")
    note = 'Totals over the trace or over the run, see "from".'
    yield _table("ranges", "Ranges", figures.distinct_ranges, _RANGE, note)
    yield _table("ops", "Ops", figures.ops, _OP, longest(figures.ops))
    yield _table("kernels", "Kernels", figures.kernels, _KERNEL, longest(figures.kernels))
    profiles = figures.kernel_profiles.rows if figures.kernel_profiles is not None else ()
    note = "By Nsight Compute, each launch alone; compute, memory, DRAM, L1 and L2 as shares of their peaks."
    yield _table("kernel-profiles", "Kernel profiles", profiles, _KERNEL_PROFILE, note)
    classes = figures.kernel_classes_ns
    total = sum(classes.values())
    share = _Field("share", "share", lambda one: one[1] / total if total else None)
    by_class = (_Field("class", "text", lambda one: one[0]), _Field("total", "ns", lambda one: one[1]), share)
    yield _table("kernel-classes", "Kernels by class", classes.items(), by_class)
    yield _table("api-calls", "API calls", figures.api_calls, _API_CALL, longest(figures.api_calls))
    yield _table("copies", "Copies", figures.copies, _COPY, of_trace)
    collectives = [(device.device, one) for device in figures.communication for one in device.collectives]
    yield _table("collectives", "Communication", collectives, _COLLECTIVE, of_trace)
    first_ns = min((gap.start_ns for device in figures.devices for gap in device.longest), default=0)
    gaps = [(device.device, gap) for device in figures.devices for gap in device.longest]
    after = _Field("after the first", "ns", lambda one: one[1].start_ns - first_ns)
    yield _table("gaps", "Longest idle times", gaps, (*_GAP, after), "Of each device, with its main cause.")
    sampled = "Per step, without recording a window."
    yield _table("sampled-lines", "Hottest lines, sampled", figures.lines, _SAMPLED_LINE, sampled)


_PLACE = (_Field("line", "place", lambda one: f"{one.file}:{one.line}"), _Field("function", "text", "function"))
_SYNC = (
    *_PLACE,
    _Field("op", "text", "op"),
    _Field("kind", "text", "kind"),
    _Field("count", "count", "count"),
    _Field("per step", "number", "per_step"),
    _Field("host waited", "ns", "blocked_ns"),
    _Field("certainty", "text", "certainty"),
    _Field("instead", "text", "advice"),
)
_RANGE = (
    _Field("range", "text", "name"),
    _Field("count", "count", "count"),
    _Field("host", "ns", "host_ns"),
    _Field("host, self", "ns", "self_ns"),
    _Field("device busy", "ns", "device_busy_ns"),
    _Field("backward", "ns", "backward_ns"),
    _Field("from", "text", "source"),
)
_OP = (
    _Field("op", "text", "name"),
    _Field("count", "count", "count"),
    _Field("host, self", "ns", "self_ns"),
    _Field("host", "ns", "total_ns"),
    _Field("device, self", "ns", "device_self_ns"),
    _Field("device", "ns", "device_ns"),
    _Field("backward", "ns", "backward_ns"),
)
_API_CALL = (
    _Field("call", "text", "name"),
    _Field("count", "count", "count"),
    _Field("total", "ns", "total_ns"),
    _Field("mean", "ns", lambda one: round(one.mean_ns)),
    _Field("longest", "ns", "max_ns"),
)
_KERNEL = (
    _Field("kernel", "text", "name"),
    _Field("class", "text", "kernel_class"),
    _Field("precision", "text", "precision"),
    _Field("tensor cores", "text", lambda one: {None: None, True: "yes", False: "no"}[one.tensor_cores]),
    *_API_CALL[1:],
    _Field("occupancy", "share", "occupancy"),
)
_KERNEL_PROFILE = (
    _Field("kernel", "text", "name"),
    _Field("launches", "count", "launches"),
    _Field("total", "ns", "total_ns"),
    _Field("each", "ns", lambda one: round(one.mean_ns) if one.mean_ns is not None else None),
    _Field("share", "share", "share"),
    _Field("limited by", "text", lambda one: one.bound if one.bound != "unknown" else None),
    _Field("compute", "share", "compute"),
    _Field("memory", "share", "memory"),
    _Field("DRAM", "share", "dram"),
    _Field("L1", "share", "l1"),
    _Field("L2", "share", "l2"),
    _Field("occupancy", "share", "occupancy"),
    _Field("occupancy, theoretical", "share", "theoretical_occupancy"),
    _Field("occupancy limited by", "text", lambda one: ", ".join(one.limiters) or None),
    _Field("registers", "count", "registers"),
    _Field("spills", "count", lambda one: round(one.spills) if one.spills is not None else None),
    _Field("waves", "number", "waves"),
    _Field("stalls", "text", lambda one: ", ".join(_stall(stall) for stall in one.stalls) or None),
    _Field("FLOP/byte", "number", lambda one: one.roof.intensity if one.roof is not None else None),
    _Field("FLOP/s", "flops", lambda one: one.roof.flops_per_s if one.roof is not None else None),
    _Field("of the roof", "share", lambda one: one.roof.roof_share if one.roof is not None else None),
    _Field("grid", "text", lambda one: _dimensions(one.grid)),
    _Field("block", "text", lambda one: _dimensions(one.block)),
    _Field("device", "count", "device"),
    _Field("stream", "count", "stream"),
    _Field("launch", "count", "id"),
)
_COPY = (
    _Field("device", "count", "device"),
    _Field("kind", "text", "kind"),
    _Field("direction", "text", "direction"),
    _Field("from", "text", "source"),
    _Field("to", "text", "target"),
    _Field("count", "count", "count"),
    _Field("bytes", "bytes", "bytes"),
    _Field("total", "ns", "total_ns"),
    _Field("overlapped by compute", "ns", "overlap_ns"),
    _Field("bytes/s", "bytes", "bytes_per_s"),
    _Field("blocking", "count", "blocking"),
    _Field("host waited", "ns", "blocked_ns"),
)
#: Of (device, collective).
_COLLECTIVE = (
    _Field("device", "count", lambda one: one[0]),
    _Field("collective", "text", lambda one: one[1].name),
    _Field("ranks", "count", lambda one: one[1].group_size),
    _Field("type", "text", lambda one: one[1].dtype),
    _Field("count", "count", lambda one: one[1].count),
    _Field("bytes", "bytes", lambda one: one[1].bytes),
    _Field("total", "ns", lambda one: one[1].total_ns),
    _Field("exposed", "ns", lambda one: one[1].exposed_ns),
    _Field("bus bytes/s", "bytes", lambda one: one[1].bus_bytes_per_s),
    _Field("waiting for others", "ns", lambda one: one[1].waiting_ns),
)
#: Of (device, gap).
_GAP = (
    _Field("device", "count", lambda one: one[0]),
    _Field("idle", "ns", lambda one: one[1].duration_ns),
    _Field("cause", "text", lambda one: one[1].cause),
    _Field("host event", "text", lambda one: one[1].event),
    _Field("range", "text", lambda one: one[1].range),
    _Field("step", "count", lambda one: one[1].step),
    _Field("ended by", "text", lambda one: one[1].before),
)
_SAMPLED_LINE = (
    *_PLACE,
    _Field("phase", "text", "phase"),
    _Field("host per step", "ns", "host_ns"),
    _Field("samples", "count", "samples"),
    _Field("worker of", "text", "worker"),
)
_HOLDER = (
    _Field("bytes", "bytes", "bytes"),
    _Field("allocations", "count", "allocations"),
    _Field("function", "text", "function"),
    _Field("range", "text", "range"),
    _Field("called op", "text", "top_op"),
    _Field("op", "text", "op"),
    _Field("step", "count", "step"),
)


def _stall(stall: Any) -> str:
    return f"{stall.reason} {stall.share:.0%}" if stall.share is not None else stall.reason


def _dimensions(size: tuple[int, int, int] | None) -> str | None:
    return None if size is None else " x ".join(str(one) for one in size)


def _ranks(run: RunFolder) -> Table:
    """A row per rank, also for a rank without files."""
    rows = [_rank(index, rank) for index, rank in list(run.ranks.items())[:_RANKS]]
    rows += [(index, *[None] * 5, "no files in the folder") for index in run.missing_ranks[: _RANKS - len(rows)]]
    columns: tuple[tuple[str, Unit], ...] = (
        ("rank", "count"),
        ("host", "text"),
        ("steps", "count"),
        ("step, mean", "ns"),
        ("p90", "ns"),
        ("waiting for data", "ns"),
        ("ended", "text"),
    )
    fields = [_Field(heading, unit, itemgetter(at)) for at, (heading, unit) in enumerate(columns)]
    rest = len(run.ranks) + len(run.missing_ranks) - len(rows)
    note = "One row per rank; no rank waits for another while training."
    return _table("ranks", "Ranks", rows, fields, f"{note} {rest:,} more are not listed." if rest > 0 else note)


def _rank(index: int, rank: RankFolder) -> tuple[Cell, ...]:
    step, facts = measure_typical_step(rank.steps), rank.rank
    return (
        index,
        facts.host if facts is not None else None,
        facts.steps if facts is not None else sum(row.steps for row in rank.steps),
        step.wall_ns if step is not None else None,
        step.p90_ns if step is not None else None,
        step.phases_ns.data if step is not None else None,
        (facts.ending or "still running, or killed") if facts is not None else "rank.json is missing or damaged",
    )


def rules_not_asked(diagnosis: Diagnosis) -> Table | None:
    """The rules that were not asked, with what they need; None if all were asked."""
    needs = _Field("needs", "text", lambda rule: " and ".join(rule.needs))
    rows = _table(
        "not-asked", "Rules that were not asked", diagnosis.not_asked, (_Field("rule", "text", "rule"), needs)
    )
    return rows if rows.rows else None


def memory_holders(id: str, held: Sequence[MemoryHolder], other: int | None, before: int | None) -> Table:
    """The allocations at the peak, and the bytes of all ``other`` ones and of those ``before`` the trace."""
    unknown = dict.fromkeys(("allocations", "range", "top_op", "op", "step"))
    rest = ((other, "all others"), (before, "allocated before the recording began"))
    sums = [SimpleNamespace(bytes=count, function=name, **unknown) for count, name in rest if count]
    return _table(id, "Held at the peak", (*held, *sums), _HOLDER)
