"""unfused-optimizer: one that updates parameter by parameter; a fused or memory-limited one is not reported."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit._location import Location
from perfkit.measures.results.patterns import EmbeddingGradient, OptimizerUpdate
from perfkit.measures.results.work import OpShares, OpWorkTime, StepWork
from perfkit.rules.ops import unfused_optimizer
from perfkit.run.records import MachineLimits, OptimizerFacts
from tests.made_limits import made_limits

MS = 1_000_000


def update(**fields: Any) -> OptimizerUpdate:
    """Adam over 160 parameters: 2,000 ops in 40 ms on the host."""
    defaults: dict[str, Any] = {
        "name": "Adam",
        "host_ns": 40 * MS,
        "ops": 2000.0,
        "foreach": 0.0,
        "fused": 0.0,
        "op_ns": 10 * MS,
        "at": Location(file="train.py", line=37, function="main"),
    }
    return OptimizerUpdate(**defaults | fields)


def facts(tensors: int, elements: int, kind: str = "Adam") -> OptimizerFacts:
    return OptimizerFacts(kind=kind, tensors=tensors, elements=elements, dtypes=("float32",))


def machine(op_ns: int = 1000, gb_per_s: float = 10) -> MachineLimits:
    return made_limits(bytes_per_s=gb_per_s * 1e9, op_ns=op_ns)


def test_a_fused_update_keeps_an_overhead_for_each_tensor_and_one_pass_over_memory(build: Any) -> None:
    patterns = build.patterns(step_ms=100, updates=(update(),))
    rank = build.rank(optimizers=(facts(tensors=160, elements=1_000_000),))

    [finding] = build.findings(unfused_optimizer, build.step(100), patterns, rank, machine())

    # Python between the ops takes 30 ms of 40, so that one of the 2,000 costs 15 µs, and 1 µs in torch.
    overhead = 16_000 * (12 + 1.6 * 160)
    # Adam reads parameters, gradients and two states of 4 MB, and writes all but the gradients.
    passes = 7 * 4 * MS / 10
    assert finding.saving_high_ns == pytest.approx(40 * MS - overhead - passes, rel=0.001)
    assert finding.saving_low_ns == pytest.approx(40 * MS - 2 * (overhead + passes), rel=0.001)
    assert (finding.spent.file, finding.spent.line) == ("train.py", 37)
    assert finding.advice == "torch.optim.Adam(..., fused=True)."


def test_it_is_information_where_sparse_gradients_of_most_elements_change_no_result(build: Any) -> None:
    table = EmbeddingGradient(rows=40_000, columns=20, looked_up=500.0, ns=MS)
    one = msgspec.structs.replace(facts(tensors=160, elements=1_000_000, kind="SGD"), sparse_is_exact=True)

    def severity(fact: OptimizerFacts, *tables: EmbeddingGradient) -> str:
        patterns = build.patterns(step_ms=100, updates=(update(name="SGD"),), tables=tables)
        [finding] = build.findings(
            unfused_optimizer, build.step(100), patterns, build.rank(optimizers=(fact,)), machine()
        )
        return str(finding.severity)

    assert severity(one, table) == "info"
    assert severity(one) == "critical"
    assert severity(msgspec.structs.replace(one, sparse_is_exact=False), table) == "critical"
    assert severity(msgspec.structs.replace(one, elements=2_000_000), table) == "critical"


def test_long_ops_on_large_tables_are_reported_where_memory_allows_a_faster_update(build: Any) -> None:
    patterns = build.patterns(step_ms=100, updates=(update(host_ns=80 * MS, ops=54.0, op_ns=79 * MS),))

    def saved(gb_per_s: float) -> int:
        rank = build.rank(optimizers=(facts(tensors=6, elements=3_000_000),))
        found = build.findings(unfused_optimizer, build.step(100), patterns, rank, machine(gb_per_s=gb_per_s))
        return sum(finding.saving_low_ns for finding in found)

    assert saved(gb_per_s=40) > 70 * MS
    assert saved(gb_per_s=1.5) == 0


def test_without_limits_the_time_in_ops_may_remain(build: Any) -> None:
    patterns = build.patterns(step_ms=100, updates=(update(),))

    [finding] = build.findings(unfused_optimizer, build.step(100), patterns)

    assert finding.saving_low_ns < 30 * MS


def test_the_phase_timed_by_the_step_clock_is_used_before_the_recording(build: Any) -> None:
    patterns = build.patterns(step_ms=100, updates=(update(), update(name="SGD", host_ns=10 * MS, ops=2.0)))
    shares = OpShares(shares={"optimizer": 0.5})

    [finding] = build.findings(unfused_optimizer, build.step(100, forward=40, optimizer=60), patterns, shares)

    # Adam takes 40 of the 50 ms in the recording, so 48 of the 60 ms; half of it, 24 ms, is in 2,000 ops.
    assert finding.saving_high_ns == 48 * MS - 12 * 12_000


def test_a_class_without_fused_form_is_given_lists(build: Any) -> None:
    patterns = build.patterns(step_ms=100, updates=(update(name="RMSprop"),))

    [finding] = build.findings(unfused_optimizer, build.step(100), patterns)

    assert finding.advice == "torch.optim.RMSprop(..., foreach=True)."
    # The 2,000 ops themselves take 10 ms: of each 250 to 750 ns are saved beside the Python around it.
    assert (finding.saving_low_ns, finding.saving_high_ns) == (30_500_000, 31_500_000)


def test_lists_of_large_tensors_save_nothing(build: Any) -> None:
    large = update(name="RMSprop", ops=120.0, op_ns=38 * MS)

    assert not build.findings(unfused_optimizer, build.step(100), build.patterns(step_ms=100, updates=(large,)))


def test_a_recording_lengthens_the_python_around_the_ops_and_not_the_ops(build: Any) -> None:
    patterns = build.patterns(step_ms=100, updates=(update(name="RMSprop"),))
    shares = OpShares(shares={"optimizer": 0.5}, phases_ns={"optimizer": 60 * MS})

    [finding] = build.findings(unfused_optimizer, build.step(100, optimizer=40), patterns, shares, machine(op_ns=1000))

    # 30 of the recorded 60 ms are in ops, and of the 40 ms that the update takes too; 1 to 3 of them are saved.
    assert (finding.saving_low_ns, finding.saving_high_ns) == (11 * MS, 13 * MS)


@pytest.mark.parametrize("name", ["LBFGS", "SparseAdam", "Adafactor"])
def test_nothing_is_advised_where_there_is_no_faster_form(build: Any, name: str) -> None:
    assert build.findings(unfused_optimizer, build.step(100), build.patterns(updates=(update(name=name),))) == []


def test_no_fused_update_is_advised_for_sparse_gradients(build: Any) -> None:
    patterns = build.patterns(step_ms=100, updates=(update(),))
    row = OpWorkTime(op="aten::coalesce", phase="optimizer", ns=MS, calls=1, ops=1)
    work = StepWork(source="window", step_ns=100 * MS, rows=(row,))

    assert build.findings(unfused_optimizer, build.step(100), patterns, work) == []


def test_a_custom_optimizer_is_reported_at_its_loop(build: Any) -> None:
    body = Location(file="train.py", line=34, function="Lion.step")
    patterns = build.patterns(step_ms=100, updates=(update(name="Lion", body=body),))
    lines = build.loop("train.py", line=34, loop_line=30, runs=200)

    [finding] = build.findings(unfused_optimizer, build.step(100), patterns, lines)

    assert (finding.spent.line, finding.spent.function) == (30, "Lion.step")
    assert "lists of tensors" in finding.advice


def lists_of_adam(**fields: Any) -> OptimizerUpdate:
    """Eight ops over lists, whose kernels take 40 ms."""
    return update(**{"ops": 9.0, "foreach": 8.0, "op_ns": MS, "device_ns": 40 * MS, "kernels": 90.0, **fields})


def test_on_a_device_each_op_over_lists_is_a_pass_over_memory_and_a_fused_update_is_one(build: Any) -> None:
    device = build.device(1000, compute=990)

    [finding] = build.findings(
        unfused_optimizer, build.traced_step(100), build.patterns(updates=(lists_of_adam(),)), device
    )

    assert (finding.saving_low_ns, finding.saving_high_ns) == (16 * MS, 26 * MS)
    assert "each a pass over the memory of all parameters" in finding.message
    assert finding.advice == "torch.optim.Adam(..., fused=True)."


def made(line: int, elements: int, *, foreach: bool | None = None) -> OptimizerFacts:
    at = Location(file="train.py", line=line, function="Adam(...)")
    return msgspec.structs.replace(facts(160, elements), created_at=at, foreach=foreach)


def test_each_of_two_updates_of_lists_is_changed_where_its_own_optimizer_is_made(build: Any) -> None:
    updates = lists_of_adam(device_ns=20 * MS), lists_of_adam(device_ns=40 * MS)
    rank = build.rank(optimizers=(made(10, 4_000), made(11, 2_000)))
    device = build.device(1000, compute=990)

    found = build.findings(unfused_optimizer, build.traced_step(100), build.patterns(updates=updates), device, rank)

    assert [(finding.saving_high_ns // MS, finding.change.line) for finding in found] == [(13, 11), (26, 10)]


@pytest.mark.parametrize(("foreach", "advised"), [(None, "fused=True)."), (True, "fused=True, foreach=False).")])
def test_a_fused_update_is_not_advised_beside_lists_that_were_asked_for(
    build: Any, foreach: bool | None, advised: str
) -> None:
    rank = build.rank(optimizers=(made(10, 4_000, foreach=foreach),))
    patterns, device = build.patterns(updates=(lists_of_adam(),)), build.device(1000, compute=990)

    [finding] = build.findings(unfused_optimizer, build.traced_step(100), patterns, device, rank)

    assert finding.advice.endswith(advised)


def test_single_ops_beside_one_over_lists_are_no_passes(build: Any) -> None:
    patterns = build.patterns(updates=(update(foreach=1.0, device_ns=40 * MS, kernels=2000.0),))

    device = build.device(1000, compute=700, causes={"optimizer": 200})

    [finding] = build.findings(unfused_optimizer, build.traced_step(100), patterns, device)

    assert "pass over the memory" not in finding.message


@pytest.mark.parametrize(
    "other",
    [
        {"name": "SGD"},
        {"name": "RMSprop"},
        {"fused": 1.0},
        {"body": Location(file="train.py", line=34, function="Lion.step")},
        {"device_ns": 8 * MS},
    ],
    ids=["one op may be all", "no fused form", "fused", "one of the user's", "a small part of the step"],
)
def test_other_updates_of_lists_on_a_device_are_left_alone(build: Any, other: dict[str, Any]) -> None:
    patterns = build.patterns(updates=(lists_of_adam(**other),))

    assert build.findings(unfused_optimizer, build.traced_step(100), patterns, build.device(1000, compute=990)) == []


def test_on_a_cpu_lists_are_not_fused(build: Any) -> None:
    patterns = build.patterns(step_ms=100, updates=(lists_of_adam(device_ns=None, kernels=None),))

    assert build.findings(unfused_optimizer, build.step(100), patterns) == []


def test_on_a_device_it_costs_the_time_that_the_device_waits_for_it(build: Any) -> None:
    patterns = build.patterns(updates=(update(device_ns=4 * MS, kernels=2000.0),))
    device = build.device(1000, compute=700, causes={"optimizer": 200, "data loading": 100})

    [finding] = build.findings(unfused_optimizer, build.traced_step(100), patterns, device)

    # Of 20 ms of idle time 1 to 4 remain, of 4 ms of kernels 0.8 to 4.
    assert (finding.saving_low_ns, finding.saving_high_ns) == (16 * MS, round(22.2 * MS))


def test_fused_list_and_short_updates_are_not_reported(build: Any) -> None:
    healthy = (
        update(ops=2.0, fused=1.0),
        update(ops=300.0, foreach=200.0),
        update(ops=60.0, op_ns=3 * MS, host_ns=7 * MS),
    )
    patterns = build.patterns(step_ms=100, updates=healthy)

    assert build.findings(unfused_optimizer, build.step(100), patterns) == []
    assert build.findings(unfused_optimizer, build.step(100)) == []


def test_of_two_optimizers_of_one_class_each_has_the_line_that_makes_it(build: Any) -> None:
    def made(line: int, tensors: int, **how: Any) -> OptimizerFacts:
        at = Location(file="gan.py", line=line)
        return OptimizerFacts(kind="Adam", tensors=tensors, elements=1000, dtypes=("float32",), created_at=at, **how)

    small = update(ops=100.0, host_ns=30 * MS, at=Location(file="gan.py", line=34))
    patterns = build.patterns(step_ms=100, updates=(update(), small))
    both = build.rank(optimizers=(made(20, 8), made(21, 160)))
    fused = build.rank(optimizers=(made(20, 8, fused=True), made(21, 160)))

    found = build.findings(unfused_optimizer, build.step(100), patterns, both, machine())
    [one] = build.findings(
        unfused_optimizer, build.step(100), build.patterns(step_ms=100, updates=(update(),)), fused, machine()
    )

    assert {finding.spent.line: finding.change.line for finding in found} == {37: 21, 34: 20}
    assert one.change.line == 21
