"""The user's lines that lead to a call of a module, and in which of them two calls differ."""

from __future__ import annotations

from types import CodeType, FrameType

from perfkit._code_owner import USER, frames_outwards, function_name, line_of, owner_of
from perfkit._location import Location

#: The line that calls: its code and its number.
Site = tuple[CodeType, int]
#: The user's lines that lead to a call, innermost first: the line that calls, and those that called its function.
Path = tuple[Site, ...]


def location_of(site: Site) -> Location:
    """Where a line stands."""
    code, line = site
    return Location(file=code.co_filename, line=line, function=function_name(code))


def again_at(first: Path, second: Path) -> Site | None:
    """The outermost line that led to the second call and not to the first; None where the same lines led to both."""
    pairs = zip(reversed(first), reversed(second), strict=False)
    return next((again for before, again in pairs if before != again), None)


def without_module(first: Path, second: Path) -> bool:
    """Whether the lines of the first call, which a module ends, led to the second call without that module."""
    return len(second) > len(first) and second[: len(first)] == first


def whole_path(frame: FrameType) -> Path:
    """All lines of the user's that lead to a call, innermost first, also outside of the modules around it."""
    callers = (one for one in frames_outwards(frame.f_back) if owner_of(one.f_code.co_filename) == USER)
    return tuple((one.f_code, line_of(one)) for one in callers)


def by_library(frame: FrameType) -> bool:
    """Whether a library other than torch calls a module, and not a line of the user's."""
    owners = (owner_of(one.f_code.co_filename) for one in frames_outwards(frame.f_back))
    return next((owner for owner in owners if owner not in ("torch", "perfkit", "python")), USER) != USER
