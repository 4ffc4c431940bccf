"""The user's frames that are running, and their local variables, without keeping any of them alive."""

from __future__ import annotations

import inspect
import sys
from types import FrameType
from typing import Any

from perfkit._code_owner import USER, frames_outwards, owner_of


def user_frames() -> list[FrameType]:
    """The user's frames that are running on this thread, innermost first."""
    frames = frames_outwards(sys._getframe(1))
    return [frame for frame in frames if owner_of(frame.f_code.co_filename) == USER]


def locals_of(frame: FrameType) -> list[tuple[str, Any]]:
    """The local variables of a running frame."""
    snapshot = frame.f_locals
    found = list(snapshot.items())
    # Before Python 3.13 a function's frame keeps this snapshot until it ends, and with it a batch or a graph. It is
    # emptied if nobody else has it (the frame, the variable, the argument): `locals()` gives the program the same.
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.getrefcount(snapshot) == 3:
        snapshot.clear()
    return found
