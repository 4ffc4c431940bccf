"""retained-graph: nodes of the backward that ran before in the same step, at the line of the backward."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit._location import Location
from perfkit.measures.results.patterns import Patterns, RetainedGraph
from perfkit.rules.ops import retained_graph

MS = 1_000_000
BACKWARD = Location(file="train.py", line=90, function="train_day", owner="user")


def found(build: Any, ms: float, share: float) -> list[Any]:
    retained = RetainedGraph(count=120.0, ns=round(ms * MS), at=BACKWARD, share=share, most=6)
    patterns = Patterns(source="stacks-0", steps=1, step_ns=80 * MS, has_shapes=True, retained=retained)
    return list(build.findings(retained_graph, build.step(40, forward=10, backward=25), patterns))


def test_the_share_of_nodes_that_ran_again_is_the_part_of_the_backward_that_is_saved(build: Any) -> None:
    [finding] = found(build, ms=30, share=0.7)

    assert (finding.spent, finding.change) == (BACKWARD, None)
    assert finding.cost_ns == pytest.approx(17.5 * MS)
    assert finding.saving_low_ns == pytest.approx(0.7 * 17.5 * MS)
    assert finding.message.startswith("Backwards go through parts of a graph again, up to 6 times per step: 17.5 ms")


def test_a_few_nodes_that_ran_again_are_no_finding(build: Any) -> None:
    assert found(build, ms=1, share=0.05) == []
