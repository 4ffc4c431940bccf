"""Few threads of each warp are active: its instructions do the work of some threads and take the time of all.

Problem: the 32 threads of a warp execute one instruction together. Where they take different branches, leave a loop at
different times or are masked, the instruction is issued again for each group, or with threads that do nothing.

How it shows: in a report of Nsight Compute, on average at most 24 of the 32 threads of a warp are active in an
instruction (section Warp State Statistics), and the device's memory is not the limit.

Causes: branches on the data of each thread; loops whose length differs between threads (ragged batches, sparse rows,
early exits); blocks whose size is no multiple of 32; half of the threads idle in the steps of a reduction.

Fix: let the threads of a warp do the same. Sort or bucket work by its length, give a whole warp one row, turn branches
into arithmetic, and make blocks of a multiple of 32 threads.

    lengths, order = lengths.sort(); batch = batch[order]     # neighbours have equal lengths
    y = tl.where(mask, a, b)                                  # Triton: both sides, then a choice

Saving: unknown, because ncu's report does not show what a launch costs in a training step. With t active threads of 32
the same work needs at least t / 32 of the instructions.

Source: NVIDIA's Best Practices on branches and divergence; the guided analysis of Nsight Compute reports active threads
below the warp's size. At most 24 of 32, a quarter idle, was chosen. A kernel at 60% of DRAM's peak or more does not
get faster by fewer instructions. Kernels below 5% of the profiled time are not reported. Seen in a report of Nsight
Compute from an H200.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.findings import Evidence, Finding
from perfkit.measures.results.kernel_profiles import BUSY, WARP, KernelProfile, KernelProfiles
from perfkit.rules.kernels._profiled_kernels import kernels_where, throughputs

ID = "divergent-warps"

#: Active threads of a warp up to which a quarter of them or more do nothing.
_FEW = 24


def check(profiles: KernelProfiles) -> Iterator[Finding]:
    """Find profiled kernels whose warps are partly idle while instructions are what they wait for."""
    for kernel in kernels_where(profiles, _diverges):
        row = kernel.longest
        threads = row.threads_per_warp or WARP
        yield kernel.finding(
            f", and only {threads:.1f} of the {WARP} threads of a warp are active in an instruction",
            severity="warning",
            in_code=True,
            advice=(
                "Let the threads of a warp take the same branches and as many rounds: sort or bucket work by its"
                " length, select instead of branching, blocks of a multiple of 32 threads."
            ),
            evidence=(
                Evidence("active threads", round(threads, 2), f"of {WARP}", "per instruction of a warp, mean by time"),
                Evidence.percent("instructions at most saved", 1 - threads / WARP, 1, "idle threads of a warp"),
                *throughputs(compute=row.compute, DRAM=row.dram),
            ),
        )


def _diverges(row: KernelProfile) -> bool:
    return row.threads_per_warp is not None and row.threads_per_warp <= _FEW and (row.dram or 0.0) < BUSY
