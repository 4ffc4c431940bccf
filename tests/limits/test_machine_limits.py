"""The limit of an op: computing or moving memory, whichever takes longer, by rates of its size, and its overhead."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from perfkit.run.merging import merged
from perfkit.run.records import CallOverhead, MachineLimits, OpKind, Rate

Make = Callable[..., MachineLimits]


@pytest.mark.parametrize(
    ("flops", "bytes_moved", "precision", "kind", "expected_ns"),
    [
        (10**9, 0, "float32", "matmul", 10_000_000),
        (10**9, 0, "float64", "matmul", 20_000_000),
        (10**6, 0, "float32", "matmul", 10**6 / 50.5),  # between the two sizes, by the logarithm
        (100, 0, "float32", "matmul", 100),  # smaller than any that was measured
        (10**12, 0, "float32", "matmul", 10**10),  # larger
        (10**9, 0, "float32", "convolution", 12_500_000),
        (10**9, 0, "float64", "convolution", 20_000_000),  # not measured: a product at best
        (10**9, 0, "float8", "matmul", 0),
        (10**6, 0, "float32", "exp", 100_000),
        (10**6, 0, "float64", "exp", 200_000),  # half as many elements in a vector
        (10**12, 10**8, "float32", "copy", 10_000_000),  # arithmetic per element counts by its bytes
        (0, 10**8, "float32", "update", 5_000_000),
        (0, 10**6, "float32", "read", 10_000),
        (10**3, 10**8, "float32", "matmul", 5_000_000),  # its bytes take longer, at the fastest access
        (0, 0, "float32", "copy", 0),
        (10**6, 10**6, "float32", "max pool", 500_000),
        (10**9, 0, "float64", "attention", 20_000_000),  # its own rate is that of float32: products at best
        (10**6, 10**8, "bfloat16", "softmax", 5_000_000),  # its bytes take longer than its functions
    ],
)
def test_an_op_takes_as_long_as_the_slower_of_its_flops_and_its_bytes_and_its_overhead(
    limits_with: Make, flops: int, bytes_moved: int, precision: str, kind: OpKind, expected_ns: float
) -> None:
    assert limits_with().op_limit_ns(flops, bytes_moved, precision, kind) == round(expected_ns) + 1_000


@pytest.mark.parametrize(("depth", "expected_ms"), [(9, 125), (100, 1000 / 44), (5_000, 12.5), (None, 12.5)])
def test_a_convolution_of_few_channels_takes_longer(limits_with: Make, depth: int | None, expected_ms: float) -> None:
    limit_ns = limits_with().op_limit_ns(10**9, 0, "float32", "convolution", depth)

    assert limit_ns == round(expected_ms * 1e6) + 1_000


@pytest.mark.parametrize(("touched", "expected_ns"), [(0, 500), (2**20, 500), (2**21, 7_250), (2**30, 14_000)])
def test_what_a_call_costs_rises_with_the_memory_that_ops_touch_between_calls(
    limits_with: Make, touched: int, expected_ns: float
) -> None:
    rows = (CallOverhead(2**20, 500.0), CallOverhead(2**22, 14_000.0))

    assert limits_with(overheads={"op": rows}).overhead_ns("op", touched) == expected_ns
    assert [limits_with().overhead_ns(name, touched) for name in ("op", "inner", "call")] == [1_000, 1_000, 0]


def test_a_machine_that_was_slower_in_a_run_has_lower_limits_there(limits_with: Make) -> None:
    limits = limits_with()
    product_ns = limits.op_limit_ns(2 * 128**3, 0, "float32", "matmul")
    copy_ns = limits.op_limit_ns(0, 2**21, "float32", "copy")
    measured = {"speed.product_ns": str(2 * product_ns), "speed.copy_ns": str(copy_ns // 2), "speed.op_ns": "4000"}

    during = limits.during(measured)

    assert during.op_limit_ns(10**9, 0, "float32", "matmul") == pytest.approx(20_000_000 + 4_000)
    # A copy was faster than it ever was when limits were measured: they stay.
    assert during.op_limit_ns(0, 10**8, "float32", "update") == 5_000_000 + 4_000
    assert during.speed == pytest.approx(0.5, rel=0.01)
    assert limits.during({"speed.product_ns": "a few"}) == limits


def test_what_was_not_measured_limits_nothing(limits_with: Make) -> None:
    empty = limits_with(products={}, convolutions={}, depths={}, functions={}, bandwidth={})

    for kind in ("matmul", "convolution", "exp", "copy"):
        assert empty.op_limit_ns(10**9, 10**9, "float32", kind, depth=9) == 1_000


def test_two_measurements_are_joined_to_the_better_of_each(limits_with: Make) -> None:
    first = limits_with(disturbed=True, op_ns=900)
    second = limits_with(
        products={"float32": (Rate(10**3, 2e9), Rate(10**6, 9e9), Rate(10**9, 50e9))},
        functions={"tanh": (Rate(10**6, 1e9),)},
        measured_at_ns=5,
    )

    joined = merged(first, second)

    assert joined.products["float32"] == (Rate(10**3, 2e9), Rate(10**6, 9e9), Rate(10**9, 100e9))
    assert joined.products["float64"] == first.products["float64"]
    assert [*joined.functions] == ["exp", "tanh"]
    assert (joined.op_ns, joined.disturbed, joined.measured_at_ns) == (900, False, 5)


@pytest.mark.parametrize("rate", ["[0, 1.0]", "[1, 0.0]", "[1, -1.0]", "[1]", '[1, "x"]'])
def test_rates_of_a_hostile_folder_are_refused(rate: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(rate, type=Rate)
