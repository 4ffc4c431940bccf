"""trial.json: what `perfkit try` has measured, in the folder of the run whose advice it tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from perfkit._text import printable
from perfkit._versioned_json import json_text
from perfkit.run.records.changes import ChangedLine

#: Version of trial.json.
TRIAL_SCHEMA = 1

#: What became of a change: a claim (faster, slower), none (no-difference: less than what two equal programs differ by;
#: undecided: more was measured, and it is not certain), nothing to measure (no-effect: the program made nothing that it
#: applies to; computed: from the cost, without a run), a failure, or not tried at all.
TriedOutcome = Literal[
    "faster",
    "slower",
    "no-difference",
    "undecided",
    "no-effect",
    "computed",
    "failed",
    "out-of-memory",
    "refused",
    "not-tried",
]
#: How the losses of a changed program compare: equal within 1e-6, within what other seeds differ by, neither, or no
#: loss was seen.
LossOutcome = Literal["same", "within-seeds", "differs", "unknown"]


class LossCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the losses of the same steps agree. It says nothing about convergence.

    ``difference`` is the largest relative difference of a step's losses, and ``steps`` how many were compared.
    """

    outcome: LossOutcome
    sentence: str
    difference: float | None = None
    steps: int = 0


class TriedChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change, or several together, against the program without.

    Attributes:
        names: What a user writes: ``("workers=2",)``; several names where they were measured together.
        rules: The findings that it answers.
        kind: "exact", "numeric", "bound" (an upper bound: no patch can do this) or "computed".
        outcome: What became of it.
        sentence: The outcome for a person, with the reason where nothing was measured.
        saving: The share of a step that it saves (0.25: a quarter); negative where it costs time.
        ci: 95 % confidence interval of ``saving``.
        before_ns: Typical step without it, measured next to ``after_ns``, the one with it.
        predicted: What the findings had estimated, as shares of the step: low and high end.
        pays_after: Steps until the time that it costs at the start is recovered; None where it costs none.
        loss: Whether the losses agree.
        lines: What a user would write.
        places: The user's lines that ran when it took effect.
    """

    names: tuple[str, ...]
    rules: tuple[str, ...] = ()
    kind: str = "exact"
    outcome: TriedOutcome = "not-tried"
    sentence: str = ""
    saving: float | None = None
    ci: tuple[float, float] | None = None
    before_ns: float | None = None
    after_ns: float | None = None
    predicted: tuple[float, float] | None = None
    pays_after: int | None = None
    loss: LossCheck | None = None
    lines: str = ""
    places: tuple[ChangedLine, ...] = ()

    @property
    def name(self) -> str:
        """The names as one text."""
        return " + ".join(self.names)

    @property
    def speedup(self) -> float | None:
        """How many times as fast: 2.0 where half of the step is saved."""
        return None if self.saving is None else 1 / (1 - self.saving)

    def __repr__(self) -> str:
        return printable(f"<{self.name}: {self.sentence}>")


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What changes save in a program, measured by running it again with each.

    Attributes:
        program: The command that was tried.
        verdict: The result in one sentence.
        folder: The run folder in which trial.json and trial.patch are; empty where a trace was diagnosed.
        floor: The share of a step by which two runs of the unchanged program differ: below it nothing is claimed.
        step_ns: Typical step of the unchanged program.
        changes: Each change that was tried, in the order of the findings that they answer.
        together: The changes that save time, combined; None where there are none.
        patch: The combined changes as a unified diff; empty where none can be written.
        config: The same as arguments of the Trainer through which they took effect; empty where there was none.
        unpatched: Changes that a user has to write by hand, each with its reason.
        notes: What limits this result: budget, losses that are not deterministic.
        seconds: How long all of it took.
    """

    schema: int = TRIAL_SCHEMA
    program: str
    verdict: str
    folder: str = ""
    floor: float | None = None
    step_ns: float | None = None
    changes: tuple[TriedChange, ...] = ()
    together: TriedChange | None = None
    patch: str = ""
    config: str = ""
    unpatched: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def faster(self) -> Sequence[TriedChange]:
        """The changes that save time, the largest saving first."""
        found = [one for one in self.changes if one.outcome == "faster"]
        return sorted(found, key=lambda one: -(one.saving or 0.0))

    def to_json(self) -> str:
        """The text of trial.json."""
        return json_text(self)

    def __repr__(self) -> str:
        return printable(f"<trial of {self.program}: {self.verdict}>")
