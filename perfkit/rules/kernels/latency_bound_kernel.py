"""A kernel uses neither the arithmetic nor the memory of its device: it waits.

Problem: warps of this kernel wait most of the time, and there are too few of them, or too little work in each, for
others to fill the gaps. A faster device would not make it faster.

How it shows: in a report of Nsight Compute, compute and memory throughput are both below 30% of their peak. The largest
stall reason shows what the warps wait for: long_scoreboard (a load from memory), short_scoreboard (shared memory,
special functions), barrier (`__syncthreads`), wait (a fixed latency), no_instruction (the next instruction),
math_pipe_throttle, lg_throttle and mio_throttle (a full queue).

Causes: a grid that does not fill the device once; few warps because of registers or shared memory; loads that each wait
for the one before; barriers between warps with unequal work; kernels so small that starting them takes most of their
time.

Fix: give the kernel more work at once. For kernels of torch: larger batches, or one fused kernel instead of many small
ones. For custom kernels: more blocks, earlier and more loads in flight, fewer barriers.

    model = torch.compile(model)                                     # fuses small kernels
    kernel[grid](x, y, n, BLOCK=1024, num_warps=8, num_stages=4)     # Triton: more warps, earlier loads

Saving: unknown. ncu runs each kernel alone and several times, with clocks held and caches emptied, so its report does
not show what a launch costs in a training step. The evidence shows how long a launch took there.

Source: the guided analysis of Nsight Compute reports latency issues where compute and memory throughput are both below
60% of their peak; half of that is used here (chosen). Kernels below 5% of the profiled time are not reported. Seen in a
report of Nsight Compute from an H200.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import percent
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.kernel_profiles import LATENCY, KernelProfile, KernelProfiles
from perfkit.rules.kernels._profiled_kernels import kernels_where, throughputs

ID = "latency-bound-kernel"

#: What to do about the stalls whose cause is clear.
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
_OTHERWISE = "Give each launch more work: larger batches, or small kernels fused into one (torch.compile)."


def check(profiles: KernelProfiles) -> Iterator[Finding]:
    """Find profiled kernels far from both peaks."""
    for kernel in kernels_where(profiles, _waits):
        row = kernel.longest
        small = row.waves is not None and row.waves < 1
        compute, memory = percent(row.compute or 0, 1), percent(row.memory or 0, 1)
        problem = f" and reaches {compute} of the compute and {memory} of the memory throughput"
        if small:
            problem += f", and the grid fills the device only {row.waves:.2f} times"
        top = row.stalls[0] if row.stalls else None
        if top is not None:
            share = f" ({percent(top.share, 1)} of a warp's time)" if top.share is not None else ""
            problem += f". Most of the waiting is {top.reason}{share}"
        advice = _OTHERWISE if small or top is None else _ADVICE.get(top.reason, _OTHERWISE)
        waves = round(row.waves, 2) if row.waves is not None else None
        yield kernel.finding(
            problem,
            severity="warning",
            advice=advice,
            in_code=advice is not _OTHERWISE,
            confidence="high" if top is not None else "medium",
            evidence=(
                *throughputs(compute=row.compute, memory=row.memory),
                *(Evidence.percent(f"stall {one.reason}", one.share, 1, "of a warp's time") for one in row.stalls),
                Evidence("waves", waves, "", "how often the grid fills the device"),
            ),
        )


def _waits(row: KernelProfile) -> bool:
    return row.compute is not None and row.memory is not None and max(row.compute, row.memory) < LATENCY
