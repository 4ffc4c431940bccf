"""When a latency has settled, whether it can be believed, why not, and which batch size is still worth it.

Numbers in, answers out: nothing here measures.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

#: Two numbers of one measurement that differ by no more than this are the same. NVIDIA's perf_analyzer calls a
#: measurement stable whose last three windows are within 10%, and torch.utils.benchmark warns from 10% on.
SAME = 0.10
#: From this interquartile range on, relative to the median, torch.utils.benchmark speaks of "significant
#: environmental influence".
WIDE = 0.25
#: Windows that have to agree, and parts that a measurement is cut into to see whether it drifts.
_SETTLED_WINDOWS, _PARTS = 3, 5
#: Fewer samples than this are no distribution: one of them is a tenth of it.
FEWEST = 10
#: Times per second that a running thread had to leave its core. Each costs a slice of some 3 ms, so that these are 6%
#: of the time; 57 to 92 were counted on two cores that some seven other processes used.
_PUT_ASIDE = 20


class Surroundings(NamedTuple):
    """What was seen beside the samples. ``put_aside`` is how often per second a thread had to leave its core to others.

    ``cores`` are those this process may use; None = not known.
    """

    on_device: bool
    threads: int
    cores: int | None = None
    put_aside: float | None = None


def percentile(ordered: Sequence[int], percent: int) -> int | None:
    """The value that ``percent`` of the sorted values do not exceed: one that was measured (nearest rank).

    None with fewer values than it takes for one of them to lie beyond: 10 for p90, 100 for p99.
    """
    if len(ordered) * (100 - percent) < 100 and percent > 50:
        return None
    if not ordered:
        return None
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def median(values: Sequence[int]) -> int:
    """The middle value, the lower one of two."""
    return sorted(values)[(len(values) - 1) // 2]


def settled(windows: Sequence[int]) -> bool:
    """Whether the medians of the last three warm-up windows agree within 10%."""
    last = windows[-_SETTLED_WINDOWS:]
    return len(last) == _SETTLED_WINDOWS and max(last) <= (1 + SAME) * min(last)


def drift(samples: Sequence[int]) -> float | None:
    """How far the medians of five consecutive parts lie apart, as a share of the lowest; None of too few samples."""
    if len(samples) < FEWEST:
        return None
    medians = _parts(samples)
    return max(medians) / max(1, min(medians)) - 1


def spread(samples: Sequence[int]) -> float | None:
    """The interquartile range as a share of the median; None of too few samples."""
    if len(samples) < FEWEST:
        return None
    ordered = sorted(samples)
    quarter = len(ordered) // 4
    return (ordered[-1 - quarter] - ordered[quarter]) / max(1, median(ordered))


def stable(samples: Sequence[int]) -> bool:
    """Whether a measurement neither drifts by more than 10% nor has quartiles more than 25% apart."""
    drifted, wide = drift(samples), spread(samples)
    return drifted is not None and wide is not None and drifted <= SAME and wide <= WIDE


def likely_cause(samples: Sequence[int], around: Surroundings) -> str:
    """Why a measurement is not stable, as far as it shows."""
    if len(samples) < FEWEST:
        calls = "call" if len(samples) == 1 else "calls"
        return f"only {len(samples)} {calls} in the time budget: give it more"
    if not around.on_device and around.cores is not None and around.threads > around.cores:
        return f"{around.threads} threads on {around.cores} cores: torch.set_num_threads({around.cores})"
    medians = _parts(samples)
    steps = [after / max(1, before) for before, after in itertools.pairwise(medians)]
    changed = medians[-1] / max(1, medians[0])
    if changed > 1 + SAME and min(steps) > 1 - SAME / 4:
        return "it became slower all along: clocks that fall (heat, a power limit), or state that grows in the model"
    if changed < 1 - SAME and max(steps) < 1 + SAME / 4:
        return "it was still becoming faster: compilation, autotuning or caches; give it more time"
    if not around.on_device and around.put_aside is not None and around.put_aside > _PUT_ASIDE:
        return f"neighbours: other processes took its cores {around.put_aside:.0f} times a second"
    where = "the device" if around.on_device else "the memory or the cores' caches"
    return f"nothing seen in this process: clocks that vary, neighbours on {where}, or calls that differ"


def knee(latencies: Mapping[int, int]) -> int | None:
    """The largest batch size that is still worth it, of median latencies by batch size; None of fewer than two.

    A larger batch is worth it while it raises throughput by 10% or more per doubling of its size: less cannot be told
    from the noise that a stable measurement may have, and is paid for with latency.
    """
    if len(latencies) < 2:
        return None
    best, *larger = sorted(latencies)
    for size in larger:
        if gain_per_doubling(latencies, best, size) >= SAME:
            best = size
    return best


def gain_per_doubling(latencies: Mapping[int, int], smaller: int, larger: int) -> float:
    """By what share throughput grows for each doubling between two batch sizes."""
    faster = (larger / latencies[larger]) / (smaller / latencies[smaller])
    # Of sizes side by side a doubling is thousands of them: more than a number holds is as good as the largest.
    grown = math.exp(min(math.log(faster) / math.log2(larger / smaller), 700.0))
    # The epsilon: a gain that is exactly the threshold must not fall below it by rounding.
    return grown - 1 + 1e-9


def _parts(samples: Sequence[int]) -> list[int]:
    length = len(samples) // _PARTS
    return [median(samples[part * length : (part + 1) * length]) for part in range(_PARTS)]
