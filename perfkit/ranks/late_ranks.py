"""Who the others wait for, why, and what the job would save if that rank, host or stage were like the others.

A step takes as long as the own time of its last rank. Each answer is a replay: own times with one thing made equal, and
the maximum over the ranks again. Structure is made equal first (batches, stages), machines after it, so that a machine
is not blamed for work that it was given. A rank is late persistently if its median step is longer than that of the
others, beyond what chance and the ranks' usual differences explain; else its single long steps count.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec
import numpy as np

from perfkit.ranks._rank_statistics import (
    FEW_STEPS,
    SIGMA,
    Matrix,
    by_chance,
    means_of_ranks,
    means_of_steps,
    middle_of,
    spread_of,
    spread_of_each,
)
from perfkit.ranks._rank_steps import Part
from perfkit.ranks.late_causes import Cause, Lateness, cause_of, is_last_stage
from perfkit.ranks.step_times import StepTimes
from perfkit.trace.intervals import Bools, Ints

Subject = Literal["rank", "host", "stage", "group", "job"]
Shape = Literal["persistent", "recurrent", "once"]

#: What is smaller, as a share of the step, is not reported: in fleets equal machines differ by 1 to 2 %.
NEGLIGIBLE = 0.03
#: From this number of ranks on their median is taken for all; below, each is compared with the others alone.
_MANY = 8
#: Standard errors, and spreads of the ranks, beyond which a rank is not one of the ordinary ones.
_BEYOND = 4.0
#: A single step is long beyond this many spreads, and this share of a step.
_LONG, _LONG_SHARE = 6.0, 0.1
#: A rank with less than this share of the steps, or of some of them, is not late in most.
_HALF = 0.5
#: Ranks of the same set have at least this share of the lateness of its worst.
_ALIKE = 0.5
#: A rank is named alone if this share of what is lost comes from its steps; with two ranks half do by chance.
_ALONE, _ALONE_OF_TWO, _ALONE_HOST = 0.6, 0.8, 0.8
#: The probability that as many long steps fall to one of the ranks by chance, below which they do not.
_CHANCE = 1e-4
#: A long step of computing or host work that stands alone is named if it lasts as long as these many steps: on shared
#: machines single steps of 2.5 times the usual length were seen on healthy ranks.
_ONCE_STEPS = 2.0
#: How far time may grow with the work: attention over one long sequence grows with its square.
_MAX_POWER = 2.5
#: The correlation of time with work within ranks, and (where each rank's work stays the same) over ranks.
_FOLLOWS_WITHIN, _FOLLOWS_ACROSS = 0.3, 0.7
#: Work differs if it does by this share: padding and last batches differ by less.
_DIFFERS = 0.02
#: Computing that is shorter than this share of what its work explains was not measured as such.
_LEAST = 0.2
#: Collections lie in the other parts; what has a name comes before what is only a rest.
_IN_TURN: tuple[Part, ...] = ("link", "gc", "checkpoint", "validation", "data", "host", "computing")
#: A rank is late in a step if that costs this share of it.
_COUNTED = 0.01
#: What missing times are, below all that are known.
_NONE = np.float32(-1e30)


class LateFinding(msgspec.Struct, frozen=True, kw_only=True):
    """What the other ranks wait for.

    Attributes:
        subject: What is late: a rank (or several alike), a host, a pipeline stage, the group of a slow link, or "job",
            where no rank stands out: it is another one each time.
        ranks, hosts: Which; empty for the job.
        cause: What makes it late; `perfkit.ranks.late_causes` has what each means.
        detail: The kernel class, or what else the cause is about; else empty.
        shape: "persistent" in most steps, "recurrent" in some, "once" in one stretch of them.
        saving_ns: What a step would be shorter, in the mean, if it were like the others.
        slowdown: The step over what it then would be.
        late_ns: By how much it is late in the steps in which it is (median).
        step_share: The share of the steps in which it is late.
        steps: The first of them.
        gpu: What slows the GPU of one of the ranks, and what to do about it, where samples of the GPU show it.
    """

    subject: Subject
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    cause: Cause
    detail: str = ""
    shape: Shape
    saving_ns: int
    slowdown: float
    late_ns: int
    step_share: float
    steps: tuple[int, ...] = ()
    gpu: str = ""


class _Last(NamedTuple):
    """Of each step: the longest own time, and whose."""

    ns: Matrix
    position: Ints


class LateRanks:
    """Finds what is late in the own times of some ranks.

    ``findings`` are in the order in which they were made equal; ``left_ns`` is what a step then still loses because its
    last rank is another one each time.
    """

    def __init__(self, times: StepTimes) -> None:
        self.times = times
        self.own = np.where(np.isfinite(times.own), times.own, _NONE) if np.isnan(times.own).any() else times.own.copy()
        self.typical = middle_of(times.own)
        #: A typical rank's own time in a step.
        self.step_ns = float(np.mean(self.typical))
        self._hidden = self._waiting_of_last()
        self._unsure = np.zeros(self.own.shape[0], bool)
        self.findings: list[LateFinding] = []
        self._equal_work()
        self._equal_ranks()
        for part in _IN_TURN:
            self._equal_part(part)
        self.left_ns = max(0.0, self._lost() * times.wall_ns)

    def _lost(self) -> float:
        """The share of a step that its last rank takes beyond a typical one."""
        return float(np.mean(self.own.max(axis=0) - self.typical + self._hidden)) / max(1.0, self.times.wall_ns)

    def _last(self) -> _Last:
        position = self.own.argmax(axis=0)
        return _Last(self.own[position, np.arange(position.size)], position)

    def _waiting_of_last(self) -> Matrix:
        """How long the last rank of each step waits for others: where they meet several times, in another part of it.

        Only known where the host was blocked: collectives in a trace may be waited for while kernels run.
        """
        waited, position = self.times.waited, self._last().position
        if waited is None or self.times.source != "waited":
            return np.zeros(position.size, np.float32)
        of_last = np.nan_to_num(waited[position, np.arange(position.size)])
        found: Matrix = of_last - of_last.min()  # the minimum is the transfers
        return found

    def _gain(self, before: _Last, equal: Matrix) -> Matrix:
        """What each step saves with these own times: no more than what was taken from a rank."""
        found: Matrix = np.minimum(before.ns - equal.max(axis=0) + self._hidden, (self.own - equal).max(axis=0))
        return found

    def _gain_of_known(self, known: Bools, equal: Matrix) -> Matrix:
        """`_gain` of the ranks that recorded what was made equal; whether others are late for it cannot be told."""
        without: Bools = ~np.any(known, axis=1)
        if not without.any():
            return self._gain(self._last(), equal)
        self._unsure |= without
        all_of_them = self.own
        self.own, equal = (np.where(without[:, None], _NONE, own) for own in (self.own, equal))
        gain = self._gain(self._last(), equal)
        self.own = all_of_them
        return gain

    def _set_equal(self, before: _Last, equal: Matrix, gain: Matrix) -> None:
        used = gain - (before.ns - equal.max(axis=0))
        self._hidden = np.clip(self._hidden - used, 0, self._hidden)
        self.own = equal

    def _excess(self) -> Matrix:
        """Own time beyond that of the others [ranks, steps]; NaN where it is unknown."""
        known = np.where(self.own > _NONE / 2, self.own, np.nan)
        if known.shape[0] >= _MANY:
            known -= middle_of(known)
            return known
        others = [np.delete(known, row, axis=0) for row in range(known.shape[0])]
        excess: Matrix = known - np.array([(middle_of(one) - middle_of(-one)) / 2 for one in others])
        return excess

    def _equal_work(self) -> None:
        """Give every rank the mean batch of the step."""
        work = self.times.part("work")
        known = np.isfinite(work) & (self.own > _NONE / 2)
        if known.mean() < 0.5:
            return
        work -= means_of_steps(work, known)
        usual = float(np.nanmean(self.times.part("work")[:64]))
        more = np.where(known, work, 0).astype(np.float32)
        if np.abs(more).max() < _DIFFERS * usual:
            return
        per_unit = self._time_per_unit(more, known, usual)
        if not 0 < per_unit * usual <= _MAX_POWER * self.step_ns:
            return
        before, pace = self._last(), self._pace(per_unit * more)
        equal = self.own - np.float32(per_unit) * more * pace
        position = self._alone(before.position, self._gain(before, equal))
        if position.size:  # like the others, who keep theirs
            equal = self.own.copy()
            others = np.ones(more.shape[0], bool)
            others[position] = False
            more = np.where(known, more - means_of_steps(more[others], known[others]), 0)
            equal[position] -= np.float32(per_unit) * (more * pace)[position]
        gain = self._gain(before, equal) if position.size else self._gain_of_known(known, equal)
        saving = float(gain.mean())
        if saving < NEGLIGIBLE * self.times.wall_ns:
            return
        self._set_equal(before, equal, gain)
        self._add("work", "", Lateness(saving, before.ns - self.typical, gain), position)

    def _pace(self, longer: Matrix) -> Matrix:
        """How much longer computing took in each step of each rank than its work explains: that held for all of it."""
        computing = self.times.part("computing")
        usual = float(np.nanmean(computing)) - float(longer.mean())
        if not usual > 0:
            return np.ones_like(longer)
        pace = computing / np.maximum(usual + longer, _LEAST * usual)
        found: Matrix = np.clip(np.nan_to_num(pace, nan=1.0), 0, 1 / _LEAST)
        return found

    def _time_per_unit(self, more: Matrix, known: Bools, usual: float) -> float:
        """The time that a unit of work takes beyond the step's mean, 0 where time does not follow work."""
        excess = np.where(known, self.own - means_of_steps(self.own, known), 0)
        work = more - means_of_ranks(more, known)
        time = excess - means_of_ranks(excess, known)
        varies = np.abs(work) > _DIFFERS * usual
        needed = _FOLLOWS_WITHIN
        if varies.mean() < 0.01:  # each rank's work stays the same: only ranks can be compared
            work, time, varies, needed = more, excess, np.abs(more) > _DIFFERS * usual, _FOLLOWS_ACROSS
        work, time = work[varies], time[varies]
        for _ in range(3):  # without the cells that something else made long
            if work.size < 4:
                return 0.0
            per_unit = float((work * time).sum() / (work * work).sum())
            off = np.abs(time - per_unit * work)
            near = off <= 4 * SIGMA * np.median(off) + 1
            follows = float((work * time).sum() / np.sqrt((work * work).sum() * (time * time).sum() + 1))
            work, time = work[near], time[near]
        return per_unit if follows >= needed else 0.0

    def _equal_ranks(self) -> None:
        """Take from ranks that are late in most steps what they are later than the others."""
        for _ in range(3):  # sets of ranks that are late by different amounts
            excess = self._excess()
            late_by = middle_of(excess.T)
            spread = spread_of_each(excess - late_by[:, None])
            late = self._late_in_most(excess, late_by, spread)
            if late.all() or not late.any():  # or most are
                late = self._late_in_most(excess, late_by, spread, of=4)
                if late.all() or late.mean() < _HALF:
                    return
            # Where many are late, those that are not are what they should be like.
            known = np.where(self.own > _NONE / 2, self.own, np.nan)
            excess = known - middle_of(known[~late])
            late_by = middle_of(excess.T)
            # Of those that are much later in some steps than in most of them, single steps count.
            means = means_of_ranks(excess[late], np.isfinite(excess[late]))[:, 0]
            late[late] = late_by[late] >= _HALF * means
            if not late.any():
                return
            chosen = np.flatnonzero(late & (late_by >= _ALIKE * late_by[late].max()))
            # Like the others also in how much its steps vary.
            varies = np.minimum(1, middle_of(spread[~late, None]) / np.maximum(spread[chosen], 1))[:, None]
            more = excess[chosen] - varies * (excess[chosen] - late_by[chosen, None])
            equal = self.own.copy()
            equal[chosen] -= np.maximum(np.nan_to_num(more), 0)
            before = self._last()
            gain = self._gain(before, equal)
            present = (self.own[chosen] > _NONE / 2).any(axis=0)
            saving = float(gain[present].mean()) if present.any() else 0.0
            if saving < NEGLIGIBLE * self.times.wall_ns:
                return
            self._set_equal(before, equal, gain)
            cause, detail = cause_of(self.times, chosen)
            usual = np.full(gain.size, np.median(late_by[chosen]))
            self._add(cause, detail, Lateness(saving, usual, gain * present), chosen)

    def _late_in_most(self, excess: Matrix, late_by: Matrix, spread: Matrix, of: int = 2) -> Bools:
        """Which ranks are later than the ``1 / of`` first ones by more than chance, and usual differences, explain."""
        known = np.isfinite(excess).sum(axis=1)
        enough = np.maximum(NEGLIGIBLE * self.step_ns, _BEYOND * 1.25 * spread / np.sqrt(np.maximum(known, 1)))
        in_order = np.sort(np.nan_to_num(late_by))
        base = in_order[(late_by.size - 1) // of] if late_by.size >= _MANY else 0.0
        if late_by.size >= _MANY:  # the spread is that of the first ones, as the others may be late
            first = in_order[: (late_by.size - 1) // of + 1]
            enough = np.maximum(enough, _BEYOND * SIGMA * np.median(base - first))
        enough = np.where(known >= _HALF * min(FEW_STEPS, excess.shape[1]), enough, np.inf)
        late: Bools = np.nan_to_num(late_by, nan=base) - base > enough
        return late

    def _equal_part(self, part: Part) -> None:
        """Take from all ranks what one part of their time is longer than usual."""
        if self._lost() < NEGLIGIBLE:
            return
        values = self.times.part(part)
        if not np.isfinite(values).any():
            return
        # A slow link slows all ranks of its group.
        more = np.nan_to_num(values - middle_of(values) if part != "link" else values)
        np.maximum(more, 0, out=more)
        floor = np.minimum(self.own, self.typical - (more.min(axis=0) if part == "link" else 0))
        before = self._last()
        gain: Matrix = self._gain(before, np.maximum(self.own - more, floor))
        if part in ("host", "computing"):
            gain = self._long_steps(before, np.where(self._unsure[before.position], 0, gain))
        if gain.mean() < NEGLIGIBLE * self.times.wall_ns:
            return
        position = self._alone(before.position, gain) if part != "link" else _linked(more)
        if position.size:  # only what these ranks take longer
            rest = np.zeros(more.shape[0], bool)
            rest[position] = True
            more[~rest] = 0
        elif part in ("host", "computing"):
            return  # every machine has long steps at times
        equal = np.maximum(self.own - more, floor)
        gain = self._gain(before, equal) if position.size else self._gain_of_known(np.isfinite(values), equal)
        present = (self.own[position] > _NONE / 2).any(axis=0) if position.size else np.ones(gain.size, bool)
        saving = float(gain[present].mean())
        if saving < NEGLIGIBLE * self.times.wall_ns:
            return
        self._set_equal(before, equal, gain)
        self._add(part, "", Lateness(saving, before.ns - self.typical, gain * present), position)

    def _long_steps(self, last: _Last, gain: Matrix) -> Matrix:
        """``gain`` in the steps whose last rank is later than chance makes it, of ranks that are so too often."""
        beyond = last.ns - self.typical
        spread = spread_of(beyond)
        long = (beyond > np.median(beyond) + _LONG * spread) & (beyond > _LONG_SHARE * self.step_ns)
        counts = np.bincount(last.position[long], minlength=self.own.shape[0])
        longest = np.zeros(counts.size, np.float32)
        np.maximum.at(longest, last.position[long], gain[long])
        often = np.array([by_chance(int(k), int(counts.sum()), counts.size) < _CHANCE for k in counts])
        kept = (often & (counts >= 4)) | (longest >= _ONCE_STEPS * self.step_ns)
        return np.where(long & kept[last.position], gain, 0).astype(np.float32)

    def _alone(self, position: Ints, gain: Matrix) -> Ints:
        """The rank, or the ranks of the host, whose steps most of ``gain`` comes from; empty if there is none."""
        lost = np.bincount(position, weights=gain, minlength=self.own.shape[0])
        total = lost.sum()
        needed = _ALONE if lost.size > 2 else _ALONE_OF_TWO
        if lost.max() >= needed * total:
            return np.array([int(lost.argmax())])
        names, host = np.unique(np.array(self.times.hosts, str), return_inverse=True)
        of_host = np.bincount(host, weights=lost)
        if 1 < names.size < lost.size and of_host.max() >= _ALONE_HOST * total:
            return np.flatnonzero(host == of_host.argmax())
        return np.empty(0, np.int64)

    def _add(self, cause: Cause, detail: str, late: Lateness, position: Ints) -> None:
        times = self.times
        counted = np.flatnonzero(late.gain > max(0.25 * float(late.gain.mean()), _COUNTED * self.step_ns))
        share = counted.size / max(1, times.steps.size)
        stretch = int(counted[-1] - counted[0]) + 1 if counted.size else 0
        shape: Shape = "persistent" if share >= 0.5 else "once" if stretch <= 2 * counted.size else "recurrent"
        late_by = late.late_ns[counted]
        subject = self._subject(position, cause)
        subject = "group" if cause == "link" and subject == "rank" and position.size > 1 else subject
        found = LateFinding(
            subject=subject,
            ranks=tuple(times.ranks[position].tolist()),
            hosts=tuple(sorted({times.hosts[one] for one in position.tolist()} - {""})),
            cause=cause,
            detail=detail,
            shape=shape,
            saving_ns=round(late.saving_ns),
            slowdown=times.wall_ns / max(1.0, times.wall_ns - late.saving_ns),
            late_ns=round(float(np.median(late_by))) if late_by.size else 0,
            step_share=share,
            steps=tuple(times.steps[counted[:20]].tolist()),
        )
        same = [one for one in self.findings if (one.subject, one.ranks, one.cause) == (subject, found.ranks, cause)]
        if not same:
            self.findings.append(found)
            return
        # Late in every step, and more so in some: one finding.
        saving = same[0].saving_ns + found.saving_ns
        slowdown = times.wall_ns / max(1.0, times.wall_ns - saving)
        self.findings[self.findings.index(same[0])] = msgspec.structs.replace(
            same[0], saving_ns=saving, slowdown=slowdown
        )

    def _subject(self, position: Ints, cause: Cause) -> Subject:
        if not position.size:
            return "job"
        if is_last_stage(self.times, position, cause):
            return "stage"
        hosts = np.array(self.times.hosts, str)
        known = hosts[position][hosts[position] != ""]
        all_of_them = int(np.isin(hosts, np.unique(known)).sum())
        whole = known.size > 1 and known.size >= _ALONE_HOST * max(all_of_them, position.size)
        return "host" if whole and all_of_them < (hosts != "").sum() else "rank"


def _linked(more: Matrix) -> Ints:
    """The ranks whose transfers are slow; empty if they are those of all."""
    each = more.mean(axis=1)
    position = np.flatnonzero(each >= _ALIKE * each.max())
    return position if position.size < each.size else np.empty(0, np.int64)
