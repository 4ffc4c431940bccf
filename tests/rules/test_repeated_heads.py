"""repeated-heads: the copies, and for a few queries the share of the attention that reads them."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit._location import Location
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules.ops import repeated_heads
from perfkit.run.records import Lines, RepeatedHeads

MS = 1_000_000
COPIES, ATTENDS = (
    Location(file="train.py", line=line, function=name, owner="user") for line, name in ((9, "repeat"), (20, "forward"))
)


def found(build: Any, queries: int, ms: int = 10) -> list[Any]:
    one = RepeatedHeads(
        file="train.py", line=20, function="forward", owner="user",
        copied_at=(COPIES,), times=4, queries=queries, calls=2,
    )  # fmt: skip
    rows = tuple(
        OpWorkTime(op=f"aten::{op}", phase="forward", ns=took * MS, calls=2, ops=2, at=at)
        for op, at, took in (("copy_", COPIES, ms), ("scaled_dot_product_attention", ATTENDS, 20), ("mm", ATTENDS, 9))
    )
    work = StepWork(source="stacks-0", step_ns=80 * MS, rows=rows)
    lines = Lines(period_ns=MS, steps=40, repeated_heads=(one,))
    return list(build.findings(repeated_heads, build.step(40, forward=40), lines, work))


def test_with_one_query_the_attention_reads_the_copies(build: Any) -> None:
    [finding] = found(build, 1)

    # 10 ms of copies and three quarters of the attention, in a recorded step that is twice as long as an ordinary one.
    assert finding.cost_ns == pytest.approx(12.5 * MS)
    assert finding.saving_low_ns == pytest.approx(3.5 * MS)
    assert finding.change == ATTENDS or finding.spent == ATTENDS
    assert finding.message.startswith("Keys and values are copied for 4 heads each, twice per step")


def test_with_many_queries_the_copies_alone_count(build: Any) -> None:
    assert found(build, 512)[0].cost_ns == pytest.approx(5 * MS)
    assert found(build, 512, ms=1) == []
