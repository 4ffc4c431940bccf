"""masked-places: the share of the layers' time that is spent on places that nothing reads."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit._location import Location
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules.ops import masked_places
from perfkit.run.records import Lines, MaskedPlaces

MS = 1_000_000
BLOCK, ENCODE = (
    Location(file="train.py", line=line, function=name, owner="user") for line, name in ((39, "Block"), (68, "encode"))
)


def found(build: Any, visible: int) -> list[Any]:
    one = MaskedPlaces(
        file="train.py", line=39, function="Block", owner="user",
        called_from=ENCODE, shape=(8, 50), visible=visible, widths=(64, 256),
    )  # fmt: skip
    ops = [("addmm", "256 400x64 64x256", 20), ("gelu", "8x50x256", 10), ("add", "50x8x64 50x8x64", 10)]
    ops += [("addmm", "32 400x16 16x32", 9), ("mm", "100x64 64x256", 9)]
    rows = tuple(
        OpWorkTime(op=f"aten::{op}", phase="forward", ns=ms * MS, calls=1, ops=1, shapes=shapes, at=BLOCK)
        for op, shapes, ms in ops
    )
    work = StepWork(source="stacks-0", step_ns=80 * MS, rows=rows)
    lines = Lines(period_ns=MS, steps=40, masked_places=(one,))
    return list(build.findings(masked_places, build.step(40, forward=20, backward=20), lines, work))


def test_the_share_of_the_ops_over_all_places_is_the_cost_and_the_call_is_to_be_edited(build: Any) -> None:
    [finding] = found(build, 100)

    # Three quarters of 40 ms in a recorded step that is twice as long as an ordinary one.
    assert finding.cost_ns == pytest.approx(15 * MS)
    assert finding.saving_low_ns == pytest.approx(9 * MS)
    assert (finding.spent, finding.change) == (BLOCK, ENCODE)
    assert finding.message.startswith("Attention masks 75% of 400 places for all queries, and no gradient reaches them")


def test_few_masked_places_are_no_finding(build: Any) -> None:
    assert found(build, 301) == []
    assert len(found(build, 300)) == 1
