"""Kernels that follow each other each read and write as fast as the memory can: one kernel would do it once.

Problem: a kernel that works element by element at the peak of the memory cannot become faster, but it can be left out.
What one writes, the next reads again. Fused into one kernel, what lies between them never leaves the registers.

How it shows: in a report of Nsight Compute, elementwise kernels, reductions, copies or layout conversions that follow
each other on one stream each reach at least 60% of DRAM's peak and less of the peak of compute. Kernels that were
filtered out between them (--kernel-name) are not seen.

Causes: a model in eager mode, in which each op is a kernel; a norm, an activation or a loss that is written out.

Fix: let a compiler fuse them, or take the op that does all of it.

    model = torch.compile(model)                       # fuses elementwise ops and reductions
    F.layer_norm(x, ...), F.cross_entropy(...)         # instead of their parts
    y = F.scaled_dot_product_attention(q, k, v)        # instead of scale, mask, softmax, dropout
    What a compiler cannot fuse, a Triton kernel can.

Saving: unknown, because ncu's report does not show what a launch costs in a training step. The fused kernel reads what
the first reads and writes what the last writes: of n kernels over equal data it needs about 1 / n of their time.

Source: NVIDIA's Best Practices call a kernel that streams at DRAM's peak bound by memory; Nsight Compute reports
latency only below 60% of a peak, so that is used here. Chains below 5% of the profiled time are not reported, nor are
single kernels. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, percent
from perfkit.findings import Evidence, Finding
from perfkit.ledger.step_budget import NEGLIGIBLE
from perfkit.measures.results.kernel_profiles import DramChain, KernelProfiles
from perfkit.rules.kernels._profiled_kernels import NO_STEP, shown_name

ID = "dram-bound-kernels"

#: Kernels of a chain that a sentence names.
_NAMED = 3


def check(profiles: KernelProfiles) -> Iterator[Finding]:
    """Find chains of kernels at the memory's peak that one kernel could replace."""
    for chain in profiles.chains:
        if chain.share < NEGLIGIBLE:
            continue
        kernels = len(chain.kernels)
        times = "once" if chain.count == 1 else f"{chain.count:,} times"
        yield Finding(
            severity="warning",
            message=(
                f"{_names(chain)} follow each other {times}, take {percent(chain.share, 1)} of the profiled time, and"
                f" are each limited by the device's memory: {kernels} kernels write and read what lies between them."
            ),
            advice="Fuse them into one: torch.compile around these ops, torch's op that does all, or a Triton kernel.",
            range=shown_name(chain.kernels[0]),
            evidence=(
                Evidence("kernels", kernels, "", "that follow each other on one stream of the report"),
                Evidence.ms("time", chain.total_ns, f"{ms(chain.total_ns)} of all of them, each alone"),
                NO_STEP,
            ),
        )


def _names(chain: DramChain) -> str:
    named = [shown_name(name) for name in chain.kernels[:_NAMED]]
    rest = len(chain.kernels) - len(named)
    if rest:
        return f"{', '.join(named)} and {rest} more"
    return f"{', '.join(named[:-1])} and {named[-1]}"
