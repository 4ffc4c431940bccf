"""The step could be launched as one CUDA graph.

Problem: the device waits for the host to launch kernel after kernel, and every step launches the same ones.
A CUDA graph records them once and launches them at once.

How it shows: the device is idle for launches for a quarter of the step or more, and the preconditions hold as far as a
trace shows them: every step launches equally often (static shapes, no branches), the host
waits for nothing in the step, no memory is allocated from the device, and no graph is used yet.

Causes: small batches and many small kernels, in a model whose shapes do not change.

Fix: let the compiler do it, or capture it by hand; inputs then live in fixed buffers.

    model = torch.compile(model, mode="reduce-overhead")

    step = torch.cuda.make_graphed_callables(model, (example,))

Gain: the idle time for launches, less what recording slowed the step: none of it is certain, so the low end is 0.
The same time as launch-bound's, told for what can be done about it.

Source: CUDA graphs in torch's documentation, with its preconditions: static shapes and control flow, no
syncs, no host work in between. Steps count as alike when their launches differ by less than 1%. A quarter of
the step is where a finding counts as critical: a graph takes work. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, percent
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.device import IdleCause
from perfkit.measures.results.measured import Measured
from perfkit.rules._step_budget import CRITICAL, busiest_device, device_part, severity_of, whole_of

ID = "cuda-graph-candidate"

_LATE: tuple[IdleCause, ...] = ("operators", "python", "launch call", "launch latency", "optimizer")
#: Steps that launch nearly equally often: one may log or clip.
_ALIKE = 0.01
#: A sync now and then stands between the steps, not in them.
_SYNCS = 0.5
_LEAST_STEPS = 3


def check(measured: Measured) -> Iterator[Finding]:
    """Find a launch-bound step that is the same every time."""
    whole, device = whole_of(measured), busiest_device(measured)
    if whole is None or device is None or whole.per != "step" or device.graph_launches:
        return
    slowed_ns = 0
    if measured.step is not None and measured.trace_step is not None:
        slowed_ns = max(0, measured.trace_step.wall_ns - measured.step.wall_ns)
    late_ns = sum(device_part(device.causes.get(cause, 0), device, whole) for cause in _LATE)
    cost_ns = max(0, late_ns - slowed_ns)
    if cost_ns < CRITICAL * whole.wall_ns:
        return
    launches = next((one for one in measured.launches if one.device == device.device), None)
    if launches is None or len(launches.per_step) < _LEAST_STEPS:
        return
    most, least = max(launches.per_step), min(launches.per_step)
    if most - least > _ALIKE * most or device.causes.get("allocation", 0):
        return
    syncs = sum(call.count for call in measured.sync_calls) / len(launches.per_step)
    recompiles = measured.step.recompiles if measured.step is not None else None
    if syncs > _SYNCS or recompiles:
        return
    source = f"device {device.device}"
    yield Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole),
        message=(
            f"Every step launches the same {most} times and waits for nothing: as one CUDA graph it would save up to "
            f"{ms(cost_ns)} ({percent(cost_ns, whole.wall_ns)})."
        ),
        advice="torch.compile(model, mode='reduce-overhead'), or torch.cuda.make_graphed_callables, on fixed shapes.",
        confidence="medium",
        evidence=(
            Evidence("launches per step", f"{least} to {most}", "", source),
            Evidence("syncs per step", round(syncs, 2), "", "trace"),
            Evidence("idle for launches", round(cost_ns / 1e6, 3), "ms", f"{source}, per step"),
        ),
        cost_ns=cost_ns,
        saving_low_ns=0,
        saving_high_ns=cost_ns,
    )
