"""memory-near-limit: a device nearly full is reported with what checkpointing costs; one with free memory is not."""

from __future__ import annotations

from typing import Any

import msgspec

from perfkit.rules.memory import memory_near_limit


def test_a_device_nearly_full_is_reported_with_the_cost_of_checkpointing(build: Any) -> None:
    rank = msgspec.structs.replace(build.rank(), settings={"cuda:0.total_bytes": "16000000000"})

    def at(peak: int) -> Any:
        step = msgspec.structs.replace(build.step(100, forward=30, backward=70), memory_peak_bytes=peak)
        return build.findings(memory_near_limit, step, rank)

    [finding] = at(15_000_000_000)
    assert "for up to 30.0 ms more per step" in finding.advice
    assert finding.severity == "info"
    assert at(12_000_000_000) == []
