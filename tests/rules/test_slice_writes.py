"""slice-writes: nodes of the backward that copy a whole gradient for each part that was written."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit._location import Location
from perfkit.measures.results.patterns import Patterns, SliceWrites
from perfkit.rules.ops import slice_writes

MS = 1_000_000
WRITES = Location(file="model.py", line=84, function="forward", owner="user")


def found(build: Any, ms: float, count: float) -> list[Any]:
    writes = SliceWrites(count=count, ns=round(ms * MS), at=WRITES)
    patterns = Patterns(source="stacks-0", steps=1, step_ns=80 * MS, has_shapes=True, slice_writes=writes)
    return list(build.findings(slice_writes, build.step(40, forward=10, backward=25), patterns))


def test_the_time_of_the_nodes_is_what_the_writes_cost(build: Any) -> None:
    [finding] = found(build, ms=30, count=200)

    assert (finding.spent, finding.change) == (WRITES, None)
    assert finding.cost_ns == pytest.approx(15 * MS)
    assert finding.saving_low_ns == pytest.approx(0.7 * 15 * MS)
    assert finding.message.startswith("A slice of a tensor is written 200 times per step under autograd")


def test_a_few_writes_and_short_ones_are_no_finding(build: Any) -> None:
    assert found(build, ms=30, count=7) == []
    assert found(build, ms=3, count=200) == []
