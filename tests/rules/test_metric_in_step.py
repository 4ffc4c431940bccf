"""metric-in-step: a library of metrics that takes part in each training step."""

from __future__ import annotations

from typing import Any

from perfkit._location import Location
from perfkit.measures.host._libraries import kind_of
from perfkit.rules.python import metric_in_step

MS = 1_000_000


def test_a_metric_in_every_step_is_found_at_the_line_that_asks_for_its_value(build: Any) -> None:
    step, mean = build.step(20, forward=20), build.mean_step(20, forward=20)
    work = build.work("metrics", 8, function="training_step", within="torchmetrics > torch")

    [finding] = build.findings(metric_in_step, step, mean, work)

    assert (finding.spent.line, finding.change) == (12, None)
    assert (finding.saving_low_ns, finding.cost_ns, finding.severity) == (6 * MS, 8 * MS, "critical")


def test_the_call_of_a_function_that_computes_metrics_is_the_line_to_change(build: Any) -> None:
    step, mean = build.step(20, other=10), build.mean_step(20, other=10)
    work = build.work("metrics", 8, called_from=Location(file="train.py", line=40, function="f"))
    loop = build.loop("train.py", line=38, loop_line=30, runs=1)

    [finding] = build.findings(metric_in_step, step, mean, work, loop)

    assert (finding.spent.line, finding.change.line) == (12, 40)


def test_little_time_in_metrics_and_missing_measures_are_not_reported(build: Any) -> None:
    step, mean = build.step(20, forward=20), build.mean_step(20, forward=20)

    assert not build.findings(metric_in_step, step, mean, build.work("metrics", 0.9))
    assert not build.findings(metric_in_step, step, mean, build.work("python", 8))
    assert not build.findings(metric_in_step)


def test_what_a_metric_calls_is_the_metrics_also_where_it_is_torchs_or_numpys() -> None:
    assert kind_of("torchmetrics > torch", before_model=False) == "metrics"
    assert kind_of("sklearn.metrics > numpy", before_model=False) == "metrics"
    assert kind_of("sklearn.preprocessing > numpy", before_model=False) == "python"
