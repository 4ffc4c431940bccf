"""The collectives of a rank in its trace: kernels that communicate, else what the host's own backend (gloo) ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from perfkit._versioned_json import LARGEST
from perfkit.measures._rows import find_rows, mask_of, name_codes, nearest_above
from perfkit.measures.device._device_work import communicates
from perfkit.measures.device.communication import (
    COLLECTIVE_RANGE,
    RECORDED,
    collective_name,
    message_of,
)
from perfkit.measures.ops._host_collectives import BEGINS, RUNNING
from perfkit.measures.steps._trace_steps import step_of, whole_steps
from perfkit.trace.columns import CodeTable, Kind, Trace
from perfkit.trace.intervals import Ints, covered_before, union

#: Arguments of a collective's kernel or of the op that recorded it. "Seq" is there since Kineto's pull request 1296.
_ARGUMENTS = (
    "Collective name",
    "In msg nelems",
    "Out msg nelems",
    "dtype",
    "Group size",
    "Process Group Name",
    "Process Group Ranks",
    "Seq",
)
#: Arguments of a range around it.
_SHAPES = ("Input Dims", "Input type")
#: In a group they are numbered apart from its collectives.
_BETWEEN_TWO = ("send", "recv")


def collectives_of(trace: Trace) -> dict[str, Any]:
    """The columns ``collective_*`` of `perfkit.ranks.rank_columns.RankColumns`, and their tables of names."""
    communicating = communicates(trace, trace.device_rows)
    rows = trace.device_rows[communicating]
    on_device = bool(rows.size)
    if on_device:
        launch = trace.launch[rows]
        at_call = np.where(launch >= 0, trace.start_ns[np.maximum(launch, 0)], trace.start_ns[rows])
        arrive, calls = at_call, launch
    else:
        rows, calls = _of_host(trace)
        at_call = np.where(calls >= 0, trace.start_ns[np.maximum(calls, 0)], trace.start_ns[rows])
        # A call that waited for a thread to run it arrived before it was run, never after.
        arrive = np.minimum(at_call, trace.start_ns[rows])
    order = np.lexsort((trace.start_ns[rows], arrive))
    rows, calls, arrive, at_call = rows[order], calls[order], arrive[order], at_call[order]
    steps = whole_steps(trace)
    step = step_of(steps, at_call)
    groups, kinds, unknown = CodeTable(), CodeTable(), np.full(rows.size, -1, np.int64)
    facts = [_facts(*one, trace.metadata.world_size) for one in _described(trace, rows, calls)]
    return {
        "collective_group": np.array([groups[group] for group, _, _, _ in facts], np.int32),
        "collective_kind": np.array([kinds[kind] for _, kind, _, _ in facts], np.int32),
        "collective_sequence": np.array([number for _, _, number, _ in facts], np.int64),
        "collective_bytes": np.array([size for _, _, _, size in facts], np.int64),
        "collective_step": np.where(step >= 0, np.append(steps.number, -1)[step], -1).astype(np.int64),
        "collective_arrive_ns": arrive,
        "collective_start_ns": trace.start_ns[rows],
        "collective_end_ns": trace.end_ns[rows],
        "collective_busy_ns": _busy(trace, rows, trace.device_rows[~communicating]) if on_device else unknown,
        "group_names": tuple(groups),
        "kind_names": tuple(kinds),
    }


def _busy(trace: Trace, rows: Ints, others: Ints) -> Ints:
    """How long kernels among the ``others`` ran while each collective did."""
    kernels = others[trace.kind[others] == int(Kind.KERNEL)]
    computing = union(trace.start_ns[kernels], trace.end_ns[kernels])
    return covered_before(computing, trace.end_ns[rows]) - covered_before(computing, trace.start_ns[rows])


def _of_host(trace: Trace) -> tuple[Ints, Ints]:
    """Rows of the collectives that the host ran, and of the ops that began them (-1: not known)."""
    running, begun = find_rows(trace, RUNNING, Kind.RANGE), find_rows(trace, BEGINS, Kind.OP)
    calls = np.full(running.size, -1, np.int64)
    kind_of = {code: collective_name(trace.names[code].removeprefix("c10d::")) for code in np.unique(trace.name)}
    for kind in {kind_of[code] for code in trace.name[running].tolist()}:
        ran, asked = (
            np.array([row for row in rows.tolist() if kind_of[trace.name[row]] == kind], np.int64)
            for rows in (running, begun)
        )
        if ran.size != asked.size:  # some were begun before the recording, or end after it
            continue
        ran, asked = (rows[np.argsort(trace.start_ns[rows], kind="stable")] for rows in (ran, asked))
        calls[np.searchsorted(running, ran)] = asked
    return running, calls


def _described(trace: Trace, rows: Ints, calls: Ints) -> list[tuple[Mapping[str, Any], str, str | None]]:
    """The arguments of each collective, the name of its row, and that of the range around its call."""
    known: list[dict[str, Any]] = [{} for _ in range(rows.size)]
    recorder = _around(trace, calls, mask_of(trace, find_rows(trace, RECORDED, Kind.OP)))
    ranges = mask_of(trace, find_rows(trace, COLLECTIVE_RANGE, Kind.RANGE, Kind.OP))
    on_host = trace.is_kind(Kind.RANGE)[rows]
    inside = np.where(on_host, rows, _around(trace, calls, ranges))
    # Each source is read only for what the ones before it did not have.
    for source, keys in ((rows, _ARGUMENTS), (recorder, _ARGUMENTS), (inside, _SHAPES)):
        open_ = np.array([i for i, row in enumerate(source.tolist()) if row >= 0 and not known[i]], np.int64)
        if not open_.size:
            continue
        columns = {key: field.list() for key, field in trace.fields(source[open_], keys).items()}
        for at, i in enumerate(open_.tolist()):
            found = {key: column[at] for key, column in columns.items() if column[at] is not None}
            known[i] = found if keys[0] in found else {}
    names = [trace.names[code] for code in trace.name[rows].tolist()]
    around = [trace.names[code] if code >= 0 else None for code in name_codes(trace, inside).tolist()]
    return list(zip(known, names, around, strict=True))


def _around(trace: Trace, calls: Ints, wanted: Any) -> Ints:
    if not (calls >= 0).any():
        return np.full(calls.size, -1, np.int64)
    return np.where(calls >= 0, nearest_above(trace, calls, wanted), -1)


def _facts(args: Mapping[str, Any], name: str, around: str | None, world_size: int | None) -> tuple[str, str, int, int]:
    """Group, kind, number in the group and bytes of a collective; -1 where not known."""
    (kind, _, _), size = message_of(args, name, around, world_size)
    kind = collective_name(kind)
    group = " ".join(str(args[key]) for key in ("Process Group Name", "Process Group Ranks") if args.get(key))
    if not group and isinstance(args.get("Group size"), int):
        group = f"{args['Group size']} ranks"
    number = args.get("Seq")
    if type(number) is not int or not 0 <= number <= LARGEST:
        return group, kind, -1, size or -1
    if kind in _BETWEEN_TWO:
        group += " p2p"
    return group, kind, number, size or -1
