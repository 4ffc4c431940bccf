"""A rollout keeps the graph of each move: the update goes back through as many small forwards as the episode has moves.

Problem: a model that acts is asked for one observation after the other, because each follows from the action before.
What it answers is kept with its graph, the loss is computed move by move, and the backward goes through each forward
for itself: some ten nodes per layer and move, each with a product of one row.

How it shows: in the step that is traced by line, one module object is called 8 times or more from one line with
gradients enabled, each time with one row that has no graph and is made of the answer to the row before, and the one
backward of the step goes through as many uses of its parameters, none of which is computed from another one.

Causes: REINFORCE or actor-critic as in the examples of textbooks, which keep log_prob and value of each move.

Fix: act without gradients, keep observations and actions, and ask the model once for all of them before the update.

    with torch.no_grad():
        action = Categorical(logits=policy(observation)).sample()
    observations.append(observation), actions.append(action)
    ...
    log_probs = Categorical(logits=policy(torch.stack(observations))).log_prob(torch.stack(actions))
    loss = -(log_probs * returns).sum()                    # not: a list of losses

The actions must be those that were taken, not drawn again. The forwards of one row stay, and are cheaper without a
graph. Where dropout or batch norm is active nothing is said: a call with all rows makes another answer.

Saving: the backward, and half of the forward of the lines that it goes through: log_prob and losses are computed once,
the model still acts, without a graph. At least 90% of the backward without its long ops, and 40% of those lines; at
most 60% of them.

Source: the shares were chosen on three programs on one CPU (CALIBRATION.md). Nothing was timed on a GPU: where the step
does not wait for the host, nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.findings import Evidence, Finding
from perfkit.ledger.ledger import Ledger
from perfkit.ledger.rows import COMPUTING, PYTHON
from perfkit.ledger.step_budget import StepBudget
from perfkit.run.records import Lines, TracedLine

ID = "rollout-with-graph"
CLAIMS = (*COMPUTING, *PYTHON)

#: The share of a backward of many small graphs that is saved at least (chosen: one of all rows remains).
_BACKWARD = 0.9
#: What is saved of the forward that the backward goes through: at least, expected, and at most (chosen, see
#: CALIBRATION.md: the model still acts, without a graph).
_FORWARD = (0.4, 0.5, 0.6)
#: An op of a backward that takes longer computes, and does so with many rows too (chosen: a hundred times the overhead
#: of one).
_LONG_NS = 200_000


def check(step: StepBudget, lines: Lines, ledger: Ledger) -> Iterator[Finding]:
    """Find the rollout whose graphs the backward goes through, and what one call for all moves would save."""
    moves = [(calls, row) for row in lines.traced for calls in row.modules if calls.rolls_out and not calls.sliced]
    backward = step.phase("backward")
    if not moves or backward is None or not step.waits_for_host:
        return
    calls, row = max(moves, key=lambda one: one[0].host_ns)
    learned = [one for one in ledger.rows if one.phase == "backward" and one.owner == "computing"]
    long_ns = sum(one.ns for one in learned if one.ns > _LONG_NS * (one.count or 1.0))
    graph_ns = _in_graph(lines, ledger) * step.wall_ns
    low, cost, most = (min(step.wall_ns, backward.ns + share * graph_ns) for share in _FORWARD)
    # The call with all rows takes at least as long as one of one row.
    low = (1 - 1 / calls.calls) * (low - (1 - _BACKWARD) * backward.ns - min(long_ns, _BACKWARD * backward.ns))
    if step.is_negligible(low):
        return
    yield step.finding(
        cost=cost,
        saving=(low, step.maximum_saving(most)),
        spent=_backward_line(lines) or row,
        change=row,
        message=(
            f"{calls.module} is called {calls.calls} times per step with one row and a graph each, and the backward "
            f"goes through all of them: {step.shown(cost)}, with the losses."
        ),
        advice=(
            "Act under torch.no_grad(), keep the observations and the actions taken, and before the update call "
            f"{calls.module} once with all of them stacked: log-probabilities and losses in tensors."
        ),
        evidence=(
            Evidence("calls per step", calls.calls, "", "the step traced by line"),
            Evidence.ms("backward", backward.ns, backward.source),
            Evidence.ms("forward of the lines that it goes through", graph_ns, "samples of stacks"),
        ),
    )


def _in_graph(lines: Lines, ledger: Ledger) -> float:
    """The share of the step in lines that the backward goes through: the model's own, log_prob, the losses."""
    learned = {(one.at.file, one.at.line) for one in ledger.rows if one.phase == "backward" and one.at is not None}
    sampled = [one for one in lines.rows if one.worker is None]
    ahead = (one for one in sampled if one.phase in ("forward", "other") and (one.file, one.line) in learned)
    return sum(one.host_ns for one in ahead) / max(1, sum(one.host_ns for one in sampled))


def _backward_line(lines: Lines) -> TracedLine | None:
    calls = [row for row in lines.traced if row.gradients is not None and not row.gradients.is_grad]
    return max(calls, key=lambda row: row.gradients.host_ns if row.gradients is not None else 0, default=None)
