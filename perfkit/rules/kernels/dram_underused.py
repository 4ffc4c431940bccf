"""A kernel that is limited by memory accesses, but not by the device's memory: its caches or its pattern are the limit.

Problem: the memory path is the busiest part of the device for this kernel, yet less than half of what the memory
itself could deliver arrives. It moves more than it needs between caches, or has too few accesses in flight.

How it shows: in a report of Nsight Compute, memory throughput is above compute throughput and at least 30%, and DRAM
throughput is below 50% of peak. L1 and L2 throughput say which of them is the busy one.

Causes: neighbouring threads that read addresses far apart (a transposed or strided layout), so each access takes
several sectors of a cache line; bank conflicts in shared memory; narrow loads (one byte or half at a time); data
that is read again and again from L2 where shared memory or registers could keep it; spills to local memory.

Fix: make neighbouring threads read neighbouring addresses, several at once, and keep what is used again.

    x = x.contiguous()                                  # or channels_last, once, outside the loop
    offsets = pid * BLOCK + tl.arange(0, BLOCK)         # Triton: the last dimension across a warp

Gain: null; what a launch costs in a training step is not in ncu's report. A kernel that only has to move its data is
at best faster by peak over reached DRAM throughput (below 50%: more than twice).

Source: half of DRAM's peak is where NVIDIA's Best Practices and ncu's Memory Workload Analysis send to the access
pattern; streaming kernels reach 80 to 90%. Below 30% of both peaks a kernel is bound by latency, which is another
finding. Kernels below 5% of the profiled time are not told. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import percent
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.kernel_profiles import KernelProfile
from perfkit.measures.results.measured import Measured
from perfkit.rules.kernels._profiled_kernels import ALONE, Named, kernels_where

ID = "dram-underused"

#: Of DRAM's peak.
_LOW = 0.50

_ADVICE = {
    "L1": "L1 is the busy part: let neighbouring threads read neighbouring addresses, load wider, and avoid bank "
    "conflicts in shared memory.",
    "L2": "L2 is the busy part: keep what is read again in shared memory or registers, and read each line whole.",
}
_OTHERWISE = (
    "Have more bytes in flight (wider loads, more of them before the first use, more warps), from neighbouring "
    "addresses; ncu's Memory Workload Analysis shows where."
)


def check(measured: Measured) -> Iterator[Finding]:
    """Find profiled kernels that the memory path limits, far below the memory's peak."""
    for found in kernels_where(measured, _underuses):
        row = found.longest
        busy = _busiest(row)
        where = f" while {busy} works at {percent(row.l1 or 0 if busy == 'L1' else row.l2 or 0, 1)}" if busy else ""
        yield Finding(
            rule=ID,
            severity="warning",
            message=(
                f"{found.name} takes {found.part}, is limited by memory accesses ({percent(row.memory or 0, 1)} of "
                f"that peak), and gets {percent(row.dram or 0, 1)} of what the memory can deliver{where}."
            ),
            advice=_ADVICE.get(busy or "", _OTHERWISE),
            confidence="medium",
            evidence=(*_evidence(found), ALONE),
            function=found.name,
        )


def _underuses(row: KernelProfile) -> bool:
    return row.bound == "memory" and row.memory is not None and row.dram is not None and row.dram < _LOW


def _busiest(row: KernelProfile) -> str | None:
    """The cache that is busier than the memory, None where none is, or the report does not tell."""
    if row.l1 is None or row.l2 is None or max(row.l1, row.l2) <= (row.dram or 0):
        return None
    return "L1" if row.l1 >= row.l2 else "L2"


def _evidence(found: Named) -> Iterator[Evidence]:
    row = found.longest
    yield from found.evidence()
    parts = {
        "compute throughput": row.compute,
        "memory throughput": row.memory,
        "DRAM throughput": row.dram,
        "L1 throughput": row.l1,
        "L2 throughput": row.l2,
    }
    for name, part in parts.items():
        if part is not None:
            yield Evidence(name, round(100 * part, 1), "%", "of peak, mean by time")
