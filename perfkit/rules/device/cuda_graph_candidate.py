"""The step could be launched as one CUDA graph.

Problem: the device waits for the host to launch kernel after kernel, and every step launches the same ones. A CUDA
graph records these launches once and then makes all of them with one call.

How it shows: the device waits for launches for a quarter of the step or more, and the preconditions of a graph hold as
far as a trace shows them: every step launches equally often (static shapes, no branches), the host waits for nothing in
the step, no device memory is allocated, nothing recompiles, and no graph is in use yet.

Causes: small batches and many small kernels, in a model whose shapes do not change.

Fix: let the compiler make the graph, or capture it by hand; the inputs then live in fixed buffers.

    model = torch.compile(model, mode="reduce-overhead")

    step = torch.cuda.make_graphed_callables(model, (example,))

Saving: at most the idle time for launches, minus the time by which recording slowed the step. The low end is 0, because
none is known before a trial. launch-bound reports the same time; this finding is about one way to save it.

Source: torch's documentation of CUDA graphs with its preconditions (static shapes and control flow, no syncs, no host
work in between). Steps count as equal when their launches differ by less than 1%. The threshold is a quarter of the
step, where a finding is critical: making a graph takes work. Seen on an H200, where no correction was timed yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import LATE
from perfkit.ledger.step_budget import CRITICAL, DeviceStepBudget
from perfkit.measures.results.device import Launches
from perfkit.measures.results.host import SyncCall
from perfkit.rules.device._late_launches import late_launches

ID = "cuda-graph-candidate"
WHAT_IF = ("launch-overhead", None)
CLAIMS = (LATE,)
#: One graph is a way to remove the waiting for launches.
FOLLOWS = ("launch-bound",)

#: Steps that launch nearly equally often: one may log or clip.
_EQUAL = 0.01
#: Fewer syncs per step than this are between the steps, not inside them.
_SYNCS = 0.5
_MIN_STEPS = 3


def check(
    step: DeviceStepBudget, launches: tuple[Launches, ...], sync_calls: tuple[SyncCall, ...] = ()
) -> Iterator[Finding]:
    """Find a launch-bound step that is the same every time."""
    device, cost = step.device, late_launches(step).cost_ns
    if step.per != "step" or device.graph_launches or cost < CRITICAL * step.wall_ns:
        return
    per_step = next((one.per_step for one in launches if one.device == device.device), ())
    if len(per_step) < _MIN_STEPS or device.causes.get("allocation", 0):
        return
    low, high = min(per_step), max(per_step)
    syncs = sum(call.count for call in sync_calls) / len(per_step)
    if high - low > _EQUAL * high or syncs > _SYNCS or (step.typical is not None and step.typical.recompiles):
        return
    source = f"device {device.device}"
    yield step.finding(
        cost=cost,
        saving=(0, cost),
        message=f"All steps make the same {high} launches: a CUDA graph saves up to {ms(cost)} ({step.percent(cost)}).",
        advice="torch.compile(model, mode='reduce-overhead'), or torch.cuda.make_graphed_callables, on fixed shapes.",
        evidence=(
            Evidence("launches per step", f"{low} to {high}", "", source),
            Evidence("syncs per step", round(syncs, 2), "", "trace"),
            Evidence.ms("idle for launches", cost, f"{source}, per step"),
        ),
    )
