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
        #: It hears of each step that has a closure, and of the closure's calls.
        self.watch: RepeatedClosureWatch | None = None

    def timed(self, args: Any, kwargs: Any) -> Any:
        """The arguments of a call of ``step()``, with its closure timed; None where it has none."""
        is_first = len(args) > 1 and callable(args[1])
        given = args[1] if is_first else kwargs.get("closure")
        if not callable(given):
            return None
        watch, told = self.watch, None
        if watch is not None and (step := watch.begin(args[0])) is not None:
            told = watch, step
        closure = self._wrap(given, told)
        return ((args[0], closure, *args[2:]), kwargs) if is_first else (args, {**kwargs, "closure": closure})

    def _wrap(self, closure: Callable[[], Any], told: tuple[RepeatedClosureWatch, Any] | None) -> Callable[[], Any]:
        @functools.wraps(closure)
        def timed() -> Any:
            self.running += 1
            self._clock.enter("forward")
            try:
                if told is None:
                    return closure()
                watch, step = told
                before = watch.before_call(step)
                loss = closure()
                watch.after_call(step, before, loss)
                return loss
            finally:
                self.running -= 1
                self._clock.leave("forward")

        return timed
