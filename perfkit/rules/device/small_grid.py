"""Kernels are too small to fill the device.

Problem: a kernel with fewer blocks than the device has multiprocessors leaves the other multiprocessors idle while it
runs. The device still counts as busy.

How it shows: the time of compute kernels, weighted by the share of multiprocessors that have no block, is a quarter of
the step or more. Kernels shorter than 10 µs are not counted: launching limits them, which launch-bound reports. Batch
norms of images with their channels first are the subject of layout-conversion.

Causes: a small batch; a reduction over one long dimension; a loop over samples or heads with one kernel each; cuDNN's
batch norm of few channels, which has one block for each.

Fix: give each kernel more work: a larger batch, or one batched call instead of a loop; channels last for a batch norm.

    loader = DataLoader(dataset, batch_size=256)
    scores = torch.bmm(queries, keys)                  # not: one mm per head
    model, images = (one.to(memory_format=torch.channels_last) for one in (model, images))

A batch of k times the size needs another learning rate. To start from: k times it with SGD (Goyal et al. 2017, with a
warm-up), the square root of k times it with Adam (Malladi et al. 2022).

Saving: at most that weighted time, where the same work fills the device. The low end is 0: a trace does not show
whether more work could run at the same time.

Source: torch-tb-profiler's SM efficiency and HTA count blocks per multiprocessor in the same way. The threshold is a
quarter of the step, where a finding is critical. Products that run as one block for almost each multiprocessor do so on
purpose (on an H200 117 or 120 of 132), and lose little.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import CRITICAL, MAJORITY, DeviceStepBudget
from perfkit.measures.results.kernels import Kernels
from perfkit.rules._channels_first import has_a_block_per_channel, is_channels_first_norm
from perfkit.rules.device._larger_batch import LEARNING_RATE

ID = "small-grid"
CLAIMS = COMPUTING
#: Kernels that are small because a loop makes them.
FOLLOWS = ("many-small-ops", "loop-over-samples")

#: A launch takes 5 to 10 µs on the host: shorter kernels are limited by how fast the host launches.
_LAUNCH_NS = 10_000
_NOT_COMPUTING = ("communication", "copy")
_CHANNELS_LAST = "Convert model and images to torch.channels_last: this batch norm has one block for each channel."


def check(step: DeviceStepBudget, kernels: Kernels) -> Iterator[Finding]:
    """Find time in kernels with fewer blocks than multiprocessors."""
    small = [
        (row, row.total_ns * (1 - row.sm_efficiency))
        for row in kernels.rows
        if row.sm_efficiency is not None
        and row.sm_efficiency < 1
        and row.mean_ns >= _LAUNCH_NS
        and row.kernel_class not in _NOT_COMPUTING
        and not is_channels_first_norm(row.name)
    ]
    small.sort(key=lambda one: -one[1])
    spent = sum(row.total_ns for row, _ in small)
    norms = sum(row.total_ns for row, _ in small if has_a_block_per_channel(row.name))
    cost = step.of_kernels(sum(empty_ns for _, empty_ns in small), kernels)
    if cost < CRITICAL * step.wall_ns:
        return
    mean = ms(spent / max(1, sum(row.count for row, _ in small)))
    filled = 1 - sum(empty_ns for _, empty_ns in small) / spent
    source = f"device {step.device.device}, grids of a few launches of each kernel"
    yield step.finding(
        cost=cost,
        saving=(0, cost),
        message=(
            f"Kernels with too few blocks for the device (mean {mean}) take "
            f"{step.percent(step.of_kernels(spent, kernels))} of the {step.per} and use {filled:.0%} of its "
            "multiprocessors."
        ),
        advice=_CHANNELS_LAST
        if norms >= MAJORITY * spent
        else (
            "Give each kernel more work: a larger batch, or one batched call instead of many small ones. "
            f"{LEARNING_RATE}"
        ),
        confidence="low",
        evidence=tuple(
            Evidence.ms(row.name[:80], empty_ns, f"without a block; {source}; grid {row.grid}")
            for row, empty_ns in small[:5]
        ),
    )
