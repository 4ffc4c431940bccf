"""unexplained: no rule found a problem, and the step is not proven healthy."""

from __future__ import annotations

from typing import Any

from perfkit._location import Location
from perfkit.rules.verdicts import unexplained


def test_the_largest_unexplained_part_is_named_with_its_limit_and_place(build: Any) -> None:
    ledger = build.ledger(
        ("computing", 86, 4, "memory", Location(file="train.py", line=58)), ("python", 14, None, None)
    )

    [finding] = build.findings(unexplained, ledger)

    assert finding.message == (
        "No rule found a problem, but the step is not proven healthy. 92% of its 100 ms is unexplained, the largest "
        "part computing at train.py:58 (78%, at 5% of its limit)."
    )
    assert finding.severity == "info"
    assert finding.spent == Location(file="train.py", line=58)


def test_why_limits_are_not_known_is_reported(build: Any) -> None:
    ledger = build.ledger(("computing", 100, None, None), unknown="the shapes of ops were not recorded")

    [finding] = build.findings(unexplained, ledger)

    assert finding.message.endswith("Limits are unknown because the shapes of ops were not recorded.")


def test_a_problem_that_could_not_be_quantified_is_named(build: Any) -> None:
    ledger = build.ledger(("computing", 100, 90, "arithmetic"), unquantified=("sync-in-step",))

    [finding] = build.findings(unexplained, ledger)

    assert finding.message.endswith("The cost of sync-in-step is not known.")


def test_a_step_that_mostly_starts_ops_is_advised_to_have_fewer(build: Any) -> None:
    ledger = build.ledger(
        ("computing", 60, 50, "arithmetic"), ("op overhead", 30, 30, "overhead"), ("python", 10, None, None)
    )

    [finding] = build.findings(unexplained, ledger)

    assert "30% is overhead: what so many ops cost on this machine, whatever they compute." in finding.message
    assert finding.advice.startswith("Fewer and larger ops cost less to start")
