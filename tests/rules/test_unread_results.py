"""unread-results: the share of the dead ops in the forward, at the line that could leave them out."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit._location import Location
from perfkit.rules.ops import unread_results
from perfkit.run.records import Lines, UnreadResults

MS = 1_000_000
BLOCK = Location(file="loss.py", line=9, function="Block.forward", owner="user")


def found(build: Any, *dead_ms: float, called: str | None = "Block.forward", draws: bool = False) -> list[Any]:
    rows = tuple(
        UnreadResults(
            file="loss.py", line=20 + at, function="Features.forward", owner="user", called=called, busiest=BLOCK,
            ops=12, host_ns=round(ms * MS), of_ns=50 * MS, draws=draws,
        )
        for at, ms in enumerate(dead_ms)
    )  # fmt: skip
    lines = Lines(period_ns=MS, steps=40, unread_results=rows)
    return list(build.findings(unread_results, build.step(40, data=2, forward=16, backward=18, optimizer=4), lines))


def test_dead_ops_cost_their_share_of_the_forward_and_no_backward(build: Any) -> None:
    [finding] = found(build, 20)

    assert finding.cost_ns == pytest.approx(0.4 * 16 * MS)
    assert finding.saving_low_ns == pytest.approx(0.75 * 0.4 * 16 * MS)
    assert finding.saving_high_ns == pytest.approx(1.25 * 0.4 * 16 * MS)
    assert (finding.spent, finding.change.line) == (BLOCK, 20)
    assert finding.message.startswith("In line 20 12 ops of Block.forward compute what nothing reads: 6.4 ms")
    assert "random" not in finding.advice


def test_each_line_is_a_finding_of_its_own_if_it_takes_a_twentieth_of_the_step(build: Any) -> None:
    assert [finding.change.line for finding in found(build, 20, 6, 10)] == [20, 22]


def test_a_line_without_a_call_of_a_function_is_named_by_itself(build: Any) -> None:
    [finding] = found(build, 20, called=None, draws=True)

    assert finding.message.startswith("12 ops of line 20 compute what nothing reads")
    assert finding.advice.endswith("Later random numbers differ then.")
