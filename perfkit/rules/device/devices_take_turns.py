"""The devices of a process compute one after the other.

Problem: the layers of one model lie on several devices, and a batch goes through them as a whole. While one device
computes, the others wait for its result, so that several devices are as fast as one.

How it shows: one process uses two devices or more, which together compute for 70% of the step or more and at the same
time for less than 10% of it; what one computes begins after a copy from another one, or waits for it in the queue.

Causes: `.to("cuda:1")` in the middle of a forward; `device_map="auto"` in training; an encoder on one device and a
decoder on another.

Fix: where the model fits on one device, a replica for each (DistributedDataParallel); where it does not, shards of its
parameters (FSDP), or micro-batches, so that each device computes on one part of the batch while the next one has the
part before.

    model = DistributedDataParallel(model.to(rank))      # torchrun --nproc-per-node=2

    stage = PipelineStage(part, rank, stages, device)    # torch.distributed.pipelining
    ScheduleGPipe(stage, n_microbatches=8).step(batch)

Saving: from 0 to the step without the longest time that one of the devices computes: as if all computed at the same
time. Micro-batches leave a part of that, since a pipeline has to fill and to drain; small ones use a device less well.

Source: GPipe (Huang et al. 2019) and torch's tutorial on pipeline parallelism. Both shares are chosen, and a device
with less than a quarter of the busiest one's compute does not count. Not run on several GPUs yet. Steps have to be
marked in the trace.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import Selector
from perfkit.ledger.step_budget import MAJORITY, StepBudget
from perfkit.measures.results.device import LATE_LAUNCHES, DeviceTurns

ID = "devices-take-turns"
#: Idle time of the busiest device that is not of its own: loading, allocating and compiling are.
CLAIMS = (
    Selector(
        owner="idle",
        names=("dependency", "another stream", "queued back to back", "sync", "copy call", "other host work"),
    ),
    Selector(owner="idle", names=LATE_LAUNCHES),
    Selector(owner="copies"),
)

#: The share of the step in which any device computes, at least: with less, what the devices wait for is mostly
#: something else (launches, batches), which is to be corrected first (chosen).
_FILLED = 0.7
#: The share of the step in which two compute, at most. Two micro-batches on two devices of equal work overlap for a
#: third of the step; without any, the optimizer of one and the first layers of the other may (chosen).
_OVERLAP = 0.1


def check(step: StepBudget, turns: DeviceTurns) -> Iterator[Finding]:
    """Find devices that compute in turns in each step."""
    window, longest = turns.window_ns, max(turns.compute_ns)
    if step.per != "step" or turns.any_ns < _FILLED * window or turns.several_ns >= _OVERLAP * window:
        return
    # Of two programs in one process, or with a validation on the other device, each computes in steps of its own, and
    # none waits for the other.
    if min(turns.shared_steps, turns.dependent_steps) <= MAJORITY * turns.steps:
        return
    cost = step.wall_ns * (1 - longest / window)
    if step.is_negligible(cost):
        return
    source = "the whole window"
    devices = [str(device) for device in turns.devices]
    together = f"{', '.join(devices[:-1])} and {devices[-1]}"
    several = round(step.wall_ns * turns.several_ns / window)
    yield step.finding(
        cost=cost,
        saving=(0, cost),
        spent=turns.at,
        range=f"devices {together}",
        message=(
            f"Devices {together} compute in turns: at the same time only {step.percent(several)} of the {step.per}, "
            f"and the busiest of them computes {step.percent(step.wall_ns - cost)} of it."
        ),
        advice=(
            "A replica of the model for each device (DDP) where it fits on one; else FSDP, or micro-batches "
            "(torch.distributed.pipelining), so that a device has the next part while another one computes."
        ),
        evidence=(
            *(
                Evidence.percent(f"device {device} computes", ns, window, source)
                for device, ns in zip(turns.devices, turns.compute_ns, strict=True)
            ),
            Evidence.percent("any of them computes", turns.any_ns, window, source),
            Evidence.percent("two or more compute", turns.several_ns, window, source),
            Evidence("copies between devices", round(turns.copies / turns.steps, 1), "", "per step"),
            Evidence("steps in which one waits for another", turns.dependent_steps, "", f"of {turns.steps}"),
        ),
    )
