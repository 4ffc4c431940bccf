"""Ops against their device's peaks, and the ridge point of each precision as a number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from perfkit.measures.results.kernels import Roofline, RooflinePoint
from perfkit.reports.tables._definition import TableDefinition, TableField, TableSource


class PlacedOp(NamedTuple):
    """A point of a roofline, with the ridge of its precision in FLOP per byte; above it arithmetic is the limit."""

    device: int
    point: RooflinePoint
    ridge: float | None


def _rows(source: TableSource) -> Iterator[PlacedOp]:
    for roof in source.found.all(Roofline):
        for point in roof.points:
            yield PlacedOp(roof.device, point, roof.ridges.get(point.precision))


def _note(source: TableSource) -> str:
    ridges = "; ".join(
        f"device {roof.device}, {roof.name}: " + ", ".join(f"{name} {ridge:.1f}" for name, ridge in roof.ridges.items())
        for roof in source.found.all(Roofline)
        if roof.ridges
    )
    derived = [roof.about_peaks for roof in source.found.all(Roofline) if roof.peaks_derived]
    steps = next((roof.steps for roof in source.found.all(Roofline)), 0)
    over = f"Totals over {steps} step{'s' if steps != 1 else ''} of the trace. " if steps else ""
    return " ".join([f"{over}Ridge points in FLOP per byte: {ridges or 'not known'}.", *derived])


TABLE = TableDefinition(
    name="roofline",
    title="Roofline",
    needs="a roofline needs kernels of a known device, and the shapes of ops (record_shapes=True)",
    rows=_rows,
    note=_note,
    fields=(
        TableField("op", "text", "point.op"),
        TableField("shapes", "text", "point.shapes"),
        TableField("calls", "count", "point.count"),
        TableField("device", "ns", "point.device_ns"),
        TableField("limited by", "text", "point.bound"),
        TableField("of peak FLOP/s", "share", "point.compute_share"),
        TableField("of peak bytes/s", "share", "point.memory_share"),
        TableField("FLOP/byte", "number", "point.intensity"),
        TableField("ridge FLOP/byte", "number", "ridge"),
        TableField("precision", "text", "point.precision"),
        TableField("FLOP", "number", "point.flops"),
        TableField("bytes", "bytes", "point.bytes"),
        TableField("FLOP/s", "flops", "point.flops_per_s"),
        TableField("bytes/s", "bytes", "point.bytes_per_s"),
        TableField("confidence", "text", "point.confidence"),
        TableField("device number", "count", "device"),
    ),
    on_page=False,
)
