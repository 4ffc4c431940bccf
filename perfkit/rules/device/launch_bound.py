"""The device waits for the host to launch its kernels.

Problem: the kernels are shorter than the Python and framework work that launches them. The device runs out of work
between them, although nothing is read back and the data is there.

How it shows: the device is idle while the launching thread is inside operators, launch calls, Python or the optimizer
and has not launched the next kernel yet.

Causes: small batches; many small ops; an optimizer that loops over parameters; modules run one by one in Python; hooks
and logging in the step.

Fix: launch fewer kernels, or launch them ahead of time.

    model = torch.compile(model, mode="reduce-overhead")   # fuses ops and replays launches as a CUDA graph
    optimizer = torch.optim.AdamW(params, fused=True)
    loader = DataLoader(dataset, batch_size=256)           # more work per launch

A batch of k times the size needs another learning rate. To start from: k times it with SGD (Goyal et al. 2017, with a
warm-up), the square root of k times it with Adam (Malladi et al. 2022).

Saving: at most that idle time, without the time by which recording made the step longer: a profiler slows the host and
not the device, so launches appear later than they are. The low end is 0, because none is known before a trial. In a
recording without steps, start-up is part of the idle time; late launches must then be most of it.

Source: idle time by what the launching thread did, as in HTA's idle breakdown, but per device and by time. The
threshold is 5% of the step. Checked on traces of GPUs, and seen on an H200, where no correction was timed yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import LATE
from perfkit.ledger.step_budget import MAJORITY, DeviceStepBudget
from perfkit.rules.device._larger_batch import LEARNING_RATE
from perfkit.rules.device._late_launches import WORDS, late_launches

ID = "launch-bound"
WHAT_IF = ("launch-overhead", None)
CLAIMS = (LATE,)
#: A device that waits for launches while a loop of small ops makes them waits for that loop.
CLAIMS_REST = True


def check(step: DeviceStepBudget) -> Iterator[Finding]:
    """Find the device's idle time in which the host was busy launching."""
    device, late = step.device, late_launches(step)
    cost = late.cost_ns
    if step.is_negligible(cost) or (step.per == "recording" and cost < MAJORITY * step.of_device(device.idle_ns)):
        return
    name = f"device {device.device}"
    source = f"{name}, idle by what the launching thread did"
    evidence = [Evidence.ms(f"idle, {cause}", ns, source) for cause, ns in late.causes.items() if ns]
    evidence.append(Evidence("kernels", device.kernels, "", name))
    mean = ""
    if device.mean_kernel_ns is not None:
        mean = f" (mean kernel {ms(device.mean_kernel_ns)})"
        evidence.append(Evidence("mean kernel", round(device.mean_kernel_ns / 1e3, 1), "µs", name))
    evidence.append(Evidence("gaps that hold 80% of it", late.gaps, "", f"{name}, the whole window"))
    mostly = WORDS[max(late.causes, key=lambda cause: late.causes[cause])]
    yield step.finding(
        cost=cost,
        saving=(0, cost),
        spent=late.spent,
        message=f"The device waits {step.percent(cost)} of the {step.per} for launches, most of it {mostly}{mean}.",
        advice=(
            "Launch less or ahead: torch.compile(mode='reduce-overhead'), a fused optimizer, a larger batch. "
            f"{LEARNING_RATE}"
        ),
        evidence=tuple(evidence),
    )
