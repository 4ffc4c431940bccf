"""The findings of one rule on several devices: equal ones become one that names its devices.

Devices work at the same time, so costs on them are not added, and no change to one of them makes the step shorter than
what the others are busy.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perfkit.findings import Evidence, Finding
from perfkit.ledger.step_budget import NEGLIGIBLE, DeviceStepBudget
from perfkit.measures.results.device import DeviceTime
from perfkit.measures.results.measurements import Measurements


def merge_findings(found: Measurements, findings: Sequence[tuple[DeviceTime, Finding]]) -> list[Finding]:
    """One finding for those of one place and one advice, that of the device on which it costs most.

    ``findings`` are of one rule, each with its device.
    """
    groups: dict[object, list[tuple[DeviceTime, Finding]]] = {}
    for device, finding in findings:
        key = (finding.spent, finding.change, finding.range, finding.advice)
        groups.setdefault(key, []).append((device, finding))
    return [_merged(found, group) for group in groups.values()]


def _merged(found: Measurements, group: list[tuple[DeviceTime, Finding]]) -> Finding:
    _, largest = max(group, key=lambda one: one[1].cost_ns or 0)
    on = [device.device for device, _ in group]
    costs = [
        Evidence.ms(f"cost on device {device.device}", finding.cost_ns, "per step")
        for device, finding in group
        if finding.cost_ns is not None
    ]
    place = f"device{'s' if len(on) > 1 else ''} {_listed(on)}"
    merged = msgspec.structs.replace(
        largest,
        message=f"{largest.message.removesuffix('.')} ({place}).",
        range=largest.range or place,
        evidence=(*largest.evidence, *(costs if len(on) > 1 else ())),
    )
    return _limited(found, merged, on)


def _limited(found: Measurements, finding: Finding, on: list[int]) -> Finding:
    """The saving is at most what the step is longer than the busy time of each device without this finding."""
    step = DeviceStepBudget.from_measurements(found)
    others = [device for device in found.all(DeviceTime) if device.device not in on and device.window_ns > 0]
    busiest = max(others, key=lambda device: device.busy_ns / device.window_ns, default=None)
    if step is None or busiest is None or finding.saving_high_ns is None or finding.severity == "info":
        return finding
    possible = round(step.wall_ns * (1 - busiest.busy_ns / busiest.window_ns))
    if finding.saving_high_ns <= possible:
        return finding
    reason = f"device {busiest.device} is busy {step.percent(step.wall_ns - possible)} of the {step.per}"
    return msgspec.structs.replace(
        finding,
        severity="info" if possible < NEGLIGIBLE * step.wall_ns else finding.severity,
        message=f"{finding.message.removesuffix('.')}; {reason}.",
        saving_low_ns=min(finding.saving_low_ns or 0, possible),
        saving_high_ns=possible,
    )


def _listed(numbers: list[int]) -> str:
    """``0``, ``0 and 1``, ``0, 1 and 2``."""
    *first, last = map(str, sorted(numbers))
    return f"{', '.join(first)} and {last}" if first else last
