"""Why one rank comes later than the others: what takes it longer than them, from the rows and records of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import fmean
from typing import Literal, NamedTuple

from perfkit._format import ms, shown_location
from perfkit._location import Location
from perfkit.ledger.step_budget import MAJORITY
from perfkit.measures.results.steps import Ranks, RankSummary
from perfkit.run.records import PHASES, LineRow, Phase

#: More data than the others' from this factor on may be the cause (chosen).
_MORE_DATA = 1.05
#: The longer time of a forward or a backward below this share of the other's: work on the same data lengthens both
#: (twice the time is usual for a backward), code that is not part of the graph only one (chosen).
_ONE_ONLY = 0.25

#: Phases of the model's own work: more data lengthen all of them.
_COMPUTING: tuple[Phase, ...] = ("forward", "backward", "optimizer")
#: What a rank does in a phase that is not the model's work, after "it spends 8.0 ms more ".
_DOING: dict[Phase, str] = {
    "data": "waiting for its data",
    "transfer": "moving data to its device",
    "validation": "in validation",
    "callbacks": "in callbacks",
    "logging": "in logging",
    "checkpoint": "writing checkpoints",
    "other": "outside the known phases",
}

_CORES = "Give each rank cores of its own, and look for what else runs on them (top -H)."
_ADVICE = {
    "collection": "Collect in the same step on all ranks (gc.disable(), gc.collect() every N steps), or gc.freeze().",
    "core": _CORES,
    "no core": _CORES,
    "data": "Find what its part of the data needs more (file system, decoding, workers), or balance the parts.",
    "work": "Give every rank the same work, counted in tokens or frames and not in samples.",
    "extra": "Do it on all ranks alike, less often, or beside the training (a thread, a worker).",
    "waiting": "Remove the wait on that rank, or move it out of the step.",
    "unknown": "Log each step's tokens (prof.log(tokens=...)): equal work tells a slow processor from more work.",
    "mixed": "Look at the longest of these phases first.",
    "processor": "Compare its processor with the others' (clock, temperature, what shares its cores), or exclude it.",
}
#: Causes of which equal work is the correction, or may be; and those that are not certain.
EQUAL_WORK = ("work", "unknown", "mixed")
UNCERTAIN = ("no core", "unknown", "mixed")


Kind = Literal["collection", "core", "no core", "data", "work", "extra", "waiting", "unknown", "mixed", "processor"]


class LateCause(NamedTuple):
    """What makes a rank late: ``ns`` per step beyond the mean of the others, and where that passes.

    ``reason`` is a sentence without its end.
    """

    kind: Kind
    ns: int
    reason: str
    spent: Location | None = None

    @property
    def advice(self) -> str:
        """What to do about it."""
        return _ADVICE[self.kind]


class _Late:
    """One rank against the mean of the others."""

    def __init__(self, ranks: Ranks, rank: RankSummary) -> None:
        self.rank = rank
        self.others = [one for one in ranks.ranks if one.rank != rank.rank]
        #: Elsewhere a phase may hold the waiting for others, which is no rank's own time.
        self.waits_known = ranks.blocked_ns is not None
        self.phases = [name for name in PHASES if self.waits_known or name not in ("backward", "optimizer")]
        if not self.waits_known:
            self.phases.remove("other")
        self.beyond_ns = self.more(lambda one: one.own_ns) or 0

    def more(self, number: Callable[[RankSummary], float | None]) -> int | None:
        """By how much a number exceeds the mean of the others; None where it is not known of all."""
        own, known = number(self.rank), [value for one in self.others if (value := number(one)) is not None]
        return round(own - fmean(known)) if own is not None and len(known) == len(self.others) else None

    def factor(self, number: Callable[[RankSummary], float | None]) -> float | None:
        """How many times the mean of the others a number is; None where that is not known."""
        own, known = number(self.rank), [value for one in self.others if (value := number(one)) is not None]
        return own / fmean(known) if own is not None and len(known) == len(self.others) and any(known) else None

    def in_phases(self, *phases: Phase) -> int:
        """By how much these phases together are longer."""
        return self.more(lambda one: sum(getattr(one.phases_ns, name) or 0 for name in phases)) or 0

    def more_data(self, phases: list[Phase]) -> float | None:
        """How many times the others' data it has, where that explains its longer time in these phases."""
        size = self.factor(lambda one: one.size_per_step)
        time = self.factor(lambda one: sum(getattr(one.phases_ns, name) or 0 for name in phases)) or 1.0
        return size if size is not None and size >= _MORE_DATA and size - 1 >= MAJORITY * (time - 1) else None

    @property
    def core_waits_per_ns(self) -> float:
        """How long the others' threads wait for a core for each ns that they run; 0 where it is not known."""
        ran = [one.thread_ns for one in self.others if one.thread_ns]
        waits = [one.core_wait_ns for one in self.others if one.core_wait_ns is not None]
        return fmean(waits) / fmean(ran) if len(ran) == len(waits) == len(self.others) else 0.0

    @property
    def without_core_ns(self) -> int:
        """How much longer than the others' its thread waits for a core, and not because it runs for longer."""
        longer, ran = self.more(lambda one: one.core_wait_ns) or 0, self.rank.thread_ns or 0
        return min(longer, round((self.rank.core_wait_ns or 0) - self.core_waits_per_ns * ran))

    def may_lack_core(self, ns: float) -> bool:
        """Whether this time may be one without a core, also where the others lack one: then no code is its cause.

        Code runs, and meanwhile waits for a core as the others do, or is blocked: if it is the cause, the thread does
        so for longer than theirs. Samples do not distinguish a blocked thread from one without a core.
        """
        ran = (self.more(lambda one: one.thread_ns) or 0) * (1 + self.core_waits_per_ns)
        blocked = self.more(_blocked_ns) if self.waits_known else None
        return max(ran, blocked or 0) < MAJORITY * ns <= (self.rank.core_wait_ns or 0)

    def no_core(self, ns: int, longer: str) -> LateCause:
        """The cause where `may_lack_core`."""
        lacked = ms(self.rank.core_wait_ns or 0)
        return LateCause("no core", ns, f"{longer}; it has no core for {lacked} of the step, which may be all of it")

    def waits_for(self, row: LineRow | None, ns: float) -> str:
        """``waiting in time.sleep(0.1) at train.py:31``, where it waits in most samples of a line; else empty."""
        if row is None or self.may_lack_core(ns) or sum((row.waiting or {}).values()) < MAJORITY * row.samples:
            return ""
        return f"waiting{f' in {row.waits_for}' if row.waits_for else ''} at {shown_location(row.at)}"


def late_cause(ranks: Ranks, rank: RankSummary) -> LateCause:
    """The cause that explains at least half of what the rank takes longer than the others, else that none does."""
    late = _Late(ranks, rank)
    least = MAJORITY * late.beyond_ns
    collected = late.more(lambda one: one.gc_ns) or 0
    if collected >= least:
        reason = f"garbage collections take {ms(collected)} more of its step than of the others'"
        return LateCause("collection", collected, reason, rank.collected)
    computing = [name for name in _COMPUTING if name in late.phases]
    without_core = late.without_core_ns
    # Where cores are shared, one is taken from a thread that runs for long: more data are then the cause.
    if without_core >= least and late.more_data(computing) is None:
        reason = f"its thread waits {ms(without_core)} longer for a core than the others', which something else uses"
        return LateCause("core", without_core, reason)
    beyond = {name: late.in_phases(name) for name in late.phases if name not in computing}
    longest = max(beyond, key=lambda name: beyond[name])
    in_computing = late.in_phases(*computing)
    if max(beyond[longest], in_computing) < least:
        parts = ", ".join(_longer_phases(beyond | {name: late.in_phases(name) for name in computing}))
        return LateCause("mixed", late.beyond_ns, f"no phase alone makes it late ({parts})", rank.line)
    if in_computing >= beyond[longest]:
        return _of_computing(late, in_computing, computing)
    row, ns = rank.lines.get(longest), beyond[longest]
    waits = late.waits_for(row, ns) if longest != "data" else ""
    longer = f"it spends {ms(ns)} more {waits or _DOING[longest]} than the others"
    if longest != "data" and late.may_lack_core(ns):
        return late.no_core(ns, longer)
    kind: Kind = "data" if longest == "data" else "waiting" if waits else "extra"
    return LateCause(kind, ns, longer, row.at if row is not None else None)


def _of_computing(late: _Late, ns: int, phases: list[Phase]) -> LateCause:
    """Why the model's own work takes longer: more data, a wait, code beside the graph, or a slower processor."""
    forward, backward = (late.in_phases(name) if name in phases else 0 for name in ("forward", "backward"))
    main: Phase = "backward" if backward > forward else "forward"
    row = late.rank.lines.get(main)
    at = row.at if row is not None else None
    longer = f"its {main} takes {ms(max(forward, backward))} longer than the others'"
    both = "backward" in phases and min(forward, backward) >= _ONE_ONLY * max(forward, backward)
    if both:
        longer = f"its forward and backward take {ms(forward + backward)} longer than the others'"
    size = late.factor(lambda one: one.size_per_step)
    if (more := late.more_data(phases)) is not None:
        return LateCause("work", ns, f"{longer}, with {more:.1f} times their amount of data", at)
    # Samples do not distinguish its own wait in a backward from its wait for the collectives.
    if (late.rank.waited_ns or 0) < ns and (waits := late.waits_for(row, ns)):
        return LateCause("waiting", ns, f"{longer}; its thread waits there{waits.removeprefix('waiting')}", at)
    if late.may_lack_core(ns):
        return late.no_core(ns, longer)
    used = late.more(lambda one: one.cpu_ns)
    if "backward" in phases and not both:
        other = "backward" if main == "forward" else "forward"
        return LateCause("extra", ns, f"{longer}, and its {other} does not: code beside the model's own work", at)
    if size is not None and used is not None and used >= MAJORITY * ns:
        reason = f"{longer}, although its batches are not larger: a slower processor, or data that cost more"
        return LateCause("processor", ns, reason, at)
    if used is not None and used < MAJORITY * ns:
        return LateCause("waiting", ns, f"{longer}, without more processor time: its thread waits for something", at)
    unknown = "size of its data" if size is None else "processor time of the ranks"
    return LateCause("unknown", ns, f"{longer}; the {unknown} is not known", at)


def _blocked_ns(rank: RankSummary) -> int | None:
    """Own time in which the thread neither ran nor could have run."""
    if rank.thread_ns is None or rank.core_wait_ns is None:
        return None
    return rank.own_ns - rank.thread_ns - rank.core_wait_ns


def _longer_phases(beyond: dict[Phase, int]) -> Iterator[str]:
    for name, ns in sorted(beyond.items(), key=lambda item: -item[1])[:3]:
        if ns > 0:
            yield f"{name} {ms(ns)}"
