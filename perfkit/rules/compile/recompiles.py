"""torch.compile compiles the same function again and again.

Problem: compiled code is guarded by what it was compiled for: shapes, Python numbers, flags. Where one of them
changes in every step, every step compiles, which takes a hundred to many thousand times as long as running.

How it shows: graphs are still being compiled in the second half of the run's steps, in at least one of twenty.
Compiling in the first steps is what torch.compile does, and no problem.

Causes: a length that differs in every batch with `dynamic=False`; a Python number that the model counts up
(`self.calls += 1`); a learning rate or a flag that is read as a number; a raised `recompile_limit` that hides the
warning.

Fix: keep what changes out of the guards.

    model = torch.compile(model, dynamic=True)        # lengths differ
    torch._dynamo.mark_dynamic(x, 1)                  # this dimension does
    self.register_buffer("seen", torch.zeros(()))     # a tensor that counts, not a Python number
    x = F.pad(x, (0, longest - x.shape[1]))           # or: few different lengths

Gain: the time that torch says it compiled for, per step in the second half. High end: all of it, and on a
CPU 15% more, since the rest then finds its caches as it left them. Low end: 70%, since what runs instead
(padding, symbolic shapes) is slower than code made for one shape.

Source: torch's recompilation guide; the reason and the times are Dynamo's own. 5% as for the other rules;
one step of twenty because fewer do not recur for this rule: they are met once.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms, per_step
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._step_budget import NEGLIGIBLE, Whole, severity_of, whole_of, with_beyond

ID = "recompiles"

#: Steps of the second half in which something is compiled, from which on it recurs.
_RECURS = 0.05
#: What of the compile time goes for certain (see above).
_GOES = 0.7


def check(measured: Measured) -> Iterator[Finding]:
    """Find compiling that goes on, what is compiled again and why, and the time it takes."""
    cost = measured.compiles
    if cost is None or not cost.late_steps or cost.late_graphs < max(2, _RECURS * cost.late_steps):
        return
    # Compiling makes single steps long, so it is counted against the mean of the same steps, not the typical one.
    whole = Whole(round(cost.late_wall_ns / cost.late_steps), "step", f"steps.jsonl, the last {cost.late_steps} steps")
    typical = whole_of(measured)
    most_ns = min(whole.wall_ns, typical.wall_ns) if typical is not None else whole.wall_ns
    cost_ns = min(most_ns, round(cost.late_ns / cost.late_steps))
    if cost_ns < NEGLIGIBLE * whole.wall_ns:
        return
    again = [one for one in (measured.rank.compilations if measured.rank is not None else ()) if one.recompiles]
    worst = max(again, key=lambda one: one.total_ns, default=None)
    evidence = [
        Evidence("compiling", round(cost_ns / 1e6, 3), "ms", f"torch's own times, {whole.source}"),
        Evidence("graphs compiled", cost.late_graphs, "", whole.source),
    ]
    if worst is not None:
        evidence.append(Evidence("compiled again", worst.recompiles, "times", f"{worst.compiled}, the whole run"))
        if worst.reason is not None:
            evidence.append(Evidence("because", worst.reason, "", "the guard that failed last"))
    called_from = worst.called_from if worst is not None else None
    reason = f": {_clipped(worst.reason)}" if worst is not None and worst.reason else ""
    what = worst.compiled if worst is not None else "a graph"
    yield Finding(
        rule=ID,
        severity=severity_of(cost_ns, whole),
        message=(
            f"torch.compile compiles {what} again {per_step(cost.late_graphs / cost.late_steps)} per step, "
            f"{ms(cost_ns)} of {ms(whole.wall_ns)}{reason}."
        ),
        advice="Keep what changes out of the guards: dynamic=True or mark_dynamic for lengths, a tensor for a counter.",
        confidence="high",
        evidence=tuple(evidence),
        file=called_from.file if called_from else None,
        line=called_from.line if called_from else None,
        function=called_from.function if called_from else None,
        cost_ns=cost_ns,
        saving_low_ns=round(_GOES * cost_ns),
        saving_high_ns=with_beyond(cost_ns, measured, whole),
    )


def _clipped(reason: str) -> str:
    """The failed guard without the source that Dynamo quotes after it."""
    return reason.split(" # ")[0][:120]
