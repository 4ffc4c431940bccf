"""Anomaly detection is on.

Problem: `torch.autograd.set_detect_anomaly(True)` writes down the Python stack for every node of the graph, and
looks for NaN in every gradient of the backward. On a GPU each of those looks also waits for the device.

How it shows: the setting was on in most of the steps that were looked at; the trace holds `aten::isnan` in the
backward.

Causes: switched on to find a NaN and forgotten; `Trainer(detect_anomaly=True)`; a debug flag in a config.

Fix: switch it on for the step that fails, and nowhere else.

    with torch.autograd.detect_anomaly():     # not: torch.autograd.set_detect_anomaly(True)
        loss.backward()

Gain: the looks for NaN in the trace, by their share of its step, and one stack for each node of the graph. What a
stack costs was measured between steps of this run (the median of eight) and at the depth of its loop; inside a model
the stack is up to a third deeper, and on a busy machine the measurement is too low or too high by about as much, so
the range is from 0.7 to 1.3 times that.

Source: torch/csrc/autograd/function.h stores the stack where a node is made, engine.cpp checks the gradients.
That the stack is most of the cost was seen on a model of 24 layers: 50 to 200 us for each of some 300 nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding
from perfkit.measures.results.measured import Measured
from perfkit.rules._settings import first_call, is_on
from perfkit.rules._step_budget import severity_of, trace_scale, whole_of

ID = "anomaly-detection"

_NODE = "autograd::engine::evaluate_function: "
_CHECKS = ("aten::isnan", "aten::_is_any_true")
#: The range around the calibrated price of a stack (see above).
_LOW, _HIGH = 0.7, 1.3
#: Where the step's own length cuts the high end off, the low end stays this far below it: some of a step is training.
_CUT = 0.8


def check(measured: Measured) -> Iterator[Finding]:
    """Find anomaly detection left on, the line that switches it on, and its price."""
    rank = measured.rank
    if rank is None or not is_on(rank, "torch.anomaly_enabled"):
        return
    whole = whole_of(measured)
    at = first_call(rank, "set_detect_anomaly", "detect_anomaly")
    evidence = []
    price = None
    stack = rank.settings.get("anomaly.stack_ns", "")
    if whole is not None and measured.ops is not None and measured.ops.steps and stack.isdigit():
        nodes = sum(row.count for row in measured.ops.rows if row.name.startswith(_NODE)) / measured.ops.steps
        checks_ns = sum(row.total_ns for row in measured.ops.rows if row.name in _CHECKS) / measured.ops.steps
        checks_ns *= trace_scale(measured)
        stacks_ns = nodes * int(stack)
        high_ns = min(whole.wall_ns, round(checks_ns + _HIGH * stacks_ns))
        price = min(round(_CUT * high_ns), round(checks_ns + _LOW * stacks_ns)), high_ns
        evidence = [
            Evidence("looks for NaN", round(checks_ns / 1e6, 3), "ms", f"trace, {measured.ops.steps} steps"),
            Evidence("nodes of the graph", round(nodes), "", f"trace, {measured.ops.steps} steps"),
            Evidence("writing down one stack", round(int(stack) / 1e3, 1), "us", "measured between steps"),
        ]
    else:
        evidence.append(Evidence("lost", None, "ms", "no trace tells how many nodes the graph has"))
    costs = f": about {ms(price[1])} of the {ms(whole.wall_ns)} step at most" if price and whole else ""
    yield Finding(
        rule=ID,
        severity=severity_of(price[1], whole) if price and whole else "warning",
        message=f"Anomaly detection is on in every step{costs}.",
        advice="Switch it off, and on again only around the step that fails: with torch.autograd.detect_anomaly():",
        confidence="medium" if price else "high",
        evidence=tuple(evidence),
        file=at.file if at else None,
        line=at.line if at else None,
        function=at.function if at else None,
        cost_ns=price[1] if price else None,
        saving_low_ns=price[0] if price else None,
        saving_high_ns=price[1] if price else None,
    )
