"""What to say of a line that draws with numpy's ``choice`` where it costs more than the numbers it draws."""

from __future__ import annotations

from collections.abc import Iterable

from perfkit._location import Location
from perfkit.run.records import Lines

_PERMUTES = (
    "numpy.random.choice(replace=False) permutes all of its numbers in each call: "
    "numpy.random.default_rng().choice(n, k, replace=False) draws k of them without that. "
)
_WEIGHS = (
    "choice(p=...) adds up all weights in each call: draw for a whole batch at once, or keep numpy.cumsum(p) and "
    "search uniform numbers in it (numpy.searchsorted). "
)


def draw_advice(place: Location | None, libraries: Iterable[str], lines: Lines | None) -> str:
    """The advice for a line that draws so, to stand before others; empty for other lines.

    ``libraries`` are those in which the line's time passes, as `LineRow.within` has them: numpy's compiled code is in
    none.
    """
    if place is None or lines is None or any(one and not one.startswith("numpy") for one in libraries):
        return ""
    drawn = next((one for one in lines.numpy_draws if (one.file, one.line) == (place.file, place.line)), None)
    return "" if drawn is None else _PERMUTES if drawn.permutes else _WEIGHS
