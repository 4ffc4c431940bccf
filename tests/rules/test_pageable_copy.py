"""pageable-copy: copies from pageable memory that no compute hides."""

from __future__ import annotations

from typing import Any

from perfkit.measures.results.device import CopyTime
from perfkit.rules.sync import pageable_copy

MS = 1_000_000


def copy(total: float, *, overlapped: float = 0, source: str = "Pageable", size: int = 1_200_000_000) -> CopyTime:
    """Copies from the host over 10 steps, times in ms."""
    return CopyTime(
        device=0,
        kind="copy",
        direction="HtoD",
        source=source,
        target="Device",
        steps=10,
        count=10,
        bytes=size,
        largest_bytes=None,
        total_ns=round(total * MS),
        overlap_ns=round(overlapped * MS),
        bytes_per_s=None,
        blocking=10,
        blocked_ns=round(total * MS),
    )


def test_copies_from_pageable_memory_save_what_pinned_memory_does_not_need(build: Any) -> None:
    device = build.device(1000, compute=500, copy=400, exposed_copy=400, causes={"copy call": 100})

    [finding] = build.findings(pageable_copy, build.step(100, forward=100), device, copy(400), build.rank())

    # 1.2 GB take 100 ms from pinned memory: three quarters of the 40 ms per step are saved at least.
    assert (finding.saving_low_ns, finding.saving_high_ns) == (30 * MS, 40 * MS)
    assert "take 40% of the step (40.0 ms)" in finding.message
    assert finding.confidence == "high"


def test_pinned_hidden_and_short_copies_are_not_reported(build: Any) -> None:
    device = build.device(1000, compute=500, copy=400, exposed_copy=400, causes={"copy call": 100})

    assert build.findings(pageable_copy, device, copy(400, source="Pinned")) == []
    assert build.findings(pageable_copy, device, copy(400, overlapped=360)) == []
    assert build.findings(pageable_copy, device) == []
    assert build.findings(pageable_copy, build.step(100), copy(400)) == []
