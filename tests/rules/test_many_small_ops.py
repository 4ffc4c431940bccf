"""many-small-ops: a loop of small ops is reported at its line with its cost; large ops are computing."""

from __future__ import annotations

from typing import Any

from perfkit.measures.results.host import Ops, Repeat
from perfkit.rules.ops import many_small_ops
from perfkit.run.records import Lines, TracedLine

MS = 1_000_000


def ops(*repeats: Repeat, floor_us: float = 2) -> Ops:
    return Ops(steps=3, count=900, wall_ns=300 * MS, rows=(), floor_ns=round(floor_us * 1000), repeats=repeats)


def repeat(**fields: Any) -> Repeat:
    """100 iterations of 3 ops of 5 µs each, 10 µs of Python and 5 µs per iteration: 2 ms in all, backward 2 ms."""
    defaults: dict[str, Any] = {
        "names": ("aten::select", "aten::mul", "aten::add"),
        "iterations": 100,
        "ops": 300,
        "host_ns": 2 * MS,
        "op_ns": 1_500_000,
        "backward_ns": 2 * MS,
    }
    return Repeat(**{**defaults, **fields})


def line_of(line: int, runs: int, loop_line: int | None, function: str = "mix", phase: Any = "forward") -> TracedLine:
    return TracedLine(
        file="model.py",
        line=line,
        function=function,
        owner="user",
        phase=phase,
        runs=runs,
        host_ns=MS,
        loop_line=loop_line,
    )


def lines(*traced: TracedLine) -> Lines:
    return Lines(period_ns=MS, steps=40, traced=traced)


def test_a_loop_of_small_ops_is_found_at_its_line(build: Any) -> None:
    calls = lines(
        line_of(12, 100, 11), line_of(13, 99, 11), line_of(30, 12, 29, "other"), line_of(40, 500, None, "flat")
    )

    [finding] = build.findings(many_small_ops, build.step(20, forward=20), ops(repeat()), calls)

    assert (finding.spent.file, finding.spent.line, finding.spent.function) == ("model.py", 11, "mix")
    assert "100 times per step over 3 small ops (select mul add)" in finding.message


def test_a_norm_of_each_weight_is_a_small_op_and_a_norm_layer_is_none(build: Any) -> None:
    step = build.step(20, forward=20)
    logged = repeat(names=("aten::linalg_vector_norm", "aten::item"))
    layers = repeat(names=("aten::layer_norm", "aten::add"))

    assert len(build.findings(many_small_ops, step, ops(logged))) == 1
    assert build.findings(many_small_ops, step, ops(layers)) == []


def test_the_saving_depends_on_how_much_of_the_ops_is_computing(build: Any) -> None:
    [finding] = build.findings(many_small_ops, build.step(20, forward=20), ops(repeat()))

    # (2 + 2) ms x 99 / 100; of the ops' 1.5 ms, 300 x 2 µs are overhead, so 60% may compute: at most 30% remains.
    assert finding.cost_ns == 3_960_000
    # 15% more, because the rest of the step gets faster too.
    assert finding.saving_high_ns == 4_554_000
    assert finding.saving_low_ns == 2_772_000


def test_of_ops_that_are_mostly_overhead_only_what_they_compute_remains(build: Any) -> None:
    [finding] = build.findings(many_small_ops, build.step(20, forward=20), ops(repeat(op_ns=750_000)))

    # 300 x 2 µs of 750 µs are overhead: a fifth computes.
    assert finding.saving_low_ns == round(3_960_000 * 0.8)


def test_large_ops_in_a_loop_are_computing(build: Any) -> None:
    layers = repeat(iterations=12, ops=36, host_ns=19 * MS, op_ns=18 * MS)

    assert build.findings(many_small_ops, build.step(40, forward=40), ops(layers)) == []


def test_a_loop_that_exchanges_with_other_processes_is_left_to_exposed_communication(build: Any) -> None:
    exchange = repeat(names=("c10d::allreduce_", "aten::div_"), ops=200)
    without = repeat(names=("aten::neg", "aten::div_"), ops=200)

    assert build.findings(many_small_ops, build.step(20, forward=20), ops(exchange)) == []
    [_] = build.findings(many_small_ops, build.step(20, forward=20), ops(without))


def test_few_repeats_and_small_shares_are_not_reported(build: Any) -> None:
    few = repeat(iterations=4)
    slow_step = build.step(1000, forward=1000)

    assert build.findings(many_small_ops, build.step(20, forward=20), ops(few)) == []
    assert build.findings(many_small_ops, slow_step, ops(repeat())) == []
    assert build.findings(many_small_ops, slow_step) == []


def test_two_loops_get_a_line_each(build: Any) -> None:
    second = repeat(names=("aten::exp",), iterations=50, ops=50, host_ns=MS, op_ns=MS // 2, backward_ns=None)
    calls = lines(line_of(60, 50, 59, "norm"), line_of(12, 100, 11))

    findings = build.findings(many_small_ops, build.step(10, forward=10), ops(repeat(), second), calls)

    assert [(finding.spent.function, finding.spent.line) for finding in findings] == [("mix", 11), ("norm", 59)]


def test_a_loop_that_prepares_data_is_left_to_input_bound(build: Any) -> None:
    calls = lines(line_of(12, 100, 11, "Reviews.__getitem__", phase="data"))

    assert build.findings(many_small_ops, build.step(20, forward=20), ops(repeat()), calls) == []


def test_times_of_a_slow_trace_are_scaled_to_the_untraced_step(build: Any) -> None:
    steps = build.step(20, forward=20), build.traced_step(40, forward=40)

    [finding] = build.findings(many_small_ops, *steps, ops(repeat()))

    assert finding.cost_ns == 3_960_000 // 2


def test_on_a_device_the_saving_is_at_most_its_idle_time_and_the_loops_own_kernels(build: Any) -> None:
    device = build.device(200, compute=190, causes={"operators": 10})
    found = ops(repeat(device_ns=500_000))

    [finding] = build.findings(many_small_ops, build.traced_step(20, forward=20), found, device)

    assert finding.saving_high_ns == 1_000_000 + 500_000


def test_ops_whose_kernels_take_longer_than_they_do_are_not_small(build: Any) -> None:
    device = build.device(200, compute=100, causes={"python": 100})

    assert (
        build.findings(many_small_ops, build.traced_step(20, forward=20), ops(repeat(device_ns=9_000_000)), device)
        == []
    )
