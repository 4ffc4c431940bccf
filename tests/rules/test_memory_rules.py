"""Memory: what is kept from step to step, a device that is nearly full, an allocator that asks the driver."""

from __future__ import annotations

from typing import Any

import msgspec

from perfkit._location import Location
from perfkit.measures.results.host import Ops, OpTime, RangeTime
from perfkit.measures.results.kernels import NameTime
from perfkit.measures.results.memory import MemoryGrowth
from perfkit.rules.memory import allocator_thrash, gradients_not_set_to_none, memory_growth, memory_near_limit
from perfkit.run.records import KeptTensors, Lines, OptimizerFacts, TracedLine

MS = 1_000_000
AT = Location(file="train.py", line=29, function="main")


def kept(**more: Any) -> KeptTensors:
    return KeptTensors(**{"steps": 40, "grown": 40, "grown_bytes": 40_000_000, "graph": True, **more})


def test_tensors_kept_with_their_graphs_are_told_at_the_line_that_keeps_them(build: Any) -> None:
    largest = kept(grown=80)
    named = kept(name="previews", places=(AT,))
    rank = msgspec.structs.replace(build.rank(), kept=(largest, named))

    [finding] = memory_growth.check(build.measured(rank=rank))

    assert (finding.file, finding.line, finding.severity) == ("train.py", 29, "warning")
    assert "3.0 tensors per step (2.0 MB) and their graphs" in finding.message
    assert finding.cost_ns is None


def test_of_two_branches_that_fill_a_list_the_one_that_ran_is_told(build: Any) -> None:
    other = Location(file="train.py", line=27, function="main")
    rank = msgspec.structs.replace(build.rank(), kept=(kept(name="previews", places=(other, AT)),))
    ran = TracedLine(file="train.py", line=29, function="main", owner="user", phase="forward", runs=1, host_ns=MS)

    for traced, line in (((ran,), 29), ((), 27)):
        lines = Lines(period_ns=MS, steps=1, rows=(), traced=traced)
        [finding] = memory_growth.check(build.measured(rank=rank, lines=lines))

        assert finding.line == line


def test_a_graph_that_grows_is_told_without_any_new_tensor(build: Any) -> None:
    rank = msgspec.structs.replace(
        build.rank(), kept=(kept(grown=0, grown_bytes=0, nodes_grown=80, name="total", places=(AT,)),)
    )

    [finding] = memory_growth.check(build.measured(rank=rank))

    assert "grows by 2 nodes in every step, in total" in finding.message


def test_small_tensors_without_a_graph_are_no_leak(build: Any) -> None:
    history = msgspec.structs.replace(build.rank(), kept=(kept(graph=False, grown_bytes=160),))
    outputs = msgspec.structs.replace(build.rank(), kept=(kept(graph=False, grown_bytes=400_000_000),))

    assert list(memory_growth.check(build.measured(rank=history))) == []
    assert [finding.severity for finding in memory_growth.check(build.measured(rank=outputs))] == ["info"]


def test_a_device_that_fills_says_after_how_many_steps_it_is_full(build: Any) -> None:
    growth = MemoryGrowth(
        device_bytes_per_step=10_000_000, device_readings=9, process_bytes_per_step=None, process_readings=0,
        device_peak_bytes=6_000_000_000,
    )  # fmt: skip
    rank = msgspec.structs.replace(build.rank(), settings={"cuda:0.total_bytes": "16000000000"})

    [finding] = memory_growth.check(build.measured(rank=rank, growth=growth))

    assert next(evidence.value for evidence in finding.evidence if evidence.name == "full after") == 1_000


def test_a_device_nearly_full_is_told_with_the_price_of_checkpointing(build: Any) -> None:
    rank = msgspec.structs.replace(build.rank(), settings={"cuda:0.total_bytes": "16000000000"})

    def at(peak: int) -> Any:
        step = msgspec.structs.replace(build.step(100, forward=30, backward=70), memory_peak_bytes=peak)
        return list(memory_near_limit.check(build.measured(step=step, rank=rank)))

    [finding] = at(15_000_000_000)
    assert "for up to 30.0 ms more per step" in finding.advice
    assert finding.severity == "info"
    assert at(12_000_000_000) == []


def test_an_allocator_that_asks_the_driver_costs_the_idle_time_in_allocation(build: Any) -> None:
    step = msgspec.structs.replace(build.step(100, forward=100), alloc_retries=3, device_allocs=90)
    device = build.device(1000, compute=800, causes={"allocation": 150, "operators": 50})

    [finding] = allocator_thrash.check(build.measured(step=step, devices=(device,)))
    [unpriced] = allocator_thrash.check(build.measured(step=step))

    assert (finding.cost_ns, finding.saving_low_ns) == (15 * MS, round(7.5 * MS))
    assert (unpriced.cost_ns, unpriced.severity) == (None, "warning")
    calm = msgspec.structs.replace(step, alloc_retries=0, device_allocs=2)
    assert list(allocator_thrash.check(build.measured(step=calm, devices=(device,)))) == []


def test_the_drivers_own_calls_are_the_price_where_idle_has_no_cause(build: Any) -> None:
    step = msgspec.structs.replace(build.step(100, forward=100), alloc_retries=0, device_allocs=90)
    calls = NameTime(name="cudaMalloc", count=80, total_ns=400 * MS, mean_ns=1, deviation_ns=0, min_ns=1, max_ns=1)
    measured = build.measured(step=step, trace_step=build.step(100, forward=100), api_calls=(calls,))

    assert [finding.cost_ns for finding in allocator_thrash.check(measured)] == [10 * MS]


def zeroing(build: Any, *, keeps: bool | None) -> Any:
    facts = OptimizerFacts(kind="SGD", tensors=6, elements=8_000_000, dtypes=("float32",), keeps_gradients=keeps)
    add = OpTime(name="torch::autograd::AccumulateGrad", count=12, total_ns=16 * MS, self_ns=1)
    return build.measured(
        step=build.step(80, forward=80),
        rank=msgspec.structs.replace(build.rank(), optimizers=(facts,), calls={"zero_grad": (AT,)}),
        ops=Ops(steps=2, count=1, wall_ns=1, rows=(add,), floor_ns=None),
        ranges=(RangeTime(name="Optimizer.zero_grad#SGD.zero_grad", count=2, host_ns=8 * MS),),
    )


def test_gradients_that_are_kept_cost_their_filling_and_their_adding(build: Any) -> None:
    [finding] = gradients_not_set_to_none.check(zeroing(build, keeps=True))

    assert (finding.saving_low_ns, finding.saving_high_ns, finding.line) == (9 * MS, 13.8 * MS, 29)
    for keeps in (False, None):
        assert list(gradients_not_set_to_none.check(zeroing(build, keeps=keeps))) == []
