"""No rule found a problem, and the step is not proven healthy either.

Problem: a part of the step is far from what this machine can do, or its limit is not known, and no rule knows why.

How it shows: less than half of the step is time of rows of the ledger up to twice their limit; or a quarter of it or
more is overhead of ops, or neither that nor claimed by a finding; or a finding's cost is not known; or 15% of the
loop is other work than training in steps of a rhythm, or a few steps that take five times as long; or the recorded
steps are of another loop than most of the run.

Causes: something that perfkit has no rule for; a recording without shapes or without the machine's limits.

Fix: look at the largest unexplained part; `perfkit diagnose --html` shows it by line. Record what is missing:

    perfkit run --record-shapes train.py
    perfkit doctor                           # measures the limits of this machine
    perfkit try --only channels-last train.py   # where most of it is in convolutions with channels first

Saving: unknown.

Source: an honest rest is better than a false all-clear.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, percent, shown_location
from perfkit.findings import Finding
from perfkit.ledger.ledger import NEAR_LIMIT, ClaimedLedger, Unexplained
from perfkit.ledger.step_budget import CRITICAL, MAJORITY, RARE
from perfkit.measures.host.traced_loop import other_loop
from perfkit.measures.results.loop import LoopTime
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules._work_rows import limit_ns
from perfkit.rules.verdicts._limits import is_healthy, limit_evidence
from perfkit.run.records import Lines, MachineLimits

ID = "unexplained"
OUTCOME = "unexplained"

#: What a program does once does not belong to its step.
_ONCE = "Record later steps (torch.profiler.schedule(wait=, warmup=)): most of this is done once, at first use."


#: For convolutions on a CPU, where the faster layout depends on the sizes: of twelve networks a step took 0.6 to 1.25
#: times as long with channels last (one CPU, one thread).
_CHANNELS_LAST = (
    "These convolutions have channels first. See whether channels last is faster: perfkit try --only channels-last."
)

#: For steps that mostly start ops.
_FEWER_OPS = "Fewer and larger ops cost less to start: a larger batch, torch.compile, foreach or fused forms."


def check(
    ledger: ClaimedLedger,
    loop: LoopTime | None = None,
    work: StepWork | None = None,
    limits: MachineLimits | None = None,
    lines: Lines | None = None,
) -> Iterator[Finding]:
    """Report what nothing explains; run where no problem could be quantified."""
    if is_healthy(ledger, loop, lines):
        return
    parts = ledger.unexplained()
    yield Finding(
        severity="info",
        message=" ".join(_sentences(ledger, loop, lines)),
        advice=_advice(ledger, work, limits),
        spent=next((part.at for part in parts if part.at is not None), None),
        evidence=tuple(limit_evidence(ledger)),
    )


def _advice(ledger: ClaimedLedger, work: StepWork | None, limits: MachineLimits | None) -> str:
    parts, per = ledger.unexplained(), ledger.ledger.per
    if parts and parts[0].name == "idle (first use)":
        return _ONCE
    if work is not None and limits is not None and work.step_ns > 0:
        share = sum(_beyond_limit_ns(row, limits) for row in work.rows if row.channels_first) / work.step_ns
        if share * ledger.ledger.wall_ns >= MAJORITY * ledger.unexplained_ns:
            return _CHANNELS_LAST
    if ledger.overhead_ns >= max(CRITICAL * ledger.ledger.wall_ns, ledger.unexplained_ns):
        return _FEWER_OPS
    return f"Look at the largest part first; perfkit diagnose --all lists where the {per} goes, --html draws it."


def _beyond_limit_ns(row: OpWorkTime, limits: MachineLimits) -> float:
    """What these calls take beyond twice their limit."""
    return max(0.0, row.ns - limit_ns(row, limits) / NEAR_LIMIT)


def _sentences(ledger: ClaimedLedger, loop: LoopTime | None, lines: Lines | None) -> Iterator[str]:
    """At most five: that nothing is proven, what is unexplained, what comes in a few steps, and what is not known."""
    step, parts = ledger.ledger, ledger.unexplained()
    yield f"No rule found a problem, but the {step.per} is not proven healthy."
    rest_ns, own_ns = ledger.unexplained_ns - step.others_ns, step.wall_ns - step.others_ns
    is_far = ledger.at_limit_ns + ledger.overhead_ns < MAJORITY * own_ns
    if parts and (is_far or rest_ns >= CRITICAL * own_ns):
        share, largest = percent(rest_ns, step.wall_ns), shown_part(parts[0], step.wall_ns)
        yield f"{share} of its {ms(step.wall_ns)} is unexplained, the largest part {largest}."
    if ledger.overhead_ns >= CRITICAL * own_ns:
        share = percent(ledger.overhead_ns, step.wall_ns)
        yield f"{share} is overhead: what so many ops cost on this machine, whatever they compute."
    if loop is not None and loop.rare_share >= RARE:
        yield f"{percent(loop.rare_share, 1)} of the loop is other work than training, in a few steps."
    if other_loop(lines) is not None:
        yield "The recorded steps are of another loop than most of the run."
    missing = []
    if ledger.unquantified:
        missing.append(f"the cost of {', '.join(dict.fromkeys(ledger.unquantified))} is not known")
    if step.unknown is not None:
        missing.append(f"limits are unknown because {step.unknown}")
    if missing:
        sentence = "; ".join(missing)
        yield f"{sentence[0].upper()}{sentence[1:]}."


def shown_part(part: Unexplained, wall_ns: int) -> str:
    """An unexplained part in a sentence: ``computing in optimizer at train.py:58 (86%, at 4% of its limit)``."""
    limit = f", at {percent(part.limit_share, 1)} of its limit" if part.limit_share is not None else ""
    place = f" at {shown_location(part.at)}" if part.at is not None else ""
    return f"{part.name}{place} ({percent(part.ns, wall_ns)}{limit})"
