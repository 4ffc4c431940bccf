"""deterministic-mode: its cost is that of filling buffers."""

from __future__ import annotations

from typing import Any

from perfkit._location import Location
from perfkit.rules.settings import deterministic_mode

MS = 1_000_000
ON = {"torch.deterministic": "True"}


def test_a_slow_recording_does_not_raise_its_cost(build: Any) -> None:
    at = Location(file="train.py", line=7, function="main")
    rank = build.rank(settings=ON, calls={"use_deterministic_algorithms": (at,)})
    ops = build.ops(("aten::empty", 10, 82, 2), ("aten::fill_", 40, 90, 90))

    [finding] = build.findings(
        deterministic_mode, build.step(50, forward=50), build.traced_step(100, forward=100), rank, ops
    )

    # 80 ms in two steps of the trace, which took twice as long as others.
    assert (finding.saving_low_ns, finding.saving_high_ns) == (15 * MS, 25.3 * MS)
    assert finding.spent == at
    assert finding.evidence[1].value is None


def test_where_it_fills_nothing_it_is_information(build: Any) -> None:
    ops = build.ops(("aten::empty", 10, 2, 2))

    findings = build.findings(deterministic_mode, build.step(50, forward=50), build.rank(settings=ON), ops)

    assert [finding.severity for finding in findings] == ["info"]


def test_without_a_trace_its_cost_is_unknown(build: Any) -> None:
    [finding] = build.findings(deterministic_mode, build.step(50), build.rank(settings=ON))

    assert (finding.severity, finding.cost_ns) == ("info", None)
    assert build.findings(deterministic_mode, build.step(50), build.rank()) == []
