"""The ledger of a device: its period, by what its kernels do and why it is idle."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from perfkit.ledger.rows import LedgerRow, Partition, apportion
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.device import Communication, DeviceTime
from perfkit.measures.results.kernels import Kernels, Roofline
from perfkit.measures.results.measurements import Measurements


def device_rows(budget: StepBudget, found: Measurements) -> Partition:
    """The device's window, divided and scaled to the step."""
    device = budget.device
    assert device is not None  # the caller chose the device
    roofline = next((one for one in found.all(Roofline) if one.device == device.device), None)
    kernels = found.get(Kernels)
    communication = next((one for one in found.all(Communication) if one.device == device.device), None)
    parts = [*_computing(device, roofline, kernels), *_moving(device, communication), *_idle(device)]
    known = sum(row.ns for row in parts)
    if known < device.window_ns:
        parts.append(LedgerRow(owner="unrecorded", name="other device work", ns=device.window_ns - known))
    lengths = apportion(budget.wall_ns, [row.ns for row in parts])
    rows = [_resized(row, ns) for row, ns in zip(parts, lengths, strict=True) if ns]
    if roofline is None or roofline.problem is not None:
        return Partition(rows, None, roofline.problem if roofline is not None else "the trace has no kernels")
    return Partition(rows, roofline.peaks_source, None)


def _resized(row: LedgerRow, ns: int) -> LedgerRow:
    limit_ns = None if row.limit_ns is None else min(ns, round(row.limit_ns * ns / row.ns))
    return msgspec.structs.replace(row, ns=ns, limit_ns=limit_ns)


def _computing(device: DeviceTime, roofline: Roofline | None, kernels: Kernels | None) -> Iterator[LedgerRow]:
    """Compute kernels: by op with their limit where the roofline places them, the others by class."""
    left = device.compute_ns
    if roofline is not None and roofline.device_ns:
        scale = device.compute_ns / max(roofline.device_ns, sum(point.device_ns for point in roofline.points))
        for point in roofline.points:
            ns = min(left, round(point.device_ns * scale))
            left -= ns
            share = min(1.0, max(point.compute_share, point.memory_share))
            if ns:
                name = f"{point.op} {point.shapes}".strip()
                yield LedgerRow(
                    owner="computing",
                    name=name,
                    ns=ns,
                    limit_ns=round(ns * share),
                    bound="arithmetic" if point.compute_share >= point.memory_share else "memory",
                    count=point.count / roofline.steps,
                )
    classes = dict(kernels.classes_ns) if kernels is not None and not (roofline and roofline.points) else {}
    classes.pop("communication", None)
    if not any(classes.values()):
        classes = {"kernels of unknown work": 1}
    for name, ns in zip(classes, apportion(left, list(classes.values())), strict=True):
        if ns:
            yield LedgerRow(owner="computing", name=name, ns=ns)


def _moving(device: DeviceTime, communication: Communication | None) -> Iterator[LedgerRow]:
    """Communication and copies that no compute hides; waiting for other ranks apart from transfer."""
    exposed = device.exposed_communication_ns
    if exposed:
        collectives = communication.collectives if communication is not None else ()
        total = sum(one.total_ns for one in collectives)
        waited = sum(one.waiting_ns or 0 for one in collectives)
        waiting = round(exposed * min(1.0, waited / total)) if total else 0
        yield LedgerRow(owner="communication", name="transfer", ns=exposed - waiting)
        if waiting:
            yield LedgerRow(owner="waiting for ranks", name="collectives", ns=waiting)
    # Copies that communication hides are part of its time.
    copies = min(device.exposed_copy_ns, device.busy_ns - device.compute_ns - exposed)
    if copies > 0:
        yield LedgerRow(owner="copies", name="copies", ns=copies)


def _idle(device: DeviceTime) -> Iterator[LedgerRow]:
    for one in device.idle:
        yield LedgerRow(owner="idle", name=one.cause, ns=one.ns, at=one.at, count=one.gaps / device.steps)
