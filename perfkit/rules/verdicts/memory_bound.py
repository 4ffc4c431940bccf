"""The step moves memory about as fast as it can: a healthy verdict.

Problem: none. Most of the step is in ops that come near the memory's bandwidth, and no chain of ops is left to fuse.

How it shows: as for compute-bound, but for most of that time the memory's bandwidth and not arithmetic is the limit.

Causes: elementwise ops, norms and optimizers move a byte or more for each operation.

Fix: faster training now takes fewer bytes or more bandwidth: lower precision, fused optimizers and losses, a compiled
model, recomputing activations where that is cheap.

    model = torch.compile(model)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(batch)

Saving: none is promised.

Source: the roofline model. Bytes are the minimum that an op must move by its shapes (`perfkit.measures.ops`). Needs
shapes. Half is a plain majority.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.findings import Finding
from perfkit.ledger.ledger import ClaimedLedger
from perfkit.measures.results.loop import LoopTime
from perfkit.rules.verdicts._limits import is_healthy, is_memory_bound, limit_evidence, limit_message
from perfkit.run.records import Lines

ID = "memory-bound"
OUTCOME = "healthy"


def check(ledger: ClaimedLedger, loop: LoopTime | None = None, lines: Lines | None = None) -> Iterator[Finding]:
    """Report a step near the memory's bandwidth; run where no problem could be quantified."""
    if is_healthy(ledger, loop, lines) and is_memory_bound(ledger):
        yield Finding(
            severity="info",
            message=limit_message(ledger, "memory"),
            advice="The loop is healthy. To go faster, move fewer bytes: lower precision, torch.compile, a fused loss.",
            evidence=tuple(limit_evidence(ledger)),
        )
