"""The backward goes through the same graph several times in one step.

Problem: `backward(retain_graph=True)` keeps the graph, and the next backward goes through what both losses share again.
Where a state is handed on from loss to loss, the last of n goes through all n parts: the work grows with the square.

How it shows: nodes of the backward that ran before in the same step, by autograd's numbers, take 5% of the step or
more.

Causes: a backward per time step, per output or per loss, with `retain_graph=True` because torch asked for it; a state
that is not detached; a discriminator's loss whose graph reaches into the generator.

Fix: add the losses, and call backward once: gradients are sums, so that they are the same. Or cut the graph where a
loss is not to reach further.

    loss = sum(criterion(out, target) for out, target in zip(outputs, targets))
    loss.backward()                                        # not: each with retain_graph=True

    state = state.detach()                                 # truncated backpropagation through time
    critic(generator(noise).detach())

Saving: the share of the nodes that ran again of the backward's time, on a GPU their own time, and at least 70% of it
(chosen): adding the losses takes some. Where something reads or changes the gradients between two of the backwards, as
gradient surgery does, they have to be apart. A gradient that is differentiated itself (a gradient penalty) is not
counted.

Source: torch's documentation of `torch.autograd.backward`. Of a program with five backwards per step 56% was saved.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import percent
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import LATE, ON_DEVICE, Selector
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.patterns import Patterns

ID = "retained-graph"
CLAIMS = (
    *(Selector(owner=owner, phase="backward") for owner in ("computing", "op overhead")),
    LATE,
    ON_DEVICE,
)
#: A graph that reaches into a model whose gradients nobody uses is that rule's to cut.
FOLLOWS = ("unused-gradients",)

#: The share of the cost that is saved at least: chosen.
_MINIMUM = 0.7


def check(step: StepBudget, patterns: Patterns) -> Iterator[Finding]:
    """Find nodes that ran again, and what they take."""
    one = patterns.retained
    if one is None:
        return
    backward = step.phase("backward")
    # What is between the nodes, and adding to gradients, comes with each pass too.
    in_nodes = step.of_pattern(one.ns, patterns)
    cost = max(in_nodes, round(one.share * backward.ns)) if backward is not None and not step.on_device else in_nodes
    if step.is_negligible(cost):
        return
    yield step.finding(
        cost=cost,
        saving=(_MINIMUM * cost, step.maximum_saving(cost)),
        spent=one.at,
        message=(
            f"Backwards go through parts of a graph again, up to {one.most} times per step: {step.shown(cost)}, "
            f"{percent(one.share, 1)} of the backward."
        ),
        advice="Add the losses and call backward() once, or detach() what a loss is not to reach.",
        confidence="medium",
        evidence=(
            Evidence("nodes that ran again", round(one.count), "per step", patterns.source),
            Evidence.ms("their time", one.ns, f"{patterns.source}, per step"),
        ),
    )
