"""Collectives of the host: many small ones that are waited for one by one are told at their line."""

from __future__ import annotations

from typing import Any

from perfkit._location import Location
from perfkit.measures.results.patterns import HostCollective
from perfkit.rules.ranks.exposed_communication import check

MS = 1_000_000


def allreduce(**fields: Any) -> HostCollective:
    """98 calls of 4 KiB, 40 ms in all."""
    defaults: dict[str, Any] = {
        "name": "allreduce",
        "count": 98.0,
        "waited_ns": 40 * MS,
        "bytes": 98 * 4096,
        "at": Location(file="train.py", line=23, function="average_gradients"),
    }
    return HostCollective(**defaults | fields)


def test_a_call_per_parameter_is_told_at_its_line(build: Any) -> None:
    patterns = build.patterns(step_ms=100, collectives=(allreduce(),))

    [finding] = check(build.measured(step=build.step(100), patterns=patterns))

    assert (finding.file, finding.line) == ("train.py", 23)
    assert (finding.saving_low_ns, finding.saving_high_ns) == (30 * MS, 50 * MS)
    assert finding.message.startswith("98 allreduce calls per step are waited for one by one, 40% of the step")


def test_a_few_large_ones_and_short_waits_are_no_finding(build: Any) -> None:
    for healthy in (allreduce(count=3.0), allreduce(bytes=98 * 25 * 2**20), allreduce(waited_ns=2 * MS)):
        patterns = build.patterns(step_ms=100, collectives=(healthy,))

        assert list(check(build.measured(step=build.step(100), patterns=patterns))) == []


def test_without_a_device_and_patterns_nothing_is_told(build: Any) -> None:
    assert list(check(build.measured(step=build.step(100)))) == []
