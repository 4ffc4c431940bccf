from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.measures._nested import sum_inside
from perfkit.measures.host.range_times import measure_range_times
from perfkit.measures.ops._op_loops import MIN_ITERATIONS, find_runs
from perfkit.measures.ops.op_times import measure_op_times
from perfkit.measures.steps._trace_steps import whole_steps
from perfkit.trace import Kind, Trace
from perfkit.trace.intervals import union

if TYPE_CHECKING:
    from .conftest import TraceBuilder


def test_self_time_is_what_an_op_did_not_spend_in_ops_it_called(build: TraceBuilder) -> None:
    build.op("aten::linear", 0, 100)
    build.frame("x.py(1): f", 5, 80)
    build.op("aten::addmm", 10, 70)
    build.call("cudaMalloc", 20, 30)
    build.op("aten::empty", 40, 45)

    ops = measure_op_times(build.read())

    assert ops is not None
    assert {op.name: (op.count, op.total_ns, op.self_ns) for op in ops.rows} == {
        "aten::linear": (1, 100, 40),
        "aten::addmm": (1, 60, 55),
        "aten::empty": (1, 5, 5),
    }
    assert (ops.steps, ops.count, ops.wall_ns, ops.floor_ns) == (1, 3, 100, 5)


def test_of_events_that_cross_the_one_that_began_last_owns_the_time(build: TraceBuilder) -> None:
    build.op("a", 0, 100)
    build.op("b", 60, 140)
    build.op("c", 70, 80)

    ops = measure_op_times(build.read())

    assert ops is not None
    assert {op.name: op.self_ns for op in ops.rows} == {"a": 60, "b": 70, "c": 10}


def test_device_time_goes_to_the_op_that_launched_it_and_to_its_callers(build: TraceBuilder) -> None:
    build.op("aten::linear", 0, 1_000)
    build.op("aten::mm", 100, 600)
    build.launch(200, 5_000, 5_700)
    build.launch(700, 6_000, 6_050)
    build.op("aten::add", 2_000, 2_100)

    ops = measure_op_times(build.read())

    assert ops is not None
    assert {op.name: (op.device_ns, op.device_self_ns) for op in ops.rows} == {
        "aten::linear": (750, 50),
        "aten::mm": (700, 700),
        "aten::add": (0, 0),
    }


def test_an_overload_is_one_call_and_a_recursion_counts_both(build: TraceBuilder) -> None:
    build.op("aten::sum", 0, 100)
    build.op("aten::sum", 10, 60)
    build.op("f", 1_000, 2_000)
    build.op("f", 1_100, 1_200)
    build.op("aten::mm", 1_300, 1_400)

    ops = measure_op_times(build.read())

    assert ops is not None
    assert {op.name: (op.count, op.total_ns, op.self_ns) for op in ops.rows} == {
        "f": (2, 1_100, 900),
        "aten::sum": (1, 100, 100),
        "aten::mm": (1, 100, 100),
    }
    assert ops.count == 4


def test_backward_time_and_its_device_work_go_to_the_forward_op_and_its_range(build: TraceBuilder) -> None:
    build.range("block", 0, 1_000)
    build.op("aten::linear", 100, 500, **{"Sequence number": 7})
    build.op("aten::addmm", 200, 400, **{"Sequence number": 7})
    build.launch(300, 5_000, 5_100)
    build.op("autograd::engine::evaluate_function: AddmmBackward0", 2_000, 2_600, tid=2, **{"Sequence number": 7})
    build.op("AddmmBackward0", 2_050, 2_500, tid=2, **{"Sequence number": 7})
    build.launch(2_100, 6_000, 6_300, tid=2)
    build.launch(2_300, 6_200, 6_400, tid=2, stream=9)
    build.op("autograd::engine::evaluate_function: X", 2_700, 2_800, tid=2, **{"Sequence number": 8})
    trace = build.read()

    ops = measure_op_times(trace)

    assert ops is not None
    found = {op.name: (op.backward_ns, op.backward_device_ns) for op in ops.rows}
    assert found["aten::linear"] == found["aten::addmm"] == (600, 500)
    assert found["AddmmBackward0"] == (None, None)
    (block,) = measure_range_times(trace)
    assert (block.device_busy_ns, block.backward_ns, block.backward_device_busy_ns) == (100, 600, 400)


def test_a_number_that_two_threads_used_is_not_paired(build: TraceBuilder) -> None:
    for tid in (1, 2):
        build.op("aten::mm", 100 * tid, 100 * tid + 50, tid=tid, **{"Sequence number": 3})
    build.op("autograd::engine::evaluate_function: MmBackward0", 1_000, 1_500, **{"Sequence number": 3})

    ops = measure_op_times(build.read())

    assert ops is not None
    assert [op.backward_ns for op in ops.rows] == [None, None]


def test_a_loop_has_its_range_and_the_users_function(build: TraceBuilder) -> None:
    build.frame("train.py(12): mix", 0, 9_000)
    build.range("mixing", 100, 8_000)
    for i in range(10):
        build.frame("torch/_tensor.py(40): wrapped", 200 + 300 * i, 400 + 300 * i)
        build.op("aten::mul", 250 + 300 * i, 350 + 300 * i)

    ops = measure_op_times(build.read())

    assert ops is not None
    (loop,) = ops.repeats
    assert (loop.range, loop.function) == ("mixing", "train.py(12): mix")


@given(st.lists(st.tuples(st.integers(-1, 30), st.integers(0, 2**40)), max_size=40), st.sampled_from([1, 2, 200]))
def test_sums_inside_are_those_of_walking_up_from_each_event(events: list[tuple[int, int]], deep: int) -> None:
    # Any forest: an event's parent comes before it.
    parent = np.array([min(above, i - 1) for i, (above, _) in enumerate(events)], np.int64)
    own = np.array([value for _, value in events], np.int64)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("perfkit.measures._nested.DEEP", deep)
        total = sum_inside(np.arange(own.size), own, parent)

    expected = own.copy()
    for i in range(own.size):
        above = int(parent[i])
        while above >= 0:
            expected[above] += own[i]
            above = int(parent[above])
    assert total.tolist() == expected.tolist()


def test_a_loop_of_small_ops_is_found_with_its_body_time_and_backward(build: TraceBuilder) -> None:
    for step in (0, 1):
        at = 100_000 * step
        build.step(step, at, at + 100_000)
        build.op("aten::embedding", at + 10, at + 90)
        for i in range(10):
            begin = at + 1_000 + 300 * i
            build.op("aten::select", begin, begin + 50)
            build.op("aten::mul", begin + 100, begin + 150, **{"Sequence number": 1_000 * step + i})
        build.op("aten::sum", at + 5_000, at + 5_100, **{"Sequence number": 1_000 * step + 50})
        for i in range(10):
            begin = at + 10_000 + 500 * i
            node = "autograd::engine::evaluate_function: MulBackward0"
            build.op(node, begin, begin + 200, **{"Sequence number": 1_000 * step + i})
            build.op("aten::mul", begin + 10, begin + 90)

    ops = measure_op_times(build.read())

    assert ops is not None
    (loop,) = ops.repeats
    assert loop.names == ("aten::select", "aten::mul")
    assert (loop.iterations, loop.ops) == (10, 20)
    assert (loop.host_ns, loop.op_ns, loop.backward_ns) == (9 * 300 + 150, 10 * 100, 9 * 500 + 200)
    assert (ops.steps, ops.wall_ns, loop.device_ns) == (2, 200_000, None)


def test_an_op_without_a_node_of_its_own_does_not_claim_the_next_ops_backward(build: TraceBuilder) -> None:
    for i in range(8):
        build.op("aten::eq", 100 * i, 100 * i + 50, **{"Sequence number": 3})
    build.op("aten::mm", 1_000, 1_100, **{"Sequence number": 3})
    build.op("autograd::engine::evaluate_function: MmBackward0", 2_000, 2_900, **{"Sequence number": 3})

    ops = measure_op_times(build.read())

    assert ops is not None
    assert ops.repeats[0].names == ("aten::eq",)
    assert ops.repeats[0].backward_ns is None


def test_loops_of_the_optimizer_and_of_the_loader_are_not_the_users(build: TraceBuilder) -> None:
    for at, name in ((0, "Optimizer.step#SGD.step"), (10_000, "enumerate(DataLoader)#_Iter.__next__")):
        build.range(name, at, at + 5_000)
        for i in range(20):
            build.op("aten::add_", at + 10 + 100 * i, at + 60 + 100 * i)

    ops = measure_op_times(build.read())

    assert ops is not None
    assert ops.repeats == ()


def test_a_loop_in_the_closure_of_an_optimizer_is_the_users(build: TraceBuilder) -> None:
    build.range("Optimizer.step#LBFGS.step", 0, 20_000)
    for i in range(10):
        build.op("aten::exp", 100 + 300 * i, 200 + 300 * i)
    build.op("autograd::engine::evaluate_function: ExpBackward0", 5_000, 9_000)
    for i in range(10):
        build.op("aten::add_", 10_000 + 300 * i, 10_100 + 300 * i)

    ops = measure_op_times(build.read())

    assert ops is not None
    assert [loop.names for loop in ops.repeats] == [("aten::exp",)]


def test_a_recorded_loop_is_found_with_its_backward(recorded: Trace) -> None:
    ops = measure_op_times(recorded)

    assert ops is not None
    loop = ops.repeats[0]
    assert loop.names == ("aten::select", "aten::tanh", "aten::add")
    assert (loop.iterations, loop.ops) == (12, 36)
    assert loop.backward_ns is not None
    assert 0 < loop.op_ns < loop.host_ns < ops.wall_ns / 3
    assert 0 < loop.backward_ns < ops.wall_ns / 3
    assert ops.floor_ns is not None
    assert next(op.count for op in ops.rows if op.name == "aten::tanh") == 36


@given(
    st.lists(st.integers(0, 3), max_size=12),
    st.lists(st.integers(4, 7), min_size=1, max_size=5),
    st.integers(MIN_ITERATIONS, 20),
    st.lists(st.integers(0, 3), max_size=12),
)
def test_a_planted_run_is_covered_and_runs_never_overlap(
    before: list[int], body: list[int], times: int, after: list[int]
) -> None:
    names = np.array(before + body * times + after, np.int64)

    runs = find_runs(names, np.zeros(names.size, np.int64))

    covered = [i for run in runs for i in range(run.first, run.first + run.period * run.times)]
    assert len(covered) == len(set(covered))
    assert set(range(len(before), len(before) + len(body) * times)) <= set(covered)
    for run in runs:
        assert run.times >= MIN_ITERATIONS
        part = names[run.first : run.first + run.period * run.times].reshape(run.times, run.period)
        assert (part == part[0]).all()


def test_self_times_sum_to_the_time_in_which_ops_were_open_on_every_real_trace(shared_trace: Trace) -> None:
    ops = measure_op_times(shared_trace)

    is_op = shared_trace.is_kind(Kind.OP)
    if ops is None:  # no ops at all, or none inside the steps
        assert whole_steps(shared_trace).row.size or not is_op.any()
        return
    assert all(0 <= op.self_ns <= op.total_ns for op in ops.rows)
    assert sum(op.count for op in ops.rows) == ops.count
    if not whole_steps(shared_trace).row.size:
        opened = 0
        for track in np.unique(shared_trace.track[is_op]):
            rows = is_op & (shared_trace.track == track)
            opened += union(shared_trace.start_ns[rows], shared_trace.end_ns[rows]).length_ns
        assert sum(op.self_ns for op in ops.rows) == opened
    for repeat in ops.repeats:
        assert repeat.op_ns <= repeat.host_ns <= ops.wall_ns
