"""Anomaly detection is on.

Problem: `torch.autograd.set_detect_anomaly(True)` stores the Python stack for every node of the graph, and checks every
gradient of the backward for NaN. On a GPU each check also waits for the device.

How it shows: the setting was on in most of the steps in which it was read; the trace holds `aten::isnan` in the
backward.

Causes: switched on to find a NaN and forgotten; `Trainer(detect_anomaly=True)`; a debug flag in a config.

Fix: switch it on only for the step that fails.

    with torch.autograd.detect_anomaly():     # not: torch.autograd.set_detect_anomaly(True)
        loss.backward()

Saving: the checks for NaN in the trace, by their share of its step, and one stack for each node of the graph. The cost
of a stack was measured between steps of this run. Inside a model the stack is deeper, and on a busy machine the
measurement is too low or too high, so the range is 0.7 to 1.3 times that.

Source: torch/csrc/autograd/function.h stores the stack where a node is created, engine.cpp checks the gradients. The
range was chosen.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfkit._format import ms
from perfkit.findings import Evidence, Finding, Severity
from perfkit.rules._places import busiest_line
from perfkit.rules._settings import first_call, is_on, number
from perfkit.rules.settings._ops_in_step import OpsInStep
from perfkit.run.records import Lines, Rank

ID = "anomaly-detection"

_NODE = "autograd::engine::evaluate_function: "
_CHECKS = ("aten::isnan", "aten::_is_any_true")
#: The range around the calibrated cost of the stacks: chosen.
_LOW, _HIGH = 0.7, 1.3
#: The minimum is at most this share of the maximum, also where the step's length limits both: some of a step is
#: training. Chosen.
_MAX_MINIMUM = 0.8


def check(rank: Rank, ops: OpsInStep | None = None, lines: Lines | None = None) -> Iterator[Finding]:
    """Find anomaly detection left on, the line that switches it on, and its cost."""
    if not is_on(rank, "torch.anomaly_enabled"):
        return
    stack_ns = number(rank, "anomaly.stack_ns")
    severity: Severity = "warning"
    low = high = None
    costs = ""
    evidence = [Evidence.ms("cost", None, "no trace shows how many nodes the graph has")]
    if ops is not None and stack_ns is not None:
        nodes = ops.count(row.count for row in ops.rows if row.name.startswith(_NODE))
        checks_ns = ops.time(row.total_ns for row in ops.rows if row.name in _CHECKS)
        stacks_ns = nodes * stack_ns
        high = min(ops.step.wall_ns, round(checks_ns + _HIGH * stacks_ns))
        low = min(round(_MAX_MINIMUM * high), round(checks_ns + _LOW * stacks_ns))
        severity = ops.step.severity((low + high) / 2)
        costs = f": at most about {ms(high)} of the {ms(ops.step.wall_ns)} step"
        evidence = [
            Evidence.ms("checks for NaN", checks_ns, ops.source),
            Evidence("nodes of the graph", round(nodes), "", ops.source),
            Evidence("storing one stack", round(stack_ns / 1e3, 1), "µs", "measured between steps"),
        ]
    yield Finding(
        severity=severity,
        message=f"Anomaly detection is on in every step{costs}.",
        advice="Switch it off, and on again only around the step that fails: with torch.autograd.detect_anomaly():",
        confidence="medium" if high is not None else "high",
        evidence=tuple(evidence),
        spent=busiest_line(lines, "forward", "backward"),
        change=first_call(rank, "set_detect_anomaly", "detect_anomaly"),
        cost_ns=high,
        saving_low_ns=low,
        saving_high_ns=high,
    )
