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


def common_path(paths: list[Path]) -> Path:
    """The lines that lead to all of them, innermost first."""
    common: list[Site] = []
    for sites in zip(*(reversed(path) for path in paths), strict=False):
        if len(set(sites)) > 1:
            break
        common.append(sites[0])
    return tuple(reversed(common))


def calling_site(path: Path, other: Path) -> Site:
    """The line on a path that is in the function of the other's innermost line, or in one that led to both."""
    pairs = list(zip(reversed(path), reversed(other), strict=False))
    at = next((place for place, (one, two) in enumerate(pairs) if one != two), len(pairs) - 1)
    # Of long paths the outermost lines are not known: the two may have none in common.
    return pairs[at][0] if at > 0 or (pairs and pairs[0][0] == pairs[0][1]) else path[0]


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
