"""Kernels keep few warps on a multiprocessor, so nothing hides their waits for memory.

Problem: a multiprocessor hides the latency of memory by switching to another warp. A kernel that needs many registers
or much shared memory per block leaves space for few warps.

How it shows: kernels with an occupancy below 25% and grids that fill the device take a quarter of the step or more.
Matrix products, attention and convolutions are not counted: they are written for few warps. Nor are batch norms of
images with their channels first: layout-conversion reports them.

Causes: blocks of few threads; a custom kernel (Triton, CUDA) with too many registers or stages; one block per row where
rows are short.

Fix: smaller tiles, fewer stages, more threads per block.

    @triton.autotune([triton.Config({"BLOCK": b}, num_warps=w) for b in (256, 512) for w in (4, 8)], key=["n"])

Saving: at most half of these kernels' time, as if they ran at twice the speed (chosen, not measured). The low end is 0:
a kernel with enough independent loads in flight needs no more warps.

Source: CUDA's occupancy calculator; the Occupancy section of Nsight Compute warns where warps are few. NVIDIA's guides
call latency hard to hide below a quarter of the warps. The threshold is a quarter of the step, where a finding is
critical. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING
from perfkit.ledger.step_budget import CRITICAL, DeviceStepBudget
from perfkit.measures.results.kernels import Kernels
from perfkit.rules._channels_first import is_channels_first_norm

ID = "low-occupancy"
CLAIMS = COMPUTING

#: Warps, as a share of what fits, below which latency is hard to hide.
_FEW_WARPS = 0.25
#: Kernels that are written for few warps, or that do not compute.
_EXEMPT = ("matmul", "attention", "convolution", "communication", "copy")
#: A kernel that leaves more multiprocessors without a block is the subject of small-grid.
_FILLED = 0.5


def check(step: DeviceStepBudget, kernels: Kernels) -> Iterator[Finding]:
    """Find time in kernels with few warps."""
    low = [
        row
        for row in kernels.rows
        if row.occupancy is not None
        and row.occupancy < _FEW_WARPS
        and (row.sm_efficiency is None or row.sm_efficiency >= _FILLED)
        and row.kernel_class not in _EXEMPT
        and not is_channels_first_norm(row.name)
    ]
    spent = step.of_kernels(sum(row.total_ns for row in low), kernels)
    if spent < CRITICAL * step.wall_ns:
        return
    cost = spent // 2
    source = f"device {step.device.device}, a few launches of each kernel"
    yield step.finding(
        cost=cost,
        saving=(0, cost),
        message=f"Kernels with less than a quarter of the possible warps take {step.percent(spent)} of the {step.per}.",
        advice="Use smaller tiles, fewer registers per thread, more threads per block; autotune custom kernels.",
        confidence="low",
        evidence=tuple(
            Evidence.percent(
                row.name[:80], row.occupancy or 0, 1, f"{source}; block {row.block}, {row.registers} registers"
            )
            for row in low[:5]
        ),
    )
