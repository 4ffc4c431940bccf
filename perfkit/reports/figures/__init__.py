"""Figure data of a diagnosis: made once, and drawn by every page.

``figures.json`` is written next to ``diagnosis.json``. It holds what only a page needs (steps over time, the timeline
of the window, the flame graph, source lines) and is bounded to a few MB whatever the size of the trace.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from perfkit._format import duration, ms, percent, rates, shown_energy, shown_path
from perfkit._regular_file import read_regular
from perfkit._text import cleaned
from perfkit._versioned_json import MAX_JSON_BYTES, decode_versioned
from perfkit.diagnosis import Diagnosis
from perfkit.errors import RunError, TraceError
from perfkit.measures.host._python_frames import with_frames
from perfkit.measures.host.phase_scale import ScaledPaths, scaled_paths
from perfkit.reports.figures.code import findings_of, lines_of
from perfkit.reports.figures.compared import figures_of_comparison
from perfkit.reports.figures.data import SCHEMA, Fact, FigureData, Flame, StepSeries, Timeline
from perfkit.reports.figures.device import bars_of, memory_of, roofs_of
from perfkit.reports.figures.excerpts import Sources
from perfkit.reports.figures.flame import flame_of, flame_of_samples
from perfkit.reports.figures.ledger import ledger_of
from perfkit.reports.figures.over_steps import series_of_rows, series_of_trace
from perfkit.reports.figures.peak import peaks_of
from perfkit.reports.figures.tables import rules_not_asked, tables_of
from perfkit.reports.figures.timeline import timeline_of
from perfkit.reports.figures.tried import sweep_of, trial_of
from perfkit.reports.figures.what_if import what_if_of
from perfkit.reports.next_step import next_step
from perfkit.run.arrays import read_line_times
from perfkit.run.atomic import write_atomically
from perfkit.run.ending import runs
from perfkit.run.reading import RankFolder, RunFolder, is_run_folder, read_run
from perfkit.run.records import Rank
from perfkit.run.remote import is_url, local_copy
from perfkit.trace import Trace, read_trace
from perfkit.trace.cached_reader import ReadTrace

__all__ = ["FILE", "SCHEMA", "FigureData", "figures_of", "figures_of_comparison", "read_figures", "write_figures"]

#: Its name in a run folder.
FILE = "figures.json"
#: Unix time in ns is above this since 2001; below it a trace counts from a zero of its own.
_UNIX_NS = 10**18

#: Sentences about missing parts that are kept, the most important ones first.
_MISSING = 100

_Figure = TypeVar("_Figure")


def figures_of(
    diagnosis: Diagnosis,
    source: str | os.PathLike[str] | None = None,
    *,
    read_sources: bool = True,
    read: ReadTrace = read_trace,
) -> FigureData:
    """Make figure data of a diagnosis from the rows of its run folder, the trace of its window, and source lines.

    A part that cannot be read is left out, with a sentence in ``missing``.

    Args:
        diagnosis: The result of `perfkit.diagnose`.
        source: The run folder or trace, if it was moved since. Default: ``diagnosis.source``.
        read_sources: False: open no source file, because anyone may choose what is drawn.
        read: Reads traces: a `CachedTraceReader` does not read one twice.
    """
    at = os.fspath(source) if source is not None else diagnosis.source
    path = local_copy(at) if is_url(at) else Path(at)
    missing = list(diagnosis.missing)
    run = _run(path, missing)
    rank = next((rank for rank in run.ranks.values() if rank.steps), next(iter(run.ranks.values()))) if run else None
    trace = _trace(path, rank, diagnosis, missing, read)

    def figure(name: str, make: Callable[[], _Figure | None]) -> _Figure | None:
        """The figure, None if it could not be made."""
        try:
            return make()
        except Exception as error:  # noqa: BLE001 - one figure's defect must not prevent the page
            missing.append(f"{name} could not be drawn: {type(error).__name__}: {error}")
            return None

    recorded_ns = _recorded_ns(rank, trace)
    folder = run.run.folder if run is not None and run.run is not None else None
    sources = Sources(folder, recorded_ns, read=read_sources)
    steps: StepSeries | None = None
    timeline: Timeline | None = None
    scaled = figure("the samples", lambda: scaled_paths(rank.lines if rank else None, diagnosis.step))
    if rank is not None:
        steps = figure("the steps over time", lambda: series_of_rows(rank))
    if trace is not None:
        timeline = figure("the timeline", lambda: timeline_of(trace))
        steps = steps or figure("the steps over time", lambda: series_of_trace(trace))
    data = FigureData(
        source=shown_path(diagnosis.source),
        title=os.path.basename(diagnosis.source.rstrip("/\\")) or diagnosis.source,
        verdict=diagnosis.verdict,
        per="step" if diagnosis.step is not None else "recording",
        wall_ns=diagnosis.figures.wall_ns,
        next_step=next_step(diagnosis),
        facts=tuple(_facts(diagnosis, run, rank)),
        bars=tuple(bars_of(diagnosis)),
        findings=findings_of(diagnosis, sources),
        ledger=figure("the ledger", lambda: ledger_of(diagnosis, sources)),
        trial=figure("what was tried", lambda: trial_of(run) if run is not None else None),
        sweep=figure("the sweep", lambda: sweep_of(run) if run is not None else None),
        steps=steps,
        timeline=timeline,
        what_if=figure("the critical path", lambda: what_if_of(diagnosis, trace) if trace is not None else None),
        lines=figure("the lines", lambda: lines_of(diagnosis, scaled, sources)),
        tables=tuple(tables_of(diagnosis, run)),
        roofs=tuple(roofs_of(diagnosis)),
        memory=tuple(memory_of(diagnosis)),
        peaks=figure("what is held at the peak", lambda: tuple(peaks_of(diagnosis))) or (),
        flame=figure("the flame graph", lambda: _flame(scaled, rank, trace, read)),
        traces=tuple(f"{rank.folder.name}/{file.name}" for file in rank.windows) if rank is not None else (),
        missing=tuple(dict.fromkeys((*missing, *(run.lost if run is not None else ()))))[:_MISSING],
        not_asked=rules_not_asked(diagnosis),
    )
    return _clean(data)


def _flame(scaled: ScaledPaths | None, rank: RankFolder | None, trace: Trace | None, read: ReadTrace) -> Flame | None:
    """Of samples, which nothing slows; else of the trace with the user's functions."""
    if scaled is not None:
        return flame_of_samples(scaled)
    return flame_of(_stacks(rank, read) or trace) if trace is not None else None


def write_figures(folder: str | os.PathLike[str], data: FigureData) -> Path:
    """Write ``figures.json`` into a run folder, completely or not at all."""
    file = Path(folder) / FILE
    write_atomically(file, data.to_json())
    return file


def read_figures(path: str | os.PathLike[str]) -> FigureData:
    """Read figure data back, from a file or a run folder.

    Raises:
        RunError: there is none, or it is damaged or of another schema.
    """
    file = Path(path)
    file = file / FILE if file.is_dir() else file
    try:
        text = read_regular(file, MAX_JSON_BYTES, inside=file.parent)
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror}; `perfkit diagnose --html` writes it") from error
    found = decode_versioned(text, FigureData, SCHEMA, str(file), "`perfkit diagnose --html` makes it again")
    return _clean(found)


def _clean(data: FigureData) -> FigureData:
    return msgspec.convert(cleaned(msgspec.to_builtins(data, builtin_types=(bytes,))), FigureData)


def _run(path: Path, missing: list[str]) -> RunFolder | None:
    if not is_run_folder(path):
        return None
    try:
        return read_run(path)
    except RunError as error:
        missing.append(str(error))
        return None


def _trace(
    path: Path, rank: RankFolder | None, diagnosis: Diagnosis, missing: list[str], read: ReadTrace
) -> Trace | None:
    """The trace that was diagnosed."""
    facts = diagnosis.figures.trace
    if facts is None:
        if rank is not None:
            missing.append("there is no timeline: no window was recorded that can be read")
        return None
    file = path
    if rank is not None:
        # A diagnosis.json may name any file; only the windows of the folder are opened.
        name = Path(facts.path).name
        file = next((window for window in rank.windows if window.name == name), rank.folder / "no such window")
    try:
        return read(file)
    except TraceError as error:
        missing.append(f"there is no timeline: {error}")
        return None


def _stacks(rank: RankFolder | None, read: ReadTrace) -> Trace | None:
    """The step traced by line: its call paths contain the user's functions."""
    for file in reversed(rank.stacks if rank is not None else ()):
        try:
            return with_frames(read(file), read_line_times(file, []))
        except TraceError:
            continue  # the diagnosis has reported it
    return None


def _recorded_ns(rank: RankFolder | None, trace: Trace | None) -> int | None:
    """Unix time at which the recording began, None if unknown."""
    if rank is not None and rank.rank is not None and rank.rank.clock_pairs:
        return rank.rank.clock_pairs[0].unix_ns
    if trace is not None and len(trace) and int(trace.start_ns.max()) > _UNIX_NS:
        return int(trace.start_ns[trace.start_ns > _UNIX_NS].min())
    return None


def _unwritten_end(rank: Rank) -> str:
    return "not yet" if runs(rank) else "unknown: killed, or still running on another machine"


def _facts(diagnosis: Diagnosis, run: RunFolder | None, rank: RankFolder | None) -> list[Fact]:
    step, figures = diagnosis.step, diagnosis.figures
    facts: list[tuple[str, Any]] = [("source", shown_path(diagnosis.source))]
    about = rank.rank if rank is not None else None
    if run is not None and run.run is not None:
        facts.append(("command", " ".join(run.run.command)))
    if step is not None:
        facts.append(("step", f"{ms(step.wall_ns)}; 8 of 10 take {ms(step.p10_ns)} to {ms(step.p90_ns)}"))
    if figures.throughput is not None:
        used = figures.throughput
        facts.append(("throughput", ", ".join(rates(used.steps_per_s, used.samples_per_s, used.tokens_per_s))))
    if figures.utilization is not None:
        peak = f"{figures.utilization.precision} peak of {figures.utilization.device}"
        facts.append(("MFU", f"{percent(figures.utilization.mfu, 1)} of the dense {peak}"))
    if energy := shown_energy(figures.energy):
        facts.append(("energy", energy))
    if figures.planned_steps is not None and step is not None:
        facts.append(("planned", f"{figures.planned_steps:,} steps, {duration(figures.planned_steps * step.wall_ns)}"))
    if figures.trace is not None:
        facts.append(("trace", f"{Path(figures.trace.path).name}, {figures.trace.events:,} events"))
    if run is not None and run.run is not None:
        facts.append(("ranks", run.run.world_size))
    if about is not None:
        facts += [
            ("host", about.host),
            ("devices", ", ".join(about.devices)),
            ("git commit", about.git_commit),
            ("ended", about.ending or _unwritten_end(about)),
        ]
    own = diagnosis.overhead
    if own is not None and own.step_ns is not None:
        once = f", {ms(sum(own.fixed_ns.values()))} of processor time once" if own.fixed_ns else ""
        facts.append(("perfkit itself", f"{ms(own.step_ns)}/step{once}"))
    if about is not None:
        facts.append(("versions", ", ".join(f"{name} {version}" for name, version in about.versions.items())))
    return [Fact(label, str(value)) for label, value in facts if value not in (None, "")]
