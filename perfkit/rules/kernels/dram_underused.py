"""A kernel is limited by memory accesses, but not by the device's memory: its caches or its access pattern limit it.

Problem: the memory path is the busiest part of the device for this kernel, but less than half of what the memory can
deliver arrives. The kernel moves more than it needs between caches, or has too few accesses in flight.

How it shows: in a report of Nsight Compute, memory throughput is above compute throughput and at least 30%, and DRAM
throughput is below 50% of its peak. L1 and L2 throughput show which of them is busy.

Causes: neighbouring threads that read addresses far apart (a transposed or strided layout), so each access takes
several sectors of a cache line; bank conflicts in shared memory; narrow loads (one or two bytes at a time); data read
again and again from L2 that shared memory or registers could hold; spills to local memory.

Fix: let neighbouring threads read neighbouring addresses, several at once, and hold what is used again.

    x = x.contiguous()                                  # or channels_last, once, outside the loop
    offsets = pid * BLOCK + tl.arange(0, BLOCK)         # Triton: the last dimension across a warp

Saving: unknown, because ncu's report does not show what a launch costs in a training step. A kernel that only moves its
data can become faster by at most peak over reached DRAM throughput (below 50%: more than twice).

Source: NVIDIA's Best Practices and ncu's Memory Workload Analysis point to the access pattern below half of DRAM's
peak; streaming kernels reach 80 to 90%. Below 30% of both peaks a kernel is limited by latency, which
latency-bound-kernel reports. Kernels below 5% of the profiled time are not reported. Seen in a report of Nsight Compute
from an H200.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import percent
from perfkit.findings import Finding
from perfkit.measures.results.kernel_profiles import KernelProfile, KernelProfiles
from perfkit.rules.kernels._profiled_kernels import kernels_where, throughputs

ID = "dram-underused"

#: A share of DRAM's peak below which the pattern and not the memory is the limit.
_LOW = 0.50

_ADVICE = {
    "L1": "L1 is the busy part: let neighbouring threads read neighbouring addresses, load wider, and avoid bank "
    "conflicts in shared memory.",
    "L2": "L2 is the busy part: hold what is read again in shared memory or registers, and read each line whole.",
}
_OTHERWISE = (
    "Have more bytes in flight (wider loads, more of them before the first use, more warps), from neighbouring "
    "addresses; ncu's Memory Workload Analysis shows where."
)


def check(profiles: KernelProfiles) -> Iterator[Finding]:
    """Find profiled kernels that the memory path limits, far below the memory's peak."""
    for kernel in kernels_where(profiles, _underuses):
        row = kernel.longest
        # The cache that is busier than the memory, if the report has both.
        busy, works_at = "", max(row.l1 or 0, row.l2 or 0)
        if row.l1 is not None and row.l2 is not None and works_at > (row.dram or 0):
            busy = "L1" if row.l1 >= row.l2 else "L2"
        problem = (
            f", is limited by memory accesses ({percent(row.memory or 0, 1)} of that peak), and gets "
            f"{percent(row.dram or 0, 1)} of what the memory can deliver"
        )
        yield kernel.finding(
            f"{problem} while {busy} works at {percent(works_at, 1)}" if busy else problem,
            advice=_ADVICE.get(busy, _OTHERWISE),
            severity="warning",
            in_code=True,
            evidence=throughputs(compute=row.compute, memory=row.memory, DRAM=row.dram, L1=row.l1, L2=row.l2),
        )


def _underuses(row: KernelProfile) -> bool:
    return row.bound == "memory" and row.memory is not None and row.dram is not None and row.dram < _LOW
