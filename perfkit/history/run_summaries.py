"""The numbers of one run in a history, from a bounded part of its files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import msgspec

from perfkit._location import Location
from perfkit._regular_file import read_regular
from perfkit._versioned_json import MAX_JSON_BYTES, decode_json
from perfkit.comparison.workload import settings_of
from perfkit.diagnosis import SCHEMA as DIAGNOSIS_SCHEMA
from perfkit.errors import RunError
from perfkit.history.recorded_runs import RecordedRun
from perfkit.history.results import RunSummary
from perfkit.measures.steps._timed_rows import timed_rows
from perfkit.measures.steps.throughput import measure_throughput
from perfkit.measures.steps.typical_step import measure_typical_step
from perfkit.run.records import PHASES, Step

#: Bytes of steps.jsonl that are read of a run, but of the newest: some 200 rows, whose median is off by less than a
#: tenth of how much steps differ. Each takes 10 µs to read and count.
SOME_BYTES = 64 * 1024
#: Step times that are kept: enough for a picture of their distribution.
_QUANTILES = 21


class _FoundProblem(msgspec.Struct):
    rule: str
    follows: str | None = None
    spent: Location | None = None
    change: Location | None = None


class _StoredStep(msgspec.Struct):
    """The step of a diagnosis, with how many steps it is of and how many were left out for which reason."""

    steps: int
    wall_ns: int
    median_ns: int
    p10_ns: int
    p90_ns: int
    phases_ns: dict[str, int | None]
    excluded: dict[str, int] = {}
    memory_peak_bytes: int | None = None


class _StoredDiagnosis(msgspec.Struct):
    """The part of a diagnosis.json that a history shows."""

    schema: int
    step: _StoredStep | None = None
    findings: tuple[_FoundProblem, ...] = ()


def summary_of(recorded: RecordedRun, *, whole: bool) -> RunSummary:
    """The numbers of a run; ``whole``: from all rows of its steps, in place of `SOME_BYTES` of them.

    A file that is damaged or of a newer perfkit is left out, with a note.
    """
    rank, files = recorded.rank, recorded.files
    rows = files.steps if whole else files.some_steps(SOME_BYTES)
    try:
        syncs = files.syncs
    except RunError as error:
        syncs = None
        files.lost.append(str(error))
    per_step = [event.per_step for event in syncs.events if event.per_step is not None] if syncs is not None else []
    stored = _stored_diagnosis(recorded)
    numbers = _step_numbers(rows)
    # What `perfkit diagnose` shows is of all rows; it is taken where it is of as many steps as the run has.
    step = stored.step if stored is not None and not whole else None
    if step is not None and step.steps + sum(step.excluded.values()) == rank.steps:
        numbers |= _of_all_rows(step, numbers)
    commit, _, state = (rank.git_commit or "").partition("-")
    read = sum(row.steps for row in rows)
    return RunSummary(
        path=str(recorded.path),
        start_unix_ns=recorded.start_unix_ns,
        commit=commit or None,
        dirty=None if not commit or state == "unchecked" else state == "dirty",
        command=recorded.run.command if recorded.run is not None else (),
        host=rank.host,
        devices=rank.devices,
        ranks=recorded.run.world_size if recorded.run is not None else 1,
        steps=max(rank.steps, read),
        rows=len(rows),
        is_whole=whole or read >= rank.steps,
        syncs_per_step=sum(per_step) if syncs is not None and syncs.observed and syncs.steps else None,
        energy=rank.energy,
        finding=_first_finding(stored) if stored is not None else None,
        facts=settings_of(rank),
        notes=tuple(dict.fromkeys((*recorded.notes, *files.lost))),
        **numbers,
    )


def _step_numbers(rows: Sequence[Step]) -> dict[str, Any]:
    """The fields of a summary that come from rows of steps."""
    memory = [row.memory_peak_bytes for row in rows if row.memory_peak_bytes is not None]
    host = max((row.rss_bytes for row in rows if row.rss_bytes is not None), default=None)
    numbers: dict[str, Any] = {"memory_bytes": max(memory, default=host), "host_memory_bytes": host}
    step, throughput = measure_typical_step(rows), measure_throughput(rows)
    if step is None or throughput is None:
        return numbers
    ordered = sorted(row.wall_ns // row.steps for row in timed_rows(rows)[0])
    last = len(ordered) - 1
    return {
        **numbers,
        "wall_ns": step.wall_ns,
        "median_ns": step.median_ns,
        "p10_ns": step.p10_ns,
        "p90_ns": step.p90_ns,
        "quantiles_ns": tuple(ordered[round(part * last / (_QUANTILES - 1))] for part in range(_QUANTILES)),
        "phases_ns": {name: ns for name in PHASES if (ns := getattr(step.phases_ns, name))},
        "samples_per_s": throughput.samples_per_s,
    }


def _of_all_rows(step: _StoredStep, numbers: dict[str, Any]) -> dict[str, Any]:
    """The fields of a summary that a diagnosis has of all rows."""
    return {
        "wall_ns": step.wall_ns,
        "median_ns": step.median_ns,
        "p10_ns": step.p10_ns,
        "p90_ns": step.p90_ns,
        "phases_ns": {name: ns for name in PHASES if (ns := step.phases_ns.get(name))},
        "memory_bytes": step.memory_peak_bytes or numbers["memory_bytes"],
    }


def _stored_diagnosis(recorded: RecordedRun) -> _StoredDiagnosis | None:
    """What diagnosis.json holds; None: this perfkit has not diagnosed the run."""
    try:
        data = read_regular(recorded.path / "diagnosis.json", MAX_JSON_BYTES, inside=recorded.path)
        stored = decode_json(data, _StoredDiagnosis)
    except (OSError, msgspec.DecodeError):
        return None
    return stored if stored.schema == DIAGNOSIS_SCHEMA else None


def _first_finding(stored: _StoredDiagnosis) -> str:
    """The first finding with its line, empty where none was found."""
    first = next((one for one in stored.findings if one.follows is None), None)
    if first is None:
        return ""
    place = first.change or first.spent
    if place is None:
        return first.rule
    return f"{first.rule} {os.path.basename(place.file)}" + (f":{place.line}" if place.line is not None else "")
