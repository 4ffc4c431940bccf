"""A kernel needs so many registers that few of its threads fit on a multiprocessor, or that some go to memory.

Problem: registers are shared by all threads of a multiprocessor. Each one more per thread means fewer threads to
switch to while others wait; and what exceeds the limit is spilled: stored to local memory and loaded again.

How it shows: in a report of Nsight Compute, 5% or more of the local memory requests are spills; or a kernel that
reaches 60% neither of compute nor of memory uses more than 128 registers per thread, or (told for information)
registers keep its occupancy below a half.

Causes: large tiles or too many accumulators in one thread; loops unrolled too far; several operations fused that
would each fit; blocks larger than the registers allow.

Fix: give each thread less, or spread it over more threads.

    triton.Config({"BLOCK_M": 64, "BLOCK_N": 64}, num_warps=8, num_stages=3)   # smaller tile, or more warps for it
    __global__ void __launch_bounds__(256, 2) kernel(...)                      # CUDA: at least two blocks of 256 fit

Gain: null; what a launch costs in a training step is not in ncu's report. Compare two reports: perfkit compare
before.csv after.csv. More occupancy does not always help, for a kernel with enough independent work hides its waits
itself, which is why kernels near their peak are not told.

Source: a multiprocessor has 65,536 registers since Volta: at 128 each 512 threads fit, a quarter of the 2,048 that
A100 and H100 hold, and a quarter of the warps is where NVIDIA's guides call latency hard to hide. 60% is where
Nsight Compute speaks of latency issues. Matrix products use more on purpose and reach more than that. Kernels below
5% of the profiled time are not told. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import percent
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.kernel_profiles import KernelProfile
from perfkit.measures.results.measured import Measured
from perfkit.rules._step_budget import NEGLIGIBLE
from perfkit.rules.kernels._profiled_kernels import ALONE, Named, kernels_where

ID = "register-pressure"

#: Registers per thread from which on a quarter of the warps is all that fits.
_MANY = 128
#: With this of its peak a kernel hides its waits, however few its warps are.
_BUSY = 0.60
#: Spill requests of one warp: a prologue saves some addresses and arguments.
_PROLOGUE = 16
#: Registers as the limit matter below this part of the warps.
_FEW_WARPS = 0.50


def check(measured: Measured) -> Iterator[Finding]:
    """Find profiled kernels that spill, or whose registers leave too few warps to hide their waits."""
    for found in kernels_where(measured, _presses):
        row = found.longest
        spills = _spills(row)
        yield Finding(
            rule=ID,
            # Half of the warps are mostly enough: registers as the limit alone are worth knowing, and no more.
            severity="warning" if spills or (row.registers or 0) > _MANY else "info",
            message=f"{found.name} takes {found.part} {_how(row, spills)}.",
            advice=(
                "Smaller tiles or less unrolling, so that nothing is spilled; then measure again."
                if spills
                else "Smaller tiles, more warps for the same tile, or __launch_bounds__; then measure again."
            ),
            confidence="high" if spills and row.spill_share is not None else "medium",
            evidence=(*_evidence(found), ALONE),
            function=found.name,
        )


def _presses(row: KernelProfile) -> bool:
    if _spills(row):
        return True
    if row.compute is None or row.memory is None or max(row.compute, row.memory) >= _BUSY:
        return False
    return (row.registers or 0) > _MANY or _limited(row)


def _spills(row: KernelProfile) -> bool:
    """Spills that count: a few in a kernel's prologue are in many healthy ones."""
    if not row.spills:
        return False
    if row.spill_share is not None:
        return row.spill_share >= NEGLIGIBLE
    warps = _warps(row)
    # Without their share: every warp spills, and more than the few registers of a prologue.
    return warps is not None and row.spills >= _PROLOGUE * warps


def _warps(row: KernelProfile) -> int | None:
    if row.grid is None or row.block is None:
        return None
    blocks, threads = row.grid[0] * row.grid[1] * row.grid[2], row.block[0] * row.block[1] * row.block[2]
    return blocks * -(-threads // 32)


def _limited(row: KernelProfile) -> bool:
    return row.limiters == ("registers",) and (row.theoretical_occupancy or 1.0) < _FEW_WARPS


def _how(row: KernelProfile, spills: bool) -> str:
    registers = f"{row.registers} registers per thread" if row.registers is not None else "its registers"
    if spills:
        part = f" ({percent(row.spill_share, 1)} of its local memory requests)" if row.spill_share is not None else ""
        return f"and spills: with {registers} it stores some to memory and loads them again{part}"
    text = f"with {registers}"
    if "registers" in row.limiters and row.theoretical_occupancy is not None:
        others = [name for name in row.limiters if name != "registers"]
        too = f" (as its {' and '.join(others)} alone would)" if others else ""
        text += f", which lets {percent(row.theoretical_occupancy, 1)} of the warps fit{too}"
    return f"{text}, and reaches {percent(row.compute or 0, 1)} of compute and {percent(row.memory or 0, 1)} of memory"


def _evidence(found: Named) -> Iterator[Evidence]:
    row = found.longest
    yield from found.evidence()
    if row.registers is not None:
        yield Evidence("registers", row.registers, "per thread", "the most of its launches")
    if row.spills is not None:
        yield Evidence("spill requests", round(row.spills), "per launch", "to local or shared memory")
    if row.theoretical_occupancy is not None:
        limit = f", limited by {' and '.join(row.limiters)}" if row.limiters else ""
        yield Evidence("warps that fit", round(100 * row.theoretical_occupancy, 1), "%", f"theoretical{limit}")
    if row.occupancy is not None:
        yield Evidence("warps active", round(100 * row.occupancy, 1), "%", "achieved occupancy, mean by time")
