"""Threads of a warp access the same bank of shared memory at once, so their accesses take turns.

Problem: shared memory has 32 banks of 4 bytes, and each serves one address at a time. Where threads of a warp need
different addresses of one bank, the access is split into wavefronts that follow each other.

How it shows: in a report of Nsight Compute, at least half of the wavefronts of shared memory are there because of
conflicts (section Source Counters), and shared memory is what the kernel uses or waits for: L1, of which it is a part,
works at 30% or more, or short_scoreboard or mio_throttle is the largest stall.

Causes: a tile whose rows are a multiple of 32 floats, read by column; structures whose size is a multiple of 128 bytes;
accesses with a stride that is a power of two.

Fix: shift each row, or swizzle the addresses. Compilers do it for their own tiles, so update Triton or CUTLASS first.

    __shared__ float tile[32][33];                 // one column more: rows begin in different banks
    tile[row][column ^ row]                        // or exchange columns by row

Saving: unknown, because ncu's report does not show what a launch costs in a training step. The accesses themselves take
at most the conflicting part of their wavefronts less.

Source: NVIDIA's Best Practices on shared memory and its banks; Nsight Compute compares the same two counts per line. At
least half, an access that takes two turns instead of one, was chosen. 30% is where this report calls a unit unused.
Kernels below 5% of the profiled time are not reported. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import percent
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.kernel_profiles import LATENCY, KernelProfile, KernelProfiles
from perfkit.rules.kernels._profiled_kernels import kernels_where, throughputs

ID = "bank-conflicts"

#: The part of the wavefronts that conflicts add: from here on an access takes two turns.
_MANY = 0.50
#: Stalls of a warp that waits for shared memory or for its queue.
_STALLS = ("short_scoreboard", "mio_throttle")


def check(profiles: KernelProfiles) -> Iterator[Finding]:
    """Find profiled kernels that use shared memory much, and take turns there."""
    for kernel in kernels_where(profiles, _conflicts):
        row = kernel.longest
        yield kernel.finding(
            f", and {percent(row.conflict_share or 0, 1)} of its accesses to shared memory are turns of bank conflicts",
            severity="warning",
            in_code=True,
            advice="Pad each row of the tile by one element, or swizzle its columns, so that a warp uses all 32 banks.",
            evidence=(
                Evidence.percent("wavefronts by conflicts", row.conflict_share, 1, "of those of shared memory"),
                *throughputs(L1=row.l1),
                *(Evidence.percent(f"stall {one.reason}", one.share, 1, "of a warp's time") for one in row.stalls[:1]),
            ),
        )


def _conflicts(row: KernelProfile) -> bool:
    waits = bool(row.stalls) and row.stalls[0].reason in _STALLS
    return row.conflict_share is not None and row.conflict_share >= _MANY and (waits or (row.l1 or 0.0) >= LATENCY)
