"""growing-step: what steps take beyond the first ones is a cost, at the line that keeps what they work on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit._location import Location
from perfkit.measures.results.loop import StepGrowth
from perfkit.measures.results.measurements import PlannedSteps
from perfkit.rules._engine import Rule, run_rules
from perfkit.rules.memory import growing_step, memory_growth
from perfkit.run.records import Filling, KeptTensors, LineRow, Lines, OptimizerFacts, TracedLine

MS = 1_000_000
STORE = Location(file="train.py", line=29, function="main")
BACKWARD = Location(file="train.py", line=31, function="main")

#: From 8 to 460 ms in 200 steps.
GROWTH = StepGrowth(
    steps=200, first_ns=8 * MS, last_ns=460 * MS, ns_per_step=2.26 * MS, excess_ns=226 * MS, noise_ns=MS,
    knots=((0, 8 * MS), (199, 460 * MS)), phase="backward", phase_first_ns=5 * MS, phase_last_ns=450 * MS,
)  # fmt: skip
LINES = Lines(
    period_ns=10 * MS,
    steps=200,
    rows=(
        LineRow(
            file="train.py", line=31, function="main", owner="user", phase="backward", samples=4500, host_ns=225 * MS
        ),
        LineRow(file="train.py", line=30, function="main", owner="user", phase="forward", samples=60, host_ns=3 * MS),
    ),
)


def kept(**more: Any) -> KeptTensors:
    return KeptTensors(
        **{"steps": 40, "grown": 40, "grown_bytes": 400, "graph": True, "name": "total", "places": (STORE,), **more}
    )


def found(build: Any, *results: Any, growth: StepGrowth = GROWTH) -> list[Any]:
    return build.findings(growing_step, build.step(234.0), build.mean_step(234.0), growth, *results)


def test_growth_costs_its_mean_excess_at_the_phase_s_line_and_the_line_to_change_keeps_the_graph(build: Any) -> None:
    rank = msgspec.structs.replace(build.rank(), kept=(kept(),))

    [finding] = found(build, rank, LINES)

    assert (finding.spent, finding.change, finding.cost_ns) == (BACKWARD, STORE, 226 * MS)
    assert (finding.saving_low_ns, finding.saving_high_ns) == (224 * MS, 234 * MS)
    assert "grows from 8.0 ms to 460 ms in 200 steps, most of it in the phase backward" in finding.message
    assert "total" in finding.advice


def test_over_the_planned_steps_it_costs_what_the_slope_makes_of_it(build: Any) -> None:
    [finding] = found(build, PlannedSteps(count=2000))

    later = next(item.value for item in finding.evidence if item.name == "cost per step over 2,000 steps")
    assert abs(later - 0.2 * 226 * 0.5 - 0.9 * (452 + 2.26 * 900)) < 0.05 * later


def test_tensors_without_a_graph_are_not_what_lengthens_a_backward(build: Any) -> None:
    rank = msgspec.structs.replace(build.rank(), kept=(kept(graph=False),))

    [finding] = found(build, rank, LINES)
    assert finding.change is None

    [python] = found(build, rank, growth=msgspec.structs.replace(GROWTH, phase="other"))
    assert python.spent == STORE


def test_a_small_growth_is_not_reported(build: Any) -> None:
    assert not found(build, growth=msgspec.structs.replace(GROWTH, excess_ns=5 * MS))


def test_growth_that_may_be_the_history_of_lbfgs_is_information(build: Any) -> None:
    updates = msgspec.structs.replace(GROWTH, phase="optimizer")

    def severity(growth: StepGrowth, *kinds: str) -> str:
        facts = [OptimizerFacts(kind=kind, tensors=1, elements=150, dtypes=("float32",)) for kind in kinds]
        [finding] = found(build, build.rank(optimizers=tuple(facts)), growth=growth)
        return str(finding.severity)

    assert severity(updates, "LBFGS") == "info"
    assert severity(updates, "LBFGS", "SGD") == severity(GROWTH, "LBFGS") == severity(updates, "SGD") != "info"


def test_the_memory_that_grows_with_the_step_follows_it(build: Any) -> None:
    rank = msgspec.structs.replace(build.rank(), kept=(kept(),))
    rules = (Rule.of(memory_growth), Rule.of(growing_step))
    measurements = build.measurements(build.step(234.0), build.mean_step(234.0), GROWTH, rank)

    follows = {finding.rule: finding.follows for finding in run_rules(rules, measurements).findings}

    assert follows == {"growing-step": None, "memory-growth": "growing-step"}


def test_a_function_whose_work_grows_is_changed_where_the_training_loop_calls_it(build: Any) -> None:
    called = Location(file="train.py", line=33, function="main")
    row = LineRow(
        file="train.py", line=9, function="compute", owner="user", phase="other", samples=4500, host_ns=225 * MS,
        called_from=called,
    )  # fmt: skip
    lines = msgspec.structs.replace(LINES, rows=(row, *LINES.rows))

    [finding] = found(build, lines, growth=msgspec.structs.replace(GROWTH, phase="other"))

    assert (finding.spent, finding.change) == (row.at, called)


def hot(function: str, **fields: Any) -> LineRow:
    given = {"file": "train.py", "line": 12, "owner": "user", "samples": 4500, "host_ns": 225 * MS, **fields}
    return LineRow(function=function, phase="other", **given)


FORWARD = msgspec.structs.replace(GROWTH, phase="forward")


def test_the_line_that_adds_to_what_the_hot_line_walks_over_is_to_be_edited(build: Any) -> None:
    caller = Location(file="train.py", line=20, function="report")
    fill = Filling(file="train.py", line=20, function="report", owner="user", filled=STORE)
    walks = Lines(period_ns=10 * MS, steps=200, rows=(hot("auc", called_from=caller),), fillings=(fill,))

    [finding] = found(build, walks, growth=FORWARD)

    assert (finding.spent.line, finding.change) == (12, STORE)


def test_what_an_object_keeps_on_purpose_is_gone_through_less_in_its_method_or_asked_for_less_often(build: Any) -> None:
    asks = Location(file="train.py", line=40, function="main")
    kept_in = Location(file="train.py", line=9, function="Replay.push")
    drawn = hot("Replay.sample", called_from=asks)
    fill = Filling(file="train.py", line=12, function="Replay.sample", owner="user", filled=kept_in)
    walks = Lines(period_ns=10 * MS, steps=200, rows=(drawn,), fillings=(fill,))
    in_loop = TracedLine(file="train.py", line=40, function="main", owner="user", phase="backward", runs=1, host_ns=MS)
    walks = msgspec.structs.replace(walks, traced=(in_loop,))

    [trains] = found(build, walks, growth=FORWARD)
    [looked_at] = found(build, walks, growth=msgspec.structs.replace(GROWTH, phase="logging"))

    assert (trains.spent.line, trains.change) == (12, None)
    assert looked_at.change == asks


@pytest.mark.parametrize(
    "hottest",
    [
        hot("watch.<locals>.hook"),
        hot("gram", called_from=Location(file="train.py", line=16, function="watch.<locals>.hook")),
    ],
    ids=["in the hook", "in a function that the hook calls"],
)
def test_a_hook_that_is_registered_again_is_to_be_edited_where_that_is_called(build: Any, hottest: LineRow) -> None:
    registers = TracedLine(
        file="train.py", line=14, function="watch", owner="user", phase="other", runs=1, host_ns=MS, callers=(BACKWARD,)
    )
    walks = Lines(period_ns=10 * MS, steps=200, rows=(hottest,), traced=(registers,))

    [finding] = found(build, walks, growth=FORWARD)

    assert finding.change == BACKWARD


@pytest.mark.parametrize("is_hook", [True, False])
def test_a_hook_that_an_object_registers_again_is_to_be_registered_once(build: Any, is_hook: bool) -> None:
    registers = Location(file="train.py", line=9, function="Report.attach")
    hottest = hot("Report.record", called_from=BACKWARD)
    fill = Filling(file="train.py", line=12, function="Report.record", owner="user", filled=registers, is_hook=is_hook)

    [finding] = found(build, Lines(period_ns=10 * MS, steps=200, rows=(hottest,), fillings=(fill,)), growth=FORWARD)

    # What an object adds to its own container is kept on purpose.
    assert finding.change == (registers if is_hook else None)
    assert ("Register this hook once" in finding.advice) is is_hook


def test_a_backward_that_grows_with_its_forward_is_to_be_edited_where_that_forward_grows(build: Any) -> None:
    walks = msgspec.structs.replace(hot("novelty"), samples=900)
    fill = Filling(file="train.py", line=12, function="novelty", owner="user", filled=STORE)
    both = msgspec.structs.replace(LINES, rows=(*LINES.rows, walks), fillings=(fill,))

    [finding] = found(build, both)

    assert (finding.spent, finding.change) == (BACKWARD, STORE)
