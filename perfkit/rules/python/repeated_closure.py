"""Each step of L-BFGS begins with an evaluation that the step before has ended with.

Problem: `torch.optim.LBFGS.step(closure)` calls the closure first at the point where it is. With a line search the step
before has evaluated loss and gradients of that very point, and keeps them only within a step. Where a step has one
iteration and its line search one evaluation, every other forward and backward is computed again.

How it shows: in steps that are watched the first call of the closure has the parameters, the loss and the gradients of
a call in the step before, bit by bit, at one learning rate; and the step before ended because of max_iter or max_eval.
These calls take 5% of the step or more.

Causes: `max_iter=1` in a loop, so that each iteration can be reported, as with other optimizers.

Fix: give the optimizer the iterations of the loop, and call step once for 20 of them, or for all. What the loop does
between two steps is then done as often, or in the closure.

    optimizer = torch.optim.LBFGS(parameters, max_iter=20, line_search_fn="strong_wolfe")
    for _ in range(iterations // 20):                      # not: max_iter=1, range(iterations)
        loss = optimizer.step(closure)

The iterations are the same, as far as max_eval allows: it bounds the evaluations of a step, 5/4 of max_iter by default.
Where data, weights of the loss or parameters are changed between two steps, the evaluation is another one, and nothing
is said; nor without a line search, which does not evaluate the point of its last iteration.

Saving: the time of those calls; at least as many of them as 20 iterations per step leave out, less a tenth of it.

Source: torch/optim/lbfgs.py. Of a program that deblurs pictures 39% of the step was said, 32 to 43% was saved.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING, PYTHON
from perfkit.ledger.step_budget import MAJORITY, StepBudget
from perfkit.rules._places import to_edit
from perfkit.run.records import Lines, Rank

ID = "repeated-closure"
CLAIMS = (*COMPUTING, *PYTHON)

#: Iterations per step that are advised: torch's default.
_ITERATIONS = 20
#: What a step saves beside the time of the call, or does not: chosen.
_ERROR = 0.1


def check(step: StepBudget, lines: Lines, rank: Rank | None = None) -> Iterator[Finding]:
    """Find steps of an L-BFGS that begin with a known evaluation, and what these take."""
    for one in lines.repeated_closures:
        calls = one.calls / max(1, one.steps)
        cost = step.wall_ns * min(1.0, one.host_ns / max(1, one.of_ns)) * one.again / max(1, one.steps)
        low = (1 - _ERROR) * cost * (1 - one.max_iter / _ITERATIONS)
        # The typical step may be that of another optimizer, as of an Adam that comes first.
        if one.share < MAJORITY or step.is_negligible(low):
            continue
        yield step.finding(
            cost=cost,
            saving=(low, step.maximum_saving(cost)),
            spent=one,
            change=to_edit(rank, one.made_at, "optim"),
            message=(
                f"{one.again} of {one.steps} steps of LBFGS begin with an evaluation that the step before has made, "
                f"one of {calls:.1f} per step: {step.shown(cost)}."
            ),
            advice=(
                f"Give LBFGS max_iter={_ITERATIONS} (now {one.max_iter}), or all iterations, and call step so many "
                "times less often: within a step it keeps loss and gradients."
            ),
            evidence=(
                Evidence.ms("such a call of the closure", one.host_ns, "the median of the steps that were watched"),
                Evidence("calls of the closure", round(calls, 1), "per step of LBFGS", "counted"),
            ),
        )
