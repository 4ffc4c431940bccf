"""Whether a latency has settled and is stable, the likely cause if not, and which batch size is worth it.

Pure functions of the samples: nothing here measures.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

#: Two numbers of one measurement that differ by at most this share count as equal. NVIDIA's perf_analyzer calls a
#: measurement stable if its last three windows are within 10%, and torch.utils.benchmark warns from 10%.
TOLERANCE = 0.10
#: The maximum interquartile range of a stable measurement, relative to the median. Above it, torch.utils.benchmark
#: warns of "significant environmental influence".
MAX_SPREAD = 0.25
#: Number of windows that must agree, and of parts of a measurement that are compared to find a drift.
_SETTLED_WINDOWS, _PARTS = 3, 5
#: Minimum number of samples: of fewer, one is more than a tenth of the distribution.
MIN_SAMPLES = 10
#: Preemptions per second of a disturbed measurement. Each costs a time slice of about 3 ms, so this is 6% of the time;
#: 57 to 92 were counted on two cores shared with about seven other processes.
_MANY_PREEMPTIONS = 20


class Conditions(NamedTuple):
    """The conditions of a measurement; None for an unknown value.

    ``cores`` is the number that this process may use, ``preemptions_per_s`` how often one of its threads had to leave
    its core to another process.
    """

    on_device: bool
    threads: int
    cores: int | None = None
    preemptions_per_s: float | None = None


def percentile(ordered: Sequence[int], percent: int) -> int | None:
    """The value that ``percent`` of the sorted values do not exceed: one of the values (nearest rank).

    None if no value lies beyond it: p90 needs 10 values, p99 needs 100.
    """
    if len(ordered) * (100 - percent) < 100 and percent > 50:
        return None
    if not ordered:
        return None
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def median(values: Sequence[int]) -> int:
    """The middle value; the lower of two middle values."""
    return sorted(values)[(len(values) - 1) // 2]


def settled(windows: Sequence[int]) -> bool:
    """Whether the medians of the last three warm-up windows agree within 10%."""
    last = windows[-_SETTLED_WINDOWS:]
    return len(last) == _SETTLED_WINDOWS and max(last) <= (1 + TOLERANCE) * min(last)


def drift(samples: Sequence[int]) -> float | None:
    """The range of the medians of five consecutive parts, as a share of the lowest; None for too few samples."""
    if len(samples) < MIN_SAMPLES:
        return None
    medians = _parts(samples)
    return max(medians) / max(1, min(medians)) - 1


def spread(samples: Sequence[int]) -> float | None:
    """The interquartile range as a share of the median; None for too few samples."""
    if len(samples) < MIN_SAMPLES:
        return None
    ordered = sorted(samples)
    quarter = len(ordered) // 4
    return (ordered[-1 - quarter] - ordered[quarter]) / max(1, median(ordered))


def stable(samples: Sequence[int]) -> bool:
    """Whether a measurement drifts by at most 10% and its quartiles are at most 25% of the median apart."""
    shift, width = drift(samples), spread(samples)
    return shift is not None and width is not None and shift <= TOLERANCE and width <= MAX_SPREAD


def likely_cause(samples: Sequence[int], conditions: Conditions) -> str:
    """The likely reason why a measurement is not stable."""
    if len(samples) < MIN_SAMPLES:
        calls = "call" if len(samples) == 1 else "calls"
        return f"only {len(samples)} {calls} in the time budget: increase it"
    if not conditions.on_device and conditions.cores is not None and conditions.threads > conditions.cores:
        return f"{conditions.threads} threads on {conditions.cores} cores: torch.set_num_threads({conditions.cores})"
    medians = _parts(samples)
    steps = [after / max(1, before) for before, after in itertools.pairwise(medians)]
    changed = medians[-1] / max(1, medians[0])
    if changed > 1 + TOLERANCE and min(steps) > 1 - TOLERANCE / 4:
        return "it became steadily slower: falling clocks (heat, a power limit), or state that grows in the model"
    if changed < 1 - TOLERANCE and max(steps) < 1 + TOLERANCE / 4:
        return "it was still becoming faster: compilation, autotuning or caches; increase the time budget"
    if (
        not conditions.on_device
        and conditions.preemptions_per_s is not None
        and conditions.preemptions_per_s > _MANY_PREEMPTIONS
    ):
        return f"other processes preempted it {conditions.preemptions_per_s:.0f} times per second"
    shared = "the device" if conditions.on_device else "the memory or the caches"
    return f"not visible in this process: varying clocks, other processes on {shared}, or calls that differ"


def knee(latencies: Mapping[int, int]) -> int | None:
    """The largest batch size that is worth it, from median latencies by batch size; None for fewer than two.

    A larger batch is worth it if it raises throughput by at least 10% per doubling of its size: less is within the
    noise of a stable measurement, and costs latency.
    """
    if len(latencies) < 2:
        return None
    best, *larger = sorted(latencies)
    for size in larger:
        if throughput_growth(latencies, best, size) >= TOLERANCE:
            best = size
    return best


def throughput_growth(latencies: Mapping[int, int], smaller: int, larger: int) -> float:
    """The relative growth of throughput per doubling of the batch size, between two batch sizes."""
    ratio = (larger / latencies[larger]) / (smaller / latencies[smaller])
    # A doubling is thousands of steps between adjacent sizes, so the exponent is limited to what a float can represent.
    growth = math.exp(min(math.log(ratio) / math.log2(larger / smaller), 700.0))
    # The epsilon: growth of exactly the threshold must not fall below it by rounding.
    return growth - 1 + 1e-9


def _parts(samples: Sequence[int]) -> list[int]:
    length = len(samples) // _PARTS
    return [median(samples[part * length : (part + 1) * length]) for part in range(_PARTS)]
