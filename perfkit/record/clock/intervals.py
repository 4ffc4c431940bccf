"""What the step clock logs: the kinds of intervals between two of its events.

`StepClock` writes ``interval, time, interval, time ...``; `StepSums` reads that. An interval is one shared object per
kind, compared by identity: logging it and comparing whole steps costs no more than with numbers.
"""

from __future__ import annotations

from typing import Literal

from perfkit.run.records import MODES, PHASES, Mode, Phase

#: Columns of a step's times: one per phase, then two for time whose phase is decided later.
COLUMNS: dict[str, int] = {name: index for index, name in enumerate((*PHASES, "undecided", "after fetch"))}


class Interval:
    """The time between two events, as it is logged at its end.

    Attributes:
        column: Where its time is added.
        shown: The phase that it counts as while it runs, and on a device, where time cannot be moved afterwards.
        decides: What its end makes of all undecided time of the step so far, its own included; None: nothing yet.
        mode: The mode of the step that ends with it; None: none does.
        settled: The same interval, whose end decides that undecided time was "other".
        closed: The same interval, with which a step of that mode ends.
    """

    __slots__ = ("closed", "column", "decides", "mode", "settled", "shown")

    def __init__(
        self, name: str, shown: Phase, decides: Literal["forward", "other"] | None = None, mode: Mode | None = None
    ) -> None:
        self.column = COLUMNS[name]
        self.shown: Phase = shown
        self.decides = decides
        self.mode = mode
        if decides is None:
            self.settled = Interval(name, shown, "other")
            self.closed: dict[Mode, Interval] = {mode: Interval(name, shown, "other", mode) for mode in MODES}


#: An open phase runs.
IN_PHASE: dict[Phase, Interval] = {phase: Interval(phase, phase) for phase in PHASES}
#: No phase is open, and nothing is known yet: clipping, logging, or a second forward as in a GAN.
UNDECIDED = Interval("undecided", "other")
#: The same, up to a backward: all of it was forward.
BEFORE_BACKWARD = Interval("undecided", "other", "forward")
#: No phase is open since a fetch: the forward.
AFTER_FETCH = Interval("after fetch", "forward")
