"""torch.compile breaks the model into several graphs.

Problem: where Dynamo meets something that it cannot trace, it ends the graph, runs that piece in Python, and begins
another graph. Each piece has its own guards and its own call, and nothing is fused across the break.

How it shows: Dynamo counts graph breaks, each with a reason and a line; in the trace the compiled regions hold
host time outside of ops, and guards are looked up several times per step.

Causes: `.item()` or `.tolist()` in the model; `print` and logging of tensors; branching on a tensor's value;
calls into libraries that Dynamo does not know.

Fix: do it outside the compiled function, or keep it a tensor.

    self.spread.append(y.std().detach())         # not: y.std().item()
    y = torch.where(mask, a, b)                  # not: if mask.any(): ...
    model = torch.compile(model, fullgraph=True) # an error at the line, instead of a break

Gain: the host time of the compiled regions that is in no op, and the look-ups of guards; a model that broke into
n + 1 pieces would keep one of them, so n / (n + 1) of both. The range is 0.9 to 1.8 times that,
because the ops of the broken line, which may go with it, are not counted, and of what one graph costs no run
tells beforehand. With the inductor backend what fusing over the break would gain comes on top and is not known.
Breaks with no price, or one under 5% of the step, are told for information.

Source: torch's guide to graph breaks; reasons, lines and look-ups are Dynamo's own. The range was chosen on one
model of 24 layers (`eager` backend), which gained 1.2 to 1.8 times that in five runs, so that model does not prove it.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._step_budget import (
    NEGLIGIBLE,
    Whole,
    busiest_device,
    device_part,
    severity_of,
    trace_scale,
    whole_of,
)

ID = "graph-breaks"

_REGION = "Torch-Compiled Region"
_LOOKUP = "TorchDynamo Cache Lookup"
#: The gain as a share of the middle, and how many lines are told (see above).
_LOW, _HIGH = 0.9, 1.8
_LINES = 3


def check(measured: Measured) -> Iterator[Finding]:
    """Find the lines at which graphs broke, why, and what the pieces cost."""
    rank = measured.rank
    if rank is None or not rank.graph_breaks:
        return
    whole = whole_of(measured)
    breaks = sum(rank.graph_breaks.values())
    middle_ns = _middle(measured, breaks, whole) if whole is not None else None
    priced = whole is not None and middle_ns is not None and middle_ns >= NEGLIGIBLE * whole.wall_ns
    first = rank.break_lines[0] if rank.break_lines else None
    reason = first.reason if first is not None else next(iter(rank.graph_breaks)).split("\n")[0]
    evidence = [Evidence("graph breaks", breaks, "", "Dynamo's count, the whole run")]
    evidence += [Evidence(f"line {one.line}", one.count, "breaks", one.reason) for one in rank.break_lines[:_LINES]]
    if middle_ns is None:
        evidence.append(Evidence("lost", None, "ms", "no trace tells what the pieces cost"))
    else:
        evidence.append(Evidence("around the pieces", round(middle_ns / 1e6, 3), "ms", "trace, compiled regions"))
    high_ns = min(whole.wall_ns, round(_HIGH * middle_ns)) if priced and whole and middle_ns else None
    low_ns = min(high_ns, round(_LOW * middle_ns)) if high_ns is not None and middle_ns else None
    costs = (
        f", which costs about {ms(middle_ns)} of the {ms(whole.wall_ns)} step" if priced and whole and middle_ns else ""
    )
    yield Finding(
        rule=ID,
        severity=severity_of(high_ns, whole) if high_ns is not None and whole else "info",
        message=f"torch.compile broke {breaks} graph{'s' if breaks > 1 else ''}{costs}: {reason[:120]}.",
        advice="Move it out of the compiled function, or keep it a tensor; fullgraph=True makes each break an error.",
        confidence="medium",
        evidence=tuple(evidence),
        file=first.file if first else None,
        line=first.line if first else None,
        function=first.function if first else None,
        cost_ns=high_ns,
        saving_low_ns=low_ns,
        saving_high_ns=high_ns,
    )


def _middle(measured: Measured, breaks: int, whole: Whole) -> int | None:
    """Host time between the pieces per step; on a GPU no more of it than the device was idle."""
    ops = measured.ops
    if ops is None or not ops.steps:
        return None
    outside = sum(row.self_ns for row in ops.rows if row.name.startswith(_REGION))
    lookups = [row for row in ops.rows if row.name == _LOOKUP]
    if not lookups:
        return None
    # Pieces per step as the trace shows them; Dynamo counts breaks of all that it ever compiled.
    pieces = sum(row.count for row in lookups) / ops.steps
    of_breaks = max(0.0, 1 - 1 / pieces) if pieces >= 1 else breaks / (breaks + 1)
    middle = (outside + sum(row.total_ns for row in lookups)) / ops.steps * trace_scale(measured) * of_breaks
    device = busiest_device(measured)
    if device is not None:
        middle = min(middle, device_part(device.idle_ns, device, whole))
    return min(whole.wall_ns, round(middle))
