"""The ledger: each nanosecond of the step has one owner, and nothing is claimed twice."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from perfkit._location import Location
from perfkit.findings import Finding
from perfkit.ledger.claims import claim
from perfkit.ledger.ledger import ClaimedLedger, Ledger
from perfkit.ledger.rows import LedgerRow, Selector, apportion
from perfkit.measures.results.host import HostLine, HostWork
from perfkit.measures.results.kernels import Roofline, RooflinePoint
from perfkit.measures.results.measurements import Measurements
from perfkit.measures.results.steps import Ranks, TypicalStep
from perfkit.measures.results.work import OpShares, OpWorkTime, StepWork
from perfkit.run.records import PHASES, CallOverhead, MachineLimits, Phases, Rate, Waits

MS = 1_000_000
RATES = {"float32": (Rate(1000, 1e10),)}
LIMITS = MachineLimits(
    method=1,
    host="h",
    cpu="a CPU",
    torch="2.13.0",
    threads=1,
    measured_at_ns=0,
    disturbed=False,
    products=RATES,
    convolutions=RATES,
    functions={},
    bandwidth={"copy": (Rate(1000, 1e10),), "update": (Rate(1000, 1e10),)},
    op_ns=2000,
    node_ns=1000,
)

#: The same, with what calls cost in ns where ops touch 1 MB and 4 MB between them.
COLD = msgspec.structs.replace(
    LIMITS,
    overheads={
        name: (CallOverhead(2**20, warm), CallOverhead(2**22, cold))
        for name, (warm, cold) in {"op": (2e3, 2e4), "call": (0, 3e4), "inner": (1e3, 4e3)}.items()
    },
)


def at(line: int, function: str = "train_step") -> Location:
    return Location(file="train.py", line=line, function=function)


def step(wall: float, **phases: float) -> TypicalStep:
    wall_ns = round(wall * MS)
    return TypicalStep(
        steps=40,
        wall_ns=wall_ns,
        median_ns=wall_ns,
        p10_ns=wall_ns,
        p90_ns=wall_ns,
        phases_ns=Phases(**{name: round(ms * MS) for name, ms in phases.items()}),
        source="steps.jsonl, 40 steps",
    )


def op(name: str, ms: float, phase: Any = "forward", gflops: float | None = None, **fields: Any) -> OpWorkTime:
    known = {"flops": round(gflops * 1e9), "bytes": 8, "precision": "float32", "kind": "matmul"} if gflops else {}
    usual: dict[str, Any] = {"calls": 1, "ops": 1, "at": at(7), **known}
    return OpWorkTime(op=name, phase=phase, ns=round(ms * MS), **(usual | fields))


def work(*ops: OpWorkTime, step_ms: float = 100) -> StepWork:
    return StepWork(source="stacks-0", step_ns=round(step_ms * MS), rows=ops)


def ledger_of(*results: Any) -> Ledger:
    found = Ledger.from_measurements(Measurements("runs/x", *results))
    assert found is not None
    return found


def problem(rule: str, cost_ms: float, line: int | None = None, **fields: Any) -> Finding:
    cost = round(cost_ms * MS)
    return Finding(
        rule=rule,
        severity="warning",
        message="",
        advice="",
        spent=at(line) if line is not None else None,
        cost_ns=cost,
        saving_low_ns=0,
        saving_high_ns=cost,
        **fields,
    )


def check_sums(claimed: ClaimedLedger) -> None:
    step_ledger = claimed.ledger
    assert sum(row.ns for row in step_ledger.rows) == step_ledger.wall_ns
    parts = (claimed.claimed_ns, claimed.at_limit_ns, claimed.overhead_ns, claimed.unexplained_ns)
    assert sum(parts) == step_ledger.wall_ns
    assert all(account.claimed_ns <= account.row.ns for account in claimed.accounts())
    assert all(row.limit_ns is None or 0 <= row.limit_ns <= row.ns for row in step_ledger.rows)


@pytest.mark.parametrize("seed", range(200))
def test_claimed_and_limit_and_overhead_and_unexplained_are_the_step_exactly(seed: int, build: Any) -> None:
    draw = random.Random(seed)
    results: list[Any] = []
    names = draw.sample(PHASES, draw.randint(0, len(PHASES)))
    if names or draw.random() < 0.5:
        phases = {name: draw.randint(0, 10**9) for name in names}
        wall_ns = max(1, sum(phases.values()) + draw.choice([0, 0, draw.randint(-5, 10**6)]))
        plain = step(1)
        results.append(
            TypicalStep(
                steps=3,
                wall_ns=wall_ns,
                median_ns=wall_ns,
                p10_ns=wall_ns,
                p90_ns=wall_ns,
                phases_ns=Phases(**phases),
                source=plain.source,
            )
        )
    on_device = not results or draw.random() < 0.4
    if on_device:
        causes = {draw.choice(["sync", "python", "operators", "data loading"]): draw.uniform(0, 500)}
        results.append(
            build.device(1000, compute=draw.uniform(0, 400), exposed_copy=draw.uniform(0, 90), causes=causes)
        )
    if draw.random() < 0.7:
        kinds: list[Any] = ["forward", "backward", "optimizer", "data", "other"]
        ops = [op(f"aten::{n}", draw.uniform(0, 50), draw.choice(kinds), draw.choice([None, 0.1, 5])) for n in range(9)]
        results += [work(*ops, step_ms=draw.uniform(1, 400))]
    if draw.random() < 0.5:
        results.append(OpShares(shares={name: draw.random() for name in names}))
    if draw.random() < 0.5:
        results.append(draw.choice([LIMITS, COLD]))
    if draw.random() < 0.5:
        line = HostLine(file="train.py", line=3, function="f", phase="other", samples=9, host_ns=draw.randint(0, 10**9))
        results.append(HostWork(kind="python", samples=9, total_samples=90, host_ns=line.host_ns, lines=(line,)))
    rules = ["a", "b", "c", "d"]
    findings = [problem(draw.choice(rules), draw.uniform(0, 1500), draw.choice([None, 3, 7])) for _ in range(6)]
    selectors = {"a": (Selector(owner="computing"),), "b": None, "c": (), "d": (Selector(phase="other"),)}

    claimed, left = claim(ledger_of(*results), findings, selectors)

    check_sums(claimed)
    paying = [one for one in left if one.follows is None and selectors[one.rule] != ()]
    # Each was rounded once when it shrank.
    assert sum(min(one.cost_ns or 0, claimed.ledger.wall_ns) for one in paying) <= claimed.ledger.wall_ns + len(paying)


@pytest.mark.parametrize(
    ("total", "weights"), [(10, [1, 1, 1]), (7, [0, 0, 5]), (0, [3, 4]), (10**18 + 1, [1e-9, 7, 2])]
)
def test_apportioned_parts_sum_to_the_whole(total: int, weights: list[float]) -> None:
    parts = apportion(total, weights)

    assert sum(parts) == total
    assert all(part >= 0 for part in parts)


def test_an_op_has_its_overhead_and_its_limit_apart() -> None:
    rows = ledger_of(
        step(100, forward=100), work(op("aten::mm", 100, gflops=0.6)), OpShares(shares={"forward": 1.0}), LIMITS
    ).rows

    assert [(row.owner, row.ns) for row in rows] == [("computing", 99_998_000), ("op overhead", 2_000)]
    assert rows[0].limit_ns == 60 * MS
    assert rows[0].at == at(7)


def test_what_starting_ops_costs_is_overhead_and_more_where_ops_take_the_caches() -> None:
    def parts(megabytes: float) -> tuple[float, float, float, float]:
        size = round(megabytes * 2**20)
        forward = op("aten::linear", 1, ops=4, outermost=1, bytes=size)
        backward = op("aten::mm", 1, "backward", ops=4, outermost=1, bytes=size)
        outside = OpShares(shares={"forward": 0.5, "backward": 1.0})
        found = ledger_of(step(4, forward=2, backward=2), work(forward, backward, step_ms=2), outside, COLD)
        claimed, _ = claim(found, [], {})
        overheads = {row.phase: row.ns / 1e3 for row in found.rows if row.owner == "op overhead"}
        [python] = [(row.limit_ns or 0) / 1e3 for row in found.rows if row.name == "outside ops"]
        check_sums(claimed)
        return overheads["forward"], overheads["backward"], python, claimed.overhead_ns / 1e3

    # An op from Python and three that it calls; four of the backward; and Python. Python's may take twice as long.
    assert parts(0.1) == pytest.approx((2 + 3 * 1, 4 * 1, 0, 9))
    assert parts(8) == pytest.approx((20 + 3 * 4, 4 * 4, 30, 2 * (32 + 16 + 30) - 48))


def test_a_step_of_which_a_quarter_is_overhead_is_not_proven_healthy() -> None:
    def is_healthy(overhead_ms: int) -> bool:
        ns = overhead_ms * MS
        started = LedgerRow(owner="op overhead", name="aten::add", ns=ns, limit_ns=ns, bound="overhead")
        claimed, _ = claim(rows_ledger(COMPUTE, started), [], {})
        assert claimed.overhead_ns == ns
        assert claimed.limit_share == claim(rows_ledger(COMPUTE), [], {})[0].limit_share
        return claimed.is_at_limit

    assert is_healthy(20)
    assert not is_healthy(30)


@pytest.mark.parametrize(("others_ms", "healthy"), [(0, True), (49, True), (51, False)])
def test_nothing_is_proven_of_a_step_of_which_others_had_most(others_ms: int, healthy: bool) -> None:
    own_ns = (100 - others_ms) * MS
    compute = msgspec.structs.replace(COMPUTE, ns=own_ns, limit_ns=own_ns)
    others = LedgerRow(owner="other programs", name="waiting for a core", ns=others_ms * MS)

    claimed, _ = claim(rows_ledger(compute, others), [], {})

    assert claimed.is_at_limit == healthy


def test_steps_that_ran_no_op_where_the_typical_step_trains_have_no_known_limits() -> None:
    typical, recorded = step(100, forward=40, backward=50, other=10), work(op("aten::mm", 60, "other", gflops=0.6))

    found = ledger_of(typical, recorded, OpShares(shares={"other": 1.0}), LIMITS)

    assert found.unknown is not None
    assert found.unknown.startswith("the recorded steps are of another loop than most of the run")
    assert found.limits is None
    assert ledger_of(typical, work(op("aten::mm", 60, "backward", gflops=0.6)), LIMITS).unknown is None


def test_time_outside_of_ops_belongs_to_the_sampled_lines() -> None:
    line = HostLine(file="train.py", line=3, function="f", phase="forward", samples=30, host_ns=25 * MS)
    python = HostWork(kind="python", samples=30, total_samples=90, host_ns=25 * MS, lines=(line,))

    rows = ledger_of(
        step(100, forward=100), work(op("aten::mm", 60)), OpShares(shares={"forward": 0.6}), LIMITS, python
    ).rows

    assert [(row.owner, row.name, row.ns, row.at and row.at.line) for row in rows if row.owner == "python"] == [
        ("python", "python", 25 * MS, 3),
        ("python", "outside ops", 15 * MS, None),
    ]


def window(**phases: tuple[float, float]) -> OpShares:
    """The share of a phase in ops in the window, and its time there in ms."""
    return OpShares(
        shares={name: share for name, (share, _) in phases.items()},
        phases_ns={name: round(ms * MS) for name, (_, ms) in phases.items()},
    )


def outside_ops(*results: Any) -> int:
    """Time of the forward outside of ops, in ms."""
    rows = ledger_of(work(op("aten::mm", 60), op("aten::mm", 60, "backward")), LIMITS, *results).rows
    return round(sum(row.ns for row in rows if row.owner == "python" and row.phase == "forward") / MS)


def test_what_recording_adds_outside_of_ops_is_no_python_of_the_step(build: Any) -> None:
    typical = step(100, forward=40, backward=60)

    # 36 ms of the forward were in ops, on a machine as fast as in the other steps; as fast as half; and twice as fast.
    assert outside_ops(typical, window(forward=(0.6, 60), backward=(1.0, 60))) == 4
    assert outside_ops(typical, window(forward=(0.6, 60), backward=(1.0, 120))) == 16
    assert outside_ops(typical, window(forward=(0.6, 30), backward=(1.0, 30))) == 4


def test_python_that_was_sampled_in_other_steps_stays_and_so_do_shares_whose_speed_is_not_known(build: Any) -> None:
    typical = step(100, forward=40, backward=60)
    line = HostLine(file="train.py", line=3, function="f", phase="forward", samples=30, host_ns=10 * MS)
    python = HostWork(kind="python", samples=30, total_samples=90, host_ns=10 * MS, lines=(line,))

    assert outside_ops(typical, window(forward=(0.6, 60), backward=(1.0, 60)), python) == 10
    assert outside_ops(typical, OpShares(shares={"forward": 0.6, "backward": 1.0})) == 16
    assert outside_ops(step(100, forward=40), window(forward=(0.6, 60))) == 40


def test_time_without_a_core_is_of_other_programs_and_no_proof_against_the_step(build: Any) -> None:
    rows = ledger_of(
        step(100, forward=100),
        work(op("aten::mm", 100, gflops=0.5)),
        OpShares(shares={"forward": 1.0}),
        LIMITS,
        build.rank(core_wait_share=0.5, thread_ns_per_step=60 * MS),
    )
    claimed, _ = claim(rows, [], {})

    assert [(row.owner, round(row.ns / MS)) for row in rows.rows][:2] == [("computing", 60), ("other programs", 40)]
    assert claimed.is_at_limit


def test_time_in_collectives_is_communication_and_waiting_for_ranks_and_no_computing() -> None:
    blocked = msgspec.structs.replace(
        step(100, forward=40, backward=60), waited_phases_ns=Waits(forward=10 * MS, backward=40 * MS)
    )
    late = Ranks(steps=60, wall_ns=100 * MS, waiting_ns=0, ranks=(), blocked_ns=30 * MS, transfer_ns=10 * MS)
    usual = (work(op("aten::mm", 40, gflops=0.5)), OpShares(shares={"forward": 0.6, "backward": 1.0}), LIMITS)

    def owners(*more: Any) -> dict[str, int]:
        sums: dict[str, int] = {}
        for row in ledger_of(blocked, *usual, *more).rows:
            sums[row.owner] = sums.get(row.owner, 0) + round(row.ns / MS)
        return sums

    # Of the 50 ms in collectives the rank that waits least has 10.
    assert owners(late) | {"waiting for ranks": 40, "communication": 10} == owners(late)
    assert owners()["communication"] == 50
    assert sum(owners().values()) == 100


def test_a_cost_in_wall_time_claims_its_rows_and_the_time_without_a_core() -> None:
    others = LedgerRow(owner="other programs", name="waiting for a core", ns=40 * MS)

    claimed, _ = claim(rows_ledger(COMPUTE, others, IDLE), [problem("a", 50)], {"a": (Selector(owner="idle"),)})

    assert [(one.row, one.ns // MS) for one in claimed.claims] == [(2, 30), (1, 20)]


def test_without_shapes_no_limit_is_known_and_nothing_is_proven() -> None:
    claimed, _ = claim(ledger_of(step(100, forward=60, backward=40), LIMITS), [], {})

    assert claimed.ledger.unknown == "the shapes of ops were not recorded"
    assert claimed.unexplained_ns == 100 * MS
    assert not claimed.is_at_limit


def test_a_device_is_accounted_by_its_kernels_and_its_idle_causes(build: Any) -> None:
    device = build.device(1000, compute=700, exposed_copy=50, exposed_communication=50, causes={"sync": 200})
    point = RooflinePoint(
        op="aten::mm",
        shapes="8x8",
        precision="float32",
        count=10,
        device_ns=700 * MS,
        flops=1,
        bytes=1,
        intensity=1.0,
        flops_per_s=1.0,
        bytes_per_s=1.0,
        compute_share=0.8,
        memory_share=0.1,
        bound="compute",
        confidence="high",
    )
    placed = Roofline(device=0, name="A100", steps=10, device_ns=700 * MS, time_ns={}, points=(point,))

    rows = ledger_of(device, placed).rows

    assert {(row.owner, row.name): row.ns // MS for row in rows} == {
        ("computing", "aten::mm 8x8"): 700,
        ("idle", "sync"): 200,
        ("copies", "copies"): 50,
        ("communication", "transfer"): 50,
    }
    assert rows[0].limit_ns == 560 * MS
    assert rows[0].bound == "arithmetic"


def rows_ledger(*rows: LedgerRow) -> Ledger:
    return Ledger(wall_ns=sum(row.ns for row in rows), per="step", basis="training thread", rows=rows)


IDLE = LedgerRow(owner="idle", name="sync", ns=30 * MS)
COMPUTE = LedgerRow(owner="computing", name="aten::mm", ns=70 * MS, phase="forward", at=at(7), limit_ns=50 * MS)


def test_a_finding_claims_the_rows_at_its_line_first() -> None:
    other = LedgerRow(owner="computing", name="aten::add", ns=70 * MS, phase="forward", at=at(9))

    claimed, _ = claim(rows_ledger(COMPUTE, other), [problem("a", 50, line=9)], {"a": (Selector(owner="computing"),)})

    assert [(one.row, one.ns) for one in claimed.claims] == [(1, 50 * MS)]


def test_of_two_findings_about_the_same_time_the_smaller_follows_the_larger() -> None:
    selectors = {name: (Selector(owner="idle"),) for name in ("a", "b")}

    claimed, (first, second) = claim(rows_ledger(IDLE, COMPUTE), [problem("a", 20), problem("b", 29)], selectors)

    assert (first.follows, second.follows) == ("b", None)
    assert claimed.claimed_ns == 29 * MS


def test_a_finding_keeps_what_others_left_of_its_rows() -> None:
    selectors = {"a": (Selector(owner="idle"), Selector(owner="computing")), "b": (Selector(owner="computing"),)}

    _, (first, second) = claim(rows_ledger(IDLE, COMPUTE), [problem("a", 60), problem("b", 65)], selectors)

    assert second.cost_ns == 65 * MS
    assert first.cost_ns == first.saving_high_ns == 35 * MS


def test_a_general_cause_keeps_what_others_leave_though_it_would_save_more() -> None:
    selectors = {name: (Selector(owner="idle"),) for name in ("general", "a")}

    claimed, (general, specific) = claim(
        rows_ledger(IDLE, COMPUTE), [problem("general", 30), problem("a", 10)], selectors, {"general"}
    )

    assert (general.cost_ns, specific.cost_ns) == (20 * MS, 10 * MS)
    assert general.follows is None
    assert claimed.claimed_ns == 30 * MS


def test_the_rows_of_a_first_selector_are_claimed_before_those_of_the_next() -> None:
    selectors = {"a": (Selector(owner="computing"), Selector(owner="idle"))}

    claimed, _ = claim(rows_ledger(IDLE, COMPUTE), [problem("a", 75)], selectors)

    assert [(one.row, one.ns) for one in claimed.claims] == [(1, 70 * MS), (0, 5 * MS)]


def test_a_finding_that_follows_another_claims_nothing() -> None:
    claimed, _ = claim(rows_ledger(IDLE, COMPUTE), [problem("a", 20, follows="b"), problem("b", 25)], {})

    assert claimed.claimed_ns == 25 * MS


def test_a_rare_cost_claims_nothing_of_the_typical_step() -> None:
    claimed, (finding,) = claim(rows_ledger(IDLE, COMPUTE), [problem("a", 500)], {"a": ()})

    assert claimed.claimed_ns == 0
    assert finding.cost_ns == 500 * MS


def test_a_step_near_its_limit_with_little_unexplained_is_proven_healthy() -> None:
    rest = LedgerRow(owner="python", name="outside ops", ns=10 * MS, phase="other")

    healthy, _ = claim(rows_ledger(COMPUTE, rest), [], {})
    idle, _ = claim(rows_ledger(COMPUTE, IDLE), [], {})
    unquantified = Finding(rule="sync-in-step", severity="warning", message="", advice="")
    unknown, _ = claim(rows_ledger(COMPUTE, rest), [unquantified], {})

    assert healthy.is_at_limit
    assert not idle.is_at_limit
    assert not unknown.is_at_limit


def test_what_a_row_takes_beyond_twice_its_limit_is_unexplained_and_nothing_turns_at_a_threshold() -> None:
    def accounts(limit: float, claimed_ms: int = 0) -> tuple[float, float]:
        row = msgspec.structs.replace(COMPUTE, limit_ns=round(limit * COMPUTE.ns))
        findings = [problem("a", claimed_ms, line=7)] if claimed_ms else []
        answer, _ = claim(rows_ledger(row), findings, {"a": (Selector(owner="computing"),)})
        assert answer.at_limit_ns + answer.unexplained_ns + answer.claimed_ns == COMPUTE.ns
        return answer.unexplained_ns / COMPUTE.ns, answer.limit_share

    assert accounts(0.5) == pytest.approx((0, 0.5))
    assert accounts(0.8) == pytest.approx((0, 0.8))
    assert accounts(0.49) == pytest.approx((0.02, 0.5))
    assert accounts(0.05) == pytest.approx((0.9, 0.5))
    # What is claimed has its part of the limit.
    assert accounts(0.25, claimed_ms=35) == pytest.approx((0.25, 0.5))


def test_the_unexplained_time_is_listed_by_place_with_its_share_of_the_limit() -> None:
    slow = LedgerRow(
        owner="computing", name="aten::mul", ns=40 * MS, phase="optimizer", at=at(58), limit_ns=2 * MS, bound="memory"
    )

    claimed, _ = claim(rows_ledger(COMPUTE, slow, IDLE), [], {})

    parts = [(part.name, part.ns // MS, part.limit_share, part.at) for part in claimed.unexplained()]
    assert parts == [("computing in optimizer", 36, 0.05, at(58)), ("idle (sync)", 30, None, None)]
