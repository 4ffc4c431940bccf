"""Ops of a really recorded profile against torch's own table of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from perfkit.measures.host.range_times import measure_range_times
from perfkit.measures.ops.op_times import measure_op_times
from perfkit.measures.results.host import Ops
from perfkit.trace import Kind, Trace, read_trace


@pytest.fixture(scope="module")
def recorded_with_table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, dict[str, Any]]:
    """Two training steps of a small convolutional model, and torch's averages of the same profile by name."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 14 * 14, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    batch = torch.randn(4, 3, 16, 16)

    def step() -> None:
        with record_function("forward"):
            loss = model(batch).logsumexp(-1).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True) as profiler:
        step()
        step()
    file = tmp_path_factory.mktemp("recorded") / "t.json"
    profiler.export_chrome_trace(str(file))
    return read_trace(file), {row.key: row for row in profiler.key_averages()}


def _ops(trace: Trace) -> Ops:
    ops = measure_op_times(trace)
    assert ops is not None
    return ops


def test_counts_and_times_are_those_of_key_averages(recorded_with_table: tuple[Trace, dict[str, Any]]) -> None:
    trace, table = recorded_with_table

    ops = _ops(trace).rows

    assert {op.name for op in ops} >= {
        "aten::convolution",
        "aten::addmm",
        "autograd::engine::evaluate_function: ReluBackward0",
    }
    for op in ops:
        theirs = table[op.name]
        assert op.count == theirs.count
        # Both hold ns; torch divides each call's by 1000 and adds floats.
        assert op.self_ns == pytest.approx(theirs.self_cpu_time_total * 1000, abs=1)
        assert op.total_ns == pytest.approx(theirs.cpu_time_total * 1000, abs=1)


@pytest.mark.since_torch((2, 13), "a table of the profiler that places memory to the nanosecond")
def test_memory_is_that_of_key_averages(recorded_with_table: tuple[Trace, dict[str, Any]]) -> None:
    trace, table = recorded_with_table

    ops = _ops(trace).rows

    changed = 0
    for op in ops:
        assert op.memory is not None
        change = op.memory.get("cpu")
        net = change.allocated_bytes - change.freed_bytes if change is not None else 0
        assert net == table[op.name].cpu_memory_usage, op.name
        assert (change.self_bytes if change is not None else 0) == table[op.name].self_cpu_memory_usage, op.name
        changed += net != 0
    assert changed > 10


def test_a_forward_op_and_the_range_around_it_get_their_backward(
    recorded_with_table: tuple[Trace, dict[str, Any]],
) -> None:
    trace, _ = recorded_with_table

    by_name = {op.name: op for op in _ops(trace).rows}
    (forward,) = (one for one in measure_range_times(trace) if one.name == "forward")

    def total_ns(*names: str) -> int:
        return sum(by_name[f"autograd::engine::evaluate_function: {name}"].total_ns for name in names)

    assert by_name["aten::conv2d"].backward_ns == total_ns("ConvolutionBackward0")
    assert by_name["aten::linear"].backward_ns == total_ns("AddmmBackward0", "TBackward0")
    assert by_name["aten::empty"].backward_ns is None
    every = [name for name in by_name if name.startswith("autograd::engine") and "AccumulateGrad" not in name]
    assert forward.backward_ns == sum(by_name[name].total_ns for name in every)
    assert (forward.count, forward.device_busy_ns, forward.backward_device_busy_ns) == (2, None, None)
    assert forward.memory is not None
    assert forward.memory["cpu"].allocated_bytes > 2 * 4 * 8 * 14 * 14 * 4  # the convolution's output


def test_self_times_of_ops_sum_to_the_time_ops_were_open_on_each_thread(
    recorded_with_table: tuple[Trace, dict[str, Any]],
) -> None:
    trace, _ = recorded_with_table

    rows = trace.is_kind(Kind.OP)
    top = rows & (trace.above(rows) < 0)

    assert sum(op.self_ns for op in _ops(trace).rows) == int((trace.end_ns - trace.start_ns)[top].sum())
