"""channels-first: pooling and resizing of images on a CPU cost what they take beyond channels last."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit._location import Location
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules.ops import channels_first
from perfkit.run.records import MachineLimits, Rate

MS = 1_000_000
POOL = Location(file="net.py", line=31, function="Net.forward", owner="user")
#: 1 ms for 2 million elements pooled or 20 MFLOP of a convolution.
LIMITS = MachineLimits(
    method=6, host="h", cpu="c", torch="t", threads=1, measured_at_ns=1, disturbed=False, op_ns=0, node_ns=0,
    products={}, convolutions={"float32": (Rate(1, 2e10),)}, functions={}, bandwidth={},
    layers={"max pool": (Rate(1, 2e9),), "nearest": (Rate(1, 2e9),)},
)  # fmt: skip


def row(op: str, kind: str, ms: float, **fields: Any) -> OpWorkTime:
    given: dict[str, Any] = {
        "flops": 2_000_000, "bytes": 1, "shapes": "8x16x32x32", "channels_first": True, "precision": "float32",
        "phase": "forward", "calls": 1, "ops": 1, "at": POOL,
    }  # fmt: skip
    return OpWorkTime(op=f"aten::{op}", kind=kind, ns=round(ms * MS), **(given | fields))  # type: ignore[arg-type]


def found(build: Any, *rows: OpWorkTime) -> list[Any]:
    work = StepWork(source="stacks-0", step_ns=80 * MS, rows=rows)
    return list(build.findings(channels_first, build.step(40, forward=20, backward=20), work, LIMITS))


def test_pooling_costs_what_it_takes_beyond_channels_last(build: Any) -> None:
    pool = row("max_pool2d_with_indices", "max pool", 11)
    convolution = row("convolution", "convolution", 5, flops=20_000_000)

    [finding] = found(build, pool, convolution)

    # 10 ms of a recorded step that is twice as long as an ordinary one, and 0.6 of 4 ms of the convolution.
    assert finding.cost_ns == pytest.approx(6.2 * MS)
    assert (finding.saving_low_ns, finding.saving_high_ns) == (pytest.approx(3.5 * MS), pytest.approx(6.2 * MS))
    assert finding.spent == POOL
    assert finding.message.startswith("Max pooling with channels first takes 5.5 ms, 11 times as long as with channels")


def test_pooling_and_resizing_are_named_together(build: Any) -> None:
    pool, resized = row("max_pool2d_with_indices", "max pool", 6), row("upsample_nearest2d", "nearest", 6)

    [finding] = found(build, pool, resized)

    assert finding.message.startswith("Max pooling and resizing with channels first take 6.0 ms, 6 times as long")


@pytest.mark.parametrize(
    "fields",
    [{"channels_first": False}, {"shapes": "8x3x64x64"}, {"precision": "bfloat16"}, {"kind": "max pool gradient"}],
    ids=["channels last", "three channels", "another precision", "as fast in both layouts"],
)
def test_images_whose_layout_costs_nothing_are_no_finding(build: Any, fields: dict[str, Any]) -> None:
    one = row("max_pool2d_with_indices", **({"kind": "max pool", "ms": 11} | fields))

    assert found(build, one) == []
    assert found(build, row("max_pool2d_with_indices", "max pool", 2)) == []
