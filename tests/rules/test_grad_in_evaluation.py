"""grad-in-evaluation: an evaluation that builds graphs is reported at its line, without a cost."""

from __future__ import annotations

from typing import Any

import msgspec

from perfkit._location import Location
from perfkit.rules.memory import grad_in_evaluation

AT = Location(file="train.py", line=44, function="evaluate")


def test_an_evaluation_that_builds_graphs_is_reported_at_its_line(build: Any) -> None:
    rank = msgspec.structs.replace(build.rank(), evaluated_with_grad=AT)

    [finding] = build.findings(grad_in_evaluation, rank)

    assert (finding.spent, finding.severity, finding.cost_ns) == (AT, "warning", None)


def test_an_evaluation_without_gradients_is_not_reported(build: Any) -> None:
    assert build.findings(grad_in_evaluation, build.rank()) == []
