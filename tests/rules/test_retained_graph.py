"""retained-graph: nodes of the backward that ran before in the same step, at the line of the backward."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit._location import Location
from perfkit.measures.results.patterns import Patterns, RetainedGraph
from perfkit.rules.ops import retained_graph
from perfkit.run.records import GradientCalls, Lines, TracedLine

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


def by_input(build: Any, *rows: tuple[int, GradientCalls], backward: float = 25) -> list[Any]:
    traced = tuple(
        TracedLine(
            file="train.py",
            line=line,
            function="residual",
            owner="user",
            phase="forward",
            runs=1,
            host_ns=one.host_ns,
            gradients=one,
        )
        for line, one in rows
    )
    lines = Lines(period_ns=MS, steps=40, traced=traced)
    return list(build.findings(retained_graph, build.step(40, forward=15, backward=backward), lines))


def calls(count: int, ms: int, again: int = 0, again_ms: int = 0, *, graph: bool = True, grad: bool = True) -> Any:
    return GradientCalls(
        calls=count, host_ns=ms * MS, again=again, again_ns=again_ms * MS, builds_graph=graph, is_grad=grad
    )


def test_gradients_by_single_inputs_cost_their_share_and_that_of_the_backward_through_their_graphs(build: Any) -> None:
    [finding] = by_input(build, (72, calls(9, 30, 6, 20)), (90, calls(1, 20, graph=False, grad=False)))

    # Two thirds of the 50 ms of all gradients.
    assert finding.cost_ns == pytest.approx(25 * MS * 2 / 3, rel=0.01)
    assert finding.saving_low_ns == pytest.approx(0.7 * finding.cost_ns, rel=0.01)
    assert (finding.spent.line, finding.change) == (72, None)
    assert "outputs again 6 times per step" in finding.message
    assert "(x, y, ...)" in (finding.advice or "")


def test_without_a_graph_the_backward_is_no_part_of_what_they_cost(build: Any) -> None:
    [finding] = by_input(build, (72, calls(4, 30, 2, 10, graph=False)), (90, calls(1, 20, graph=False, grad=False)))

    assert finding.cost_ns == pytest.approx(25 * MS * 10 / 50, rel=0.01)


def test_gradients_of_different_outputs_are_no_finding(build: Any) -> None:
    assert by_input(build, (72, calls(3, 30)), (90, calls(1, 20, graph=False, grad=False))) == []
