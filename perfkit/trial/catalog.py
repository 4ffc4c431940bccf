"""The changes that exist (`perfkit.trial.changes`), and what a user wrote about them: ``tf32``, ``workers=2``."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import ModuleType
from typing import Any, Literal, NamedTuple

import perfkit.trial.changes
from perfkit._families import family_of, members
from perfkit.errors import UsageError
from perfkit.run.records import Rank
from perfkit.trial.patches.edits import Edit, TrainerArgument

#: What a change does to the results of a program, and so what a measurement of it means.
Kind = Literal["exact", "numeric", "sweep", "bound", "computed"]
#: Each kind, in words that follow "Its kind is ...: ".
KINDS: dict[Kind, str] = {
    "exact": "no number is computed in another way",
    "numeric": "results differ by rounding",
    "sweep": "the training is another one, and values are compared with each other",
    "bound": "it shows the most that could be saved; the results are wrong, and no patch contains it",
    "computed": "its saving is computed from the cost that a run shows, and nothing is run",
}


def _no_environment(current: Mapping[str, str]) -> dict[str, str]:
    return {}


class Change(NamedTuple):
    """One change of the catalogue; `perfkit.trial.changes` describes what its module defines."""

    id: str
    family: str
    explanation: str
    kind: Kind
    answers: tuple[str, ...]
    lines: str
    parse: Callable[[str | None], Any] | None
    suggested: Callable[[], Iterable[Any]]
    refuse: Callable[[], str | None]
    apply: Callable[[Any, Any], None] | None
    remaining: Callable[[Any], float] | None = None
    environment: Callable[[Mapping[str, str]], dict[str, str]] = _no_environment
    placeholder: str = "N"
    toggle: bool = False
    first: bool = False
    slow_start: bool = False
    redraws: bool = False
    edits: tuple[Edit, ...] = ()
    trainer: TrainerArgument = TrainerArgument()
    after: tuple[str, ...] = ()
    needless: Callable[[Rank, Any], str | None] = lambda rank, value: None

    @classmethod
    def of(cls, module: ModuleType) -> Change:
        """The change that a module defines."""
        return cls(
            module.ID,
            family_of(module),
            inspect.getdoc(module) or "",
            module.KIND,
            module.ANSWERS,
            module.LINES,
            getattr(module, "parse", None),
            getattr(module, "suggested", tuple),
            getattr(module, "refuse", lambda: None),
            getattr(module, "apply", None),
            getattr(module, "remaining", None),
            getattr(module, "environment", _no_environment),
            getattr(module, "PLACEHOLDER", "N"),
            getattr(module, "TOGGLE", False),
            getattr(module, "FIRST", False),
            getattr(module, "SLOW_START", False),
            getattr(module, "REDRAWS", False),
            getattr(module, "EDITS", ()),
            getattr(module, "TRAINER", TrainerArgument()),
            getattr(module, "AFTER", ()),
            getattr(module, "needless", lambda rank, value: None),
        )

    @property
    def title(self) -> str:
        """What it is, in one line."""
        return self.explanation.partition("\n")[0].rstrip(".")


class ChosenChange(NamedTuple):
    """A change with its value; its text is what a user writes: ``workers=2``."""

    change: Change
    value: Any = None

    def __str__(self) -> str:
        return self.change.id if self.change.parse is None else f"{self.change.id}={self.value}"

    @property
    def lines(self) -> str:
        """What a user would write instead."""
        return self.change.lines.format(value=self.value)


@cache
def find_changes() -> dict[str, Change]:
    """All changes by id, by family. Needs no torch: a change imports it when it is applied."""
    return {change.id: change for change in map(Change.of, members(perfkit.trial.changes))}


def parse_change(text: str) -> ChosenChange:
    """The change that ``text`` names: ``tf32``, ``workers=2``.

    Raises:
        UsageError: no change has this name, or it takes no such value; the text says which there are.
    """
    name, equals, value = text.strip().partition("=")
    changes = find_changes()
    change = changes.get(name)
    if change is None:
        near = difflib.get_close_matches(name, changes, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else f"the changes are {', '.join(changes)}"
        raise UsageError(f"no change is called {name!r}: {hint}")
    if change.parse is None:
        if equals:
            raise UsageError(f"the change {name} takes no value, got {text!r}")
        return ChosenChange(change)
    try:
        return ChosenChange(change, change.parse(value if equals else None))
    except ValueError as error:
        got = f"got {value!r}" if equals else "got none"
        example = "".join(f", as in {name}={value}" for value in [*change.suggested()][:1])
        raise UsageError(f"the change {name} must have {error}{example}; {got}") from None


def parse_changes(texts: Iterable[str]) -> list[ChosenChange]:
    """Several changes, also with commas and several values: ``["tf32,workers=0,2"]`` names three.

    Raises:
        UsageError: see `parse_change`.
    """
    chosen: list[ChosenChange] = []
    for part in (part.strip() for text in texts for part in text.split(",")):
        if chosen and part and not part[0].isalpha() and chosen[-1].change.parse is not None:
            part = f"{chosen[-1].change.id}={part}"  # one more value of the same change
        if part:
            chosen.append(parse_change(part))
    return list(dict.fromkeys(chosen))


def environment_of(chosen: Iterable[ChosenChange], current: Mapping[str, str]) -> dict[str, str]:
    """The variables that must be set before a program starts for these changes to have an effect on it.

    ``current`` is the environment that it would have without them.
    """
    found: dict[str, str] = {}
    for one in chosen:
        found |= one.change.environment({**current, **found})
    return found
