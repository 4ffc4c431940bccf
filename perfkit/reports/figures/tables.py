"""The tables of a page: what a person sorts and searches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfkit.diagnosis import Diagnosis, Figures
from perfkit.measures.results.memory import MemoryHolder
from perfkit.measures.steps.typical_step import measure_typical_step
from perfkit.reports.figures.data import Column, Table, Unit
from perfkit.run.reading import RankFolder, RunFolder

Cell = int | float | str | None

#: Ranks whose rows are read for the table of ranks: each is a file.
_RANKS = 256


def tables_of(diagnosis: Diagnosis, run: RunFolder | None) -> Iterator[Table]:
    """Each table that has rows."""
    figures = diagnosis.figures
    for table in (
        _syncs(figures),
        _ranges(figures),
        _ops(figures),
        _kernels(figures),
        _kernel_profiles(figures),
        _classes(figures),
        _api_calls(figures),
        _copies(figures),
        _collectives(figures),
        _gaps(figures),
        _sampled(figures),
        _ranks(run) if run is not None else None,
    ):
        if table is not None and table.rows:
            yield table


def _table(
    id: str, title: str, columns: Sequence[tuple[str, Unit]], rows: Sequence[tuple[Cell, ...]], note: str = ""
) -> Table:
    """A table without the columns that hold nothing at all."""
    kept = [i for i in range(len(columns)) if any(row[i] is not None for row in rows)]
    return Table(
        id=id,
        title=title,
        columns=tuple(Column(*columns[i]) for i in kept),
        rows=tuple(tuple(row[i] for i in kept) for row in rows),
        note=note,
    )


def _of_trace(figures: Figures) -> str:
    """What the times of a trace's tables are totals of."""
    if figures.trace is None:
        return ""
    steps = figures.trace.steps
    return f"Totals over {steps} step{'s' if steps != 1 else ''} of the trace." if steps else "Totals over the trace."


def _syncs(figures: Figures) -> Table:
    rows = [
        (
            f"{one.file}:{one.line}",
            one.function,
            one.op,
            one.kind,
            one.count,
            one.per_step,
            one.blocked_ns,
            one.certainty,
            one.advice,
        )
        for one in figures.syncs
    ]
    columns: list[tuple[str, Unit]] = [
        ("line", "place"),
        ("function", "text"),
        ("op", "text"),
        ("kind", "text"),
        ("count", "count"),
        ("per step", "number"),
        ("host waited", "ns"),
        ("certainty", "text"),
        ("instead", "text"),
    ]
    return _table("syncs", "Syncs", columns, rows, "Where the host waits for the device.")


def _ranges(figures: Figures) -> Table:
    # The run's own table sums up all steps, and those in windows are slower: where the trace has a range, it speaks.
    traced = {row.name for row in figures.ranges if row.source == "trace"}
    rows = [
        (one.name, one.count, one.host_ns, one.self_ns, one.device_busy_ns, one.backward_ns, one.source)
        for one in figures.ranges
        if one.source == "trace" or one.name not in traced
    ]
    columns: list[tuple[str, Unit]] = [
        ("range", "text"),
        ("count", "count"),
        ("host", "ns"),
        ("host, self", "ns"),
        ("device busy", "ns"),
        ("backward", "ns"),
        ("from", "text"),
    ]
    return _table("ranges", "Ranges", columns, rows, 'Totals; "from" says over the trace or over the whole run.')


def _ops(figures: Figures) -> Table:
    rows = [
        (one.name, one.count, one.self_ns, one.total_ns, one.device_self_ns, one.device_ns, one.backward_ns)
        for one in figures.ops
    ]
    columns: list[tuple[str, Unit]] = [
        ("op", "text"),
        ("count", "count"),
        ("host, self", "ns"),
        ("host", "ns"),
        ("device, self", "ns"),
        ("device", "ns"),
        ("backward", "ns"),
    ]
    return _table("ops", "Ops", columns, rows, _longest(rows, _of_trace(figures)))


def _kernels(figures: Figures) -> Table:
    rows = [
        (
            one.name,
            one.kernel_class,
            one.precision,
            _yes(one.tensor_cores),
            one.count,
            one.total_ns,
            round(one.mean_ns),
            one.max_ns,
            one.occupancy,
        )
        for one in figures.kernels
    ]
    columns: list[tuple[str, Unit]] = [
        ("kernel", "text"),
        ("class", "text"),
        ("precision", "text"),
        ("tensor cores", "text"),
        ("count", "count"),
        ("total", "ns"),
        ("mean", "ns"),
        ("longest", "ns"),
        ("occupancy", "share"),
    ]
    return _table("kernels", "Kernels", columns, rows, _longest(rows, _of_trace(figures)))


def _kernel_profiles(figures: Figures) -> Table | None:
    profiles = figures.kernel_profiles
    if profiles is None:
        return None
    rows = [
        (
            one.name,
            one.launches,
            one.total_ns,
            round(one.mean_ns) if one.mean_ns is not None else None,
            one.share,
            one.bound if one.bound != "unknown" else None,
            one.compute,
            one.memory,
            one.dram,
            one.l1,
            one.l2,
            one.occupancy,
            one.theoretical_occupancy,
            ", ".join(one.limiters) or None,
            one.registers,
            round(one.spills) if one.spills is not None else None,
            one.waves,
            ", ".join(f"{s.reason} {s.share:.0%}" if s.share is not None else s.reason for s in one.stalls) or None,
            one.roof.intensity if one.roof is not None else None,
            one.roof.flops_per_s if one.roof is not None else None,
            one.roof.roof_share if one.roof is not None else None,
            _dimensions(one.grid),
            _dimensions(one.block),
            one.device,
            one.stream,
            one.id,
        )
        for one in profiles.rows
    ]
    columns: list[tuple[str, Unit]] = [
        ("kernel", "text"),
        ("launches", "count"),
        ("total", "ns"),
        ("each", "ns"),
        ("share", "share"),
        ("limited by", "text"),
        ("compute", "share"),
        ("memory", "share"),
        ("DRAM", "share"),
        ("L1", "share"),
        ("L2", "share"),
        ("occupancy", "share"),
        ("occupancy, theoretical", "share"),
        ("occupancy limited by", "text"),
        ("registers", "count"),
        ("spills", "count"),
        ("waves", "number"),
        ("stalls", "text"),
        ("FLOP/byte", "number"),
        ("FLOP/s", "flops"),
        ("of the roof", "share"),
        ("grid", "text"),
        ("block", "text"),
        ("device", "count"),
        ("stream", "count"),
        ("launch", "count"),
    ]
    note = "By Nsight Compute, each launch alone; compute, memory, DRAM, L1 and L2 in parts of their peak."
    return _table("kernel-profiles", "Kernel profiles", columns, rows, note)


def _dimensions(size: tuple[int, int, int] | None) -> str | None:
    return None if size is None else " x ".join(str(one) for one in size)


def _classes(figures: Figures) -> Table:
    whole = sum(figures.kernel_classes_ns.values())
    rows = [(name, ns, ns / whole if whole else None) for name, ns in figures.kernel_classes_ns.items()]
    return _table("kernel-classes", "Kernels by class", (("class", "text"), ("total", "ns"), ("share", "share")), rows)


def _api_calls(figures: Figures) -> Table:
    rows = [(one.name, one.count, one.total_ns, round(one.mean_ns), one.max_ns) for one in figures.api_calls]
    columns: list[tuple[str, Unit]] = [
        ("call", "text"),
        ("count", "count"),
        ("total", "ns"),
        ("mean", "ns"),
        ("longest", "ns"),
    ]
    return _table("api-calls", "API calls", columns, rows, _longest(rows, _of_trace(figures)))


def _copies(figures: Figures) -> Table:
    rows = [
        (
            one.device,
            one.kind,
            one.direction,
            one.source,
            one.target,
            one.count,
            one.bytes,
            one.total_ns,
            one.overlap_ns,
            one.bytes_per_s,
            one.blocking,
            one.blocked_ns,
        )
        for one in figures.copies
    ]
    columns: list[tuple[str, Unit]] = [
        ("device", "count"),
        ("kind", "text"),
        ("direction", "text"),
        ("from", "text"),
        ("to", "text"),
        ("count", "count"),
        ("bytes", "bytes"),
        ("total", "ns"),
        ("beside compute", "ns"),
        ("bytes/s", "bytes"),
        ("blocking", "count"),
        ("host waited", "ns"),
    ]
    return _table("copies", "Copies", columns, rows, _of_trace(figures))


def _collectives(figures: Figures) -> Table:
    rows = [
        (
            device.device,
            one.name,
            one.group_size,
            one.dtype,
            one.count,
            one.bytes,
            one.total_ns,
            one.exposed_ns,
            one.bus_bytes_per_s,
            one.waiting_ns,
        )
        for device in figures.communication
        for one in device.collectives
    ]
    columns: list[tuple[str, Unit]] = [
        ("device", "count"),
        ("collective", "text"),
        ("ranks", "count"),
        ("type", "text"),
        ("count", "count"),
        ("bytes", "bytes"),
        ("total", "ns"),
        ("exposed", "ns"),
        ("bus bytes/s", "bytes"),
        ("waiting for others", "ns"),
    ]
    return _table("collectives", "Communication", columns, rows, _of_trace(figures))


def _gaps(figures: Figures) -> Table:
    begin = min((gap.start_ns for device in figures.devices for gap in device.longest), default=0)
    rows = [
        (device.device, gap.duration_ns, gap.cause, gap.event, gap.range, gap.step, gap.before, gap.start_ns - begin)
        for device in figures.devices
        for gap in device.longest
    ]
    columns: list[tuple[str, Unit]] = [
        ("device", "count"),
        ("idle", "ns"),
        ("cause", "text"),
        ("host was in", "text"),
        ("range", "text"),
        ("step", "count"),
        ("ended by", "text"),
        ("after the first", "ns"),
    ]
    return _table("gaps", "Longest idle times", columns, rows, "Of each device, with what took most of it.")


def _sampled(figures: Figures) -> Table:
    rows = [
        (f"{one.file}:{one.line}", one.function, one.phase, one.host_ns, one.samples, one.worker)
        for one in figures.lines
    ]
    columns: list[tuple[str, Unit]] = [
        ("line", "place"),
        ("function", "text"),
        ("phase", "text"),
        ("host per step", "ns"),
        ("samples", "count"),
        ("worker of", "text"),
    ]
    return _table("sampled-lines", "Hottest lines, sampled", columns, rows, "Per step, without recording a window.")


def _ranks(run: RunFolder) -> Table:
    read = list(run.ranks.items())[:_RANKS]
    rows = [_rank(index, rank) for index, rank in read]
    # A missing rank is a row too: what is not there is what one looks for.
    absent = run.missing_ranks
    rows += [
        (index, None, None, None, None, None, "left nothing in the folder") for index in absent[: _RANKS - len(rows)]
    ]
    columns: list[tuple[str, Unit]] = [
        ("rank", "count"),
        ("host", "text"),
        ("steps", "count"),
        ("step, mean", "ns"),
        ("p90", "ns"),
        ("waiting for data", "ns"),
        ("ended", "text"),
    ]
    left = len(run.ranks) + len(absent) - len(rows)
    note = "One row per rank; nobody waits for another rank while training."
    return _table("ranks", "Ranks", columns, rows, f"{note} {left:,} more are not listed." if left > 0 else note)


def _rank(index: int, rank: RankFolder) -> tuple[Cell, ...]:
    step = measure_typical_step(rank.steps)
    about = rank.rank
    return (
        index,
        about.host if about is not None else None,
        about.steps if about is not None else sum(row.steps for row in rank.steps),
        step.wall_ns if step is not None else None,
        step.p90_ns if step is not None else None,
        step.phases_ns.data if step is not None else None,
        (about.ending or "still running, or killed") if about is not None else "rank.json is missing or damaged",
    )


def holders(id: str, held: Sequence[MemoryHolder], other: int | None, before: int | None) -> Table:
    """Who held memory at the peak."""
    rows: list[tuple[Cell, ...]] = [
        (one.bytes, one.allocations, one.function, one.range, one.top_op, one.op, one.step) for one in held
    ]
    if other:
        rows.append((other, None, "all others", None, None, None, None))
    if before:
        rows.append((before, None, "allocated before the recording began", None, None, None, None))
    columns: list[tuple[str, Unit]] = [
        ("bytes", "bytes"),
        ("allocations", "count"),
        ("function", "text"),
        ("range", "text"),
        ("called op", "text"),
        ("op", "text"),
        ("step", "count"),
    ]
    return _table(id, "Held at the peak", columns, rows)


def _longest(rows: Sequence[object], note: str) -> str:
    return f"The {len(rows)} longest. {note}".strip()


def _yes(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"
