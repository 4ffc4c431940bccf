"""A kernel needs so many registers that few of its threads fit on a multiprocessor, or that some spill to memory.

Problem: all threads of a multiprocessor share its registers. The more each thread needs, the fewer threads there are to
switch to while others wait. What exceeds the limit is spilled: stored to local memory and loaded again.

How it shows: in a report of Nsight Compute, at least 5% of the local memory requests are spills; or a kernel below 60%
of both compute and memory throughput uses more than 128 registers per thread or (reported as information) registers
limit its occupancy to below a half.

Causes: large tiles or too many accumulators in one thread; loops unrolled too far; several operations fused that would
each fit; blocks larger than the registers allow.

Fix: give each thread less work, or spread the work over more threads.

    triton.Config({"BLOCK_M": 64, "BLOCK_N": 64}, num_warps=8, num_stages=3)   # smaller tile, or more warps for it
    __global__ void __launch_bounds__(256, 2) kernel(...)                      # CUDA: at least two blocks of 256 fit

Saving: unknown, because ncu's report does not show what a launch costs in a training step. Compare two reports:
perfkit compare before.csv after.csv. More occupancy does not always help: a kernel with enough independent work hides
its waits itself, so kernels near their peak are not reported.

Source: a multiprocessor has 65,536 registers since Volta. At 128 each 512 threads fit, a quarter of the 2,048 of A100
and H100, and NVIDIA's guides call latency hard to hide below a quarter of the warps. Nsight Compute reports latency
issues below 60%. Matrix products use more registers on purpose and reach more than that. Kernels below 5% of the
profiled time are not reported. Not run on a GPU yet.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from perfkit._format import percent
from perfkit.findings import Evidence, Finding
from perfkit.ledger.step_budget import MAJORITY, NEGLIGIBLE
from perfkit.measures.results.kernel_profiles import BUSY, WARP, KernelProfile, KernelProfiles
from perfkit.rules.kernels._profiled_kernels import kernels_where

ID = "register-pressure"

#: Registers per thread from which on at most a quarter of the warps fit.
_MANY = 128
#: Spill requests of one warp in a prologue, which saves some addresses and arguments.
_PROLOGUE = 16


def check(profiles: KernelProfiles) -> Iterator[Finding]:
    """Find profiled kernels that spill, or whose registers leave too few warps to hide their waits."""
    for kernel in kernels_where(profiles, _lacks_registers):
        row = kernel.longest
        spills = _spills(row)
        requests = round(row.spills) if row.spills is not None else None
        limit = f", limited by {' and '.join(row.limiters)}" if row.limiters else ""
        yield kernel.finding(
            f" {_problem(row, spills)}",
            # Half of the warps are mostly enough: registers as the only limit are information.
            severity="warning" if spills or (row.registers or 0) > _MANY else "info",
            in_code=True,
            advice=(
                "Smaller tiles or less unrolling, so that nothing is spilled; then measure again."
                if spills
                else "Smaller tiles, more warps for the same tile, or __launch_bounds__; then measure again."
            ),
            confidence="high" if spills and row.spill_share is not None else "medium",
            evidence=(
                Evidence("registers", row.registers, "per thread", "the maximum of its launches"),
                Evidence("spill requests", requests, "per launch", "to local or shared memory"),
                Evidence.percent("warps that fit", row.theoretical_occupancy, 1, f"theoretical{limit}"),
                Evidence.percent("warps active", row.occupancy, 1, "achieved occupancy, mean by time"),
            ),
        )


def _lacks_registers(row: KernelProfile) -> bool:
    if _spills(row):
        return True
    if row.compute is None or row.memory is None or max(row.compute, row.memory) >= BUSY:
        return False
    limited = row.limiters == ("registers",) and (row.theoretical_occupancy or 1.0) < MAJORITY
    return (row.registers or 0) > _MANY or limited


def _spills(row: KernelProfile) -> bool:
    """Whether it spills more than the few registers of a prologue, as many healthy kernels do."""
    if not row.spills:
        return False
    if row.spill_share is not None:
        return row.spill_share >= NEGLIGIBLE
    if row.grid is None or row.block is None:
        return False
    warps = math.prod(row.grid) * math.ceil(math.prod(row.block) / WARP)
    return row.spills >= _PROLOGUE * warps


def _problem(row: KernelProfile, spills: bool) -> str:
    registers = f"{row.registers} registers per thread" if row.registers is not None else "its registers"
    if spills:
        share = f" ({percent(row.spill_share, 1)} of its local memory requests)" if row.spill_share is not None else ""
        return f"and spills: with {registers} it stores some to memory and loads them again{share}"
    fit = ""
    if "registers" in row.limiters and row.theoretical_occupancy is not None:
        others = " and ".join(name for name in row.limiters if name != "registers")
        fit = f", which lets {percent(row.theoretical_occupancy, 1)} of the warps fit"
        fit += f" (as its {others} alone would)" if others else ""
    reached = f"{percent(row.compute or 0, 1)} of compute and {percent(row.memory or 0, 1)} of memory"
    return f"with {registers}{fit}, and reaches {reached}"
