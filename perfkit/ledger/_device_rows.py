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
    points = roofline.points if roofline is not None else ()
    classes = dict(kernels.classes_ns) if kernels is not None else {}
    factor = 1.0
    if roofline is not None:
        # The roofline is of some of the steps. Kernels that run at the same time share theirs.
        factor = device.steps / roofline.steps
        classes = roofline.unknown_ns
        known = sum(point.device_ns for point in points) + sum(classes.values())
        factor = min(factor, device.compute_ns / max(1, known))
    left = device.compute_ns
    for point in points:
        ns = min(left, round(point.device_ns * factor))
        left -= ns
        memory_share = point.memory_share or 0.0
        share = min(1.0, max(point.compute_share, memory_share))
        if ns:
            yield LedgerRow(
                owner="computing",
                name=f"{point.op} {point.shapes}".strip(),
                ns=ns,
                limit_ns=round(ns * share),
                bound="arithmetic" if point.compute_share >= memory_share else "memory",
                count=point.count / roofline.steps if roofline is not None else None,
            )
    classes = {f"{name} kernels": ns for name, ns in classes.items() if name != "communication"}
    for name, ns in zip(classes, apportion(left, list(classes.values())), strict=True):
        left -= ns
        if ns:
            yield LedgerRow(owner="computing", name=name, ns=ns)
    if left:
        yield LedgerRow(owner="computing", name="other kernels", ns=left)


def _moving(device: DeviceTime, communication: Communication | None) -> Iterator[LedgerRow]:
    """Communication and copies that no compute hides; waiting for other ranks apart from transfer."""
    exposed = device.exposed_communication_ns
    waiting = min(exposed, communication.exposed_waiting_ns or 0) if communication is not None else 0
    if exposed > waiting:
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
