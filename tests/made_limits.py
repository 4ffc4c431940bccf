"""Limits of a machine that is not there."""

from __future__ import annotations

from typing import Any

from perfkit.run.records import MachineLimits
from perfkit.run.records.limits import Rate


def made_limits(
    *, flops: float | None = None, bytes_per_s: float = 10e9, op_ns: int = 1000, **fields: Any
) -> MachineLimits:
    """A machine whose products in float32 and whose memory reach these rates at all sizes."""
    given: dict[str, Any] = {
        "method": 1,
        "host": "vm",
        "cpu": "a CPU",
        "torch": "2.13.0",
        "threads": 1,
        "measured_at_ns": 0,
        "disturbed": False,
        "products": {"float32": (Rate(size=1_000_000, per_s=flops),)} if flops is not None else {},
        "convolutions": {},
        "depths": {},
        "functions": {},
        "bandwidth": {"update": (Rate(size=1_000_000, per_s=bytes_per_s),)},
        "op_ns": op_ns,
        "node_ns": op_ns,
    }
    return MachineLimits(**given | fields)
