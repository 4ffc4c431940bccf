"""Where changes are put in place: what undoes them, and where in the program they took effect."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType

from perfkit._code_owner import expression_end, function_name, line_of, owner_of, user_and_library_frame
from perfkit._patches import Patches
from perfkit.run.records import ChangedLine

#: Places that are kept of one change: a program makes few loaders and optimizers.
_MAX_PLACES = 16
#: Uses whose place is looked up, which takes microseconds: what a step does is there after a few steps.
_MAX_LOOKS = 256


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
        self._seen: set[tuple[CodeType, int]] = set()

    def used(self) -> None:
        """It changes something of the program's now."""
        self.count += 1
        if self.count > _MAX_LOOKS or len(self.places) >= _MAX_PLACES:
            return
        user, library = user_and_library_frame(sys._getframe(1))
        found = user or library
        if found is not None and (at := (found.f_code, found.f_lasti)) not in self._seen:
            self._seen.add(at)
            self.places[_changed_line(found, library if user is not None else None)] = None

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


def _changed_line(frame: FrameType, library: FrameType | None) -> ChangedLine:
    code = frame.f_code
    return ChangedLine(
        file=code.co_filename,
        line=line_of(frame),
        function=function_name(code),
        owner=owner_of(code.co_filename),
        via=None if library is None else f"{library.f_code.co_filename}:{line_of(library)}",
        end=expression_end(code, frame.f_lasti),
    )
