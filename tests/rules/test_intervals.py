"""Intervals of savings hold the measured saving as often as they promise."""

from __future__ import annotations

import pytest

from perfkit.findings import Finding
from perfkit.ledger.intervals import calibrated, scale_of


def finding(low: int | None, high: int | None) -> Finding:
    return Finding(severity="warning", message="", advice="", cost_ns=high, saving_low_ns=low, saving_high_ns=high)


def test_a_range_is_scaled_around_its_middle_by_its_kind_of_cause() -> None:
    found = calibrated(finding(4_000, 8_000), "data", 100_000)

    assert found.saving_low_ns == round(6_000 - scale_of("data") * 2_000)
    assert found.saving_high_ns == round(6_000 + scale_of("data") * 2_000)


def test_an_interval_never_begins_below_zero() -> None:
    assert calibrated(finding(100, 8_000), "data", 100_000).saving_low_ns == 0


def test_an_interval_never_exceeds_the_step() -> None:
    assert calibrated(finding(4_000, 8_000), "data", 8_100).saving_high_ns == 8_100


@pytest.mark.parametrize(("low", "high"), [(0, 8_000), (None, None)])
def test_a_saving_without_a_known_minimum_stays_as_it_is(low: int | None, high: int | None) -> None:
    assert calibrated(finding(low, high), "data", 100_000) == finding(low, high)
