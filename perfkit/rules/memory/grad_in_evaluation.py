"""An evaluation runs with gradients enabled.

Problem: without `torch.no_grad()` every operation of an evaluation creates a node of a graph and stores what a backward
would need, although none follows: time for the nodes, and often several times the memory.

How it shows: when an evaluation's loader was asked for its next batch, gradients were enabled and a result of the last
batch carried a graph.

Causes: `model.eval()` used instead of `no_grad` (it changes dropout and norms, not autograd); a helper called from both
loops.

Fix: one of these around the loop, or above the function.

    @torch.no_grad()
    def evaluate(model, loader): ...

    with torch.inference_mode(): ...       # also skips what no_grad still tracks

Saving: unknown; measuring the cost of the nodes takes a second run of the evaluation. It is mostly memory: larger
batches become possible.

Source: torch's notes on autograd mechanics, "Locally disabling gradient computation".
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.findings import Evidence, Finding
from perfkit.run.records import Rank

ID = "grad-in-evaluation"


def check(rank: Rank) -> Iterator[Finding]:
    """Find an evaluation that builds graphs, and the line whose result carried one."""
    if rank.evaluated_with_grad is None:
        return
    yield Finding(
        severity="warning",
        message="An evaluation builds a graph for every batch: gradients are enabled and no backward follows.",
        advice="Put torch.no_grad() or torch.inference_mode() around the evaluation.",
        confidence="high",
        evidence=(Evidence("cost", None, "ms", "the cost of the nodes is unknown without a second run"),),
        spent=rank.evaluated_with_grad.at,
    )
