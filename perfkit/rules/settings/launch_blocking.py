"""CUDA_LAUNCH_BLOCKING is set.

Problem: with `CUDA_LAUNCH_BLOCKING=1` the host waits after every kernel until it is done. Nothing is queued ahead
any more, so the device stands still for each launch.

How it shows: the variable was set, on a machine with a device.

Causes: set to find the line of a device-side error, and left in a shell, a container or a job script.

Fix: unset it.

    env -u CUDA_LAUNCH_BLOCKING python train.py

Gain: at most the time the device was idle for other reasons than data, as the trace has it; what of it would stay
cannot be told from a run in which everything blocks, so the low end is 0. Without a trace of a device it is null.

Source: NVIDIA's CUDA programming guide, section on environment variables. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._step_budget import busiest_device, device_part, severity_of, whole_of

ID = "launch-blocking"


def check(measured: Measured) -> Iterator[Finding]:
    """Find blocking launches, and the idle time that they can have caused."""
    rank = measured.rank
    if rank is None or not rank.devices or rank.settings.get("CUDA_LAUNCH_BLOCKING", "") in ("", "0"):
        return
    whole, device = whole_of(measured), busiest_device(measured)
    cost_ns = None
    if whole is not None and device is not None:
        idle_ns = max(0, device.idle_ns - device.causes.get("data loading", 0))
        cost_ns = min(whole.wall_ns, device_part(idle_ns, device, whole))
    costs = f": up to {ms(cost_ns)} of the {ms(whole.wall_ns)} {whole.per}" if cost_ns and whole else ""
    yield Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole) if cost_ns is not None and whole else "warning",
        message=f"CUDA_LAUNCH_BLOCKING is set: the host waits for every kernel{costs}.",
        advice="Unset CUDA_LAUNCH_BLOCKING.",
        confidence="high",
        evidence=(
            Evidence("CUDA_LAUNCH_BLOCKING", rank.settings["CUDA_LAUNCH_BLOCKING"], "", "environment"),
            Evidence(
                "idle for other reasons than data",
                round(cost_ns / 1e6, 3) if cost_ns is not None else None,
                "ms",
                "trace" if cost_ns is not None else "there is no trace of the device",
            ),
        ),
        cost_ns=cost_ns,
        saving_low_ns=0 if cost_ns is not None else None,
        saving_high_ns=cost_ns,
    )
