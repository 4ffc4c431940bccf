"""The state of a rank's GPU during the run, as NVML or DCGM reports it: part of rank.json."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perfkit.run.records.steps import Count

#: Bits of clocks event reasons (nvml.h, nvmlClocksEventReason*) -> NVML's words. The numbers are part of its interface;
#: DCGM has the same ones (dcgm_fields.h, DCGM_CLOCKS_EVENT_REASON_*).
_CLOCK_REASONS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}


def clock_reasons(bits: int) -> tuple[str, ...]:
    """NVML's names of the reasons for lower clocks in a bit mask."""
    return tuple(word for bit, word in _CLOCK_REASONS.items() if bits & bit)


class MinMedianMax(msgspec.Struct, frozen=True):
    """The smallest, middle and largest of the values that were read."""

    min: float
    median: float
    max: float

    @classmethod
    def of_values(cls, values: Sequence[float]) -> MinMedianMax | None:
        """Those of these values; None where there are none."""
        ordered = sorted(values)
        return cls(ordered[0], ordered[len(ordered) // 2], ordered[-1]) if ordered else None


class NodeSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The GPU at one time; None: it is not reported here. ``step`` is the number of steps the rank had begun.

    Attributes:
        at_ns: On the run's clock; None where the source has no times, as `dcgmi dmon`.
        utilization: Percentage of the preceding second in which a kernel ran.
        reasons: NVML's names for why clocks are below their maximum, here and in the samples merged into this one.
        others: Other processes with memory on the GPU; ``others_utilization``: the percentage of its multiprocessors
            that they used.
    """

    at_ns: Count | None = None
    step: Count | None = None
    sm_mhz: Count | None = None
    memory_mhz: Count | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    utilization: Count | None = None
    reasons: tuple[str, ...] | None = None
    others: Count | None = None
    others_bytes: Count | None = None
    others_utilization: Count | None = None

    @classmethod
    def merged(cls, samples: Sequence[NodeSample]) -> NodeSample:
        """The last of some samples, with the reasons of all."""
        words = [sample.reasons for sample in samples if sample.reasons is not None]
        reasons = tuple(dict.fromkeys(word for some in words for word in some)) if words else None
        return msgspec.structs.replace(samples[-1], reasons=reasons)


class NodeHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU of a rank during training: the spread of each value, and up to 100 samples over the run.

    ``reasons`` counts the samples, of ``taken``, in which each reason for lower clocks was active; ``uuid`` names the
    device whatever CUDA_VISIBLE_DEVICES is, and is empty where it is not known. ``problem`` is why reading stopped.
    ``source`` is what reported it.

    Only DCGM reports ``memory_bytes`` (memory in use), ``xid`` (the number of the driver's last error, 0: none) and
    ``ecc_errors`` (double-bit errors of memory since the driver was loaded).
    """

    uuid: str
    source: str = "NVML"
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
    memory_bytes: MinMedianMax | None = None
    xid: Count | None = None
    ecc_errors: Count | None = None
    reasons: dict[str, Count] = {}
    samples: tuple[NodeSample, ...] = ()
    problem: str | None = None
