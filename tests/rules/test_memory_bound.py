"""memory-bound: a device at the limit of its memory is healthy, and compute-bound leaves it to this rule."""

from __future__ import annotations

from typing import Any

import msgspec

from perfkit.measures.results.kernels import Roofline
from perfkit.rules.verdicts import compute_bound, memory_bound

MS = 1_000_000


def roofline(memory: int, compute: int) -> Roofline:
    times = {"memory": memory * MS, "compute": compute * MS}
    return Roofline(device=0, name="A100", steps=10, device_ns=sum(times.values()), time_ns=times)


def test_a_device_at_the_limit_of_its_memory_is_memory_bound(build: Any) -> None:
    device = build.device(1000, compute=900, causes={"operators": 100})

    [finding] = build.findings(memory_bound, device, roofline(memory=720, compute=180))

    assert "computes 90% of the recording, and 80% of that runs at the memory's limit" in finding.message
    assert build.findings(compute_bound, device, roofline(memory=720, compute=180)) == []


def test_arithmetic_an_idle_device_and_kernels_that_could_not_be_placed_are_not_memory_bound(build: Any) -> None:
    device = build.device(1000, compute=900, causes={"operators": 100})
    idle = build.device(1000, compute=400, causes={"operators": 600})
    unplaced = msgspec.structs.replace(roofline(memory=720, compute=180), problem="no shapes")

    assert build.findings(memory_bound, device, roofline(memory=180, compute=720)) == []
    assert build.findings(memory_bound, idle, roofline(memory=720, compute=180)) == []
    assert build.findings(memory_bound, device, unplaced) == []
    assert build.findings(memory_bound, device) == []
    [finding] = build.findings(compute_bound, device, roofline(memory=180, compute=720))
    assert finding.message.endswith("Arithmetic limits 80% of the kernels' time.")
