"""Each step of L-BFGS begins with an evaluation that the step before has ended with.

Problem: `torch.optim.LBFGS.step(closure)` calls the closure first at the point where it is. With a line search the step
before has evaluated loss and gradients of that very point, and keeps them only within a step. Where a step has one
iteration and its line search one evaluation, every other forward and backward is computed again.

How it shows: in 95% of the steps that are watched, the first call of the closure has the parameters, the loss and the
gradients of a call in the step before, bit by bit, at one learning rate; and the step before ended because of max_iter
or max_eval. These calls take 5% of the step or more.

Causes: `max_iter=1` in a loop, so that each iteration can be reported, as with other optimizers.

Fix: call step once for 20 iterations, with as many evaluations as these take. What the loop does between two steps is
then done after 20 iterations, or in the closure.

    optimizer = torch.optim.LBFGS(parameters, max_iter=20, max_eval=60, line_search_fn="strong_wolfe")
    for _ in range(iterations // 20):                      # not: max_iter=1, range(iterations)
        loss = optimizer.step(closure)

The iterations are the same where max_eval ends no step: it is 5/4 of max_iter by default, 1 for max_iter=1, which
leaves one evaluation to a line search; with more it may take more, and need fewer iterations. Where data, weights of
the loss or parameters change between steps, also between every tenth, nothing is said; nor without a line search, which
does not evaluate the point of its last iteration.

Saving: the time of those calls; at least of as many of them as 20 iterations per step leave out, less a tenth, and of
none that belongs to a step that max_eval ended.

Source: torch/optim/lbfgs.py. Of a program that deblurs pictures 39% of the step was said, 32 to 43% was saved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import COMPUTING, PYTHON
from perfkit.ledger.step_budget import MAJORITY, StepBudget
from perfkit.rules._places import to_edit
from perfkit.run.records import Lines, Rank

ID = "repeated-closure"
CLAIMS = (*COMPUTING, *PYTHON)

#: Iterations per step that are advised, and evaluations at least: torch's defaults.
_ITERATIONS, _EVALUATIONS = 20, 25
#: The steps that begin with a known evaluation, of those that were compared, at least: where some begin with another,
#: the program changes something between them, which larger steps would skip (chosen: one of 20 may be an accident).
_UNCHANGED = 0.95
#: What a step saves beside the time of the call, or does not: chosen.
_ERROR = 0.1


def check(step: StepBudget, lines: Lines, rank: Rank | None = None) -> Iterator[Finding]:
    """Find steps of an L-BFGS that begin with a known evaluation, and what these take."""
    for one in lines.repeated_closures:
        calls = one.calls / max(1, one.steps)
        cost = step.wall_ns * min(1.0, one.host_ns / max(1, one.of_ns)) * one.again / max(1, one.steps)
        low = (1 - _ERROR) * cost * (1 - one.max_iter / _ITERATIONS)
        # The typical step may be that of another optimizer, as of an Adam that comes first.
        if one.share < MAJORITY or one.again < _UNCHANGED * one.compared or step.is_negligible(low):
            continue
        max_eval = max(_EVALUATIONS, one.max_eval, math.ceil(calls) * math.ceil(_ITERATIONS / max(1, one.max_iter)))
        low *= 1 - one.ended_by_max_eval / max(1, one.steps)
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
                f"Give LBFGS max_iter={_ITERATIONS} (now {one.max_iter}) and max_eval={max_eval} (now {one.max_eval}), "
                "and call step once for these iterations: within a step it keeps loss and gradients."
            ),
            evidence=(
                Evidence.ms("such a call of the closure", one.host_ns, "the median of the steps that were watched"),
                Evidence("calls of the closure", round(calls, 1), "per step of LBFGS", "counted"),
            ),
        )
