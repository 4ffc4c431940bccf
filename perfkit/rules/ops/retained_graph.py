"""The backward goes through the same graph several times in one step.

Problem: `backward(retain_graph=True)` keeps the graph, and the next backward goes through what both losses share again.
Where a state is handed on from loss to loss, the last of n goes through all n parts: the work grows with the square.
`torch.autograd.grad` for one input goes through the graph as for all of them.

How it shows: nodes of the backward that ran before in the same step, by autograd's numbers, take 5% of the step or
more. Or, in the step that is traced by line, calls of `torch.autograd.grad` get the outputs of an earlier call, along
the same vector (ones, or the same tensor); on a CPU.

Causes: a backward per time step, per output or per loss, with `retain_graph=True` because torch asked for it; a state
that is not detached; a discriminator's loss whose graph reaches into the generator; a derivative by each coordinate, or
the gradient of each parameter, in a call of its own.

Fix: add the losses, and call backward once: gradients are sums, so that they are the same. Or cut the graph where a
loss is not to reach further. Pass all inputs to one `grad`.

    loss = sum(criterion(out, target) for out, target in zip(outputs, targets))
    loss.backward()                                        # not: each with retain_graph=True

    state = state.detach()                                 # truncated backpropagation through time
    critic(generator(noise).detach())
    u_t, u_x = torch.autograd.grad(u, (t, x), torch.ones_like(u), create_graph=True)

Saving: the share of the nodes that ran again of the backward's time, on a GPU their own time, and at least 70% of it
(chosen): adding the losses takes some. Where something reads or changes the gradients between two of the backwards, as
gradient surgery does, they have to be apart. A gradient that is differentiated itself (a gradient penalty) is not
counted. Of calls of `grad` their share of the time of all gradients; where they build a graph, that share of the
backward through it, too.

Source: torch's documentation of `torch.autograd.backward`. Of a program with five backwards per step 56% was saved.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import percent
from perfkit.findings import Evidence, Finding
from perfkit.ledger.rows import LATE, ON_DEVICE, Selector
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.patterns import Patterns
from perfkit.run.records import GradientCalls, Lines

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
_TRACED = "the step traced by line"


def check(step: StepBudget, patterns: Patterns | None = None, lines: Lines | None = None) -> Iterator[Finding]:
    """Find nodes that ran again, and gradients of the same outputs in calls of their own."""
    by_input = _by_input(step, lines) if lines is not None and not step.on_device else None
    if by_input is not None:
        yield by_input
    elif patterns is not None:
        yield from _retained(step, patterns)


def _by_input(step: StepBudget, lines: Lines) -> Finding | None:
    """A call of ``grad`` for each input."""
    calls = [(row.gradients, row) for row in lines.traced if row.gradients is not None]
    backward = step.phase("backward")
    again = [(one, row) for one, row in calls if one.again]
    total_ns = sum(one.host_ns for one, _ in calls)
    if backward is None or not again or not total_ns:
        return None
    again_ns = sum(one.again_ns for one, _ in again)
    cost = round(backward.ns * (again_ns + _through_graphs([one for one, _ in calls])) / total_ns)
    if step.is_negligible(cost):
        return None
    row = max(again, key=lambda found: found[0].again_ns)[1]
    count = sum(one.again for one, _ in again)
    return step.finding(
        cost=cost,
        saving=(_MINIMUM * cost, step.maximum_saving(cost)),
        spent=row,
        message=(
            f"torch.autograd.grad goes through the graph of the same outputs again {count} time"
            f"{'s' if count > 1 else ''} per step, for other inputs: {step.shown(cost)}."
        ),
        advice="Pass all inputs to one call: torch.autograd.grad(outputs, (x, y, ...), ...) returns each gradient.",
        confidence="medium",
        evidence=(
            Evidence("calls of grad", sum(one.calls for one, _ in calls if one.is_grad), "per step", _TRACED),
            Evidence("with the outputs of an earlier one", count, "per step", _TRACED),
            Evidence.ms("time of these", again_ns, _TRACED),
        ),
    )


def _through_graphs(calls: list[GradientCalls]) -> float:
    """The time of backwards in graphs that calls made needlessly, in ns, if it follows the time of making them."""
    made_ns = sum(one.host_ns for one in calls if one.builds_graph)
    needless_ns = sum(one.again_ns for one in calls if one.builds_graph)
    backwards_ns = sum(one.host_ns for one in calls if not one.is_grad)
    return backwards_ns * needless_ns / made_ns if made_ns else 0.0


def _retained(step: StepBudget, patterns: Patterns) -> Iterator[Finding]:
    """Nodes that ran again, and what they take."""
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
