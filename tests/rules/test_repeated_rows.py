"""repeated-rows: the share of the layer's products that is for copies of rows, forward and backward."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit._location import Location
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules.ops import repeated_rows
from perfkit.run.records import Lines, RepeatedLayer, RepeatedRows, RepeatedSamples

MS = 1_000_000
AT, NEXT = (Location(file="train.py", line=line, function="message", owner="user") for line in (22, 23))
LAYER = RepeatedRows(
    file="train.py", line=22, function="message", owner="user",
    rows=8192, different=500, needed=512, columns=64, results=32, calls=2,
)  # fmt: skip
FLOPS = 2 * 4096 * 64 * 32


def product(ms: int, at: Location = AT, **fields: Any) -> OpWorkTime:
    given = {"op": "aten::mm", "phase": "backward", "kind": "matmul", "flops": FLOPS} | fields
    return OpWorkTime(ns=ms * MS, calls=2, ops=2, at=at, **given)


def found(build: Any, *layers: RepeatedRows, scale: int = 1) -> list[Any]:
    rows = (
        product(8 * scale, op="aten::addmm", phase="forward"),
        product(12 * scale),
        product(12 * scale),
        product(10 * scale, NEXT),
        product(9, flops=FLOPS // 2),
        product(5, op="aten::mul", kind="copy"),
    )
    work = StepWork(source="stacks-0", step_ns=80 * MS, rows=rows)
    lines = Lines(period_ns=MS, steps=40, repeated_rows=layers)
    return list(build.findings(repeated_rows, build.step(40, forward=20, backward=20), lines, work))


def test_the_share_of_copies_of_the_products_of_that_size_is_the_cost(build: Any) -> None:
    [finding] = found(build, LAYER)

    # 15 of 16 rows, of 32 ms in a recorded step that is twice as long as an ordinary one.
    assert finding.cost_ns == pytest.approx(15 * MS)
    assert finding.saving_low_ns == pytest.approx(9 * MS)
    assert finding.spent == AT
    assert finding.message.startswith("Of 8,192 rows that a linear layer gets in 2 calls, 500 are different: the other")
    assert "self.linear(x)[index]" in finding.advice


def test_layers_of_a_function_with_the_same_rows_are_one_finding_at_the_first(build: Any) -> None:
    second = msgspec.structs.replace(LAYER, line=23, columns=32, results=64)

    [finding] = found(build, second, LAYER)

    assert finding.cost_ns == pytest.approx((42 * 15 / 16) / 2 * MS)
    assert (finding.spent, finding.change) == (AT, NEXT)


def test_activations_between_layers_of_a_line_count_and_others_do_not(build: Any) -> None:
    layers = (LAYER, msgspec.structs.replace(LAYER, columns=32, results=16))
    given = {"kind": "elementwise", "flops": 1, "shapes": "64x64x32"}
    others = {"op": "aten::mul"}, {"shapes": "4096x16"}, {"at": NEXT}
    rows = (product(16), *(product(8, **{"op": "aten::tanh"} | given | other) for other in ({}, *others)))
    work = StepWork(source="stacks-0", step_ns=80 * MS, rows=rows)

    def cost(*found: RepeatedRows) -> int:
        lines = Lines(period_ns=MS, steps=40, repeated_rows=found)
        [finding] = build.findings(repeated_rows, build.step(40, forward=20, backward=20), lines, work)
        return int(finding.cost_ns)

    assert cost(*layers[:1]) == pytest.approx(7.5 * MS)
    assert cost(*layers) == pytest.approx((16 + 8) * 15 / 16 / 2 * MS)


def test_layers_with_other_rows_are_findings_of_their_own(build: Any) -> None:
    assert len(found(build, LAYER, msgspec.structs.replace(LAYER, line=23, needed=1024))) == 2


def test_two_layers_of_a_line_with_equal_sizes_are_counted_once(build: Any) -> None:
    [finding] = found(build, LAYER, msgspec.structs.replace(LAYER, columns=32, results=64))

    assert finding.cost_ns == pytest.approx(15 * MS)


def test_rows_most_of_which_are_needed_and_a_short_time_are_no_finding(build: Any) -> None:
    assert found(build, msgspec.structs.replace(LAYER, needed=4097)) == []
    assert len(found(build, msgspec.structs.replace(LAYER, needed=4096))) == 1
    assert found(build, LAYER, scale=0) == []


CALL, COPY, LOOP = (Location(file="train.py", line=line, function="forward", owner="user") for line in (40, 39, 60))
SHAPE, WEIGHT = "128x1x28x28", "16x1x3x3"


def layer(**fields: Any) -> RepeatedLayer:
    given = {"shape": SHAPE, "weight": WEIGHT, "calls": 1, "repeated": 1, "called_at": CALL} | fields
    return RepeatedLayer(file="train.py", line=22, function="encode", owner="user", **given)


def found_of_samples(build: Any, *layers: RepeatedLayer, **fields: Any) -> list[Any]:
    rows = (
        product(4, op="aten::convolution", kind="convolution", phase="forward", shapes=f"{SHAPE} {WEIGHT} 16"),
        product(12, op="aten::convolution_backward", kind="convolution", shapes=f"128x16x28x28 {SHAPE} {WEIGHT}"),
        product(8, op="aten::convolution", kind="convolution", shapes=f"64x1x28x28 {WEIGHT} 16"),
        product(8, op="aten::convolution", kind="convolution", shapes=f"{SHAPE} {WEIGHT} 16", at=NEXT),
        product(2, op="aten::threshold_backward", kind="copy", shapes="128x16x28x28 128x16x28x28"),
        product(2, op="aten::relu", kind="copy", phase="forward", shapes="128x16x14x14"),
        product(16),
    )
    given: dict[str, Any] = {"samples": 128, "needed": 16, "copied_at": COPY} | fields
    one = RepeatedSamples(file="train.py", line=22, function="encode", owner="user", layers=layers, **given)
    lines = Lines(period_ns=MS, steps=40, repeated_samples=(one,))
    work = StepWork(source="stacks-0", step_ns=80 * MS, rows=rows)
    return list(build.findings(repeated_rows, build.step(40, forward=20, backward=20), lines, work))


def test_convolutions_of_copies_cost_their_share_forward_and_backward(build: Any) -> None:
    [finding] = found_of_samples(build, layer())

    # Seven of eight samples, of 16 ms in a recorded step that is twice as long as an ordinary one.
    assert finding.cost_ns == pytest.approx(7 * MS)
    assert finding.saving_low_ns == pytest.approx(4.2 * MS)
    assert (finding.spent, finding.change) == (CALL, COPY)
    assert finding.message.startswith("Of 128 samples that a convolution gets, 16 are different: the other results")
    assert "self.encoder(x).repeat_interleave(k, dim=0)" in finding.advice


def test_what_is_between_layers_and_products_after_them_count_too(build: Any) -> None:
    between, last = layer(shape="128x16x28x28", weight=""), layer(shape="", weight="", flops=FLOPS)

    [finding] = found_of_samples(build, layer(), between, last)

    assert finding.cost_ns == pytest.approx((16 + 2 + 16) * 7 / 8 / 2 * MS)
    assert finding.message.startswith("Of 128 samples that each of 2 calls of layers gets, 16 are different")


def test_calls_of_layers_in_one_line_are_counted_each(build: Any) -> None:
    [finding] = found_of_samples(build, layer(calls=8, repeated=8), layer(weight="", calls=3, repeated=3))

    assert "that each of 8 calls of layers gets" in finding.message


def test_the_line_that_calls_most_of_the_time_is_where_it_is_spent(build: Any) -> None:
    [finding] = found_of_samples(build, layer(called_at=LOOP), layer(shape="", weight="", flops=FLOPS // 2))

    assert finding.spent == LOOP


def test_calls_with_other_samples_cost_nothing(build: Any) -> None:
    [finding] = found_of_samples(build, layer(calls=2))

    assert finding.cost_ns == pytest.approx(3.5 * MS)


def test_copies_that_are_needed_and_lines_without_time_are_no_finding(build: Any) -> None:
    assert found_of_samples(build, layer(), needed=65) == []
    assert len(found_of_samples(build, layer(), needed=64)) == 1
    assert found_of_samples(build, layer(), needed=120) == []
    assert found_of_samples(build, layer(shape="2x1x28x28")) == []


def test_without_the_line_of_the_copies_the_call_is_to_be_changed(build: Any) -> None:
    [finding] = found_of_samples(build, layer(), copied_at=None)

    assert (finding.spent, finding.change) == (CALL, None)
