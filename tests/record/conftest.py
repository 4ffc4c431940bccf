"""What tests of recording share."""

from __future__ import annotations

import sys

import pytest

from perfkit.record.clock.step_clock import StepClock
from perfkit.record.clock.step_sums import ClosedStep
from perfkit.record.hooks.torch_hooks import LoopHooks


class Recording:
    """A step clock with the hooks of a loop, and the steps that it closed."""

    def __init__(self) -> None:
        self.closed: list[ClosedStep] = []
        self.clock = StepClock(self.closed.extend)
        self.hooks = LoopHooks(self.clock)

    def __enter__(self) -> Recording:
        self.hooks.attach()
        self.clock.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.hooks.finish()
        self.hooks.detach()

    @property
    def counted_by(self) -> str | None:
        boundary = self.hooks.boundary
        return boundary.by if boundary is not None else None

    @property
    def walls_ms(self) -> list[float]:
        return [step.wall_ns / 1e6 for step in self.closed]

    def phases(self, *names: str) -> list[tuple[float | None, ...]]:
        """The ms of these phases in each step."""

        def ms(ns: int | None) -> float | None:
            return None if ns is None else ns / 1e6

        return [tuple(ms(getattr(step.phases_ns, name)) for name in names) for step in self.closed]


@pytest.fixture
def recorded() -> type[Recording]:
    """What times a loop: ``with`` an instance of it around the loop."""
    return Recording


@pytest.fixture
def nothing_compiled() -> None:
    """Dynamo as in a program that compiled nothing: other tests of this process may have."""
    if (eval_frame := sys.modules.get("torch._dynamo.eval_frame")) is not None:
        eval_frame.cached_backends.clear()
