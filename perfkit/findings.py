"""What a rule reports: one problem found, with its evidence."""

from __future__ import annotations

from typing import Literal

import msgspec

from perfkit._location import Location

Severity = Literal["info", "warning", "critical"]
Confidence = Literal["high", "medium", "low"]

#: How sure each is, in words that follow a severity and a colon.
SURE: dict[Confidence, str] = {
    "high": "measured directly",
    "medium": "likely, its time is an estimate",
    "low": "uncertain, to be tried first",
}

#: What a verdict is: problems with their cost, proven health, neither, or a recording that does not show it.
Outcome = Literal["findings", "healthy", "unexplained", "cannot-tell"]

#: From mild to severe; the order `--fail-on SEVERITY` compares by.
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")


class Evidence(msgspec.Struct, frozen=True):
    """One number behind a finding: ``Evidence("data wait", 12.5, "ms", "steps.jsonl, 40 steps")``.

    ``value`` is None where the quantity could not be measured; ``source`` then says why.
    """

    name: str
    value: float | str | None
    unit: str
    source: str

    @classmethod
    def ms(cls, name: str, ns: float | None, source: str) -> Evidence:
        """A time in ns, or None, as evidence in ms."""
        return cls(name, None if ns is None else round(ns / 1e6, 3), "ms", source)

    @classmethod
    def percent(cls, name: str, part: float | None, of: float, source: str) -> Evidence:
        """A share, or None, as evidence in percent."""
        return cls(name, None if part is None else round(100 * part / of, 1), "%", source)


class AdvisedEdit(msgspec.Struct, frozen=True, kw_only=True):
    """An edit that a finding advises: the call of ``call`` on the line ``at`` gets these arguments.

    ``arguments`` are name and source: ``{"num_workers": "4"}``.
    """

    at: Location
    call: str
    arguments: dict[str, str]

    @classmethod
    def of(cls, at: Location | None, **arguments: object) -> AdvisedEdit | None:
        """The edit at the line that makes an object, whose function is ``DataLoader(...)``; None where it is not."""
        call = (at.function or "").removesuffix("(...)") if at is not None else ""
        if at is None or at.owner != "user" or not call.isidentifier() or at.function == call:
            return None
        return cls(at=at.at, call=call, arguments={name: repr(value) for name, value in arguments.items()})


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One problem found in a run or a trace.

    ``cost_ns`` is the time that the problem takes per step, or None where the data does not give it (on a CPU a sync
    costs nothing measurable); ``message`` or ``evidence`` then says why. ``saving_low_ns`` .. ``saving_high_ns`` is
    the interval of what the change in ``advice`` is expected to save per step, never more than the step: in 80% of
    cases the measured saving lies in it (`perfkit.ledger.intervals`). A low end of 0 means that none is known. On a
    CPU the high end may exceed ``cost_ns``: the rest of the step then finds its caches and allocator as it left them.

    ``spent`` is the line in which the time passes, ``change`` the line to edit (the construction of a DataLoader or an
    optimizer, a Trainer's argument, the call to hoist); each is None where none is known, and ``change`` is also None
    where it would repeat ``spent``. ``range`` is the range or module.
    ``edit`` is the change itself where it is an argument of a call; reports show it as a diff.
    ``what_if`` are the options of `perfkit what-if` whose replay gave the saving; None where the rule gave it.
    ``follows`` is the id of the rule whose finding explains this one: correct that one first. Per step means per
    mean step, or the whole recording where no steps are marked in it. ``of_ns`` is the length of the step that the cost
    is a part of: of the typical one, or of the mean of all where the cost comes in some steps only; None: not known.
    """

    rule: str = ""  # set by the engine: a rule does not name itself
    severity: Severity
    message: str
    advice: str
    confidence: Confidence = "medium"
    evidence: tuple[Evidence, ...] = ()
    spent: Location | None = None
    change: Location | None = None
    edit: AdvisedEdit | None = None
    range: str | None = None
    cost_ns: int | None = None
    saving_low_ns: int | None = None
    saving_high_ns: int | None = None
    follows: str | None = None
    what_if: str | None = None
    of_ns: int | None = None

    @property
    def quantified(self) -> bool:
        """Whether this is a problem (not information) whose cost is known."""
        return self.severity != "info" and self.cost_ns is not None
