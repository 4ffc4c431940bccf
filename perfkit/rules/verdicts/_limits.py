"""What the verdicts report of a step and its limits."""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, percent
from perfkit.findings import Evidence
from perfkit.ledger.ledger import ClaimedLedger
from perfkit.ledger.step_budget import MAJORITY, RARE
from perfkit.measures.host.traced_loop import other_loop
from perfkit.measures.results.loop import LoopTime
from perfkit.run.records import Lines

#: Rows that are listed as evidence: as many as a person reads.
_ROWS = 5


def is_healthy(ledger: ClaimedLedger, loop: LoopTime | None, lines: Lines | None) -> bool:
    """Whether the typical step is at its limit, and is nearly all of the loop: other work is not proven needed.

    Not where a few much longer steps take a part of it, nor where the recorded steps, by which the typical step is
    divided, are those of another loop, or the program ran for longer after its last step.
    """
    covers = loop is None or (max(loop.rare_share, loop.unclear_share) < RARE and not loop.ends_early)
    return ledger.is_at_limit and covers and other_loop(lines) is None


def is_memory_bound(ledger: ClaimedLedger) -> bool:
    """Whether the memory's bandwidth limits most of the time that is at its limit."""
    return ledger.memory_ns >= MAJORITY * ledger.at_limit_ns > 0


def limit_message(ledger: ClaimedLedger, limit: str) -> str:
    """How much of the step runs near its limit, and how near."""
    step = ledger.ledger
    overhead = f"{percent(ledger.overhead_ns, step.wall_ns)} is overhead of ops, " if ledger.overhead_ns else ""
    return (
        f"{percent(ledger.at_limit_ns, step.wall_ns)} of the {ms(step.wall_ns)} {step.per} runs at "
        f"{percent(ledger.limit_share, 1)} of the {limit} limit ({step.limits}); {overhead}"
        f"{percent(ledger.unexplained_ns - step.others_ns, step.wall_ns)} is unexplained."
    )


def limit_evidence(ledger: ClaimedLedger) -> Iterator[Evidence]:
    """The parts of the step, and the longest rows with the share of their limit."""
    source = f"ledger of the {ledger.ledger.basis}"
    yield Evidence.ms("at the limit", ledger.at_limit_ns, source)
    if ledger.overhead_ns:
        yield Evidence.ms("overhead of ops", ledger.overhead_ns, source)
    yield Evidence.ms("claimed by findings", ledger.claimed_ns, source)
    yield Evidence.ms("unexplained", ledger.unexplained_ns, source)
    for row in ledger.ledger.rows[:_ROWS]:
        share = f"{percent(row.limit_ns, row.ns)} of its limit" if row.limit_ns is not None else "limit unknown"
        yield Evidence.ms(f"{row.part}: {row.name}", row.ns, share)
