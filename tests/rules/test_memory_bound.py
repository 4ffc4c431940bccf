"""memory-bound: a step at the limit of its memory is healthy, and compute-bound leaves it to this rule."""

from __future__ import annotations

from typing import Any

from perfkit.rules.verdicts import compute_bound, memory_bound


def test_a_step_near_the_bandwidth_of_memory_is_memory_bound(build: Any) -> None:
    ledger = build.ledger(("computing", 80, 60, "memory"), ("computing", 20, 15, "arithmetic"))

    [finding] = build.findings(memory_bound, ledger)

    assert "runs at 75% of the memory limit" in finding.message
    assert build.findings(compute_bound, ledger) == []


def test_mostly_arithmetic_and_a_step_far_from_its_limit_are_not_memory_bound(build: Any) -> None:
    arithmetic = build.ledger(("computing", 20, 15, "memory"), ("computing", 80, 60, "arithmetic"))

    assert build.findings(memory_bound, arithmetic) == []
    assert build.findings(memory_bound, build.ledger(("computing", 100, 30, "memory"))) == []
