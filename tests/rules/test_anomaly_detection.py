"""anomaly-detection: its cost is that of the checks for NaN, and of a stack for each node."""

from __future__ import annotations

from typing import Any

from perfkit._location import Location
from perfkit.rules.settings import anomaly_detection

MS = 1_000_000
NODES = "autograd::engine::evaluate_function: AddBackward0"


def test_it_costs_its_checks_for_nan_and_a_stack_for_each_node(build: Any) -> None:
    at = Location(file="train.py", line=7, function="main")
    on = {"torch.anomaly_enabled": "True", "anomaly.stack_ns": "100000"}
    rank = build.rank(settings=on, calls={"set_detect_anomaly": (at,)})
    ops = build.ops((NODES, 400, 8, 1), ("aten::isnan", 400, 6, 6), ("aten::_is_any_true", 400, 4, 4))

    [finding] = build.findings(anomaly_detection, build.step(100, forward=100), rank, ops)

    # Per step: 5 ms of checks, and 200 nodes at 0.1 ms, 0.7 to 1.3 times that.
    assert (finding.saving_low_ns, finding.saving_high_ns) == (19 * MS, 31 * MS)
    assert (finding.spent, finding.change, finding.severity) == (None, at, "critical")


def test_where_it_fills_the_step_some_of_it_is_still_training(build: Any) -> None:
    on = {"torch.anomaly_enabled": "True", "anomaly.stack_ns": "1000000"}

    [finding] = build.findings(
        anomaly_detection, build.step(100, forward=100), build.rank(settings=on), build.ops((NODES, 400, 8, 1))
    )

    # 200 nodes at 1 ms are twice the step.
    assert (finding.saving_low_ns, finding.saving_high_ns) == (80 * MS, 100 * MS)


def test_without_a_trace_its_cost_is_unknown(build: Any) -> None:
    on = build.rank(settings={"torch.anomaly_enabled": "True"})

    [finding] = build.findings(anomaly_detection, build.step(100, forward=100), on)

    assert (finding.severity, finding.cost_ns) == ("warning", None)
    assert "no trace" in finding.evidence[0].source


def test_switched_off_it_is_not_reported(build: Any) -> None:
    off = build.rank(settings={"torch.anomaly_enabled": "False", "anomaly.stack_ns": "100000"})

    assert build.findings(anomaly_detection, build.step(100), off, build.ops((NODES, 400, 8, 1))) == []
