"""Bars of the step and of each device, rooflines, and memory, from the diagnosis."""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import percent
from perfkit.diagnosis import Diagnosis
from perfkit.measures.results.device import DeviceTime
from perfkit.measures.results.kernel_profiles import KernelProfile, KernelProfiles, RoofPosition, short_name
from perfkit.measures.results.kernels import Roofline, RooflinePoint
from perfkit.measures.results.memory import DeviceMemory
from perfkit.reports.figures.data import Bar, MemoryFigure, Part, RoofFigure
from perfkit.reports.figures.timeline import idle_kind
from perfkit.reports.tables._definition import dimensions
from perfkit.reports.tables.memory import holders_of


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
    """Each device's roofs and points, or a note why there are no points; also those of kernels that ncu profiled."""
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
                note=roof.problem or _roof_note(roof),
            )

    if diagnosis.figures.kernel_profiles is not None:
        yield from _roofs_of_kernels(diagnosis.figures.kernel_profiles)


def _roofs_of_kernels(profiles: KernelProfiles) -> Iterator[RoofFigure]:
    by_device: dict[int, list[tuple[KernelProfile, RoofPosition]]] = {}
    for row in profiles.rows:
        roof = row.roof
        if roof is not None and row.total_ns and roof.intensity > 0 and roof.flops_per_s > 0:
            by_device.setdefault(row.device or 0, []).append((row, roof))
    for device, placed in sorted(by_device.items()):
        peaks: dict[str, float] = {}
        for _, roof in placed:
            if roof.peak_flops_per_s is not None:
                peaks[roof.precision] = max(roof.peak_flops_per_s, peaks.get(roof.precision, 0.0))
        times: dict[str, int] = {}
        for row, roof in placed:
            times[roof.bound] = times.get(roof.bound, 0) + (row.total_ns or 0)
        yield RoofFigure(
            device=f"device {device}, kernels profiled by Nsight Compute",
            peaks=peaks,
            bytes_per_s=max((roof.peak_bytes_per_s for _, roof in placed if roof.peak_bytes_per_s), default=None),
            points=tuple(_kernel_point(row, roof) for row, roof in placed),
            time_ns=times,
            note="The longest launch of each kernel, alone; peaks at the clocks of the recording.",
        )


def _kernel_point(row: KernelProfile, roof: RoofPosition) -> RooflinePoint:
    seconds = (row.mean_ns or 0.0) / 1e9
    return RooflinePoint(
        op=short_name(row.name),
        shapes=f"grid {dimensions(row.grid) or 'unknown'}, block {dimensions(row.block) or 'unknown'}",
        precision=roof.precision,
        count=row.launches,
        device_ns=row.total_ns or 0,
        flops=round(roof.flops_per_s * seconds),
        bytes=round(roof.bytes_per_s * seconds),
        intensity=roof.intensity,
        flops_per_s=roof.flops_per_s,
        bytes_per_s=roof.bytes_per_s,
        compute_share=roof.flops_per_s / roof.peak_flops_per_s if roof.peak_flops_per_s else 0.0,
        memory_share=roof.bytes_per_s / roof.peak_bytes_per_s if roof.peak_bytes_per_s else 0.0,
        bound=roof.bound,
        confidence="high",
    )


def _roof_note(roof: Roofline) -> str:
    ridges = ", ".join(f"{name} {ridge:.1f}" for name, ridge in roof.ridges.items())
    peaks = roof.about_peaks
    return f"{peaks} Ridge points in FLOP per byte: {ridges}.".strip() if ridges else peaks


def _bandwidth(roof: Roofline) -> float | None:
    return next((p.bytes_per_s / p.memory_share for p in roof.points if p.memory_share), None)


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
            held=holders_of(f"held-{number}", memory),
            note="" if memory.is_absolute else "Levels are relative to the start of the recording.",
        )


def _peak(memory: DeviceMemory) -> str:
    parts = []
    if memory.peak_step is not None:
        parts.append(f"in step {memory.peak_step}")
    if memory.peak_phase is not None:
        parts.append(f"in the phase {memory.peak_phase}")
    return ", ".join(parts)
