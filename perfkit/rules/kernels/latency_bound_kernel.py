"""A kernel uses neither the arithmetic nor the memory of its device: it waits.

Problem: warps of this kernel stand still most of the time, and there are too few of them, or too little work in
each, for others to fill the gaps. A faster device would not make it faster.

How it shows: in a report of Nsight Compute, compute and memory throughput are both below 30% of their peak. The
largest stall reason says what the warps wait for: long_scoreboard (a load from memory), short_scoreboard (shared
memory, special functions), barrier (`__syncthreads`), wait (a fixed latency), no_instruction (the next
instruction), math_pipe_throttle, lg_throttle and mio_throttle (a full queue).

Causes: a grid that does not fill the device once; few warps for their registers or shared memory; loads that
each wait for the one before; barriers between warps with unequal work; kernels so small that starting them is
most of their time.

Fix: give it more to do at once. Larger batches, or one fused kernel instead of many small ones, for kernels of
torch; more blocks, loads ahead of their use and more of them in flight, fewer barriers, for your own.

    model = torch.compile(model)                                     # fuses small kernels
    kernel[grid](x, y, n, BLOCK=1024, num_warps=8, num_stages=4)     # Triton: more warps, loads ahead

Gain: null. ncu runs each kernel alone, several times, with clocks held and caches emptied, so what a launch costs
in a training step is not in its report. The evidence says how long a launch took there.

Source: Nsight Compute's guided analysis speaks of latency issues where compute and memory throughput are both below
60% of peak, and sends to Scheduler and Warp State Statistics. Half of that is told here, where even doubling the
throughput would leave the kernel below that line. Kernels below 5% of the profiled time are not told. Not run on a
GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import percent
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.kernel_profiles import LATENCY, KernelProfile
from perfkit.measures.results.measured import Measured
from perfkit.rules.kernels._profiled_kernels import ALONE, Named, kernels_where

ID = "latency-bound-kernel"

#: The stalls whose name says what to do; of the others the name is told.
_ADVICE = {
    "long_scoreboard": "Its warps wait for loads from memory: start loads earlier and have more of them in flight "
    "(wider loads, more stages, more warps), or load less.",
    "short_scoreboard": "Its warps wait for shared memory or special functions: fewer bank conflicts, fewer of them.",
    "barrier": "Its warps wait for each other: fewer barriers, or blocks with equal work in each warp.",
    "wait": "Its warps wait for instructions of fixed latency: more independent work in each thread, or more warps.",
    "no_instruction": "Its warps wait for their next instruction, as in very short kernels: more work in each launch.",
    "math_pipe_throttle": "Its warps queue for one arithmetic unit: mix instructions, or use tensor cores.",
    "lg_throttle": "The queue of memory instructions is full: fewer, wider loads and stores.",
    "mio_throttle": "The queue for shared memory and special functions is full: fewer, wider accesses.",
    "branch_resolving": "Its warps wait for branches: less divergent control flow.",
}
_OTHERWISE = "Give each launch more to do: larger batches, or small kernels fused into one (torch.compile)."


def check(measured: Measured) -> Iterator[Finding]:
    """Find profiled kernels far from both peaks."""
    for found in kernels_where(measured, _waits):
        row = found.longest
        small = row.waves is not None and row.waves < 1
        why = f", and the grid fills the device only {row.waves:.2f} times" if small else ""
        top = row.stalls[0] if row.stalls else None
        reason = ""
        if top is not None:
            part = f" ({percent(top.share, 1)} of a warp's time)" if top.share is not None else ""
            reason = f" Most of the waiting is {top.reason}{part}."
        yield Finding(
            rule=ID,
            severity="warning",
            message=(
                f"{found.name} takes {found.part} and reaches {percent(row.compute or 0, 1)} of the compute and "
                f"{percent(row.memory or 0, 1)} of the memory throughput{why}.{reason}"
            ),
            advice=_OTHERWISE if small or top is None else _ADVICE.get(top.reason, _OTHERWISE),
            confidence="high" if top is not None else "medium",
            evidence=(*_evidence(found), ALONE),
            function=found.name,
        )


def _waits(row: KernelProfile) -> bool:
    return row.compute is not None and row.memory is not None and max(row.compute, row.memory) < LATENCY


def _evidence(found: Named) -> Iterator[Evidence]:
    row = found.longest
    yield from found.evidence()
    yield Evidence("compute throughput", round(100 * (row.compute or 0), 1), "%", "of peak, mean by time")
    yield Evidence("memory throughput", round(100 * (row.memory or 0), 1), "%", "of peak, mean by time")
    for stall in row.stalls:
        if stall.share is not None:
            yield Evidence(f"stall {stall.reason}", round(100 * stall.share, 1), "%", "of a warp's time")
    if row.waves is not None:
        yield Evidence("waves", round(row.waves, 2), "", "how often the grid fills the device")
