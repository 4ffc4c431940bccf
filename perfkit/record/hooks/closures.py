"""The closures that optimizers call inside ``step()``, as LBFGS does, and every optimizer under Lightning."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from perfkit.record.clock.step_clock import StepClock


class Closures:
    """Times them as forward; the backward that they run is timed inside of that."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        #: How many are running.
        self.running = 0

    def timed(self, args: Any, kwargs: Any) -> Any:
        """The arguments of a call of ``step()``, with its closure timed; None where it has none."""
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._wrap(args[1]), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._wrap(kwargs["closure"])}
        return None

    def _wrap(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        @functools.wraps(closure)
        def timed() -> Any:
            self.running += 1
            self._clock.enter("forward")
            try:
                return closure()
            finally:
                self.running -= 1
                self._clock.leave("forward")

        return timed
