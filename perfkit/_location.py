"""A place in source code: one type, wherever one is meant."""

from __future__ import annotations

import msgspec


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a file, and whose code it is.

    ``line`` is 1-based, None where only the function is known. ``owner`` is "user", "perfkit", "torch", "python" or a
    library's import name. What happens at one place extends this type, so its rows are locations themselves; `at` is
    the place alone.
    """

    file: str
    line: int | None
    function: str | None = None
    owner: str = "user"

    @property
    def at(self) -> Location:
        """The place alone, without the fields that a subclass adds."""
        return Location(file=self.file, line=self.line, function=self.function, owner=self.owner)


class CodeLine(Location, frozen=True, kw_only=True):
    """A location whose line and function are known."""

    line: int
    function: str
