"""A metric is computed in each step of training.

Problem: a metric over all samples so far (a curve, a rank correlation, a score of texts) sorts or compares all of them.
Computed for each batch, it is computed as often as there are steps, over more and more samples, to show one number.

How it shows: 5% of the mean step or more is spent in a library of metrics (torchmetrics, sklearn.metrics, torcheval,
evaluate, ...), its ops included, outside of validation.

Causes: `self.log("auc", metric.compute())` in the training step; a metric that keeps all predictions (AUROC, average
precision, retrieval, `dist_reduce_fx="cat"`); a metric called as a function, which computes the batch's value too.

Fix: add the batch to the metric in each step, and compute it once per epoch or every hundred steps.

    metric.update(scores, labels)
    if step % 100 == 0:
        log("auc", metric.compute())

    log("auc", metric)        # Lightning: the object, which it computes at the end of the epoch

Saving: at most all of that time, with the error of sampling, and on a CPU 15% more, because the rest of the step then
finds its caches as it left them. At least three quarters of it: every fourth time instead of each.

Source: time is sampled every 10 ms outside windows; libraries are known by name (`perfkit.measures.host.host_work`).
The threshold is 5% of the mean step. Three quarters was chosen, as for logging-in-step.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import shown_function
from perfkit.findings import Finding
from perfkit.ledger.rows import COMPUTING, PYTHON
from perfkit.ledger.step_budget import MeanStepBudget
from perfkit.measures.results.host import HostWork
from perfkit.rules._host_work import less_often, work_of
from perfkit.rules._places import call_of
from perfkit.run.records import Lines

ID = "metric-in-step"
CLAIMS = (*PYTHON, *COMPUTING)


def check(step: MeanStepBudget, works: tuple[HostWork, ...], lines: Lines | None = None) -> Iterator[Finding]:
    """Find time in libraries of metrics, and the line that asks for the value."""
    work = work_of(works, "metrics")
    if work is None:
        return
    cost = min(step.wall_ns, work.host_ns)
    if step.is_negligible(cost - step.rare_ns):
        return
    yield less_often(
        work,
        cost,
        step,
        message=f"A metric takes {step.shown(cost)} in training steps, most of it in {shown_function(work.lines[0])}.",
        advice="Update the metric in each step, and compute its value once per epoch or every hundred steps.",
        change=call_of(work.lines[0], lines),
    )
