"""Metrics of launches in a report of Nsight Compute: times, and means weighed by time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from perfkit.trace.nsight.ncu import Launch

Metrics = Mapping[str, float]

#: Hours for launches of one kernel: such a number is damaged.
_MAX_NS = 1e13


def time_ns(launch: Launch) -> float | None:
    """Time of all the launches that this one represents."""
    seconds = first(launch.metrics, ("gpu__time_duration.sum", "gpu__time_duration.avg"))
    ns = -1.0 if seconds is None else seconds * 1e9 * launch.count
    return ns if 0 <= ns < _MAX_NS else None


def first(metrics: Metrics, names: Iterable[str]) -> float | None:
    """The first of these metrics that a launch has."""
    return next((metrics[name] for name in names if name in metrics), None)


class WeighedLaunches(NamedTuple):
    """Launches of one kernel with their weights: times, or counts where a time is missing."""

    launches: list[Launch]
    weights: list[float]

    def mean(self, value: Callable[[Launch], float | None]) -> float | None:
        """The mean of a value over the launches that have it."""
        known = [(v, w) for one, w in zip(self.launches, self.weights, strict=True) if (v := value(one)) is not None]
        weight = sum(w for _, w in known)
        return sum(v * w for v, w in known) / weight if weight else None

    def share(self, *names: str) -> float | None:
        """The mean of a percentage, as a part of 1."""
        percent = self.mean(lambda launch: first(launch.metrics, names))
        return None if percent is None or percent < 0 else percent / 100
