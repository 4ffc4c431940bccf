"""CUDA_LAUNCH_BLOCKING is set.

Problem: with `CUDA_LAUNCH_BLOCKING=1` the host waits for every kernel to end. Nothing is queued ahead, so the device is
idle during each launch.

How it shows: the variable was set, on a machine with a device.

Causes: set to find the line of a device-side error, and left in a shell, a container or a job script.

Fix: unset it.

    env -u CUDA_LAUNCH_BLOCKING python train.py

Saving: at most the time that the trace shows the device idle for other reasons than data. A run in which everything
blocks does not show how much of it would remain, so the minimum is 0. Unknown without a trace of a device.

Source: NVIDIA's CUDA programming guide, section on environment variables. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.ledger.step_budget import DeviceStepBudget
from perfkit.run.records import Rank

ID = "launch-blocking"


def check(rank: Rank, step: DeviceStepBudget | None = None) -> Iterator[Finding]:
    """Find blocking launches, and the idle time that they can have caused."""
    setting = rank.settings.get("CUDA_LAUNCH_BLOCKING", "")
    if not rank.devices or setting in ("", "0"):
        return
    cost = None
    if step is not None:
        idle_ns = step.device.idle_ns - step.device.causes.get("data loading", 0)
        cost = min(step.wall_ns, step.of_device(max(0, idle_ns)))
    costs = f": up to {ms(cost)} of the {ms(step.wall_ns)} {step.per}" if step is not None and cost else ""
    source = "trace" if cost is not None else "there is no trace of the device"
    yield Finding(
        severity=step.severity(cost) if step is not None and cost is not None else "warning",
        message=f"CUDA_LAUNCH_BLOCKING is set: the host waits for every kernel{costs}.",
        advice="Unset CUDA_LAUNCH_BLOCKING.",
        confidence="high",
        evidence=(
            Evidence("CUDA_LAUNCH_BLOCKING", setting, "", "environment"),
            Evidence.ms("idle for other reasons than data", cost, source),
        ),
        cost_ns=cost,
        saving_low_ns=0 if cost is not None else None,
        saving_high_ns=cost,
    )
