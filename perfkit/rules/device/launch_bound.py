"""The device waits for the host to launch its next kernel.

Problem: the kernels are shorter than the Python and framework work that launches them, so the device
runs dry between them, although nothing is read back and the data is there.

How it shows: idle intervals of the device during which the launching thread was inside ops, launch
calls, Python or the optimizer, and had not launched the next kernel yet.

Causes: small batches, many small ops, an optimizer that loops over parameters, modules run one by one
in Python, hooks and logging in the step.

Fix: launch less, or launch ahead.

    model = torch.compile(model, mode="reduce-overhead")   # fuses, and replays launches as a CUDA graph
    optimizer = torch.optim.AdamW(params, fused=True)
    loader = DataLoader(dataset, batch_size=256)           # more work per launch

Gain: at most that idle time, less what recording slowed the step (a profiler slows the host, not the
device, so it makes launches look later than they are). No low end is known before a trial: it is 0.

In a recording without steps, start-up is part of the idle time; there launches have to be most of it.

Source: idle time by what the launching thread did, as in HTA's idle breakdown, but per device and by
time. From 5% of the step on (see input-bound). Checked on traces of GPUs: not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, percent
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.device import IdleCause
from perfkit.measures.results.measured import Measured
from perfkit.rules._step_budget import MAJORITY, NEGLIGIBLE, busiest_device, device_part, severity_of, whole_of

ID = "launch-bound"

#: What the host did instead of launching in time, in words. Syncs, allocations and data have causes of their own.
_LATE: dict[IdleCause, str] = {
    "operators": "inside operators",
    "python": "in Python",
    "launch call": "in launch calls",
    "launch latency": "between launch and start of a kernel",
    "optimizer": "in the optimizer",
}


def check(measured: Measured) -> Iterator[Finding]:
    """Find the device's idle time in which the host was busy launching."""
    whole = whole_of(measured)
    device = busiest_device(measured)
    if whole is None or device is None:
        return
    slowed_ns = 0
    if measured.step is not None and measured.trace_step is not None:
        slowed_ns = max(0, measured.trace_step.wall_ns - measured.step.wall_ns)
    causes = {cause: device_part(device.causes.get(cause, 0), device, whole) for cause in _LATE}
    cost_ns = max(0, sum(causes.values()) - slowed_ns)
    if cost_ns < NEGLIGIBLE * whole.wall_ns:
        return
    if whole.per == "recording" and cost_ns < MAJORITY * device_part(device.idle_ns, device, whole):
        return
    source = f"device {device.device}, idle by what the launching thread did"
    evidence = [Evidence(f"idle, {cause}", round(ns / 1e6, 3), "ms", source) for cause, ns in causes.items() if ns]
    evidence.append(Evidence("kernels", device.kernels, "", f"device {device.device}"))
    if device.mean_kernel_ns is not None:
        evidence.append(Evidence("mean kernel", round(device.mean_kernel_ns / 1e3, 1), "µs", f"device {device.device}"))
    if slowed_ns:
        evidence.append(Evidence("recording slowed the step by", round(slowed_ns / 1e6, 3), "ms", "taken off"))
    longest = max(causes, key=lambda cause: causes[cause])
    mean = f" (mean kernel {ms(device.mean_kernel_ns)})" if device.mean_kernel_ns is not None else ""
    yield Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole),
        message=(
            f"The device waits {percent(cost_ns, whole.wall_ns)} of the {whole.per} for launches, "
            f"most of it {_LATE[longest]}{mean}."
        ),
        advice="Launch less or ahead: torch.compile(mode='reduce-overhead'), a fused optimizer, a larger batch.",
        confidence="medium",
        evidence=tuple(evidence),
        cost_ns=cost_ns,
        saving_low_ns=0,
        saving_high_ns=cost_ns,
    )
