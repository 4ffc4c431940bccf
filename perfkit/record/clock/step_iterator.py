"""`perfkit.profile.steps`: an iterable whose iterations are the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from perfkit.record.clock.step_clock import StepClock

T = TypeVar("T")


class StepIterator(Generic[T]):
    """Iterates over an iterable, and makes each iteration a step.

    A step begins with the wait for its item and ends before the next one's; ``break`` and errors end the last one.
    ``len()`` and attributes (``loader.sampler``, ``loader.dataset``) are those of the iterable.
    """

    def __init__(
        self, iterable: Iterable[T], clock: StepClock, on_begin: Callable[[], None], on_end: Callable[[], None]
    ) -> None:
        self._iterable = iterable
        self._clock = clock
        self._on_begin = on_begin
        self._on_end = on_end

    def __iter__(self) -> Iterator[T]:
        clock = self._clock
        if clock.iterating:
            yield from self._iterable
            return
        self._on_begin()
        clock.start()
        clock.iterating = True
        fetched = False
        try:
            clock.enter("data")
            iterator = iter(self._iterable)
            while True:
                try:
                    item = next(iterator)
                except StopIteration:
                    self._on_end()
                    return
                clock.leave("data")
                fetched = True
                yield item
                fetched = False
                clock.close_with_fetch()
        finally:
            # After break, return and exceptions the item's step is open; after an exhausted iterable a fetch without
            # an item, which is no step.
            clock.iterating = False
            if fetched:
                clock.close()
            clock.drop()

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]  # raises TypeError as the iterable itself would

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterable, name)

    def __repr__(self) -> str:
        return f"perfkit.steps({self._iterable!r})"
