"""The line of code to report for something that happens now: the user's, or a library's where there is no user code."""

from __future__ import annotations

from types import FrameType

from perfkit._code_owner import function_name, line_of, owner_of, user_and_library_frame
from perfkit._location import CodeLine


class CallSite(CodeLine, frozen=True, kw_only=True):
    """A location, with the library line inside it that did the work.

    ``via`` is the innermost frame below the location that belongs to a library other than torch, as ``file:line``;
    None where there is none.
    """

    via: str | None = None


def find_callsite(frame: FrameType | None) -> CallSite | None:
    """The innermost user line from ``frame`` outwards, else the innermost library line; None where there is neither."""
    user, library = user_and_library_frame(frame)
    found = user or library
    if found is None:
        return None
    code = found.f_code
    return CallSite(
        file=code.co_filename,
        line=line_of(found),
        function=function_name(code),
        owner=owner_of(code.co_filename),
        via=f"{library.f_code.co_filename}:{line_of(library)}" if user is not None and library is not None else None,
    )
