"""What was measured of one source: results by their type, which is what rules subscribe to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import msgspec

from perfkit._text import printable

if TYPE_CHECKING:
    from perfkit.trace.columns import Trace

_T = TypeVar("_T")


class TraceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace is, and what it does not hold. ``backend`` is what exchanges the tensors of ``world_size`` ranks."""

    AVAILABLE_FROM: ClassVar[str] = "a trace: a recorded window, or a trace file"

    path: str
    format: Literal["kineto", "nsys"]
    events: int
    device_events: int
    devices: tuple[str, ...]
    steps: int
    span_ns: int
    rank: int | None
    world_size: int | None
    has_stacks: bool
    has_shapes: bool
    lost: tuple[str, ...]
    backend: str | None = None


class PlannedSteps(msgspec.Struct, frozen=True, kw_only=True):
    """How many steps the run will have, as its loop or Trainer announced."""

    AVAILABLE_FROM: ClassVar[str] = "a run whose length is known in advance"

    count: int


class Measurements:
    """Results of measures, by type: ``measurements.get(Kernels)``, ``measurements.all(CopyTime)``.

    ``results`` are values, tuples of values, or None where a measure had nothing to measure. ``missing`` has a sentence
    for each part of the source that could not be measured. ``trace`` is the one that was measured, of a run that of its
    newest window.
    """

    def __init__(self, source: str, *results: Any, missing: tuple[str, ...] = ()) -> None:
        self.source = source
        self.missing = missing
        self.trace: Trace | None = None
        self._by_type: dict[type, tuple[Any, ...]] = {}
        self._derived: dict[type, Any] = {}
        for result in results:
            self.add(result)

    def add(self, result: Any) -> None:
        """Add a value, or each value of a tuple; None adds nothing."""
        self._derived.clear()
        for value in result if type(result) is tuple else () if result is None else (result,):
            self._by_type[type(value)] = (*self._by_type.get(type(value), ()), value)

    def replace(self, result: Any) -> None:
        """Add a value, or a tuple of values of one type, in place of those of its type; None replaces nothing."""
        values = result if isinstance(result, tuple) else () if result is None else (result,)
        if values:
            self._derived.clear()
            self._by_type[type(values[0])] = values

    def get(self, kind: type[_T]) -> _T | None:
        """The value of this type (the first, where there are several), or None."""
        return next(iter(self.all(kind)), None)

    def all(self, kind: type[_T]) -> tuple[_T, ...]:
        """All values of this type, in the order in which they were added."""
        return self._by_type.get(kind, ())

    def derived(self, kind: type[_T]) -> _T | None:
        """What ``kind.from_measurements`` makes of these results; made once, until one of them is added or replaced."""
        if kind not in self._derived:
            make: Callable[[Measurements], _T | None] = kind.from_measurements  # type: ignore[attr-defined]
            self._derived[kind] = make(self)
        found: _T | None = self._derived[kind]
        return found

    def of_device(self, device: int) -> Measurements:
        """These results without those of other devices: those with another number as their ``device``."""

        def is_other(result: Any) -> bool:
            number = getattr(result, "device", None)
            return isinstance(number, int) and number != device

        chosen = Measurements(self.source, missing=self.missing)
        for results in self:
            chosen.add(tuple(one for one in results if not is_other(one)))
        return chosen

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """The values, a tuple for each type."""
        return iter(self._by_type.values())

    def __repr__(self) -> str:
        parts = (
            kind.__name__ + (f" x {len(values)}" if len(values) > 1 else "") for kind, values in self._by_type.items()
        )
        return printable(f"<measurements of {self.source}: {', '.join(parts)}>")
