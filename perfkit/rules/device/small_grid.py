"""Kernels are too small to fill the device.

Problem: a kernel with fewer blocks than the device has multiprocessors leaves the other multiprocessors idle while it
runs. The device still counts as busy.

How it shows: compute kernels with such a grid take a quarter of the step or more. Kernels shorter than 10 µs are not
counted: launching limits them, which launch-bound reports.

Causes: a small batch; a reduction over one long dimension; a loop over samples or heads with one kernel each; a batch
norm of few channels, which has one block for each where cuDNN does not compute it (bfloat16) and channels come first.

Fix: give each kernel more work: a larger batch, or one batched call instead of a loop; channels last for a batch norm.

    loader = DataLoader(dataset, batch_size=256)
    scores = torch.bmm(queries, keys)                  # not: one mm per head
    model, images = (one.to(memory_format=torch.channels_last) for one in (model, images))

A batch of k times the size needs another learning rate. To start from: k times it with SGD (Goyal et al. 2017, with a
warm-up), the square root of k times it with Adam (Malladi et al. 2022).

Saving: at most the time of these kernels with a small grid. The low end is 0: a trace does not show whether more work
could run at the same time.

Source: torch-tb-profiler's SM efficiency and HTA count blocks per multiprocessor in the same way. The threshold is a
quarter of the step, where a finding is critical, because matrix products often split their work into few large blocks
on purpose. On an H200 the backward of a batch norm of 32 channels in bfloat16 took 9.5 ms for 268 MB, which the memory
reads in 0.06 ms.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import CRITICAL, MAJORITY, DeviceStepBudget
from perfkit.measures.results.kernels import Kernels
from perfkit.rules.device._larger_batch import LEARNING_RATE

ID = "small-grid"
CLAIMS = COMPUTING
#: Kernels that are small because a loop makes them.
FOLLOWS = ("many-small-ops", "loop-over-samples")

#: A launch takes 5 to 10 µs on the host: shorter kernels are limited by how fast the host launches.
_LAUNCH_NS = 10_000
_NOT_COMPUTING = ("communication", "copy")
#: torch's own kernels for channels first, whose grid is the number of channels; those for channels last are named so.
_BATCH_NORM = re.compile(r"batch_norm_(?!\w*channels_last)")
_CHANNELS_LAST = (
    "Convert model and images to torch.channels_last: a batch norm with channels first has one block for each channel."
)


def check(step: DeviceStepBudget, kernels: Kernels) -> Iterator[Finding]:
    """Find time in kernels with fewer blocks than multiprocessors."""
    small = [
        (row, row.total_ns * row.small_grid_share)
        for row in kernels.rows
        if row.small_grid_share and row.mean_ns >= _LAUNCH_NS and row.kernel_class not in _NOT_COMPUTING
    ]
    small.sort(key=lambda one: -one[1])
    spent = sum(ns for _, ns in small)
    cost = step.of_kernels(spent, kernels)
    if cost < CRITICAL * step.wall_ns:
        return
    mean = f" (mean {ms(spent / max(1, sum(row.count for row, _ in small)))})"
    of_norms = sum(ns for row, ns in small if _BATCH_NORM.search(row.name))
    source = f"device {step.device.device}, grids of a few launches of each kernel"
    yield step.finding(
        cost=cost,
        saving=(0, cost),
        message=f"Kernels with too few blocks for the device take {step.percent(cost)} of the {step.per}{mean}.",
        advice=_CHANNELS_LAST
        if of_norms >= MAJORITY * spent
        else (
            "Give each kernel more work: a larger batch, or one batched call instead of many small ones. "
            f"{LEARNING_RATE}"
        ),
        confidence="low",
        evidence=tuple(Evidence.ms(row.name[:80], ns, f"{source}; grid {row.grid}") for row, ns in small[:5]),
    )
