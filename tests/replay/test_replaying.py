"""The replay of a trace as it was recorded gives its steps, and its critical path is the chain that they waited for."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_timeline import ADD, COMMUNICATION, GEMM_BF16, Timeline

from perfkit.measures.device._device_work import device_work
from perfkit.replay.replaying import critical_path, replay
from perfkit.replay.task_graph import task_graph
from perfkit.trace import Trace, read_trace

TRACES = [
    "a100-2ranks-nccl.json.gz",
    "a100-8ranks-training.json.gz",
    "a100-alexnet-cuda-sync-events.json.gz",
    "cpu-only-rank34.json.gz",
    "h100-inference-image.json.gz",
    "mi250-rocm.json.gz",
    "nsys-healthy.sqlite",
    "nsys-mock.sqlite",
    "resnet50-workers-0.pt.trace.json.gz",
    "resnet50-workers-4.pt.trace.json.gz",
    "v100-2ranks-training.json.gz",
]


def mixed(line: Timeline) -> None:
    """Loading, a forward and a backward on another thread, a collective, a copy and a sync."""
    with line.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
        line.op("aten::stack", 300)
    line.copy("HtoD", 80, 1 << 20, memory="Pageable")
    for _ in range(4):
        line.run(GEMM_BF16, 60)
        line.spend(15)
    with line.backward():
        for _ in range(4):
            line.run(ADD, 90, op="aten::add_")
            line.all_reduce(40, elements=1 << 16)
    line.join()
    line.run(ADD, 20, op="aten::add_")
    line.read()


@pytest.mark.parametrize("name", TRACES)
def test_the_replay_of_a_real_trace_gives_its_recorded_steps(name: str, shared: Callable[[str], Path]) -> None:
    trace = read_trace(shared(name))
    graph = task_graph(trace)
    run = replay(graph)

    for work in device_work(trace):
        if graph.steps.row.size:
            assert np.abs(run.steps_ns / np.diff(work.bounds) - 1).max() <= 0.01
    tasks = graph.tasks
    assert np.abs(run.over[graph.nodes.node_of_task] - (tasks.ends - graph.origin)).max(initial=0) <= 1_000
    path = critical_path(run)
    assert sum(part.ends - part.starts for part in path) == run.total_ns
    assert all(first.ends == second.starts for first, second in pairwise(path))


def test_every_task_of_a_made_trace_ends_when_it_was_recorded(made) -> None:
    trace = made.trace(mixed)
    graph = task_graph(trace)
    run = replay(graph)

    assert np.array_equal(run.over[graph.nodes.node_of_task], graph.tasks.ends - graph.origin)
    assert graph.unknown["delayed by something that is not in the trace"] == 0
    assert graph.nodes.usable.all()


def test_the_critical_path_of_a_busy_device_is_its_kernels_and_of_a_slow_host_its_ops(made) -> None:
    def busy(line: Timeline) -> None:
        for _ in range(20):
            line.run(GEMM_BF16, 100)

    def slow(line: Timeline) -> None:
        for _ in range(20):
            line.run(ADD, 2, op="aten::add_", host=50)

    kernels, ops = made.ask(busy), made.ask(slow)

    assert kernels.path[0].owner == "kernels"
    assert kernels.path[0].share > 0.9
    assert ops.path[0].owner in ("ops", "launches")
    assert not any(row.owner == "kernels" and row.share > 0.1 for row in ops.path)


def test_a_stream_that_another_one_waits_for_is_on_the_path_without_records_of_events(made) -> None:
    def step(line: Timeline) -> None:
        line.run(GEMM_BF16, 50)
        line.all_reduce(400, elements=1 << 20)
        line.join()
        line.run(ADD, 50, op="aten::add_")

    trace = made.trace(step)
    graph = task_graph(trace)
    waits = graph.waits
    source = trace.stream[graph.tasks.row[waits.source[waits.task >= 0]]]

    assert (source == COMMUNICATION).sum() >= 4
    assert made.ask(step).path[0].owner == "communication"


def test_kernels_of_one_graph_launch_are_one_task(made) -> None:
    line = made.line()

    def step(line: Timeline) -> None:
        start, line.now = line.now, line.now + 20
        correlation = line.next_correlation()
        line.add("cuda_runtime", "cudaGraphLaunch", start, line.now, correlation=correlation)
        for number in range(10):
            begin = start + 30 + 12 * number
            work = {"device": 0, "stream": 7, "correlation": correlation}
            line.add("kernel", ADD, begin, begin + 10, tid=7, pid=0, **work)
        line.free[0, 7] = start + 150

    graph = task_graph(read_trace(line.steps(step).write()))

    assert graph.tasks.size == 5
    assert graph.tasks.is_graph.all()
    assert (graph.tasks.ends - graph.tasks.starts == 118_000).all()


def test_a_launch_that_is_missing_is_counted_and_its_work_kept(made) -> None:
    line = made.line().steps(lambda line: [line.run(GEMM_BF16, 50) for _ in range(10)], sync=False)
    calls = [event for event in line.events if event["cat"] == "cuda_runtime"]
    for event in calls[::3]:
        line.events.remove(event)
    trace = read_trace(line.write())
    graph = task_graph(trace)
    run = replay(graph)

    assert graph.unknown["without a launch in the trace"] == len(calls[::3])
    assert np.array_equal(run.over[graph.nodes.node_of_task], graph.tasks.ends - graph.origin)


@settings(max_examples=60)
@given(data=st.data())
def test_making_anything_faster_never_makes_the_step_longer(data: st.DataObject, tmp_path_factory) -> None:
    trace = _random_trace(data, tmp_path_factory.mktemp("t"))
    graph = task_graph(trace)
    slower = graph.recorded.copy()
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), label="seed"))
    columns = ("host", "work", "latency", "gap", "unknown", "edge")
    for name in columns:
        column = getattr(slower, name)
        column[:] = np.maximum(column, 0) * random.integers(1, 4, column.size)
    faster = slower.copy()
    for name in columns:
        column = getattr(faster, name)
        chosen = random.random(column.size) < 0.3
        column[chosen] = (column[chosen] * random.random(chosen.sum())).astype(np.int64)
    faster.holds &= random.random(faster.holds.size) < 0.8

    one, other = replay(graph, slower), replay(graph, faster)

    assert other.step_ns <= one.step_ns
    assert (other.over <= one.over).all()


def _random_trace(data: st.DataObject, folder: Path) -> Trace:
    """A trace of random actions of a timeline."""
    actions = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=25), label="actions")

    def step(line: Timeline) -> None:
        for number, action in enumerate(actions):
            if action == 0:
                line.spend(40)
            elif action == 1:
                line.read()
            elif action == 2:
                line.all_reduce(70, elements=4096)
            elif action == 3:
                line.join()
            elif action == 4:
                line.copy("HtoD", 30, 4096, memory="Pageable" if number % 2 else "Pinned")
            elif action == 5:
                with line.backward():
                    line.run(ADD, 25, op="aten::add_")
            else:
                line.run(GEMM_BF16, 10 * number + 1, stream=7 + action)

    return read_trace(Timeline(folder).steps(step, sync=False, count=3).write())
