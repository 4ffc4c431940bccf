"""The whole time of a loop by what it was spent on, and growth of its steps."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from perfkit._format import duration, percent, shown_location, times
from perfkit._location import Location
from perfkit.run.records import Phase

#: What a part of the loop's time is:
#:
#: - "typical": the typical step, as often as there were steps; "growth": what steps took beyond the first ones' level;
#: - "rare": what some steps took beyond that level, in a fixed rhythm, or one that took most of the loop; "irregular":
#:   the same without a rhythm;
#: - "validation", "checkpoint", "test", "predict": phases and steps of that kind;
#: - "warm-up": the first steps; "recorded": steps that a window or another recording slowed; "between": outside steps,
#:   which is perfkit's work and the program's between two loops.
LoopUse = Literal[
    "typical",
    "growth",
    "rare",
    "irregular",
    "validation",
    "test",
    "predict",
    "checkpoint",
    "warm-up",
    "recorded",
    "between",
]

#: Steps that take so many times as long as the typical one do other work, such as an evaluation; what disturbs a step
#: takes less (chosen). Two or three of them are a rhythm, if it is that of epochs.
MUCH_LONGER = 5
#: Steps whose further time is to this share backward and optimizer train more than others: a third of a training step
#: is its forward.
_TRAINS = 0.4
#: Most of it, by a plain majority.
_MOST = 0.5
#: Parts that are not the program's own pace.
_NOT_PACE: frozenset[LoopUse] = frozenset({"recorded", "between"})


class LoopPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a loop's time: ``total_ns`` over ``steps`` steps.

    ``every`` is the period of rare steps (None: it is one step), ``longer`` how many times a typical step one of them
    takes, and ``phase`` the phase that exceeds its usual time the most. Of ``total_ns``, ``gc_ns`` were garbage
    collections, ``compile_ns`` compilation, and ``training_ns`` in the phases backward and optimizer. ``at`` is the
    line of the training function in which that time passes, ``called`` the hottest line below it; both are None where
    samples do not show it. ``for_training`` is whether training reads what that line computes, as of a rollout.
    """

    use: LoopUse
    total_ns: int
    steps: int = 0
    every: int | None = None
    longer: float | None = None
    phase: Phase | None = None
    gc_ns: int = 0
    compile_ns: int = 0
    training_ns: int = 0
    at: Location | None = None
    called: Location | None = None
    for_training: bool = False

    @property
    def is_other_work(self) -> bool:
        """Whether the steps do something else than train, collect garbage or compile: a rollout, a preview."""
        own = self.gc_ns + self.compile_ns <= _MOST * self.total_ns
        return self.use == "rare" and own and self.training_ns <= _TRAINS * self.total_ns


class LoopTime(msgspec.Struct, frozen=True, kw_only=True):
    """The time from the first step's start to the last one's end, in ``parts`` that sum to ``total_ns`` exactly.

    ``steps`` are the timed steps after the warm-up, ``typical_ns`` is the level that the typical step has (with growth:
    that of the first steps). ``after_ns`` is how long the program ran on after its last step.
    """

    AVAILABLE_FROM: ClassVar[str] = "steps recorded by perfkit run or perfkit.profile"

    total_ns: int
    steps: int
    typical_ns: int
    parts: tuple[LoopPart, ...]
    after_ns: int = 0

    @property
    def ends_early(self) -> bool:
        """Whether most of the program's time, from its first step on, came after the last one."""
        return self.after_ns > _MOST * (self.total_ns + self.after_ns)

    def of(self, use: LoopUse) -> int:
        """The time (ns) of all parts of this use."""
        return sum(part.total_ns for part in self.parts if part.use == use)

    @property
    def own_ns(self) -> int:
        """The loop's time without steps that a recording slowed, and without the time between steps."""
        return self.total_ns - sum(self.of(use) for use in _NOT_PACE)

    @property
    def covered(self) -> float:
        """The share (0 to 1) of `own_ns` that the typical step explains."""
        return self.of("typical") / self.own_ns if self.own_ns else 1.0

    @property
    def rare(self) -> tuple[LoopPart, ...]:
        """Groups of rare long steps, the one with most time first."""
        return tuple(sorted((p for p in self.parts if p.use == "rare"), key=lambda p: -p.total_ns))

    @property
    def rare_share(self) -> float:
        """The share (0 to 1) of `own_ns` that steps of a rhythm take beyond the typical one for other work."""
        other_ns = sum(part.total_ns for part in self.parts if part.is_other_work)
        return other_ns / self.own_ns if self.own_ns else 0.0

    @property
    def unclear_share(self) -> float:
        """The share (0 to 1) of `own_ns` that steps without a rhythm take, if they take much longer than the others."""
        unclear_ns = sum(
            part.total_ns - min(part.total_ns, part.gc_ns + part.compile_ns)
            for part in self.parts
            if part.use == "irregular" and (part.longer or 0) >= MUCH_LONGER
        )
        return unclear_ns / self.own_ns if self.own_ns else 0.0

    def sentence(self, least: float = 0.05) -> str:
        """What the typical step covers, and each other part with at least this share of the loop; "" where none has it.

        ``The typical step covers 71% of the loop; 25% is every 16th step, which takes 40 times as long (train.py:88).``
        """
        others = sorted(
            (p for p in self.parts if p.use not in _NOT_PACE | {"typical"} and p.total_ns >= least * self.own_ns),
            key=lambda part: -part.total_ns,
        )
        after = f"The program ran {duration(self.after_ns)} after its last step." if self.ends_early else ""
        if not others:
            return after
        shares = (f"{percent(part.total_ns, self.own_ns)} is {_in_words(part)}" for part in others)
        step = "The level of the first steps" if self.of("growth") else "The typical step"
        sentence = f"{step} covers {percent(self.of('typical'), self.own_ns)} of the loop; {'; '.join(shares)}."
        return f"{sentence} {after}".rstrip()


#: Parts whose name is not what a sentence calls them.
_WORDS: dict[LoopUse, str] = {
    "growth": "growth of the steps during the run",
    "warm-up": "the first steps",
    "checkpoint": "checkpoints",
    "test": "testing",
    "predict": "steps without training",
}


def _in_words(part: LoopPart) -> str:
    if part.use == "rare":
        place = f" ({shown_location(part.at)})" if part.at is not None else ""
        which = f"every {ordinal(part.every)} step" if part.every is not None else "one step"
        return f"{which}, which takes {times(part.longer or 0)} as long{place}"
    if part.use == "irregular":
        return f"{part.steps:,} longer step{'s' if part.steps > 1 else ''} without a rhythm"
    return _WORDS.get(part.use, part.use)


def ordinal(number: int) -> str:
    """``16th``, ``2nd``."""
    last = number % 10 if number // 10 % 10 != 1 else 0
    return f"{number:,}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }"


class StepGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that take longer the later they come, by the program and not by the machine.

    Times are per step without validation, checkpoints and compilation. ``first_ns`` and ``last_ns`` are the levels at
    the first and at the last step, ``knots`` the levels between as (step, ns), ``ns_per_step`` the slope in the second
    half, ``excess_ns`` the mean over ``steps`` steps above the first level. ``phase`` grows the most, from
    ``phase_first_ns`` in the first eighth to ``phase_last_ns`` in the last. ``noise_ns`` is the standard error of the
    first level. ``calls``: the steps call models more and more often, and all times are those of a step with this many
    calls, the mean; None: they do not. ``restarts`` are the steps at which growth begins again, as that of a list that
    each epoch empties: ``knots`` then count from the last of them.
    """

    AVAILABLE_FROM: ClassVar[str] = "24 or more timed steps, which become longer"

    steps: int
    first_ns: int
    last_ns: int
    ns_per_step: float
    excess_ns: int
    noise_ns: int
    knots: tuple[tuple[int, int], ...]
    phase: Phase
    phase_first_ns: int
    phase_last_ns: int
    calls: float | None = None
    restarts: tuple[int, ...] = ()

    def level_ns(self, step: float) -> int:
        """The level at this step number: linear between the knots, constant before and after them."""
        step -= max((start for start in self.restarts if start <= step), default=0)
        before = self.knots[0]
        for knot in self.knots:
            if step <= knot[0]:
                span = knot[0] - before[0]
                part = (step - before[0]) / span if span else 1.0
                return round(before[1] + max(0.0, part) * (knot[1] - before[1]))
            before = knot
        return before[1]

    def mean_excess_ns(self, steps: int) -> int:
        """The mean above the first level over a run of this many steps, if the growth goes on as it was last."""
        more = max(0, steps - self.steps) if not self.restarts else 0
        later_ns = (self.last_ns - self.first_ns) * more + self.ns_per_step * more * more / 2
        return round((self.excess_ns * self.steps + later_ns) / max(1, self.steps + more))
