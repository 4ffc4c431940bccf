"""subnormal-numbers: what the products of a line take beyond their limit, where subnormal numbers go into them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit._location import Location
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules.ops import subnormal_numbers
from perfkit.run.records import Lines, Phase, SubnormalInputs
from tests.made_limits import made_limits

MS = 1_000_000
FILTER, OTHER = (Location(file="train.py", line=line, function="f", owner="user") for line in (28, 40))
#: 10 GFLOP/s, and nothing else takes time.
LIMITS = made_limits(flops=10e9, bytes_per_s=1e15, op_ns=0)


def lines(subnormal: int) -> Lines:
    one = SubnormalInputs(
        file="train.py", line=28, function="f", owner="user", op="aten::addmm", looked_at=10_000, subnormal=subnormal
    )
    return Lines(period_ns=MS, steps=40, subnormal_inputs=(one,))


def product(ms: float, at: Location, phase: Phase = "forward", name: str = "addmm") -> OpWorkTime:
    """Ten million operations: 1 ms at the limit."""
    return OpWorkTime(
        op=f"aten::{name}", phase=phase, ns=round(ms * MS), calls=1, ops=1, flops=10_000_000, bytes=1, kind="matmul",
        precision="float32", at=at,
    )  # fmt: skip


def work(*rows: OpWorkTime) -> StepWork:
    return StepWork(source="stacks-0", step_ns=80 * MS, rows=rows)


SLOW = work(product(6, FILTER), product(24, FILTER, "backward", "mm"), product(9, OTHER))


def test_the_products_of_the_line_cost_what_they_take_beyond_twice_their_limit(build: Any) -> None:
    [finding] = build.findings(subnormal_numbers, build.step(40, forward=20, backward=20), lines(300), SLOW, LIMITS)

    # 30 ms less 4, in a recorded step that is twice as long as an ordinary one.
    assert finding.cost_ns == pytest.approx(13 * MS)
    assert finding.saving_low_ns == pytest.approx(6.5 * MS)
    assert finding.spent == FILTER
    assert "3% of what goes into this line's ops" in finding.message
    assert "15 times their limit" in finding.message


@pytest.mark.parametrize(
    ("subnormal", "ops"),
    [
        (5, SLOW),
        (300, work(product(3, FILTER), product(3.5, FILTER, "backward", "mm"))),
        (300, work(product(30, OTHER))),
    ],
    ids=["few", "products near their limit", "another line"],
)
def test_few_numbers_and_products_near_their_limit_are_not_reported(build: Any, subnormal: int, ops: StepWork) -> None:
    step = build.step(40, forward=20, backward=20)

    assert not build.findings(subnormal_numbers, step, lines(subnormal), ops, LIMITS)


@pytest.mark.parametrize(("measured", "found"), [(0.0, 1), (1.0, 0), (1.9, 0), (15.0, 1)])
def test_a_machine_that_is_as_fast_with_subnormal_numbers_has_no_such_cause(
    build: Any, measured: float, found: int
) -> None:
    limits = msgspec.structs.replace(LIMITS, subnormals=measured)

    findings = build.findings(subnormal_numbers, build.step(40, forward=20, backward=20), lines(300), SLOW, limits)

    assert len(findings) == found


def test_nothing_is_said_without_the_limits_of_the_machine_or_the_work_of_ops(build: Any) -> None:
    step = build.step(40, forward=20, backward=20)
    of_unknown_work = msgspec.structs.replace(product(30, FILTER), flops=None)

    assert not build.findings(subnormal_numbers, step, lines(300), SLOW)
    assert not build.findings(subnormal_numbers, step, lines(300), LIMITS)
    assert not build.findings(subnormal_numbers, step, lines(300), work(of_unknown_work), LIMITS)


UPDATE = Location(file="train.py", line=70, function="train_step", owner="user")


def of_states(build: Any, share: str, optimizer_ms: float) -> list[Any]:
    """An update of two ops that take 1 ms each at their limit."""
    update = product(2, UPDATE, "optimizer", "lerp_")
    rank = build.rank(settings={"optimizer.subnormal_share": share})
    step = build.step(100, forward=100 - optimizer_ms, optimizer=optimizer_ms)
    return list(build.findings(subnormal_numbers, step, lines(0), work(update, update), LIMITS, rank))


def test_an_update_with_subnormal_averages_costs_what_it_takes_beyond_twice_its_limit(build: Any) -> None:
    [finding] = of_states(build, "0.4200", 40)

    assert finding.spent == UPDATE
    assert finding.cost_ns == pytest.approx(36 * MS)
    assert finding.message.startswith(
        "42% of the optimizer's averages are subnormal numbers, and its update takes 20 t"
    )


def test_few_subnormal_averages_or_an_update_near_its_limit_are_no_finding(build: Any) -> None:
    assert of_states(build, "0.0050", 40) == []
    assert of_states(build, "0.4200", 7) == []
