"""Recorded times become those of steps that nothing recorded: what a recording adds is in the Python around ops."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.steps import TracedStep, TypicalStep
from perfkit.replay._step_clock import _find_zero, unrecorded_times
from perfkit.replay.task_graph import task_graph
from perfkit.run.records import Phases
from perfkit.trace import read_trace

US = 1_000


def unrecorded(made: Any, step: Any, recorded_us: float, typical_us: float) -> dict[str, float]:
    """Event -> what it takes itself in a step that nothing records, in µs; "step": no event but that of the step."""
    return _of(made.line(device=None).steps(step), recorded_us, typical_us)


def _of(line: Any, recorded_us: float, typical_us: float) -> dict[str, float]:
    trace = read_trace(line.write())
    typical, traced = (
        kind(steps=5, wall_ns=ns, median_ns=ns, p10_ns=ns, p90_ns=ns, phases_ns=Phases(), source="clock")
        for kind, ns in ((TypicalStep, round(typical_us * US)), (TracedStep, round(recorded_us * US)))
    )
    graph = task_graph(trace)
    budget = StepBudget(wall_ns=typical.wall_ns, per="step", source="clock", typical=typical, traced=traced)
    times = unrecorded_times(graph, budget)
    found: dict[str, float] = defaultdict(float)
    for row, ns, number in zip(graph.lanes.row, times.host, graph.piece_step, strict=True):
        if 0 <= number <= graph.last_step:
            name = trace.names[trace.name[row]] if row >= 0 else "step"
            found["step" if name.startswith("ProfilerStep") else name] += float(ns) / US / (graph.last_step + 1)
    return found


def test_a_recording_lengthens_what_calls_ops_and_not_the_ops(made: Any) -> None:
    def step(line: Any) -> None:
        with line.range("loop"):
            for _ in range(20):
                line.spend(8)
                line.op("aten::add", 4)
        line.op("aten::mm", 400)

    found = unrecorded(made, step, recorded_us=640, typical_us=560)

    # 80 µs too long: 4 of the 8 between any two of the 20 ops in the loop.
    assert (found["aten::mm"], found["aten::add"]) == pytest.approx((400, 80), rel=0.02)
    assert found["loop"] == pytest.approx(80, rel=0.05)


def test_what_no_event_explains_is_taken_off_where_nothing_has_a_name(made: Any) -> None:
    def step(line: Any) -> None:
        with line.range("score"):
            line.spend(5_000)
        line.spend(1_300)
        line.op("aten::mm", 100)

    found = unrecorded(made, step, recorded_us=6_400, typical_us=5_400)

    assert (found["score"], found["aten::mm"]) == pytest.approx((5_000, 100), rel=0.01)
    assert found["step"] == pytest.approx(300, rel=0.02)


def test_what_hooks_do_around_ranges_is_taken_off_before_what_each_op_adds(made: Any) -> None:
    def step(line: Any) -> None:
        line.op("aten::randn", 500)
        line.spend(60)  # the hook of a model's forward
        with line.range("Net"):
            line.spend(1)
            line.op("aten::addmm", 500)
            line.spend(1)
        line.spend(60)
        for _ in range(20):
            line.spend(8)
            line.op("aten::add", 4)

    found = unrecorded(made, step, recorded_us=1_362, typical_us=1_262)

    assert (found["aten::addmm"], found["aten::add"]) == pytest.approx((500, 80), rel=0.02)
    # 280 µs of Python were recorded; all of what is too much was around the range, and nothing between the ops.
    assert found["step"] == pytest.approx(180, rel=0.05)


def test_what_comes_after_the_last_step_says_nothing_about_the_steps(made: Any) -> None:
    def step(line: Any) -> None:
        line.spend(200)
        line.op("aten::mm", 400)

    line = made.line(device=None).steps(step)
    line.spend(50_000)
    line.op("aten::mm", 10)
    found = _of(line, recorded_us=600, typical_us=500)

    assert found["aten::mm"] == pytest.approx(400, rel=0.02)


@pytest.mark.parametrize(
    ("host", "device", "wanted", "most"),
    [
        (100.0, 0.0, 70.0, 4),
        (100.0, 60.0, 70.0, 8),
        (100.0, 69.0, 70.0, 11),
        (1000.0, 1.0, 2.0, 4),
        (100.0, 90.0, 70.0, 1),
    ],
    ids=["the host alone", "a bend", "a bend just below", "nearly nothing is left", "the device takes longer"],
)
def test_the_step_is_met_in_some_tries_or_as_short_as_it_can_be(
    host: float, device: float, wanted: float, most: int
) -> None:
    tried: list[tuple[float, float]] = []

    def beyond(factor: float) -> float:
        # A device hides a part of the host, and waits for its syncs.
        step = max(host * factor, device, 0.4 * host * factor + 0.5 * device)
        tried.append((factor, step - wanted))
        return step - wanted

    _find_zero(beyond, max(host, device) - wanted, 0.001 * wanted)

    factor, excess = tried[-1]
    assert len(tried) <= most
    assert abs(excess) <= 0.001 * wanted or (factor == 0.0 and device > wanted)
