"""What a what-if can change, one change per file; a family is found by its folder.

A module of a family has:

- ``NAME``: what users write, and ``TAKES``: "nothing" (``--without NAME``), or what its argument is.
- ``describe(argument)``: the change in words, for reports.
- ``change(graph, times, argument, interference)``: change the times in place. Without ``interference`` all that the
  change can save is saved; with it what usually remains stays: the two ends of the interval. Only tasks of the steps
  change (`perfkit.replay._selection.Active`). A change that makes something faster shortens times or drops waits, and
  nothing else, so that no step gets longer.
- ``applies(graph)``: whether the trace has anything that it changes.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, NamedTuple

from perfkit import _families
from perfkit.replay.task_graph import TaskGraph, TaskTimes

Takes = Literal["nothing", "number", "pattern", "pattern=number"]


class Transform(NamedTuple):
    """One change that a what-if knows."""

    name: str
    takes: Takes
    describe: Callable[[Any], str]
    change: Callable[[TaskGraph, TaskTimes, Any, bool], None]
    applies: Callable[[TaskGraph], bool]

    def option(self, argument: Any = None) -> str:
        """The option of `perfkit what-if` that asks for it."""
        if self.takes == "nothing":
            return f"--without {self.name}"
        return f"--{self.name}" if argument is None else f"--{self.name} {shlex.quote(str(argument))}"


@cache
def find_transforms() -> dict[str, Transform]:
    """All changes by their names."""
    # The families are found below this module, which has to be loaded before.
    import perfkit.replay.transforms as package

    found = {}
    for module in _families.members(package):
        one: Any = module
        found[one.NAME] = Transform(one.NAME, one.TAKES, one.describe, one.change, one.applies)
    return found


def without_words() -> tuple[str, ...]:
    """The names that ``--without`` takes."""
    return tuple(sorted(name for name, one in find_transforms().items() if one.takes == "nothing"))
