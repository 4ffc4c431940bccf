"""Reads a recording, replays it as it is and with changes, and makes the answer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from perfkit._format import shown_path
from perfkit.errors import RunError, UsageError
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.gathering import measure
from perfkit.measures.results.measurements import Measurements, TraceFacts
from perfkit.replay._fused_times import fused_times
from perfkit.replay._path_rows import PathNames, path_rows, path_stretches
from perfkit.replay._selection import active
from perfkit.replay._step_clock import unrecorded_times
from perfkit.replay.comparable import why_not_comparable
from perfkit.replay.replaying import ReplayRun, critical_path, replay
from perfkit.replay.results import Change, IfFree, PathRow, WhatIf
from perfkit.replay.task_graph import TaskGraph, TaskTimes, task_graph
from perfkit.replay.transforms import find_transforms, without_words
from perfkit.run.reading import is_run_folder
from perfkit.run.remote import is_url, local_copy
from perfkit.trace import Kind, Trace, read_trace
from perfkit.trace.cached_reader import CachedTraceReader
from perfkit.trace.file_text import Progress

#: On a CPU the rest of a step finds caches and allocators as what was removed left them, and is faster without: at most
#: by this share of the share that was removed. Of six programs whose removed part was measured on processor time the
#: rest took 0.88 to 0.96 times as long, 0.06 to 0.25 of the removed share less (benchmarks/README.md, bench_replay).
_REST_GAINS = 0.25
#: What other changes save on a CPU as a share of the time that they remove: three of four corrections in the labelled
#: suite saved 0.9 to 1.2 times it (`perfkit.ledger.step_budget`).
_CPU_SAVES = (0.9, 1.15)
#: What a few recorded steps on a shared machine cannot tell, as a share of the predicted step. Chosen on 16 pairs, of
#: which the interval then holds 12; it holds 11 of 15 others, which were in sight while the model was changed.
_CPU_NOISE = 0.06
#: Changes that take work out, and add none in other processes.
_TAKE_OUT = {"scale", "fuse"}
#: Ops and kernels that the table "if this were free" tries, of the longest on the path, from this share of it on.
_TRIED, _LEAST = 8, 0.02
#: Steps of a window from which on the first is left out.
_STEADY = 3
_RANK_WAITS = "rank-waits"
#: Changes of collectives, in which all ranks take part: the last rank to arrive gains what the others gain.
_OF_ALL_RANKS = {"bandwidth", "exposed-communication"}
#: Savings below this share of the step are left out of the table: the replay is not exact to that.
_SHOWN = 0.005


class Recording(NamedTuple):
    """A trace with its graph, the times that its tasks take without a recording, and the step as it is."""

    source: str
    trace: Trace
    graph: TaskGraph
    times: TaskTimes
    base: ReplayRun
    step_ns: float
    #: What a step would take less, ns as replayed, if this rank did not wait for others in collectives.
    waits_ns: float = 0.0

    @property
    def scale(self) -> float:
        """From replayed time to time of the step."""
        return self.step_ns / self.base.step_ns if self.base.step_ns > 0 else 1.0


def answer(
    source: str | os.PathLike[str] | Trace,
    changes: Sequence[Change],
    against: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> WhatIf:
    """The answer to a what-if; see `perfkit.what_if`."""
    for name, _ in changes:
        if name not in find_transforms():
            raise UsageError(f"without must be one of {', '.join(without_words())}, got {name!r}")
    other = open_recording(against, progress) if against is not None else None
    return answer_of(open_recording(source, progress), changes, other)


def answer_of(recorded: Recording, changes: Sequence[Change] = (), against: Recording | None = None) -> WhatIf:
    """The answer for a recording that was read; without changes what each would save."""
    known = find_transforms()
    graph, names = recorded.graph, PathNames(recorded.graph)
    parts = critical_path(recorded.base)
    path = path_rows(recorded.base, names, parts, scale=recorded.scale)
    then = predicted(recorded, changes)
    after = then.run
    new_path = path_rows(after, names, critical_path(after), scale=recorded.scale) if changes else path
    measured_ns, problem = None, None
    if against is not None:
        problem = why_not_comparable(recorded.graph, against.graph)
        measured_ns = None if problem else round(against.step_ns)
    return WhatIf(
        source=recorded.source,
        per="step" if graph.steps.row.size else "recording",
        steps=graph.last_step + 1,
        step_ns=round(recorded.step_ns),
        low_ns=then.low_ns,
        ideal_ns=then.ideal_ns,
        expected_ns=then.expected_ns,
        high_ns=then.high_ns,
        on_device=graph.on_device,
        changes=tuple(known[name].describe(argument) for name, argument in changes),
        path=path,
        new_path=new_path,
        if_free=() if changes else tuple(_if_free(recorded, path)),
        stretches=path_stretches(replay(graph), names) if not changes else (),
        measured_ns=measured_ns,
        not_comparable=problem,
        notes=(*_without_effect(graph, changes), *_notes(graph)),
    )


def open_recording(source: str | os.PathLike[str] | Trace, progress: Progress | None = None) -> Recording:
    """Read a recording and replay it as it is.

    Raises:
        RunError, TraceError: it is missing, or neither a run with a window nor a trace.
        UsageError: nothing that takes time is in it.
    """
    found = None
    if isinstance(source, Trace):
        trace, name = source, str(source.path)
    else:
        place = local_copy(os.fspath(source)) if is_url(os.fspath(source)) else Path(source)
        name = shown_path(str(source))
        if is_run_folder(place):
            trace, found = _window(place, name, progress)
        else:
            trace = read_trace(place, progress)
    budget = StepBudget.from_measurements(found) if found is not None else None
    recorded = recording_of(trace, name, budget)
    if found is not None and budget is not None:
        recorded.times.fused = fused_times(recorded.graph, recorded.times, found, budget)
    return recorded


def recording_of(trace: Trace, name: str, budget: StepBudget | None = None) -> Recording:
    """A trace that was read, with the step that it is a part of where that is known.

    Raises:
        UsageError: nothing that takes time is in it.
    """
    if not trace.host_rows.size and not trace.device_rows.size:
        raise UsageError(f"{name} has no events that take time: record a window with perfkit run, or a trace with ops")
    graph = task_graph(trace)
    times = unrecorded_times(graph, budget)
    base = replay(graph, times)
    if base.step_ns <= 0:
        raise UsageError(f"{name} has steps of no length: record a window with perfkit run, or a trace with ops")
    is_typical = budget is not None and budget.typical is not None and budget.per == "step" and graph.steps.row.size
    step_ns = budget.wall_ns if budget and is_typical else _steady_step(base)
    recorded = Recording(name, trace, graph, times, base, step_ns)
    if not find_transforms()[_RANK_WAITS].applies(graph):
        return recorded
    without = changed(recorded, [(_RANK_WAITS, None)], interference=False)
    return recorded._replace(waits_ns=max(0.0, base.step_ns - without.step_ns))


def _steady_step(run: ReplayRun) -> float:
    """The mean recorded step in ns, without the first one of a device where there are more: it has what was launched
    before the window in it, or an empty queue, whichever the recorder left."""
    steps = run.steps_ns
    return float(steps[1:].mean()) if run.graph.on_device and steps.size >= _STEADY else float(steps.mean())


def _window(place: Path, name: str, progress: Progress | None) -> tuple[Trace, Measurements]:
    read = CachedTraceReader()
    found = measure(place, progress=progress, read=read)
    facts = found.get(TraceFacts)
    if facts is None:
        raise RunError(f"{name} has no recorded window to replay: record one with perfkit run, which opens a window")
    return read(Path(facts.path)), found


def changed(recorded: Recording, changes: Sequence[Change], *, interference: bool) -> ReplayRun:
    """The recording replayed with changes."""
    times, known = recorded.times.copy(), find_transforms()
    for name, argument in changes:
        known[name].change(recorded.graph, times, argument, interference)
    return replay(recorded.graph, times)


class Prediction(NamedTuple):
    """The step with changes, see `WhatIf`, and its replay if nothing else gets in the way."""

    low_ns: int
    ideal_ns: int
    expected_ns: int
    high_ns: int
    run: ReplayRun


def predicted(recorded: Recording, changes: Sequence[Change]) -> Prediction:
    """The step with the changes.

    What this rank waits for others is what a later rank does more than this one. That rank sets the pace, and at worst
    the change takes nothing of that away: with interference this much less is saved.
    """
    now = recorded.step_ns
    if not changes:
        as_it_is = round(now)
        return Prediction(as_it_is, as_it_is, as_it_is, as_it_is, recorded.base)
    ideal = changed(recorded, changes, interference=False)
    ideal_ns = _step_then(recorded, ideal)
    usual_ns = _step_then(recorded, changed(recorded, changes, interference=True))
    names = {name for name, _ in changes}
    if usual_ns < recorded.base.step_ns and _RANK_WAITS not in names and not names <= _OF_ALL_RANKS:
        usual_ns = min(recorded.base.step_ns, usual_ns + recorded.waits_ns)
    ends = sorted(ns * recorded.scale for ns in (ideal_ns, usual_ns))
    error = _error(recorded.base, ideal) * recorded.scale
    if not recorded.graph.on_device:
        ends = _on_processor(now, ends, takes_out=names <= _TAKE_OUT)
        error += _CPU_NOISE * sum(ends) / 2
    low, high = max(0.0, ends[0] - error), ends[1] + error
    if max(ideal_ns, usual_ns) <= recorded.base.step_ns:
        high = min(high, now)
    return Prediction(round(low), round(ideal_ns * recorded.scale), round(sum(ends) / 2), round(high), ideal)


def _on_processor(now: float, ends: list[float], *, takes_out: bool) -> list[float]:
    """The ends of the step with changes where it computes on the processor, from what the replay makes of them."""
    low, high = ends
    if takes_out:
        return [low * (1 - _REST_GAINS * max(0.0, 1 - low / now)), high]
    return [
        now - max(0.0, now - end) * part - min(0.0, now - end) for end, part in zip(ends, _CPU_SAVES[::-1], strict=True)
    ]


def _step_then(recorded: Recording, then: ReplayRun) -> float:
    """The replayed step with a change, in ns.

    On a CPU less what the median recorded step saves: other programs interrupt single ones of the few recorded steps,
    and what they then did would count as large or as small. A device's steps depend on one another.
    """
    base = recorded.base
    if recorded.graph.on_device or base.mean_steps_ns.size < _STEADY:
        return then.step_ns
    saved_ns = float(np.median(base.mean_steps_ns - then.mean_steps_ns))
    return max(then.times.floor, base.step_ns - saved_ns)


def _error(before: ReplayRun, after: ReplayRun) -> float:
    """The error of the mean saving of the steps, in ns: they do not all save the same."""
    saved = before.mean_steps_ns - after.mean_steps_ns
    return float(np.std(saved, ddof=1)) / float(np.sqrt(saved.size)) if saved.size > 1 else 0.0


def _if_free(recorded: Recording, path: Sequence[PathRow]) -> Iterator[IfFree]:
    """What each change alone would save, largest first."""
    now = recorded.step_ns
    found = []
    for changes, option in _candidates(recorded, path):
        then = predicted(recorded, changes)
        text = ", ".join(find_transforms()[name].describe(argument) for name, argument in changes)
        if now - then.low_ns >= _SHOWN * now:
            saves = max(0, round(now) - then.high_ns), round(now) - then.low_ns
            found.append(IfFree(change=text, option=option, saves_low_ns=saves[0], saves_high_ns=saves[1]))
    yield from sorted(found, key=lambda one: -(one.saves_low_ns + one.saves_high_ns))


def _candidates(recorded: Recording, path: Sequence[PathRow]) -> Iterator[tuple[list[Change], str]]:
    known = find_transforms()
    if known["hide-loader"].applies(recorded.graph):
        yield [("hide-loader", None)], "--hide-loader"
    for word in without_words():
        if known[word].applies(recorded.graph):
            yield [(word, None)], f"--without {word}"
    shares: dict[str, float] = {}
    for row in path:
        if row.owner in ("ops", "optimizer", "other calls"):
            shares[_pattern(row.name)] = shares.get(_pattern(row.name), 0.0) + row.share
    for name, ns in _kernel_times(recorded).items():
        shares[name] = shares.get(name, 0.0) + ns / max(1, recorded.base.total_ns)
    for pattern in sorted(shares, key=lambda name: -shares[name])[:_TRIED]:
        if shares[pattern] >= _LEAST:
            yield [("scale", (pattern, 0.0))], f"--scale '{pattern}=0'"


def _kernel_times(recorded: Recording) -> dict[str, float]:
    """The time of the steps' kernels by a pattern that matches their function, whatever its template's arguments."""
    graph, trace = recorded.graph, recorded.trace
    mine = active(graph).tasks & (trace.kind[graph.tasks.row] == int(Kind.KERNEL)) & ~graph.tasks.is_graph
    code = trace.name[graph.tasks.row[mine]]
    found: dict[str, float] = {}
    for at, ns in enumerate(np.bincount(code, weights=recorded.times.work[mine]).tolist() if code.size else ()):
        if ns:
            function = trace.names[at].removeprefix("void ").partition("<")[0].partition("(")[0].rpartition("::")[2]
            pattern = f"*{_pattern(function)}*" if function else _pattern(trace.names[at])
            found[pattern] = found.get(pattern, 0.0) + ns
    return found


def _pattern(name: str) -> str:
    """A pattern that matches this name: what glob gives a meaning to, and a long tail, become wildcards."""
    plain = "".join("?" if letter in "[]*'" else letter for letter in name[:60])
    return plain if len(name) <= 60 else f"{plain}*"


def _without_effect(graph: TaskGraph, changes: Sequence[Change]) -> Iterator[str]:
    """The changes that change nothing, because the trace shows nothing of their kind."""
    for name, argument in changes:
        one = find_transforms()[name]
        if not one.applies(graph):
            yield f"{one.describe(argument)}: the steps of the trace show nothing that this changes"


def _notes(graph: TaskGraph) -> Iterator[str]:
    """What the trace does not show, and what the replay takes for granted."""
    tasks = graph.tasks.size
    for what, count in graph.unknown.items():
        if count:
            of = f" of {tasks:,} device tasks" if what != "graphs without recorded work" else ""
            yield f"unknown dependencies: {count:,}{of} {what}"
    if (lost := int((~graph.nodes.usable).sum())) > 0:
        yield f"unknown dependencies: {lost:,} waits end before what they wait for begins, by the trace's clock"
    if graph.trace.cut is not None:
        yield f"the trace is cut: {graph.trace.cut}"
    if graph.tasks.communicates.any():
        yield (
            "other ranks are taken to change like this one, apart from what it waits for them: a single trace does not "
            "show when they arrive"
        )
    if not graph.steps.row.size:
        yield "the trace marks no steps: all times are of the whole recording"
