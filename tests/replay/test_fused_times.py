"""What remains of ops that are fused on a CPU: what their data takes on this machine, products, and a fused update."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.measurements import Measurements
from perfkit.measures.results.patterns import OptimizerUpdate, Patterns
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.replay._answering import Recording, changed, predicted, recording_of
from perfkit.replay._fused_times import fused_times
from perfkit.run.records import OptimizerFacts, Rank
from perfkit.trace import read_trace
from tests.made_limits import made_limits

US, MS = 1_000, 1_000_000
#: 1 GFLOP/s and 10 GB/s: 1 kB takes 100 ns.
LIMITS = made_limits(flops=1e9)


def recorded(made: Any, step: Any, rows: tuple[OpWorkTime, ...], *more: Any) -> Recording:
    trace = read_trace(made.line(device=None).steps(step).write())
    found = Measurements("run")
    found.add((StepWork(source="stacks", step_ns=MS, rows=rows), *more))
    recording = recording_of(trace, "run")
    budget = StepBudget(wall_ns=round(recording.step_ns), per="step", source="clock")
    recording.times.fused = fused_times(recording.graph, recording.times, found, budget)
    return recording


def work(op: str, calls: float, ns: int, **fields: Any) -> OpWorkTime:
    return OpWorkTime(op=op, phase="other", ns=ns, calls=calls, ops=calls, **fields)


def norm(line: Any) -> None:
    with line.range("norm"):
        for _ in range(3):
            line.op("aten::add", 100)
    line.op("aten::mul", 500)


ADDS = work("aten::add", 3, 300 * US, bytes=400_000, precision="float32", kind="update")


def test_of_fused_ops_one_takes_what_its_data_takes_or_all_do_twice_that(made: Any) -> None:
    recording = recorded(made, norm, (ADDS,), LIMITS)

    best, usual = (changed(recording, [("fuse", "norm")], interference=how).step_ns for how in (False, True))

    # 400 kB take 40 µs, and an op 2 µs beside: 300 become 42 at best.
    assert recording.step_ns - best == pytest.approx(258 * US, rel=0.02)
    # An op that takes twice its limit is as fast as ops get: 240 remain, and 2.
    assert recording.step_ns - usual == pytest.approx(58 * US, rel=0.02)


def test_without_the_limits_of_the_machine_the_longest_op_remains_as_it_is(made: Any) -> None:
    recording = recorded(made, norm, (ADDS,))

    assert recording.times.fused is None
    assert recording.step_ns - predicted(recording, [("fuse", "norm")]).ideal_ns == pytest.approx(200 * US, rel=0.02)


def test_products_are_not_fused_away(made: Any) -> None:
    def step(line: Any) -> None:
        with line.range("cell"):
            for _ in range(3):
                line.op("aten::mm", 100)
                line.op("aten::add", 100)

    products = work("aten::mm", 3, 300 * US, flops=80_000, bytes=1_000, precision="float32", kind="matmul")
    recording = recorded(made, step, (ADDS, products), LIMITS)

    # 80 µs of each product, 42 of one of the additions.
    then = predicted(recording, [("fuse", "cell")])
    assert recording.step_ns - then.ideal_ns == pytest.approx((600 - 3 * 80 - 42) * US, rel=0.02)


def test_a_fused_update_goes_over_its_parameters_once(made: Any) -> None:
    def step(line: Any) -> None:
        with line.range("Optimizer.step#Adam.step"):
            for _ in range(100):
                line.op("aten::mul_", 100)
        line.op("aten::mm", 5_000)

    update = OptimizerUpdate(name="Adam", host_ns=10 * MS, ops=100.0, foreach=0.0, fused=0.0, op_ns=10 * MS)
    patterns = Patterns(source="window", steps=5, step_ns=15 * MS, has_shapes=True, updates=(update,))
    facts = OptimizerFacts(kind="Adam", tensors=2, elements=1_000_000, dtypes=("float32",))
    recording = recorded(
        made,
        step,
        (ADDS,),
        LIMITS,
        patterns,
        Rank(rank=0, launch_id="x", host="vm", pid=1, start_ns=0, optimizers=(facts,)),
    )

    # Seven passes over 4 MB take 2.8 ms, and the call some µs; at most twice that remains.
    best, usual = (changed(recording, [("fuse", "Optimizer.step#*")], interference=how) for how in (False, True))
    assert recording.step_ns - best.step_ns == pytest.approx(7.2 * MS, rel=0.02)
    assert recording.step_ns - usual.step_ns == pytest.approx(4.4 * MS, rel=0.02)
