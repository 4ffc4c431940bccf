from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from perfkit.measures._rows import mask_of, nearest_above, outermost_above

if TYPE_CHECKING:
    from .conftest import TraceBuilder


def nested(build: TraceBuilder, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(60):
        start = dice.randrange(1_000)
        build.op("wanted" if dice.random() < 0.3 else "other", start, start + dice.randrange(400), dice.randrange(2))


@pytest.mark.parametrize("deep", [0, 1, 200])
def test_climbing_from_some_rows_finds_what_a_pass_over_all_finds(
    build: TraceBuilder, monkeypatch: pytest.MonkeyPatch, deep: int
) -> None:
    monkeypatch.setattr("perfkit.measures._rows.DEEP", deep)
    nested(build, seed=deep)
    trace = build.read()
    wanted = trace.name == trace.names.index("wanted")
    rows = np.arange(0, len(trace), 5)  # for more than a quarter a pass is made

    above = trace.above(wanted)
    outermost = above.copy()
    while (more := (outermost >= 0) & (above[outermost] >= 0)).any():
        outermost[more] = above[outermost[more]]

    assert (above >= 0).any()
    assert nearest_above(trace, rows, wanted).tolist() == above[rows].tolist()
    assert outermost_above(trace, rows, wanted).tolist() == outermost[rows].tolist()


def test_no_rows_find_nothing(build: TraceBuilder) -> None:
    build.op("aten::mm", 0, 10)
    trace = build.read()
    none = np.zeros(0, np.int64)

    assert nearest_above(trace, none, mask_of(trace, none)).size == 0
    assert outermost_above(trace, none, mask_of(trace, none)).size == 0
