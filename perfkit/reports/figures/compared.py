"""Figure data of a comparison: the step before and after on one scale, the differences, and the new findings."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from perfkit._format import ms, shown_path, shown_places
from perfkit._text import cleaned
from perfkit.comparison.results import Comparison, Difference
from perfkit.diagnosis import Diagnosis, Figures
from perfkit.reports.figures.code import findings_of
from perfkit.reports.figures.data import Bar, Fact, FigureData, Part
from perfkit.reports.figures.excerpts import Sources
from perfkit.reports.tables._table import Column, Table, Unit

#: What a comparison calls work and result -> how it is shown.
_WORK = {"same": "the same", "different": "not the same", "unknown": "not known"}


def figures_of_comparison(comparison: Comparison) -> FigureData:
    """Make figure data of a comparison, for the same pages that draw a diagnosis."""
    before, after = (shown_path(source) for source in (comparison.before, comparison.after))
    step = next((one for one in comparison.differences if one.kind == "step"), None)
    new = {finding.rule for finding in comparison.new}
    second = Diagnosis(
        source=comparison.after,
        verdict="",
        # A new finding whose cause is not new is shown by itself.
        findings=tuple(
            finding if finding.follows in new else msgspec.structs.replace(finding, follows=None)
            for finding in comparison.new
        ),
        figures=Figures(wall_ns=step.after_ns if step is not None else None),
    )
    data = FigureData(
        about="comparison",
        source=f"{before} → {after}",
        title=f"{before} → {after}",
        verdict=" ".join((comparison.verdict, *(f"Broken budget: {sentence}." for sentence in comparison.broken))),
        per="step" if step is not None else "recording",
        wall_ns=step.after_ns if step is not None else None,
        facts=(
            Fact("work", _WORK[comparison.workload]),
            Fact("losses", _WORK[comparison.result]),
            *(Fact("changed", sentence) for sentence in comparison.changed),
            *(
                Fact("no longer found", " ".join(filter(None, (one.rule, shown_places(one)))))
                for one in comparison.gone
            ),
        ),
        bars=tuple(_bars(comparison, step)),
        # When the second was recorded is not known here, so its source is shown "as it is now".
        findings=findings_of(second, Sources(None, None)),
        tables=tuple(
            table
            for table in (
                _kernels(comparison),
                _differences(comparison),
                _counts(comparison),
                _memory(comparison),
                _gone(comparison),
            )
            if table.rows
        ),
        missing=comparison.notes,
    )
    return msgspec.convert(cleaned(msgspec.to_builtins(data, builtin_types=(bytes,))), FigureData)


def _bars(comparison: Comparison, step: Difference | None) -> Iterator[Bar]:
    if step is None or step.before_ns is None or step.after_ns is None:
        return
    phases = [one for one in comparison.differences if one.kind == "phase"]
    scale_ns = max(step.before_ns, step.after_ns)
    for title, total_ns, times in (
        ("before", step.before_ns, [one.before_ns for one in phases]),
        ("after", step.after_ns, [one.after_ns for one in phases]),
    ):
        parts = [Part(one.name, ns, one.name) for one, ns in zip(phases, times, strict=True) if ns]
        if (rest := total_ns - sum(part.ns for part in parts)) > 0:
            parts.append(Part("unknown", rest, "unknown"))
        yield Bar(title=title, total_ns=total_ns, parts=tuple(parts), scale_ns=scale_ns)


def _kernels(comparison: Comparison) -> Table:
    parts = {name: name for name in ("compute", "memory", "dram", "occupancy", "registers")}
    parts |= {"l1_hit": "L1 hits", "l2_hit": "L2 hits", "no_eligible": "no eligible", "sector_use": "sectors used"}
    parts |= {"threads_per_warp": "threads per warp", "tensor_pipe": "tensor pipe"}
    units: dict[str, Unit] = {"registers": "count", "threads_per_warp": "number"}
    columns = [Column("kernel"), Column("each before", "ns"), Column("each after", "ns"), Column("change")]
    for part, label in parts.items():
        unit = units.get(part, "share")
        columns += [Column(f"{label} before", unit), Column(f"{label} after", unit)]
    rows: list[tuple[int | float | str | None, ...]] = [
        (
            one.name,
            *(round(side.mean_ns) if side and side.mean_ns is not None else None for side in (one.before, one.after)),
            one.changed,
            *(getattr(side, part) if side else None for part in parts for side in (one.before, one.after)),
        )
        for one in comparison.kernel_profiles
    ]
    note = "By Nsight Compute, each launch alone; in parts of the device's peak."
    return Table(id="kernel-profiles", title="Kernel profiles", columns=tuple(columns), rows=tuple(rows), note=note)


def _differences(comparison: Comparison) -> Table:
    columns = [
        Column("name"),
        Column("of"),
        Column("before", "ns"),
        Column("after", "ns"),
        Column("after - before", "ns"),
        Column("change"),
    ]
    rows: list[tuple[int | str | None, ...]] = [
        (one.name, one.kind, one.before_ns, one.after_ns, (one.after_ns or 0) - (one.before_ns or 0), one.changed)
        for one in comparison.differences
    ]
    if any(one.change != "not tested" for one in comparison.differences):
        columns += [Column("95% interval"), Column("is")]
        rows = [(*row, _interval(one), one.change) for row, one in zip(rows, comparison.differences, strict=True)]
    return Table(
        id="differences", title="Differences", columns=tuple(columns), rows=tuple(rows), note=_counted_over(comparison)
    )


def _counted_over(comparison: Comparison) -> str:
    whole = any(one.kind == "recording" for one in comparison.differences)
    return "Times of the whole recordings." if whole else "Times per step."


def _interval(one: Difference) -> str | None:
    return f"{ms(one.low_ns)} to {ms(one.high_ns)}" if one.low_ns is not None and one.high_ns is not None else None


def _counts(comparison: Comparison) -> Table:
    return Table(
        id="counts",
        title="Counts",
        columns=(Column("of"), Column("before", "number"), Column("after", "number")),
        rows=tuple((one.name, one.before, one.after) for one in comparison.counts),
        note="Per step; recompiles and graph breaks of the run.",
    )


def _memory(comparison: Comparison) -> Table:
    return Table(
        id="memory-differences",
        title="Memory",
        columns=(
            Column("device"),
            Column("of"),
            Column("before", "bytes"),
            Column("after", "bytes"),
            Column("change"),
            Column("is"),
        ),
        rows=tuple(
            (one.device, one.what, one.before_bytes, one.after_bytes, one.changed, one.change)
            for one in comparison.memory
        ),
        note="Of a step; tested against the steps that were recorded for memory.",
    )


def _gone(comparison: Comparison) -> Table:
    rows = [(one.rule, shown_places(one) or None, one.cost_ns, one.message) for one in comparison.gone]
    return Table(
        id="gone",
        title="No longer found",
        columns=(Column("rule"), Column("place", "place"), Column("cost before", "ns"), Column("message")),
        rows=tuple(rows),
        note="Findings that only the first has.",
    )
