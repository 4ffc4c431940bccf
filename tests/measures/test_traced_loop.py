"""A window of another loop than most of the run is said to be one."""

from __future__ import annotations

import pytest

from perfkit.measures.host.traced_loop import other_loop
from perfkit.run.records import LineRow, Lines, TracedLine

MS = 1_000_000


def sampled(line: int, function: str, samples: int) -> LineRow:
    return LineRow(
        file="train.py", line=line, function=function, owner="user", phase="backward", samples=samples, host_ns=MS
    )


def lines(*rows: LineRow, traced: int | None = 20) -> Lines:
    steps = [TracedLine(file="train.py", line=traced, function="fit", owner="user", phase="other", runs=1, host_ns=MS)]
    return Lines(period_ns=MS, steps=40, rows=rows, traced=tuple(steps) if traced is not None else ())


def test_the_recorded_loop_and_the_one_that_trains_most_are_named() -> None:
    found = other_loop(lines(sampled(20, "fit", 30), sampled(50, "step", 400)))

    assert found is not None
    assert "train.py:20" in found
    assert "train.py:50" in found


@pytest.mark.parametrize(
    "given",
    [
        lines(sampled(20, "fit", 300), sampled(50, "step", 100)),
        lines(sampled(20, "fit", 3), sampled(50, "step", 9)),
        lines(sampled(50, "step", 400)),
        lines(sampled(20, "fit", 30), sampled(50, "step", 400), traced=None),
        None,
    ],
    ids=["the same loop", "few samples", "no backward was traced", "nothing was traced", "no lines"],
)
def test_nothing_is_said_where_it_is_not_known(given: Lines | None) -> None:
    assert other_loop(given) is None
