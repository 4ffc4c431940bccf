"""Settings of the process as the run recorded them, and the user's line that makes one."""

from __future__ import annotations

from perfkit._location import Location
from perfkit.run.records import Rank


def is_on(rank: Rank, setting: str) -> bool:
    """Whether a setting was on in most readings of it."""
    return rank.settings.get(setting) == "True"


def number(rank: Rank | None, setting: str) -> int | None:
    """A setting that is a whole number above 0, None where it was not recorded."""
    text = rank.settings.get(setting, "") if rank is not None else ""
    return int(text) if text.isdigit() and int(text) > 0 else None


def first_call(rank: Rank, *names: str) -> Location | None:
    """The user's first line that calls one of these; None where it is set elsewhere (an environment, a library)."""
    return next((calls[0] for name in names if (calls := rank.calls.get(name))), None)
