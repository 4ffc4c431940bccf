"""An evaluation runs with gradients enabled.

Problem: without `torch.no_grad()` every operation of an evaluation makes a node of a graph and keeps what a
backward would need, which never comes: time for the nodes, and often several times the memory.

How it shows: an evaluation's loader asked for its next batch, gradients were enabled, and a result of the last
batch carried a graph.

Causes: `model.eval()` taken for `no_grad` (it changes dropout and norms, not autograd); a helper called from both
loops.

Fix: one of these around the loop, or above the function.

    @torch.no_grad()
    def evaluate(model, loader): ...

    with torch.inference_mode(): ...       # also skips what no_grad still tracks

Gain: null: what the nodes cost is not measured without running the evaluation a second time. It is mostly memory:
larger batches become possible.

Source: torch's notes on autograd mechanics, "Locally disabling gradient computation".
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured

ID = "grad-in-evaluation"


def check(measured: Measured) -> Iterator[Finding]:
    """Find an evaluation that builds graphs, and the line whose result carried one."""
    at = measured.rank.evaluated_with_grad if measured.rank is not None else None
    if at is None:
        return
    yield Finding(
        rule=ID,
        severity="warning",
        message="An evaluation builds a graph for every batch: gradients are enabled and no backward comes.",
        advice="Put torch.no_grad() or torch.inference_mode() around the evaluation.",
        confidence="high",
        evidence=(Evidence("lost", None, "ms", "what the nodes cost cannot be told without a second run"),),
        file=at.file,
        line=at.line,
        function=at.function,
    )
