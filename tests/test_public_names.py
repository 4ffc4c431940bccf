"""The public names are a promise: adding or removing one changes this list."""

from __future__ import annotations

import perfkit


def test_the_public_names_are_these() -> None:
    assert sorted(perfkit.__all__) == [
        "Comparison",
        "Diagnosis",
        "Evidence",
        "Finding",
        "MissingDependency",
        "PerfkitError",
        "PerfkitWarning",
        "Phase",
        "RunError",
        "SyncBudgetExceeded",
        "SyncError",
        "TraceError",
        "UsageError",
        "__version__",
        "allow_sync",
        "annotate_modules",
        "compare",
        "detect_syncs",
        "diagnose",
        "mark",
        "measure_latency",
        "profile",
        "range",
        "schedule",
        "step",
        "steps",
        "triggers",
    ]


def test_every_public_name_can_be_had_and_is_documented() -> None:
    for name in perfkit.__all__:
        if name not in ("__version__", "Phase"):  # a string, and a type made of strings
            assert getattr(perfkit, name).__doc__, name


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    assert not hasattr(perfkit, "profiel")
