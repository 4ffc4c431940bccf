"""torch.compile breaks the model into several graphs.

Problem: where Dynamo meets code that it cannot trace, it ends the graph, runs that code in Python, and begins another
graph. Each graph has its own guards and its own call, and nothing is fused across the break.

How it shows: Dynamo counts graph breaks, each with a reason and a line; in the trace the compiled regions hold host
time outside ops, and guards are looked up several times per step.

Causes: `.item()` or `.tolist()` in the model; `print` and logging of tensors; branching on a tensor's value; calls into
libraries that Dynamo does not support.

Fix: move it out of the compiled function, or keep it a tensor.

    self.spread.append(y.std().detach())         # not: y.std().item()
    y = torch.where(mask, a, b)                  # not: if mask.any(): ...
    model = torch.compile(model, fullgraph=True) # an error at the line, instead of a break

Saving: the host time of the compiled regions that is in no op, and the lookups of guards. A model that broke into n + 1
graphs would keep one of them, so n / (n + 1) of both; the range is 0.9 to 1.8 times that, because the ops of the broken
line, which may be saved too, are not counted. What fusing across the break saves with the inductor backend is unknown.
Breaks whose cost is unknown, or below 5% of the step, are information.

Source: torch's guide to graph breaks; reasons, lines and lookups are Dynamo's own. The range was chosen on one model of
24 layers.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding, Severity
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.host import Ops
from perfkit.run.records import Rank

ID = "graph-breaks"

_REGION = "Torch-Compiled Region"
_LOOKUP = "TorchDynamo Cache Lookup"
#: The range of the saving around the estimate: chosen, one model saved 1.2 to 1.8 times it in five runs.
_LOW, _HIGH = 0.9, 1.8
#: Lines with a break that are reported.
_LINES = 3


def check(rank: Rank, step: StepBudget | None = None, ops: Ops | None = None) -> Iterator[Finding]:
    """Find the lines at which graphs broke, why, and what the pieces cost."""
    breaks = sum(rank.graph_breaks.values())
    if not breaks:
        return
    estimate = _around_graphs(step, ops, breaks) if step is not None and ops is not None else None
    first = rank.break_lines[0] if rank.break_lines else None
    reason = first.reason if first is not None else next(iter(rank.graph_breaks)).split("\n")[0]
    costs, high, low = "", None, None
    severity: Severity = "info"
    if step is not None and estimate is not None and not step.is_negligible(estimate):
        costs = f", which costs about {ms(estimate)} of the {ms(step.wall_ns)} step"
        high = min(step.wall_ns, round(_HIGH * estimate))
        low = min(high, round(_LOW * estimate))
        severity = step.severity((low + high) / 2)
    source = "trace, compiled regions" if estimate is not None else "no trace shows what the graphs cost"
    yield Finding(
        severity=severity,
        message=f"torch.compile broke {breaks} graph{'s' if breaks > 1 else ''}{costs}: {reason[:120]}.",
        advice="Move it out of the compiled function, or keep it a tensor; fullgraph=True makes each break an error.",
        evidence=(
            Evidence("graph breaks", breaks, "", "Dynamo's count, the whole run"),
            *(Evidence(f"line {one.line}", one.count, "breaks", one.reason) for one in rank.break_lines[:_LINES]),
            Evidence.ms("around the graphs", estimate, source),
        ),
        spent=first.at if first is not None else None,
        cost_ns=high,
        saving_low_ns=low,
        saving_high_ns=high,
    )


def _around_graphs(step: StepBudget, ops: Ops, breaks: int) -> int | None:
    """Host time between the graphs per step that one graph would save; on a GPU no more than the device was idle."""
    lookups = [row for row in ops.rows if row.name == _LOOKUP]
    if not ops.steps or not lookups:
        return None
    outside = sum(row.self_ns for row in ops.rows if row.name.startswith(_REGION))
    # Graphs per step as the trace shows them; Dynamo counts breaks of all that it ever compiled.
    graphs = sum(row.count for row in lookups) / ops.steps
    of_breaks = max(0.0, 1 - 1 / graphs) if graphs >= 1 else breaks / (breaks + 1)
    ns = (outside + sum(row.total_ns for row in lookups)) / ops.steps * step.trace_scale * of_breaks
    if step.device is not None:
        ns = min(ns, step.of_device(step.device.idle_ns))
    return min(step.wall_ns, round(ns))
