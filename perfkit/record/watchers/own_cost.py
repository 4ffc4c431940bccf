"""perfkit's own processor time that comes once in a run, by what it was for. The clock counts what each step adds."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from perfkit import _background

#: Loading perfkit and attaching it; what is done when the program is over.
Part = Literal["start", "end"]


class OwnCost:
    """Adds up processor time of this process, all its threads, and of the helper processes that it started."""

    def __init__(self) -> None:
        self._ns: Counter[str] = Counter()
        #: What helpers of earlier runs of this process had used.
        self._helpers_before_ns = _background.processor_ns()

    def add(self, part: Part, ns: int) -> None:
        """Count processor time of this process."""
        self._ns[part] += ns

    def parts(self, windows_ns: int | None) -> dict[str, int]:
        """The parts so far, in ns; ``windows_ns`` is what windows took beyond ordinary steps, None: not known."""
        helpers_ns = _background.processor_ns() - self._helpers_before_ns
        return {**self._ns, **({"windows": windows_ns} if windows_ns is not None else {}), "helpers": helpers_ns}
