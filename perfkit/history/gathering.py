"""`read_history`: the runs of a folder by workload, with their changes and objectives."""

from __future__ import annotations

import difflib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from perfkit._format import ms, percent, relative_change, shown_path
from perfkit.errors import UsageError
from perfkit.history.change_points import MIN_HISTORY, MIN_RUNS, Levels, find_changes
from perfkit.history.objectives import Objective, check_objectives
from perfkit.history.recorded_runs import RecordedRun, read_recorded, run_folders
from perfkit.history.results import History, RunSummary, StepChange, WorkloadHistory
from perfkit.history.run_summaries import summary_of
from perfkit.history.workloads import Workload, workload_of
from perfkit.run.reading import is_run_folder

#: Runs that are read of each workload: a thousand take seconds, and show years of daily runs.
RUNS_READ = 1_000
#: Timed rows below which a run's median says too little to be compared.
_MIN_ROWS = 8


def read_history(
    folder: Path,
    *,
    limit: int = RUNS_READ,
    workload: str | None = None,
    any_host: bool = False,
    objectives: Sequence[Objective] = (),
    progress: Callable[[int, int], None] = lambda *_: None,
) -> History:
    """Read the runs below ``folder``.

    Args:
        folder: The folder that holds run folders, also in folders of its own (three deep).
        limit: The newest runs of each workload that are read.
        workload: Only workloads whose name or machine contains this text.
        any_host: Runs on machines of different names are one workload.
        objectives: What the newest run of each workload must hold.
        progress: Called with (runs read, runs in total).

    Raises:
        UsageError: there is no such folder, it holds no run, or ``workload`` matches none.
    """
    if is_run_folder(folder):
        raise UsageError(f"{folder} is one run, and a history is of several: name the folder that holds it")
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder: name the folder that holds the runs (default: runs)")
    folders = run_folders(folder)
    # What a run says of itself is read first, of all runs; then the steps of those that are shown.
    work = 2 * len(folders)
    recorded, skipped = read_recorded(folders, lambda read: progress(read, work))
    if not recorded:
        why = f": {shown_path(skipped[0].path)} was skipped ({skipped[0].reason})" if skipped else ""
        raise UsageError(f"{folder} holds no run that can be read{why}; record one with `perfkit run train.py`")
    groups: dict[Workload, list[RecordedRun]] = {}
    for one in recorded:
        groups.setdefault(workload_of(one, any_host=any_host), []).append(one)
    chosen = _chosen(groups, workload)
    read = itertools.count(len(folders) + 1)
    histories = [
        _history(key, runs, limit, objectives, lambda: progress(next(read), work))
        for key, runs in reversed(chosen.items())
    ]
    return History(source=str(folder), workloads=tuple(histories), skipped=tuple(skipped))


def _chosen(groups: dict[Workload, list[RecordedRun]], text: str | None) -> dict[Workload, list[RecordedRun]]:
    """The workloads that contain ``text``, by the start of their newest run."""
    ordered = sorted(groups.items(), key=lambda item: item[1][-1].start_unix_ns)
    found = {key: runs for key, runs in ordered if text is None or text in f"{key.command} · {key.machine}"}
    if not found and text is not None:
        names = [key.command for key in groups]
        near = difflib.get_close_matches(text, names, n=3, cutoff=0.3) or names[:3]
        raise UsageError(f"no workload here contains {text!r}; there are {', '.join(map(repr, near))}")
    return found


def _history(
    key: Workload,
    recorded: list[RecordedRun],
    limit: int,
    objectives: Sequence[Objective],
    progress: Callable[[], None],
) -> WorkloadHistory:
    newest = recorded[-limit:]
    runs = []
    for one in newest:
        # An objective is held against the newest run: by all its steps.
        runs.append(summary_of(one, whole=one is newest[-1]))
        progress()
    steady = [at for at, run in enumerate(runs) if _is_comparable(run)]
    levels = find_changes(np.array([runs[at].median_ns for at in steady], np.float64))
    changes = tuple(_changes(runs, steady, levels))
    return WorkloadHistory(
        name=key.command,
        machine=key.machine,
        runs=tuple(runs),
        left_out=len(recorded) - len(newest),
        changes=changes,
        noise=levels.noise,
        visible=levels.visible,
        verdict=_verdict(runs, steady, changes, levels),
        objectives=check_objectives(objectives, runs[-1], shown_path(runs[-1].path)),
    )


def _is_comparable(run: RunSummary) -> bool:
    return bool(run.median_ns) and run.rows >= _MIN_ROWS


def _changes(runs: list[RunSummary], steady: list[int], levels: Levels) -> Iterator[StepChange]:
    """The changes with what differs between the runs around them; ``steady`` are the runs that were compared."""
    bounds = [0, *(change.at for change in levels.changes), len(steady)]
    medians = [
        round(statistics.median(runs[at].median_ns or 0 for at in steady[begin:end]))
        for begin, end in itertools.pairwise(bounds)
    ]
    for number, change in enumerate(levels.changes):
        before, after = runs[steady[change.at - 1]], runs[steady[change.at]]
        yield StepChange(
            at=steady[change.at],
            path=after.path,
            start_unix_ns=after.start_unix_ns,
            before_ns=medians[number],
            after_ns=medians[number + 1],
            share=change.share,
            low=change.low,
            high=change.high,
            commit_before=before.commit,
            commit=after.commit,
            also=tuple(_differences(before, after)),
        )


def _differences(before: RunSummary, after: RunSummary) -> Iterator[str]:
    for name in before.facts:
        if name in after.facts and before.facts[name] != after.facts[name]:
            yield f"{name}: {before.facts[name]} → {after.facts[name]}"
    if before.host != after.host:
        yield f"host: {before.host} → {after.host}"
    if after.dirty and not before.dirty:
        yield "files differed from the commit"


def day(unix_ns: int) -> str:
    """A start as ``2026-11-24 09:15``, in this machine's time zone; ``-`` for years that it cannot show."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_ns / 1e9))
    except (OverflowError, ValueError, OSError):
        return "-"


def cause_of(change: StepChange) -> str:
    """What came with a change: ``commit 1234567``, or why that is not known, and what else differs."""
    if change.commit is None:
        parts = ["no commit is recorded"]
    elif change.commit == change.commit_before:
        parts = [f"the commit is the same ({change.commit[:7]})"]
    else:
        before = f" (before: {change.commit_before[:7]})" if change.commit_before else ""
        parts = [f"commit {change.commit[:7]}{before}"]
    return ", ".join((*parts, *change.also))


def _verdict(runs: list[RunSummary], steady: list[int], changes: tuple[StepChange, ...], levels: Levels) -> str:
    if not steady:
        return f"No run here has {_MIN_ROWS} timed steps to compare."
    last = runs[steady[-1]]
    assert last.median_ns is not None
    if levels.noise is None or levels.visible is None:
        return (
            f"The step takes {ms(last.median_ns)}. Changes are looked for from {MIN_HISTORY} comparable runs on; there "
            f"{'is' if len(steady) == 1 else 'are'} {len(steady)}."
        )
    vary = f"the medians of runs vary by {levels.noise:.1%}"
    if changes:
        newest = changes[-1]
        # A share of the levels, as in the table, and its interval as a promise.
        text = (
            f"The step takes {ms(newest.after_ns)} since {day(newest.start_unix_ns)}, "
            f"{relative_change(newest.before_ns, newest.after_ns)} ({_signed(newest.low)} to {_signed(newest.high)}): "
            f"{cause_of(newest)}."
        )
    else:
        level = statistics.median(runs[at].median_ns or 0 for at in steady)
        seen = f"no change above {percent(levels.visible, 1)}"
        text = f"The step takes {ms(level)} over {len(steady)} runs; {seen} ({vary})."
    return text + _apart(runs, steady, changes, levels)


def _apart(runs: list[RunSummary], steady: list[int], changes: tuple[StepChange, ...], levels: Levels) -> str:
    """A sentence on the newest runs, where they differ from their level and are too few to be a change."""
    level = [at for at in steady if not changes or at >= changes[-1].at]
    middle = statistics.median(runs[at].median_ns or 0 for at in level)
    limit = 1 + max(levels.visible or 0, 3 * (levels.noise or 0))
    lone = 0
    for at in reversed(level[MIN_RUNS - 1 :]):
        if not (runs[at].median_ns or 0) > middle * limit:
            break
        lone += 1
    if not 0 < lone < MIN_RUNS:
        return ""
    newest = runs[level[-1]]
    assert newest.median_ns is not None
    who = "The newest run takes" if lone == 1 else f"The newest {lone} runs take up to"
    return (
        f" {who} {ms(newest.median_ns)} ({relative_change(middle, newest.median_ns)}): a change, or a busy machine; "
        f"{MIN_RUNS - lone} more would show it."
    )


def _signed(share: float) -> str:
    return f"{100 * share:+.0f}%"
