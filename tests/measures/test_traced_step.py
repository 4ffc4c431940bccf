from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from perfkit.measures.results.steps import StepBreakdown
from perfkit.measures.steps._trace_steps import whole_steps
from perfkit.measures.steps.traced_step import measure_traced_step
from perfkit.trace import Trace

if TYPE_CHECKING:
    from .conftest import TraceBuilder

NODE = "autograd::engine::evaluate_function: MmBackward0"


def phases(found: StepBreakdown | None) -> dict[str, int]:
    """The phases that the trace could tell."""
    assert found is not None
    known = {k: v for k, v in msgspec.structs.asdict(found.phases_ns).items() if v is not None}
    assert sum(known.values()) == found.wall_ns
    return known


def one_step(build: TraceBuilder, number: int, at: int) -> None:
    """In us: data 20, Python 5, forward 25 with 2 of transfer, backward 40 on another thread, optimizer 8, other 2."""
    build.step(number, at, at + 100_000)
    build.range("enumerate(DataLoader)#_Iter.__next__", at, at + 20_000)
    build.op("aten::to", at + 25_000, at + 27_000)
    build.launch(at + 26_000, at + 30_000, at + 40_000, "Memcpy HtoD (Pinned -> Device)")
    build.op("aten::mm", at + 30_000, at + 45_000)
    build.op(NODE, at + 50_000, at + 60_000, tid=2)
    build.op(NODE, at + 70_000, at + 90_000, tid=2)
    build.range("Optimizer.step#Adam.step", at + 91_000, at + 99_000)


def test_phases_of_a_step_come_back_to_the_nanosecond(build: TraceBuilder) -> None:
    for number in range(3):
        one_step(build, number, 1_000 + 100_000 * number)

    found = measure_traced_step(build.read())

    assert phases(found) == {
        "data": 20_000,
        "transfer": 2_000,
        "forward": 23_000,
        "backward": 40_000,
        "optimizer": 8_000,
        "other": 7_000,
    }
    assert found is not None
    assert (found.steps, found.wall_ns, found.median_ns, found.excluded) == (3, 100_000, 100_000, {})


def test_two_backwards_in_one_step_leave_the_forward_between_them(build: TraceBuilder) -> None:
    build.step(0, 0, 100)
    for at in (0, 50):
        build.op("aten::mm", at + 5, at + 20)
        build.op(NODE, at + 20, at + 25)
        build.op("aten::mm", at + 21, at + 24)  # called by the node: no forward
        build.op(NODE, at + 30, at + 40)

    assert phases(measure_traced_step(build.read())) == {"forward": 15 + 30, "backward": 20 + 20, "other": 5 + 10}


def test_python_before_the_first_op_is_no_forward(build: TraceBuilder) -> None:
    build.step(0, 0, 100)
    build.op("aten::mm", 60, 70)
    build.op("aten::mm", 75, 80)
    build.op(NODE, 80, 100)

    assert phases(measure_traced_step(build.read())) == {"forward": 20, "backward": 20, "other": 60}


def test_a_backward_that_opens_a_step_gives_the_step_before_no_forward(build: TraceBuilder) -> None:
    build.step(0, 0, 100)
    build.op("aten::mm", 40, 100)
    build.step(1, 100, 200)
    build.op(NODE, 100, 120)

    assert phases(measure_traced_step(build.read())) == {"forward": 0, "backward": 10, "other": 90}


def test_a_phase_that_the_trace_does_not_show_is_none(build: TraceBuilder) -> None:
    build.step(0, 0, 100)
    build.op("aten::mm", 10, 60)

    assert phases(measure_traced_step(build.read())) == {"other": 100}


def test_a_last_step_in_which_nothing_ran_is_left_out_and_reported(build: TraceBuilder) -> None:
    one_step(build, 0, 1_000)
    build.step(1, 101_000, 101_003)

    found = measure_traced_step(build.read())

    assert found is not None
    assert (found.steps, found.wall_ns) == (1, 100_000)
    assert found.excluded == {"empty, or of another thread": 1}


def test_without_profiler_steps_a_step_reaches_from_fetch_to_fetch_and_warm_up_is_left_out(build: TraceBuilder) -> None:
    for at in (0, 1_000, 1_100, 1_200, 1_300):
        build.range("enumerate(DataLoader)#_Iter.__next__", at, at + 20)
        build.op("aten::mm", at + 30, at + 60)

    found = measure_traced_step(build.read())

    assert phases(found) == {"data": 20, "other": 80}
    assert found is not None
    assert (found.steps, found.excluded) == (3, {"warm-up": 1})


def test_a_trace_without_steps_or_loader_has_no_breakdown(build: TraceBuilder) -> None:
    build.op("aten::mm", 0, 60)

    assert measure_traced_step(build.read()) is None


def test_a_recorded_cpu_trace_has_data_forward_backward_and_optimizer(recorded: Trace) -> None:
    found = measure_traced_step(recorded)

    assert found is not None
    assert found.steps == 3
    assert set(phases(found)) == {"data", "forward", "backward", "optimizer", "other"}
    assert min(phases(found).values()) > 0
    assert whole_steps(recorded).number.tolist() == [2, 3, 4]


def test_phases_sum_to_the_wall_time_on_every_real_trace(shared_trace: Trace) -> None:
    found = measure_traced_step(shared_trace)

    assert (found is None) == (whole_steps(shared_trace).row.size == 0)
    if found is not None:
        assert all(ns >= 0 for ns in phases(found).values())
        assert found.p10_ns <= found.median_ns <= found.p90_ns


def test_an_old_trace_without_steps_shows_the_loader_as_its_bottleneck(shared: Callable[[str], Trace]) -> None:
    slow = measure_traced_step(shared("resnet50-workers-0.pt.trace.json.gz"))
    fast = measure_traced_step(shared("resnet50-workers-4.pt.trace.json.gz"))

    assert slow is not None
    assert fast is not None
    assert slow.phases_ns.data == 56_836_500  # (54,280 + 39,789 + 46,899 + 86,378) us over 4 steps
    assert (fast.phases_ns.data or 0) * 20 < slow.phases_ns.data
    assert slow.excluded == {"warm-up": 1}


def test_the_closure_of_an_optimizer_is_forward_and_backward(build: TraceBuilder) -> None:
    for number in range(3):
        at = 1_000 + 100_000 * number
        build.step(number, at, at + 100_000)
        build.range("Optimizer.step#LBFGS.step", at, at + 100_000)
        build.op("aten::mm", at, at + 30_000)
        build.op(NODE, at + 40_000, at + 60_000)
        build.op(NODE, at + 60_000, at + 90_000)

    found = phases(measure_traced_step(build.read()))

    assert (found["forward"], found["backward"], found["optimizer"]) == (40_000, 50_000, 10_000)
