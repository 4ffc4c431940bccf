"""Bars of the step and of each device, rooflines, and memory, from the diagnosis."""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import percent
from perfkit.diagnosis import Diagnosis
from perfkit.measures.results.device import DeviceTime
from perfkit.measures.results.kernels import Roofline
from perfkit.measures.results.memory import DeviceMemory
from perfkit.reports.figures.data import Bar, MemoryFigure, Part, RoofFigure
from perfkit.reports.figures.tables import memory_holders
from perfkit.reports.figures.timeline import idle_kind


def bars_of(diagnosis: Diagnosis) -> Iterator[Bar]:
    """The step on the host by phase, and the window of each device by activity and by cause of idle time."""
    phases, step = diagnosis.phase_times, diagnosis.step
    if phases and step is not None:
        parts = tuple(Part(name, ns, name) for name, ns in phases.items())
        yield Bar(title="step, host", total_ns=step.wall_ns, parts=parts, note=f"mean of {step.source}")
    for device in diagnosis.figures.devices:
        name = f"device {device.device}" + (f", {device.name}" if device.name else "")
        yield Bar(title=name, total_ns=device.window_ns, parts=tuple(_device_parts(device)), note=_device_note(device))
        causes = sorted(((ns, cause) for cause, ns in device.causes.items() if ns), reverse=True)
        if causes:
            parts = tuple(Part(cause, ns, idle_kind(cause)) for ns, cause in causes)
            yield Bar(title=f"device {device.device}, why idle", total_ns=device.idle_ns, parts=parts)


def _device_parts(device: DeviceTime) -> Iterator[Part]:
    rest = device.busy_ns - device.compute_ns - device.exposed_communication_ns - device.exposed_copy_ns
    for name, ns, kind in (
        ("compute", device.compute_ns, "compute"),
        ("communication alone", device.exposed_communication_ns, "communication"),
        ("copies alone", device.exposed_copy_ns, "copy"),
        ("other", max(0, rest), "other"),
        ("idle", device.idle_ns, "idle"),
    ):
        if ns:
            yield Part(name, ns, kind)


def _device_note(device: DeviceTime) -> str:
    steps = f"{device.steps} steps of the trace" if device.steps else "the trace"
    return f"busy {percent(device.busy_ns, device.window_ns)} of {steps}"


def roofs_of(diagnosis: Diagnosis) -> Iterator[RoofFigure]:
    """Each device's roofs and points, or a note why there are no points."""
    for roof in diagnosis.figures.roofline:
        points = tuple(point for point in roof.points if point.intensity > 0 and point.flops_per_s > 0)
        if points or roof.problem:
            yield RoofFigure(
                device=f"device {roof.device}" + (f", {roof.name}" if roof.name else ""),
                peaks={
                    point.precision: point.flops_per_s / point.compute_share
                    for point in roof.points
                    if point.compute_share > 0
                },
                bytes_per_s=_bandwidth(roof),
                points=points,
                time_ns={name: ns for name, ns in roof.time_ns.items() if ns},
                note=roof.problem or (f"Peaks from {roof.peaks_source}." if roof.peaks_source else ""),
            )


def _bandwidth(roof: Roofline) -> float | None:
    return next((p.bytes_per_s / p.memory_share for p in roof.points if p.memory_share > 0), None)


def memory_of(diagnosis: Diagnosis) -> Iterator[MemoryFigure]:
    """Memory of each device over the trace, with the allocations at its peak."""
    for number, memory in enumerate(diagnosis.figures.memory):
        timeline = memory.timeline
        yield MemoryFigure(
            device=memory.device,
            start_ns=timeline.start_ns if timeline is not None else 0,
            bucket_ns=timeline.bucket_ns if timeline is not None else 0,
            allocated_bytes=timeline.allocated_bytes if timeline is not None else (),
            reserved_bytes=timeline.reserved_bytes if timeline is not None else (),
            peak_bytes=memory.peak_bytes,
            peak_at_ns=memory.peak_ns - timeline.start_ns
            if memory.peak_ns is not None and timeline is not None
            else None,
            peak=_peak(memory),
            held=memory_holders(f"held-{number}", memory.held, memory.other_bytes, memory.before_bytes),
            note="" if memory.is_absolute else "Levels are relative to the start of the recording.",
        )


def _peak(memory: DeviceMemory) -> str:
    parts = []
    if memory.peak_step is not None:
        parts.append(f"in step {memory.peak_step}")
    if memory.peak_phase is not None:
        parts.append(f"in the phase {memory.peak_phase}")
    return ", ".join(parts)
