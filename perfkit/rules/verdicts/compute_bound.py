"""The step computes about as fast as the machine can: a healthy verdict.

Problem: none. Most of the step is spent in ops that come near what the processor or the device can compute, and nothing
that perfkit looks for costs more than 5% of it.

How it shows: at least half of the step is time of rows of the ledger up to twice their limit, less than a quarter is
overhead of ops, and less than a quarter unexplained: what rows take beyond that, or what has no limit. Steps that do
other work in a rhythm take less than 15% of the loop, and the recorded steps are of the loop that trains most. The
limit of an op is what its FLOPs take at the rate of a matrix product, or its bytes at the bandwidth of memory,
whichever takes longer: measured on a CPU, from the data sheet for a GPU.

Fix: faster training now takes less work or a faster processor and not a better loop: lower precision, a smaller model,
a larger batch where the device is not full, more devices.

    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(batch)

Where the memory's bandwidth is the limit, memory-bound is reported instead; where the limits are not known or the step
is far from them, unexplained.

Saving: none is promised. Work that is not needed (padding, a repeated forward) also runs at the limit.

Source: the roofline model. Half is a plain majority, and a quarter is from where on findings are critical.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.findings import Finding
from perfkit.ledger.ledger import ClaimedLedger
from perfkit.measures.results.loop import LoopTime
from perfkit.rules.verdicts._limits import is_healthy, is_memory_bound, limit_evidence, limit_message
from perfkit.run.records import Lines

ID = "compute-bound"
OUTCOME = "healthy"


def check(ledger: ClaimedLedger, loop: LoopTime | None = None, lines: Lines | None = None) -> Iterator[Finding]:
    """Report a step near the limit of arithmetic; run where no problem could be quantified."""
    if is_healthy(ledger, loop, lines) and not is_memory_bound(ledger):
        yield Finding(
            severity="info",
            message=limit_message(ledger, "compute"),
            advice="The loop is healthy. Next: torch.compile, lower precision, a larger batch, more devices.",
            evidence=tuple(limit_evidence(ledger)),
        )
