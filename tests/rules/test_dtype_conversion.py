"""dtype-conversion: weights converted again and again, and large tensors converted, on a device."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit._location import Location
from perfkit.measures.results.patterns import DtypeConversions
from perfkit.rules.ops import dtype_conversion

MS = 1_000_000


def converted(ms: float, backward: float = 0, *, line: int = 10, **how: Any) -> DtypeConversions:
    fields: dict[str, Any] = {"count": 1, "source": "bfloat16", "target": "float32", "shape": "8x1024x4096"} | how
    at = Location(file="net.py", line=line, function="forward")
    return DtypeConversions(ns=round(ms * MS), backward_ns=round(backward * MS), at=at, **fields)


def weight(ms: float, backward: float = 0, **how: Any) -> DtypeConversions:
    fields: dict[str, Any] = {
        "count": 10,
        "gradients": 1,
        "source": "float32",
        "target": "bfloat16",
        "shape": "4096x1024",
    } | how
    return converted(ms, backward, **fields)


def test_of_a_weight_converted_again_all_but_one_are_saved_with_or_without_the_backward(build: Any) -> None:
    patterns = build.patterns(conversions=(weight(10, 20), weight(5, 5, line=20)))

    [finding] = build.findings(dtype_conversion, build.step(100), patterns)

    assert (finding.saving_low_ns, finding.saving_high_ns) == (13.5 * MS, 36 * MS)
    assert finding.cost_ns == 36 * MS
    assert finding.spent == Location(file="net.py", line=10, function="forward")
    assert "10 times for each gradient, mostly 4096x1024" in finding.message
    assert "Enter autocast once" in finding.advice


def test_of_other_tensors_nothing_to_all_is_saved(build: Any) -> None:
    patterns = build.patterns(conversions=(converted(4, 4), converted(2, line=30)))

    [finding] = build.findings(dtype_conversion, build.step(100), patterns)

    assert (finding.cost_ns, finding.saving_low_ns, finding.saving_high_ns) == (10 * MS, 0, 10 * MS)
    assert "mostly 8x1024x4096 from bfloat16 to float32, takes 10.0 ms, 10% of the step" in finding.message
    assert finding.advice.startswith("Keep one dtype")


@pytest.mark.parametrize(("ms", "severity"), [(29, "info"), (31, "warning")])
def test_a_loss_in_float32_may_be_needed_so_half_of_it_counts(build: Any, ms: int, severity: str) -> None:
    [finding] = build.findings(dtype_conversion, build.step(100), build.patterns(conversions=(converted(ms),)))

    assert finding.severity == severity


@pytest.mark.parametrize("how", [{"in_loss": True}, {"shape": "8x1024x50257"}], ids=["in a loss", "a vocabulary"])
def test_logits_are_told_of_a_loss_in_chunks(build: Any, how: dict[str, Any]) -> None:
    [finding] = build.findings(dtype_conversion, build.step(100), build.patterns(conversions=(converted(9, **how),)))

    assert finding.advice.startswith("Compute the loss in chunks of rows")


def test_weights_and_other_tensors_are_two_findings(build: Any) -> None:
    patterns = build.patterns(conversions=(weight(10), converted(8)))

    assert len(build.findings(dtype_conversion, build.step(100), patterns)) == 2


NOT_REPORTED = {
    "each weight once under autocast": (weight(20, 20, count=96, gradients=96),),
    "each weight once per microbatch": (weight(20, 20, count=384, gradients=384),),
    "fewer than two conversions for each gradient": (weight(50, count=1.9, gradients=1),),
    "few conversions again": (weight(2, 2),),
    "few large tensors": (converted(2, 2),),
    "none": (),
}


@pytest.mark.parametrize("found", NOT_REPORTED.values(), ids=NOT_REPORTED)
def test_ordinary_mixed_precision_is_not_reported(build: Any, found: tuple[DtypeConversions, ...]) -> None:
    assert build.findings(dtype_conversion, build.step(100), build.patterns(conversions=found)) == []


def test_on_a_host_the_rule_is_silent(build: Any) -> None:
    patterns = build.patterns(step_ms=100, conversions=(converted(50), weight(40)))

    assert build.findings(dtype_conversion, build.step(100), patterns) == []
