"""launch-blocking: at most the idle time that is not for data."""

from __future__ import annotations

from typing import Any

from perfkit.rules.settings import launch_blocking

MS = 1_000_000


def test_blocking_launches_cost_at_most_the_idle_time_that_is_not_for_data(build: Any) -> None:
    step, device = (
        build.step(100, forward=100),
        build.device(1000, compute=500, causes={"data loading": 100, "operators": 400}),
    )
    blocking = build.rank(devices=("A100",), settings={"CUDA_LAUNCH_BLOCKING": "1"})

    [finding] = build.findings(launch_blocking, step, device, blocking)

    assert (finding.saving_low_ns, finding.saving_high_ns) == (0, 40 * MS)
    off = build.rank(devices=("A100",), settings={"CUDA_LAUNCH_BLOCKING": "0"})
    assert build.findings(launch_blocking, step, device, off) == []
    assert build.findings(launch_blocking, step, build.rank()) == []


def test_without_a_trace_of_the_device_their_cost_is_unknown(build: Any) -> None:
    blocking = build.rank(devices=("A100",), settings={"CUDA_LAUNCH_BLOCKING": "1"})

    [finding] = build.findings(launch_blocking, build.step(100, forward=100), blocking)

    assert (finding.severity, finding.cost_ns, finding.saving_low_ns) == ("warning", None, None)
