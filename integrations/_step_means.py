"""``StepMeans``: the step times that are logged to a Trainer's loggers."""

from __future__ import annotations

import time


class StepMeans:
    """Mean milliseconds per step since the last `take`, from the host's clock: without any sync."""

    def __init__(self) -> None:
        self._steps = self._step_ns = self._data_ns = 0
        self._began: int | None = None
        self._fetch_ns = 0

    def begin_step(self) -> None:
        """A step begins."""
        self._began = time.perf_counter_ns()

    def end_step(self) -> None:
        """The running step, if any, ends; the time until the next one begins belongs to no step."""
        if self._began is not None:
            self._steps += 1
            self._step_ns += time.perf_counter_ns() - self._began
            self._data_ns += self._fetch_ns
        self._began, self._fetch_ns = None, 0

    def waited(self, ns: int) -> None:
        """The running step has waited ``ns`` for data."""
        self._fetch_ns += ns

    def take(self) -> dict[str, float]:
        """The means as plain floats; empty if no step has ended since the last call."""
        if not self._steps:
            return {}
        means = {
            "perfkit/step_ms": self._step_ns / self._steps / 1e6,
            "perfkit/data_ms": self._data_ns / self._steps / 1e6,
        }
        self._steps = self._step_ns = self._data_ns = 0
        return means
