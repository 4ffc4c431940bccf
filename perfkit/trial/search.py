"""Tries changes one by one, then together, within a budget: what to measure next, and what may be claimed.

The order: the unchanged program against itself, whose difference is the least that is claimed; each change once, what
costs most first; the undecided ones again, three times at most; then the same with those that build on others, and with
those that start slowly; those that save time together, added one by one; each of them left out once; and at last all of
them in processes of their own, for the number that is reported.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from perfkit._format import share_of
from perfkit.run.records import LossCheck, TriedChange, TriedOutcome
from perfkit.trial.advice import Candidate
from perfkit.trial.catalog import ChosenChange
from perfkit.trial.comparing import Compared
from perfkit.trial.losses import BaselineLosses
from perfkit.trial.reruns import CannotTry, check_baseline
from perfkit.trial.shift import LOOKS, Decision, Shift, decided, floor_of, shift_of, shown_cost, shown_saving

#: Comparisons of the unchanged program with itself, where the budget has time for both: two processes of one program
#: differ by up to a few percent, and one pair shows one such difference.
_BASELINES = 2
#: Outcomes of which times are known.
_COMPARED: tuple[TriedOutcome, ...] = ("faster", "slower", "no-difference", "undecided")
#: Share of the budget that the first comparison of the unchanged program may take: the rest has time for one change.
_FIRST = 0.45
#: Steps after which a cost at the start has paid too early to mention it.
_IMMEDIATELY = 20


class Comparing(Protocol):
    """Measures one set of changes against another (`perfkit.trial.comparing.Comparer`)."""

    def compare(
        self, before: Sequence[ChosenChange], after: Sequence[ChosenChange], *, limit_s: float, in_turns: bool = False
    ) -> Compared:
        """Run both for the same steps."""


class Found(NamedTuple):
    """What a search has found."""

    floor: float
    step_ns: float | None
    tried: list[TriedChange]
    together: TriedChange | None
    winners: tuple[ChosenChange, ...]
    notes: list[str]


class _Measured:
    """What is known of one comparison, over its looks."""

    def __init__(self, before: tuple[ChosenChange, ...], *added: ChosenChange) -> None:
        self.before = before
        self.after = (*before, *added)
        self.looks: list[Compared] = []
        self.shift: Shift | None = None
        self.decision: Decision = "undecided"

    @property
    def last(self) -> Compared:
        return self.looks[-1]

    @property
    def open(self) -> bool:
        return self.decision == "undecided" and len(self.looks) < LOOKS


class Search:
    """One search, over one program.

    Args:
        comparing: Measures.
        candidates: What to try, the most promising first.
        other_seeds: The losses of the unchanged program with other seeds, measured within some seconds.
        budget_s: Time for all of it.
        progress: Called with what is tried now and the seconds that all of it still takes at most.
        clock: Seconds.

    Raises:
        CannotTry: the unchanged program cannot be measured, or the budget has no time for a change.
    """

    def __init__(
        self,
        comparing: Comparing,
        candidates: Sequence[Candidate],
        *,
        other_seeds: Callable[[float], Sequence[Sequence[float | None]]],
        budget_s: float,
        progress: Callable[[str, float], None] = lambda what, left_s: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._comparing = comparing
        self._candidates = candidates
        self._other_seeds = other_seeds
        self._clock = clock
        self._progress = progress
        self._budget_s = budget_s
        self._ends = clock() + budget_s
        self._floor = 0.0
        self._losses = BaselineLosses((), ())
        self._notes: list[str] = []
        self._longest_s = 0.0
        #: What the last comparison with a slow start took: another one finds most of it compiled.
        self._slow_s = 0.0
        self._known: dict[tuple[tuple[ChosenChange, ...], tuple[ChosenChange, ...]], _Measured] = {}

    def run(self) -> Found:
        """Measure, and report what may be claimed."""
        baselines = self._measure_baseline()
        step_ns = baselines[0].step_ns[0] if baselines[0].step_ns is not None else None
        tried: dict[ChosenChange, TriedChange] = {}
        for candidates in self._rounds():
            bases = self._winners(tried)
            self._try([(one, _Measured(_base(one, bases), one.chosen)) for one in candidates], tried)
        winners = self._winners(tried)
        together = self._together(winners) if winners else None
        names = together.names if together is not None and together.outcome == "faster" else ()
        return Found(
            self._floor,
            step_ns,
            [tried[one.chosen] for one in self._candidates],
            together,
            tuple(one for one in winners if str(one) in names),
            self._notes,
        )

    def _rounds(self) -> Iterator[list[Candidate]]:
        """First the changes that build on no other one that is tried, then those that do.

        At last those that start slowly: one of them may take the time of several others.
        """
        ids = {one.chosen.change.id for one in self._candidates}
        slow = [one for one in self._candidates if one.chosen.change.slow_start]
        first = [one for one in self._candidates if one not in slow and ids.isdisjoint(one.chosen.change.after)]
        yield first
        yield [one for one in self._candidates if one not in slow and one not in first]
        yield slow

    def _try(self, measured: list[tuple[Candidate, _Measured]], tried: dict[ChosenChange, TriedChange]) -> None:
        """Look at each change once, then again at those that are undecided, and report what became of them."""
        winners = self._winners(tried)
        for look in range(LOOKS):
            for candidate, one in measured:
                # What seems to save time is confirmed before the budget is spent on the rest.
                promising = sum(1 for _, other in measured if other.open and self._promises(other))
                reserve_s = self._longest_s * (0 if look else promising)
                if _start_slowly(one.after) and winners:
                    reserve_s += self._longest_s  # to measure those together
                if one.open and self._has_time(one.after, reserve_s=reserve_s):
                    self._look(one, f"{candidate.chosen}" + (", again" if look else ""), reserve_s=reserve_s)
        for candidate, one in measured:
            if one.looks:
                self._known[one.before, one.after] = one
            tried[candidate.chosen] = self._report(one, candidate)

    def _promises(self, one: _Measured) -> bool:
        return one.shift is not None and one.shift.saved > self._floor

    # -- the unchanged program

    def _measure_baseline(self) -> list[Compared]:
        """Compare the program with itself, so that its own differences are known."""
        found: list[Compared] = []
        for number in range(_BASELINES):
            if number and not self._has_time(reserve_s=max(2, len(self._candidates)) * self._longest_s):
                break
            self._progress("the program against itself", self._left_s)
            began = self._clock()
            limit_s = self._budget_s * _FIRST if not found else self._left_s
            one = self._comparing.compare((), (), limit_s=limit_s, in_turns=True)
            self._longest_s = max(self._longest_s, self._clock() - began)
            for result in (one.before, one.after):
                check_baseline(result)
            if shift_of([one.blocks]) is None:
                raise CannotTry(_too_few(one, limit_s))
            found.append(one)
        if not self._has_time():
            raise CannotTry(
                f"the budget must have time to measure a change: {self._budget_s:.0f} s were given, and one comparison "
                f"takes {self._longest_s:.0f} s; give --budget {_at_least(3 * self._longest_s)}"
            )
        self._floor = floor_of([one.blocks for one in found])
        self._losses = BaselineLosses(found[0].before.losses, found[0].after.losses)
        if self._losses.repeats is not None and not self._losses.deterministic:
            self._notes.append(
                f"The program is not deterministic: the losses of two runs differ by up to "
                f"{share_of(self._losses.repeats)}, so smaller differences are not seen."
            )
        return found

    # -- one comparison

    @property
    def _left_s(self) -> float:
        return max(0.0, self._ends - self._clock())

    def _takes_s(self, changes: Iterable[ChosenChange]) -> float:
        """What a comparison with these changes takes, by those that were made."""
        return max(self._longest_s, self._slow_s) if _start_slowly(changes) else self._longest_s

    def _has_time(self, changes: Iterable[ChosenChange] = (), *, reserve_s: float = 0.0) -> bool:
        """Whether the budget has time for one more comparison, and ``reserve_s`` after it."""
        return self._left_s >= self._takes_s(changes) + reserve_s

    def _look(self, one: _Measured, what: str, *, in_turns: bool = False, reserve_s: float = 0.0) -> None:
        """Measure once more, and decide by all that was measured; ``reserve_s`` of the budget is left."""
        self._progress(what, self._left_s)
        began = self._clock()
        limit_s = self._left_s - reserve_s
        compared = self._comparing.compare(one.before, one.after, limit_s=limit_s, in_turns=in_turns)
        if _start_slowly(one.after):
            self._slow_s = self._clock() - began
        else:
            self._longest_s = max(self._longest_s, self._clock() - began)
        one.looks.append(compared)
        # One process that is switched is the same before and after: no persistent difference widens the interval.
        one.shift = shift_of([each.blocks for each in one.looks], floor=0.0 if compared.switched else self._floor)
        one.decision = "undecided"
        if self._outcome(one)[0] not in _COMPARED:
            one.decision = "no-difference"  # it failed, or did nothing: another look would show the same
        else:
            one.decision = decided(one.shift, self._floor, len(one.looks), switched=compared.switched)

    def _report(self, one: _Measured, candidate: Candidate) -> TriedChange:
        """What became of a change that was tried alone, or where those are applied that it builds on."""
        chosen = candidate.chosen
        description = TriedChange(
            names=(str(chosen),),
            rules=candidate.rules,
            kind=chosen.change.kind,
            predicted=candidate.predicted,
            lines=chosen.lines,
        )
        return self._tried(one, description)

    def _tried(self, one: _Measured, description: TriedChange) -> TriedChange:
        """The description of one or several changes, with what was measured."""
        outcome, sentence = self._outcome(one)
        if one.before and one.looks:
            sentence += f", where {_names(one.before)} is applied"
        found = msgspec.structs.replace(description, outcome=outcome, sentence=sentence)
        if outcome not in _COMPARED or one.shift is None or one.last.step_ns is None:
            return found
        applied = [each for each in one.last.after.applied if each.change in description.names]
        return msgspec.structs.replace(
            found,
            saving=one.shift.saved,
            ci=(one.shift.low, one.shift.high),
            before_ns=one.last.step_ns[0],
            after_ns=one.last.step_ns[1],
            pays_after=_pays_after(one) if outcome == "faster" else None,
            loss=self._check_loss(one),
            places=tuple(place for each in applied for place in each.places),
        )

    def _outcome(self, one: _Measured) -> tuple[TriedOutcome, str]:
        if not one.looks:
            return "not-tried", "no time was left in the budget"
        result = one.last.after
        if result.ending == "timed-out":
            why = ", as its first steps take long" if _start_slowly(one.after) else ""
            return "not-tried", f"{result.message}{why}: give a larger --budget"
        if result.ending == "failed":
            return "failed", result.message
        if result.ending in ("out-of-memory", "refused"):
            return result.ending, result.message
        added = {str(chosen) for chosen in one.after} - {str(chosen) for chosen in one.before}
        if added and all(each.count == 0 for each in result.applied if each.change in added):
            return "no-effect", "no effect: the program makes nothing that it applies to, or is so already"
        if one.shift is None and not self._has_time():
            return "not-tried", "the budget was over before enough steps were measured"
        if one.shift is None:
            return "failed", f"too few steps were measured with it: {result.message}"
        if one.decision == "faster":
            return "faster", f"saves {shown_saving(one.shift)}"
        if one.decision == "slower":
            return "slower", f"costs {shown_cost(one.shift)}"
        if one.decision == "undecided" and one.open and one.shift is not None and self._promises(one):
            return "undecided", f"{shown_saving(one.shift)} so far: the budget had no time to measure it again"
        if one.decision == "no-difference" and one.shift.saved > 0 and one.shift.high > self._floor:
            return "undecided", f"not certain after {len(one.looks)} comparisons: {shown_saving(one.shift)}"
        return "no-difference", f"no saving above {share_of(self._floor)} was measured"

    def _check_loss(self, one: _Measured) -> LossCheck:
        """Compare the losses; what other seeds make of them is measured once, where a change asks for it."""
        losses, changes = one.last.after.losses, [chosen.change for chosen in one.after]
        check = self._losses.check(losses, "exact")
        numeric = any(change.kind == "numeric" for change in changes)
        redraws = any(change.redraws for change in changes)
        if check.outcome != "differs" or not (numeric or redraws):
            return check
        if not self._losses.other_seeds and self._has_time():
            self._progress("the program with other seeds", self._left_s)
            self._losses = self._losses._replace(other_seeds=self._other_seeds(self._left_s))
        return self._losses.check(losses, "redrawn" if redraws else "numeric")

    # -- several changes

    def _winners(self, tried: Mapping[ChosenChange, TriedChange]) -> list[ChosenChange]:
        """The changes that save time and keep the result, the largest saving first; of several values the best one."""
        found = [
            (one, chosen)
            for chosen, one in tried.items()
            if one.outcome == "faster" and one.kind != "bound" and (one.loss is None or one.loss.outcome != "differs")
        ]
        # What builds on another change comes after those.
        found.sort(key=lambda each: (bool(each[1].change.after), -(each[0].saving or 0.0)))
        best: dict[str, ChosenChange] = {}
        for _, chosen in found:
            best.setdefault(chosen.change.id, chosen)
        return list(best.values())

    def _together(self, winners: Sequence[ChosenChange]) -> TriedChange:
        """Combine what saves time: added one by one, each left out once, and all measured in processes of their own."""
        kept = [winners[0]]
        for chosen in winners[1:]:
            if not self._has_time((*kept, chosen), reserve_s=self._takes_s((*kept, chosen))):
                self._notes.append(f"The budget had no time to combine {chosen} with the others.")
                continue
            if self._adds(kept, chosen):
                kept.append(chosen)
        for chosen in kept[:-1] if len(kept) > 2 else ():
            rest = [one for one in kept if one != chosen]
            if self._has_time(kept, reserve_s=self._takes_s(rest)) and not self._adds(rest, chosen):
                kept = rest
        one = _Measured((), *kept)
        known = self._known.get(((), one.after))
        if known is not None and not known.last.switched:
            one = known
        while one.open and self._has_time(kept):
            self._look(one, _names(kept), in_turns=True)
        if one.shift is None:
            why = self._outcome(one)[1]
            self._notes.append(f"{_names(kept)} could not be measured in processes of their own: {why}.")
            alone = (key for key in ((one.before, one.after[:count]) for count in (len(kept), 1)) if key in self._known)
            one = self._known[next(alone)]
            kept = kept[: len(one.after)]
        kind = "numeric" if any(chosen.change.kind == "numeric" for chosen in kept) else "exact"
        lines = "; ".join(chosen.lines for chosen in kept)
        return self._tried(one, TriedChange(names=tuple(map(str, kept)), kind=kind, lines=lines))

    def _adds(self, others: Sequence[ChosenChange], chosen: ChosenChange) -> bool:
        """Whether a change saves time also where the others are applied."""
        before, after = tuple(others), (*others, chosen)
        one = self._known.get((before, after))
        if one is None:
            one = self._known[before, after] = _Measured(before, chosen)
            self._look(one, f"{chosen} with {_names(others)}")
        adds = one.decision != "slower" and one.shift is not None and one.shift.saved > self._floor
        if not adds:
            self._notes.append(f"{chosen} saves nothing where {_names(others)} is applied.")
        return adds


def _start_slowly(changes: Iterable[ChosenChange]) -> bool:
    return any(one.change.slow_start for one in changes)


def _names(changes: Iterable[ChosenChange]) -> str:
    return " + ".join(map(str, changes))


def _base(candidate: Candidate, winners: Iterable[ChosenChange]) -> tuple[ChosenChange, ...]:
    """What is applied already where a change is tried that builds on others: the best of those."""
    return tuple(one for one in winners if one.change.id in candidate.chosen.change.after)


def _too_few(one: Compared, limit_s: float) -> str:
    """Why the unchanged program has too few steps to compare."""
    ended = next((each for each in (one.before, one.after) if each.ending == "ended"), None)
    if ended is not None:
        return (
            f"the program must take more steps than it does: it ended after {ended.steps}; give it more data or "
            "epochs, or a smaller --steps"
        )
    return f"too few steps were taken in {limit_s:.0f} s: give a larger --budget"


def _at_least(seconds: float) -> str:
    return f"{math.ceil(seconds / 60)}m" if seconds > 90 else f"{math.ceil(seconds)}s"


def _pays_after(one: _Measured) -> int | None:
    """Steps until what a change costs at the start (compiling, choosing algorithms) is saved again."""
    steps = one.last.step_ns
    extra_ns = one.last.start_ns
    if steps is None or extra_ns is None or steps[0] <= steps[1]:
        return None
    after = math.ceil(extra_ns / (steps[0] - steps[1]))
    return after if after > _IMMEDIATELY else None
