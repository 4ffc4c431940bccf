"""blocking-copy: copies of pinned memory that the host waits for while the device is idle."""

from __future__ import annotations

from typing import Any

import msgspec

from perfkit.measures.results.device import CopyTime
from perfkit.rules.sync import blocking_copy

MS = 1_000_000

COPY = CopyTime(
    device=0,
    kind="copy",
    direction="HtoD",
    source="Pinned",
    target="Device",
    steps=10,
    count=10,
    bytes=None,
    largest_bytes=None,
    total_ns=100 * MS,
    overlap_ns=80 * MS,
    bytes_per_s=None,
    blocking=10,
    blocked_ns=300 * MS,
)


def test_copies_that_the_host_waits_for_cost_the_idle_time_of_the_device(build: Any) -> None:
    device = build.device(1000, compute=700, copy=100, exposed_copy=20, causes={"copy call": 150, "sync": 50})

    [finding] = build.findings(blocking_copy, build.step(100, forward=100), device, COPY)

    # 300 ms blocked, of which the device was idle or only copied for 150 + 50 + 20 ms of a second.
    assert (finding.saving_low_ns, finding.saving_high_ns) == (11 * MS, 22 * MS)
    assert "22% of the step (22.0 ms)" in finding.message


def test_pageable_and_asynchronous_copies_are_not_reported(build: Any) -> None:
    device = build.device(1000, compute=700, copy=100, exposed_copy=20, causes={"copy call": 150, "sync": 50})
    pageable = msgspec.structs.replace(COPY, source="Pageable")
    asynchronous = msgspec.structs.replace(COPY, blocking=0, blocked_ns=0)

    assert build.findings(blocking_copy, device, pageable, asynchronous) == []
    assert build.findings(blocking_copy, device) == []
    assert build.findings(blocking_copy, build.step(100), COPY) == []
