"""Kernels keep few warps on a multiprocessor, so nothing hides their waits for memory.

Problem: a multiprocessor hides the latency of memory by switching to another warp. A kernel that needs
many registers or much shared memory per block leaves room for few.

How it shows: kernels of reductions, elementwise ops and the like (not matrix products, which are written
for few warps) with grids that fill the device and an occupancy below 25% take a quarter of the step or more.

Causes: blocks of few threads; a kernel of one's own (Triton, CUDA) with too many registers or stages; one
block per row where rows are short.

Fix: smaller tiles, fewer stages, more threads per block.

    @triton.autotune([triton.Config({"BLOCK": b}, num_warps=w) for b in (256, 512) for w in (4, 8)], key=["n"])

Gain: at the high end these kernels at twice the speed; the low end is 0, since a kernel with enough
independent loads in flight needs no more warps.

Source: CUDA's occupancy calculator; Nsight Compute's Occupancy section warns where warps are few. A quarter of the
warps is where NVIDIA's guides call latency hard to hide; a quarter of the step is where a finding counts as
critical. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import percent
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._step_budget import CRITICAL, busiest_device, device_part, severity_of, whole_of

ID = "low-occupancy"

_LOW = 0.25
#: Written for few warps, or not computing.
_ON_PURPOSE = ("matmul", "attention", "convolution", "communication", "copy")
#: Mostly too small a grid is another finding.
_FULL_GRID = 0.5


def check(measured: Measured) -> Iterator[Finding]:
    """Find time in kernels with few warps."""
    whole, device, kernels = whole_of(measured), busiest_device(measured), measured.kernels
    if whole is None or device is None or kernels is None or not kernels.total_ns:
        return
    low = [
        row
        for row in kernels.rows
        if row.occupancy is not None
        and row.occupancy < _LOW
        and (row.small_grid_share or 0.0) < _FULL_GRID
        and row.kernel_class not in _ON_PURPOSE
    ]
    spent = sum(row.total_ns for row in low)
    part_ns = device_part(round(device.compute_ns * spent / kernels.total_ns), device, whole)
    if part_ns < CRITICAL * whole.wall_ns:
        return
    cost_ns = part_ns // 2
    source = f"device {device.device}, a few launches of each kernel"
    yield Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole),
        message=(
            f"Kernels that fill less than a quarter of a multiprocessor's warps take "
            f"{percent(part_ns, whole.wall_ns)} of the {whole.per}."
        ),
        advice="Smaller tiles, fewer registers per thread, more threads per block; autotune a kernel of your own.",
        confidence="low",
        evidence=tuple(
            Evidence(
                row.name[:80],
                round(100 * (row.occupancy or 0), 1),
                "%",
                f"{source}; block {row.block}, {row.registers} registers",
            )
            for row in low[:5]
        ),
        cost_ns=cost_ns,
        saving_low_ns=0,
        saving_high_ns=cost_ns,
    )
