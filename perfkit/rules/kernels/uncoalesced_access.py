"""The threads of a warp read or write addresses far apart, so most of what moves through the caches is not used.

Problem: memory moves in sectors of 32 bytes. Where the 32 threads of a warp access neighbouring addresses, each sector
is used whole. Where they access addresses far apart, each thread needs a sector of its own and uses some bytes of it.

How it shows: in a report of Nsight Compute, an ideal pattern would need at most half of the sectors that global
accesses need (section Source Counters), or loads use at most half of the bytes of a sector; and compute is not the
limit.

Causes: a transposed or strided layout, of which each thread walks along a row; arrays of structures; gathers by random
indices; tensors whose last dimension is not the one that neighbouring threads take.

Fix: let neighbouring threads take neighbouring elements of the last dimension, or change the layout once.

    x = x.contiguous()                             # once, outside the loop
    x = x.to(memory_format=torch.channels_last)    # for convolutions
    offsets = tl.arange(0, BLOCK)                  # Triton: along the dimension of stride 1

Saving: unknown, because ncu's report does not show what a launch costs in a training step. A kernel that only moves
data can become faster by at most needed over used sectors.

Source: NVIDIA's Best Practices on coalesced access; Nsight Compute's rule on uncoalesced global accesses compares the
same two counts. At most half, twice the sectors, was chosen. A kernel at 60% of its compute peak or more hides its
accesses. Kernels below 5% of the profiled time are not reported. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import percent
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.kernel_profiles import BUSY, KernelProfile, KernelProfiles
from perfkit.rules.kernels._profiled_kernels import kernels_where, throughputs

ID = "uncoalesced-access"

#: The part of the sectors that an ideal pattern would need, up to which twice as many move as are needed.
_LOW = 0.50


def check(profiles: KernelProfiles) -> Iterator[Finding]:
    """Find profiled kernels whose accesses use little of what they move."""
    for kernel in kernels_where(profiles, _wastes):
        row = kernel.longest
        used = percent(row.sector_use or 0, 1)
        sectors = round(row.sectors_per_request, 1) if row.sectors_per_request is not None else None
        yield kernel.finding(
            f", and uses {used} of the sectors that its accesses to global memory move",
            severity="warning",
            advice=(
                "Let neighbouring threads access neighbouring addresses: the last dimension across a warp, a contiguous"
                " or channels_last tensor, a structure of arrays. The Source page of ncu shows the line."
            ),
            confidence="high",
            evidence=(
                Evidence.percent("sectors used", row.sector_use, 1, "that an ideal pattern needs, mean by time"),
                Evidence("sectors per load", sectors, "", "4 for floats of neighbouring threads, 16 for float4"),
                *throughputs(memory=row.memory, DRAM=row.dram, L1=row.l1, L2=row.l2),
                Evidence.percent("L1 hits", row.l1_hit, 1, "of all sectors"),
                Evidence.percent("L2 hits", row.l2_hit, 1, "of all sectors"),
            ),
        )


def _wastes(row: KernelProfile) -> bool:
    return row.sector_use is not None and row.sector_use <= _LOW and (row.compute or 0.0) < BUSY
