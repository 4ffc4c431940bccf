"""The closures that optimizers call inside ``step()``, as LBFGS does, and every optimizer under Lightning."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from perfkit.record.clock.step_clock import StepClock
from perfkit.record.watchers.repeated_closures import RepeatedClosureWatch


class Closures:
    """Times them as forward; the backward that they run is timed inside of that."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        #: How many are running.
        self.running = 0
        #: What is told of the steps that have a closure, and of its calls.
        self.watch: RepeatedClosureWatch | None = None

    def timed(self, args: Any, kwargs: Any) -> Any:
        """The arguments of a call of ``step()``, with its closure timed; None where it has none."""
        if len(args) > 1 and callable(args[1]):
            changed = (args[0], self._wrap(args[1]), *args[2:]), kwargs
        elif callable(kwargs.get("closure")):
            changed = args, {**kwargs, "closure": self._wrap(kwargs["closure"])}
        else:
            return None
        if self.watch is not None:
            self.watch.begin(args[0])
        return changed

    def _wrap(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        @functools.wraps(closure)
        def timed() -> Any:
            self.running += 1
            self._clock.enter("forward")
            try:
                watch = self.watch
                if watch is None or not watch.watching:
                    return closure()
                before = watch.before_call()
                loss = closure()
                watch.after_call(before, loss)
                return loss
            finally:
                self.running -= 1
                self._clock.leave("forward")

        return timed
