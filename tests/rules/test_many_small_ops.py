"""many-small-ops: a loop of small ops is reported at its line with its cost; large ops are computing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit._location import Location
from perfkit.findings import Finding
from perfkit.ledger.ledger import Ledger
from perfkit.ledger.rows import LedgerRow
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.host import Ops, Repeat
from perfkit.measures.results.measurements import Measurements
from perfkit.measures.results.patterns import UnfusedAttention
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules._engine import Rule, run_rules
from perfkit.rules.ops import attention_unfused, many_small_ops
from perfkit.run.records import Lines, ModuleCalls, RepeatedClosure, TracedLine

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


def test_python_that_computes_between_the_ops_is_no_cost_of_theirs(build: Any) -> None:
    busy = repeat(host_ns=60 * MS, backward_ns=None)

    [finding] = build.findings(many_small_ops, build.step(80, forward=80), ops(busy))

    # 1.5 ms of ops, and 20 µs for each of 300 of them; one of 100 iterations stays.
    assert finding.cost_ns == pytest.approx(7.5 * MS * 0.99, rel=0.001)


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


def test_of_two_loops_that_run_as_often_the_one_whose_lines_call_the_ops_is_named(build: Any) -> None:
    longer = msgspec.structs.replace(line_of(32, 100, 31, "main"), host_ns=9 * MS)
    calls = lines(line_of(12, 100, 11), longer)
    called = OpWorkTime(
        op="aten::mul",
        phase="forward",
        ns=MS,
        calls=100,
        ops=100,
        at=Location(file="model.py", line=12, function="mix"),
    )
    work = StepWork(source="stacks-0", step_ns=20 * MS, rows=(called,))
    step = build.step(20, forward=20)

    [unknown] = build.findings(many_small_ops, step, ops(repeat()), calls)
    [known] = build.findings(many_small_ops, step, ops(repeat()), calls, work)

    assert (unknown.spent.line, known.change.line) == (31, 11)

    def row(us: int, line: int, function: str) -> OpWorkTime:
        at = Location(file="model.py", line=line, function=function)
        return msgspec.structs.replace(called, ns=us * 1000, at=at)

    # A comprehension has a frame of its own before Python 3.12: its line counts with that of the function around it.
    rows = (row(300, 12, "mix"), row(100, 12, "mix.<locals>.<listcomp>"), row(200, 32, "main"))
    [summed] = build.findings(many_small_ops, step, ops(repeat()), calls, msgspec.structs.replace(work, rows=rows))

    assert summed.change.line == 11


def test_of_a_body_that_is_mostly_a_loop_itself_that_loop_is_named(build: Any) -> None:
    calls = lines(line_of(49, 17, 48, "partition"), line_of(41, 119, 40, "forward_step"))
    called = OpWorkTime(
        op="aten::add", phase="forward", ns=MS, calls=119, ops=119,
        at=Location(file="model.py", line=41, function="forward_step"),
    )  # fmt: skip
    work = StepWork(source="stacks-0", step_ns=20 * MS, rows=(called,))

    [finding] = build.findings(
        many_small_ops, build.step(20, forward=20), ops(repeat(iterations=17, ops=17 * 35)), calls, work
    )

    assert finding.change.line == 40
    assert "A loop runs 119 times per step over 5 small ops" in finding.message


def test_a_loop_that_is_none_of_the_users_is_in_a_library_and_no_alarm(build: Any) -> None:
    calls, step = lines(line_of(40, 500, None, "flat")), build.step(20, forward=20)
    caller = Location(file="model.py", line=40, function="flat")
    called = OpWorkTime(op="aten::mul", phase="forward", ns=MS, calls=100, ops=100, at=caller)
    work = StepWork(source="stacks-0", step_ns=20 * MS, rows=(called,))

    [known] = build.findings(many_small_ops, step, ops(repeat(names=("aten::mul",))), calls, work)
    [elsewhere] = build.findings(many_small_ops, step, ops(repeat()), calls, work)
    [untraced] = build.findings(many_small_ops, step, ops(repeat()))

    assert (known.severity, known.spent) == ("info", caller)
    assert "A loop in a library runs 100 times" in known.message
    assert (elsewhere.severity, elsewhere.spent) == ("info", None)
    assert untraced.severity == "warning"


def test_a_library_s_loop_that_a_loop_of_the_users_calls_is_an_alarm_with_both_numbers(build: Any) -> None:
    step = build.step(20, forward=20)
    caller = Location(file="model.py", line=40, function="average")
    called = OpWorkTime(op="aten::detach", phase="forward", ns=MS, calls=900, ops=900, at=caller)
    work = StepWork(source="stacks-0", step_ns=20 * MS, rows=(called,))
    in_library = ops(repeat(names=("aten::detach",), iterations=900, ops=900))

    [found] = build.findings(many_small_ops, step, in_library, lines(line_of(40, 30, 39, "average")), work)

    assert (found.severity != "info", found.spent) == (True, caller)
    assert (
        "Line 40 runs 30 times per step, and each time a loop in a library runs 30 times over 1 small op"
        in found.message
    )


def test_a_body_with_two_equal_statements_is_a_loop_of_the_users(build: Any) -> None:
    called = OpWorkTime(
        op="aten::mul", phase="forward", ns=MS, calls=100, ops=100,
        at=Location(file="model.py", line=40, function="encode"),
    )  # fmt: skip
    work = StepWork(source="stacks-0", step_ns=20 * MS, rows=(called,))
    calls = lines(line_of(40, 50, 39, "encode"), line_of(31, 3, 30, "main"))

    [found] = build.findings(many_small_ops, build.step(20, forward=20), ops(repeat(names=("aten::mul",))), calls, work)

    assert (found.severity, found.change.line) == ("warning", 39)
    assert "A loop runs 50 times per step over" in found.message


def test_a_loop_that_not_every_step_has_is_at_the_line_that_the_traced_step_did_not_reach(build: Any) -> None:
    caller = Location(file="model.py", line=19, function="advantages")
    called = OpWorkTime(op="aten::mul", phase="forward", ns=MS, calls=100, ops=100, at=caller)
    work = StepWork(source="stacks-0", step_ns=20 * MS, rows=(called,))

    [found] = build.findings(
        many_small_ops,
        build.step(20, forward=20),
        ops(repeat(names=("aten::mul",))),
        lines(line_of(40, 1, 35, "main")),
        work,
    )

    assert (found.severity, found.spent) == ("warning", caller)
    assert "A loop runs 100 times" in found.message


def test_a_loop_whose_branches_repeat_less_often_than_it_runs_is_found(build: Any) -> None:
    calls = lines(line_of(21, 180, 20), line_of(22, 100 * 9, 19, "count"), line_of(18, 12, 17, "outer"))

    [finding] = build.findings(many_small_ops, build.step(20, forward=20), ops(repeat()), calls)

    assert (finding.spent.function, finding.spent.line) == ("mix", 20)


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


def rows_of_loop(limit_ms: float, line: int = 22) -> tuple[LedgerRow, ...]:
    """A convolution for each of 48 channels: 8 ms of computing, 2 ms of overhead, in a step of 20 ms."""
    at = Location(file="model.py", line=line, function="forward", owner="user")
    place: dict[str, Any] = {"name": "aten::convolution", "phase": "forward", "at": at, "count": 48.0}
    return (
        LedgerRow(owner="computing", ns=8 * MS, limit_ns=round(limit_ms * MS), bound="arithmetic", **place),
        LedgerRow(owner="op overhead", ns=2 * MS, **place),
        LedgerRow(owner="computing", name="aten::mm", ns=10 * MS, limit_ns=9 * MS, phase="forward"),
    )


def by_ledger(build: Any, traced: Lines, *rows: LedgerRow, others_ms: int = 0) -> list[Finding]:
    ledger = Ledger(wall_ns=(20 + others_ms) * MS, per="step", basis="training thread", rows=rows)
    step = StepBudget.from_measurements(Measurements("runs/x", build.step(20 + others_ms, forward=20)))
    assert step is not None
    return list(many_small_ops.check(step, ops(), traced, ledger))


def test_a_layer_for_each_slice_is_a_loop_where_the_ledger_has_it_far_from_its_limit(build: Any) -> None:
    traced = lines(line_of(21, 49, 21, "forward"), line_of(22, 48, 21, "forward"))

    [finding] = by_ledger(build, traced, *rows_of_loop(limit_ms=1))

    assert (finding.change.line, finding.cost_ns) == (21, round(10 * MS * 47 / 48))
    assert finding.saving_low_ns == pytest.approx(0.7 * 10 * MS * 47 / 48, rel=0.01)
    assert "runs 48 times per step over 1 ops each, far from what the machine can do" in finding.message
    assert by_ledger(build, traced, *rows_of_loop(limit_ms=7)) == []


def test_one_call_costs_the_overhead_of_one_iteration_so_that_a_loop_of_mostly_overhead_saves_nearly_all(
    build: Any,
) -> None:
    computing, overhead, other = rows_of_loop(limit_ms=0.2)
    computing = msgspec.structs.replace(computing, ns=MS)
    overhead = msgspec.structs.replace(overhead, ns=9 * MS, limit_ns=9 * MS, bound="overhead")

    [finding] = by_ledger(build, lines(line_of(22, 48, 21, "forward")), computing, overhead, other)

    assert finding.cost_ns == round(10 * MS * 47 / 48)
    assert finding.saving_low_ns == pytest.approx(0.7 * finding.cost_ns, rel=0.01)


def test_a_loop_that_begins_forty_times_keeps_forty_iterations(build: Any) -> None:
    traced = lines(line_of(21, 240, 21, "forward"), line_of(22, 200, 21, "forward"))

    [finding] = by_ledger(build, traced, *rows_of_loop(limit_ms=1))

    assert finding.cost_ns == round(10 * MS * 160 / 200)


def test_short_loops_that_each_iteration_begins_are_its_own_unless_one_has_most_of_the_time(build: Any) -> None:
    outer = (line_of(21, 49, 21, "forward"), line_of(22, 48, 21, "forward"))
    inner = (line_of(24, 144, 24, "forward"), line_of(25, 96, 24, "forward"))
    computing, overhead, other = rows_of_loop(limit_ms=0.5)
    at = Location(file="model.py", line=25, function="forward", owner="user")
    inside = msgspec.structs.replace(computing, ns=4 * MS, at=at)

    [finding] = by_ledger(build, lines(*outer, *inner), computing, overhead, inside, other)
    assert (finding.change.line, finding.cost_ns) == (21, round(14 * MS * 47 / 48))

    most = msgspec.structs.replace(inside, ns=40 * MS)
    [finding] = by_ledger(build, lines(*outer, *inner), computing, overhead, most, other, others_ms=30)
    assert (finding.change.line, finding.cost_ns) == (24, 20 * MS)


def test_a_loop_in_another_one_is_not_the_part_of_an_earlier_one_that_goes_round_as_often(build: Any) -> None:
    earlier = (line_of(11, 49, 11, "forward"), line_of(12, 48, 11, "forward"))
    outer = (line_of(21, 49, 21, "forward"), line_of(22, 48, 21, "forward"))
    inner = (line_of(24, 144, 24, "forward"), line_of(25, 96, 24, "forward"))
    computing, overhead, other = rows_of_loop(limit_ms=0.5)
    at = Location(file="model.py", line=25, function="forward", owner="user")
    inside = msgspec.structs.replace(computing, ns=4 * MS, at=at)

    [finding] = by_ledger(build, lines(*earlier, *outer, *inner), computing, overhead, inside, other)

    assert finding.change.line == 21


def test_a_loop_that_runs_in_two_phases_is_one(build: Any) -> None:
    twice = [
        line_of(line, runs, 21, "forward", phase)
        for phase in ("forward", "other")
        for line, runs in ((21, 49), (22, 48))
    ]

    [finding] = by_ledger(build, lines(*twice), *rows_of_loop(limit_ms=1))

    assert finding.cost_ns == round(10 * MS * 94 / 96)


def test_of_a_loop_that_needs_its_own_results_the_loop_in_it_that_does_not_is_named(build: Any) -> None:
    outer = msgspec.structs.replace(line_of(12, 10, 11, "integrate"), loop_carries=True)
    inner = msgspec.structs.replace(
        line_of(22, 48, 21, "forward"), callers=(Location(file="model.py", line=12, function="integrate"),)
    )

    [finding] = by_ledger(build, lines(outer, inner), *rows_of_loop(limit_ms=1))

    assert finding.change.line == 21
    assert "one call over the whole tensor" in finding.advice


def test_ops_of_a_function_that_only_the_loop_calls_are_the_loops(build: Any) -> None:
    inner = msgspec.structs.replace(
        line_of(50, 48, None, "update"), callers=(Location(file="model.py", line=22, function="forward"),)
    )
    elsewhere = msgspec.structs.replace(inner, callers=(*inner.callers, Location(file="train.py", line=9)))
    loop = line_of(22, 48, 21, "forward")
    at = Location(file="model.py", line=50, function="update", owner="user")
    rows = [msgspec.structs.replace(row, at=at if row.at is not None else None) for row in rows_of_loop(limit_ms=1)]

    [finding] = by_ledger(build, lines(loop, inner), *rows)

    assert (finding.spent.line, finding.spent.function) == (21, "forward")
    assert by_ledger(build, lines(loop, elsewhere), *rows) == []


def test_a_loop_over_modules_and_one_of_few_iterations_are_none(build: Any) -> None:
    calls = (ModuleCalls(module="Conv1d", calls=48, host_ns=MS),)
    over_modules = msgspec.structs.replace(line_of(22, 48, 21, "forward"), modules=calls)

    assert by_ledger(build, lines(over_modules), *rows_of_loop(limit_ms=1)) == []
    assert by_ledger(build, lines(line_of(22, 6, 21, "forward")), *rows_of_loop(limit_ms=1)) == []


def test_a_loop_of_steps_of_lbfgs_that_repeat_an_evaluation_is_none(build: Any) -> None:
    traced = lines(line_of(22, 48, 21, "forward"))
    steps = RepeatedClosure(
        file="model.py", line=22, function="forward", owner="user", steps=24, compared=23, again=23, calls=48,
        ended_by_max_eval=0, host_ns=MS, of_ns=2 * MS, max_iter=1, max_eval=20, share=1.0,
    )  # fmt: skip

    assert by_ledger(build, traced, *rows_of_loop(limit_ms=1))
    of_closures = msgspec.structs.replace(traced, repeated_closures=(steps,))
    assert by_ledger(build, of_closures, *rows_of_loop(limit_ms=1)) == []


def test_a_recurrence_written_by_hand_is_found_and_one_with_attention_a_rollout_or_a_generation_is_not(
    build: Any,
) -> None:
    layer = (ModuleCalls(module="Linear", calls=48, host_ns=MS),)
    step_by_step = msgspec.structs.replace(line_of(22, 48, 21, "GRU.forward"), modules=layer)
    rows = rows_of_loop(limit_ms=1)
    backward = msgspec.structs.replace(rows[0], name="AddmmBackward0", phase="backward", ns=MS, limit_ns=None)
    attends = msgspec.structs.replace(rows[1], name="aten::softmax", ns=MS)

    [finding] = by_ledger(build, lines(step_by_step), *rows, backward)

    assert (finding.change.line, finding.cost_ns) == (21, round(11 * MS * 47 / 48))
    assert "nn.GRU" in finding.advice
    assert by_ledger(build, lines(step_by_step), *rows) == []
    assert by_ledger(build, lines(step_by_step), *rows, backward, attends) == []
    rollout = msgspec.structs.replace(step_by_step, function="main")
    assert by_ledger(build, lines(rollout), *rows, backward) == []
    over_layers = msgspec.structs.replace(
        step_by_step, modules=tuple(msgspec.structs.replace(layer[0], calls=1) for _ in range(48))
    )
    assert by_ledger(build, lines(over_layers), *rows, backward) == []


def test_a_recurrence_with_a_layer_of_its_input_is_one_and_a_loop_over_parts_is_not(build: Any) -> None:
    cell = ModuleCalls(module="Linear", calls=48, host_ns=3 * MS)
    of_input = ModuleCalls(module="Linear", calls=48, host_ns=MS, sliced=True)
    rows = rows_of_loop(limit_ms=1)
    backward = msgspec.structs.replace(rows[0], name="AddmmBackward0", phase="backward", ns=MS, limit_ns=None)

    def found(*calls: ModuleCalls) -> list[Finding]:
        loop = msgspec.structs.replace(line_of(22, 48, 21, "GRU.forward"), modules=calls)
        return by_ledger(build, lines(loop), *rows, backward)

    [finding] = found(of_input, cell)

    assert "nn.GRU" in finding.advice
    assert found(of_input, msgspec.structs.replace(cell, sliced=True)) == []


def test_the_cost_of_a_loop_is_wall_time_where_other_programs_had_the_core(build: Any) -> None:
    others = LedgerRow(owner="other programs", name="waiting for a core", ns=20 * MS)

    [finding] = by_ledger(build, lines(line_of(22, 48, 21, "forward")), *rows_of_loop(1), others, others_ms=20)

    assert finding.cost_ns == pytest.approx(2 * 10 * MS * 47 / 48, rel=0.01)


def test_a_loop_that_makes_the_inputs_and_one_of_python_are_left_to_the_rules_on_those(build: Any) -> None:
    makes = msgspec.structs.replace(line_of(22, 48, 21, "forward"), before_model=True)
    at = Location(file="model.py", line=22, function="forward", owner="user")
    python = LedgerRow(owner="python", name="outside ops", ns=9 * MS, phase="forward", at=at)
    first, overhead, _ = rows_of_loop(limit_ms=0.1)
    few = msgspec.structs.replace(first, ns=2 * MS, limit_ns=MS // 10)

    assert by_ledger(build, lines(makes), *rows_of_loop(limit_ms=1)) == []
    assert by_ledger(build, lines(line_of(22, 48, 21, "forward")), few, overhead, python) == []


def test_the_advice_for_a_loop_that_needs_its_own_results_is_to_compile_it(build: Any) -> None:
    loop = msgspec.structs.replace(line_of(12, 100, 11), loop_carries=True)
    other = msgspec.structs.replace(line_of(22, 48, 21, "forward"), loop_carries=True)

    [repeated] = build.findings(many_small_ops, build.step(20, forward=20), ops(repeat()), lines(loop))
    [slow] = by_ledger(build, lines(other), *rows_of_loop(limit_ms=1))

    for finding in (repeated, slow):
        assert "torch.compile" in finding.advice
        assert "one call over the whole tensor" not in finding.advice


def at_lines(**ns_at: int) -> StepWork:
    """Time of ``aten::mul`` below lines: ``line_12=MS``."""
    rows = [
        OpWorkTime(
            op="aten::mul", phase="forward", ns=ns, calls=100, ops=100,
            at=Location(file="model.py", line=int(name.removeprefix("line_")), function="mix"),
        )
        for name, ns in ns_at.items()
    ]  # fmt: skip
    return StepWork(source="stacks-0", step_ns=20 * MS, rows=tuple(rows))


def test_the_line_of_the_body_with_most_of_the_ops_is_where_the_time_passes_and_the_loop_what_to_edit(
    build: Any,
) -> None:
    calls = lines(line_of(11, 101, 11), line_of(12, 100, 11), line_of(13, 100, 11))
    step = build.step(20, forward=20)

    [one] = build.findings(many_small_ops, step, ops(repeat()), calls, at_lines(line_12=MS, line_13=3 * MS))
    [even] = build.findings(many_small_ops, step, ops(repeat()), calls, at_lines(line_12=MS, line_13=MS))
    [header] = build.findings(many_small_ops, step, ops(repeat()), calls, at_lines(line_11=3 * MS, line_13=MS))

    assert (one.spent.line, one.spent.function, one.change.line, one.change.function) == (13, "mix", 11, "mix")
    assert [(found.spent.line, found.change) for found in (even, header)] == [(11, None)] * 2


@pytest.mark.parametrize(("loop", "follows"), [(11, "attention-unfused"), (51, None)])
def test_the_busiest_line_of_a_loop_over_heads_still_belongs_to_the_attention_at_that_loop(
    build: Any, loop: int, follows: str | None
) -> None:
    calls = lines(line_of(11, 101, 11), line_of(12, 100, 11), line_of(52, 64, loop))
    attention = UnfusedAttention(
        at=Location(file="model.py", line=52, function="mix", owner="user"), ops=("aten::bmm",), shape=None,
        count=64.0, ns=30 * MS, backward_ns=0, matmuls_ns=10 * MS, matmuls_backward_ns=0, lines_ns=30 * MS,
        scores_bytes=36_864, inputs_bytes=36_864, masked=False,
    )  # fmt: skip
    patterns = build.patterns(step_ms=100, attention=(attention,))
    rules = (Rule.of(many_small_ops), Rule.of(attention_unfused))
    step = build.step(100, forward=100)
    of_loop = repeat(host_ns=40 * MS, ops=9000, op_ns=40 * MS)
    found = run_rules(rules, build.measurements(step, ops(of_loop), calls, at_lines(line_12=MS), patterns)).findings

    assert {one.rule for one in found} == {"many-small-ops", "attention-unfused"}
    [small] = [one for one in found if one.rule == "many-small-ops"]
    assert small.spent is not None
    assert small.change is not None
    assert (small.spent.line, small.change.line, small.follows) == (12, 11, follows)


def test_ops_with_the_same_names_elsewhere_in_the_step_leave_the_busiest_line_of_a_loop_as_it_is(build: Any) -> None:
    calls = lines(line_of(11, 101, 11), line_of(12, 100, 11), line_of(40, 1, None, "loss"))

    [found] = build.findings(
        many_small_ops, build.step(20, forward=20), ops(repeat()), calls, at_lines(line_12=MS, line_40=5 * MS)
    )

    assert (found.spent.line, found.change.line) == (12, 11)


def test_a_loop_whose_ops_are_in_a_function_that_it_calls_is_named_itself(build: Any) -> None:
    caller = Location(file="model.py", line=13, function="mix", owner="user")
    helper = msgspec.structs.replace(line_of(40, 100, None, "helper"), callers=(caller,))
    calls = lines(line_of(11, 101, 11), line_of(12, 100, 11), line_of(13, 100, 11), helper)
    work = at_lines(line_12=2 * MS)
    below = msgspec.structs.replace(work.rows[0], at=Location(file="model.py", line=40, function="helper"), ns=3 * MS)
    work = msgspec.structs.replace(work, rows=(*work.rows, below))

    [found] = build.findings(many_small_ops, build.step(20, forward=20), ops(repeat()), calls, work)

    assert (found.spent.line, found.change) == (11, None)


def test_of_a_loop_of_different_ops_too_the_busiest_line_is_where_the_time_passes(build: Any) -> None:
    first, overhead, *rest = rows_of_loop(limit_ms=1)
    at = Location(file="model.py", line=23, function="forward", owner="user")
    loop = lines(line_of(21, 49, 21, "forward"), line_of(22, 48, 21, "forward"), line_of(23, 48, 21, "forward"))

    [one] = by_ledger(build, loop, first, overhead, *rest)
    [even] = by_ledger(build, loop, first, overhead, msgspec.structs.replace(first, at=at, ns=10 * MS), *rest)

    assert (one.spent.line, one.change.line) == (22, 21)
    assert (even.spent.line, even.change) == (21, None)
