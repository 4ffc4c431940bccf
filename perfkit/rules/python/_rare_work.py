"""What a rare step does below one line, from the one that was traced by line: calls of models, or a line of its own."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from perfkit._format import shown_location
from perfkit._location import Location
from perfkit.findings import Evidence
from perfkit.ledger.step_budget import MAJORITY
from perfkit.rules._called_lines import CalledLines
from perfkit.rules._loops import calling_loop
from perfkit.rules.python._traced_calls import outermost_ns
from perfkit.run.records import Lines, ModuleCalls, TracedLine

#: As many calls with one sample each are a loop, as for loop-over-samples.
_MIN_CALLS = 8
#: The share of a loop over samples that its calls of models take at least: what else it does, one call may not save
#: (chosen).
_IN_MODELS = 0.1
#: Kinds of work that a step need not do.
NOT_NEEDED = ("repeated", "recomputed", "samples", "metric")


class RareWork(NamedTuple):
    """Most of a rare step: calls of ``module``, or one line.

    Attributes:
        kind: "repeated" are calls with an input that the module had before, "recomputed" those of a frozen module most
            of whose inputs it had in an earlier step, "metric" those of a metric whose value nothing reads, "samples"
            those with the samples of a collection one by one, "single" others with one sample each: whether one needs
            the answer of another is not known. "calls" are all others, and "line" is a line that calls no model.
        at: The line to edit: that of the loop for samples, and for repeated calls the one that repeats them.
        calls: Of the module; 0 for a line. With ``and_more`` the step was not traced to its end.
        share: The part (0 to 1) of the rare step's time that this is.
    """

    kind: Literal["repeated", "recomputed", "samples", "metric", "single", "calls", "line"]
    at: Location
    share: float
    module: str = ""
    calls: int = 0
    and_more: bool = False

    @property
    def is_needed(self) -> bool:
        """Whether the step may need it, as far as its calls show."""
        return self.kind not in NOT_NEEDED

    @property
    def sentence(self) -> str:
        """How a model is called; empty where nothing is wrong with that."""
        how = {
            "repeated": "many of them with an input that it had before",
            "recomputed": "most of them with inputs that it had in an earlier step, and nothing trains it",
            "samples": "one sample at a time",
            "metric": "and nothing reads the value that it returns",
            "single": "with one sample each",
        }.get(self.kind)
        count = f"{'more than ' if self.and_more else ''}{self.calls:,} times"
        return f" {self.module} is called {count} in one, {how}." if how is not None else ""

    @property
    def evidence(self) -> Evidence:
        """Its share, and where it is."""
        return Evidence(
            "most of one such step", round(100 * self.share), "%", f"{shown_location(self.at)}, traced by line"
        )

    @property
    def advice(self) -> str:
        """What to do about what is not needed."""
        if self.kind == "repeated":
            return (
                f"Call {self.module} once per input and keep its answer; where only dropout differs, compute what "
                "comes before the first dropout once."
            )
        if self.kind == "recomputed":
            return f"Call {self.module} once for each input, before the first such step, and keep its answers."
        if self.kind == "metric":
            return (
                f"Call update() of {self.module}: calling the metric itself computes its value for this batch too, for "
                "which most metrics run their update twice."
            )
        return f"Call {self.module} once with all samples, under torch.inference_mode() where it needs no gradients."


def rare_work(place: Location | None, lines: Lines | None) -> RareWork | None:
    """What most of the time below ``place`` is; None where no rare step that ran this line was traced."""
    if lines is None or lines.rare_step is None or place is None:
        return None
    called = CalledLines(msgspec.structs.replace(lines, traced=lines.rare_step.lines))
    total_ns = called.ns.get((place.file, place.line), 0)
    if not total_ns:
        return None
    below = [row for row in called.below(place) if row.phase != "validation"]
    found = _not_needed(called, below, total_ns) or _longest_below(called, place, total_ns)
    return found._replace(and_more=not lines.rare_step.complete)


def rare_validation(lines: Lines | None) -> RareWork | None:
    """What the validation in the traced step does and need not; None where there was none, or nothing of that."""
    if lines is None or lines.rare_step is None:
        return None
    rows = [row for row in lines.rare_step.lines if row.phase == "validation"]
    called = CalledLines(msgspec.structs.replace(lines, traced=tuple(rows)))
    found = _not_needed(called, called.outside_of_modules(), outermost_ns(rows))
    return found._replace(and_more=not lines.rare_step.complete) if found is not None else None


def _not_needed(called: CalledLines, rows: Iterable[TracedLine], total_ns: int) -> RareWork | None:
    """Calls of these lines, most of ``total_ns``, whose answer was known, or that one call could make."""
    loops: dict[Location, list[ModuleCalls]] = defaultdict(list)
    known = {(one.file, one.line, one.module): one for one in called.lines.recomputed_outputs}
    for row in rows:
        for calls in row.modules:
            ns = calls.again_ns + calls.same_ns
            if ns > MAJORITY * total_ns:
                at = calls.again_at or called.repeating_line(row, 1 + calls.same_most)
                return RareWork("repeated", at, min(1.0, ns / total_ns), calls.module, calls.calls)
            if calls.drops_value and calls.host_ns > MAJORITY * total_ns:
                return RareWork("metric", row.at, min(1.0, calls.host_ns / total_ns), calls.module, calls.calls)
            outputs = known.get((row.file, row.line, calls.module))
            ns = round(calls.host_ns * outputs.again / outputs.inputs) if outputs is not None else 0
            if outputs is not None and ns > MAJORITY * total_ns:
                # Of several lines that call a function, only one may repeat what it does.
                caller = outputs.called_from if len(row.callers) > 1 else None
                return RareWork("recomputed", caller or row.at, min(1.0, ns / total_ns), calls.module, calls.calls)
            if (calls.sliced or (calls.items or 0) >= _MIN_CALLS) and calls.calls >= _MIN_CALLS:
                loops[calling_loop(row, called.lines) or row.at].append(calls)
    for loop, all_calls in loops.items():
        ns = called.loop_ns(loop)
        if ns > MAJORITY * total_ns and sum(one.host_ns for one in all_calls) > _IN_MODELS * ns:
            calls = max(all_calls, key=lambda one: one.host_ns)
            return RareWork("samples", loop, min(1.0, ns / total_ns), calls.module, calls.calls)
    return None


def _longest_below(called: CalledLines, place: Location, total_ns: int) -> RareWork:
    """The last of the lines below ``place`` each of which has most of the time of the one before."""
    chain = called.down_from(place)
    last = chain[-1]
    share = min(1.0, called.ns[last.file, last.line] / total_ns)
    if not last.modules:
        return _single_below(called, last, share) or RareWork("line", last.at, share)
    calls = max(last.modules, key=lambda one: one.host_ns)
    single = calls.samples == 1 and calls.calls >= _MIN_CALLS
    at = _outermost_loop(chain) if single else last.at
    return RareWork("single" if single else "calls", at, share, calls.module, calls.calls)


def _single_below(called: CalledLines, line: TracedLine, share: float) -> RareWork | None:
    """Calls of models with one sample each below a line, by functions none of which has most of its time."""
    single = [
        calls
        for row in called.below(line.at)
        for calls in row.modules
        if calls.samples == 1 and calls.calls >= _MIN_CALLS
    ]
    if sum(calls.host_ns for calls in single) <= _IN_MODELS * called.ns[line.file, line.line]:
        return None
    longest = max(single, key=lambda calls: calls.host_ns)
    return RareWork("single", line.at, share, longest.module, longest.calls)


def _outermost_loop(chain: Sequence[TracedLine]) -> Location:
    """The first line of a chain whose function the line before it calls many times."""
    for before, after in itertools.pairwise(chain):
        if after.runs >= _MIN_CALLS * max(1, before.runs):
            return before.at
    return chain[-1].at
