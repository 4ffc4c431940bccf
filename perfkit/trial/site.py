"""Where changes are put in place: what undoes them, and where in the program they took effect."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

from perfkit._callsite import find_callsite
from perfkit._code_owner import expression_end, user_and_library_frame
from perfkit._patches import Patches
from perfkit.run.records import ChangedLine

#: Places that are kept of one change: a program makes few loaders and optimizers.
_MAX_PLACES = 16


class Site:
    """One change in place."""

    def __init__(self) -> None:
        self.patches = Patches()
        #: False while it is suspended, and once it is undone: a wrapper that the program has wrapped in turn stays, and
        #: must then do nothing.
        self.active = True
        #: How often it has changed something, and the user's lines that were running then.
        self.count = 0
        self._switches: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self.places: dict[ChangedLine, None] = {}

    def used(self) -> None:
        """It changes something of the program's now."""
        self.count += 1
        if len(self.places) < _MAX_PLACES and (place := _changed_line(sys._getframe(1))) is not None:
            self.places[place] = None

    def switch(self, on: Callable[[], None], off: Callable[[], None]) -> None:
        """Call ``on`` now and at each `resume`, ``off`` at each `suspend`; `patches` holds what undoes ``on``."""
        on()
        self._switches.append((on, off))

    def suspend(self) -> None:
        """Switch the change off: the program runs as without it."""
        if self.active:
            self.active = False
            for _, off in reversed(self._switches):
                off()

    def resume(self) -> None:
        """Switch it on again."""
        if not self.active:
            self.active = True
            for on, _ in self._switches:
                on()

    def undo(self) -> None:
        """Put everything back."""
        self.active = False
        self.patches.undo()


def _changed_line(frame: FrameType) -> ChangedLine | None:
    place = find_callsite(frame)
    if place is None:
        return None
    user, _ = user_and_library_frame(frame)
    return ChangedLine(
        file=place.file,
        line=place.line,
        function=place.function,
        owner=place.owner,
        via=place.via,
        end=None if user is None else expression_end(user.f_code, user.f_lasti),
    )
