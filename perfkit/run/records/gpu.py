"""The state of a rank's GPU during the run, as NVML reports it: part of rank.json."""

from __future__ import annotations

import msgspec

from perfkit.run.records.steps import Count


class MinMedianMax(msgspec.Struct, frozen=True):
    """The smallest, middle and largest of the values that were read."""

    min: float
    median: float
    max: float


class NodeSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The GPU at one time; None: NVML does not report it here. ``step`` is the number of steps the rank had begun.

    Attributes:
        utilization: Percentage of the preceding second in which a kernel ran.
        reasons: NVML's names for why clocks are below their maximum, here and in the samples merged into this one.
        others: Other processes with memory on the GPU; ``others_utilization``: the percentage of its multiprocessors
            that they used.
    """

    at_ns: Count
    step: Count
    sm_mhz: Count | None = None
    memory_mhz: Count | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    utilization: Count | None = None
    reasons: tuple[str, ...] | None = None
    others: Count | None = None
    others_bytes: Count | None = None
    others_utilization: Count | None = None


class NodeHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU of a rank during training: the spread of each value, and up to 100 samples over the run.

    ``reasons`` counts the samples, of ``taken``, in which each reason for lower clocks was active; ``uuid`` names the
    device whatever CUDA_VISIBLE_DEVICES is. ``problem`` is why reading stopped.
    """

    uuid: str
    name: str | None = None
    taken: Count = 0
    max_sm_mhz: Count | None = None
    max_memory_mhz: Count | None = None
    power_limit_w: float | None = None
    sm_mhz: MinMedianMax | None = None
    memory_mhz: MinMedianMax | None = None
    power_w: MinMedianMax | None = None
    temperature_c: MinMedianMax | None = None
    utilization: MinMedianMax | None = None
    reasons: dict[str, Count] = {}
    samples: tuple[NodeSample, ...] = ()
    problem: str | None = None
