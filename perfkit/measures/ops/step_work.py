"""What the ops of a step on the host compute and move, against the time that they take."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import Any

import numpy as np

from perfkit._location import Location
from perfkit.measures._nested import sum_by
from perfkit.measures._rows import nearest_above, time_of
from perfkit.measures.ops._op_calls import OpCalls, called_ops
from perfkit.measures.ops._op_kinds import op_kind
from perfkit.measures.ops._op_work import FORMULAS, OpWork, work_of
from perfkit.measures.ops._tensor_arguments import shape_text
from perfkit.measures.results.work import OpShares, OpWorkTime, StepWork
from perfkit.measures.steps._phase_times import phase_times, phases_at
from perfkit.measures.steps._trace_steps import main_thread, whole_steps
from perfkit.run.records import Phase
from perfkit.trace.columns import Field, Kind, ProfilerSteps, Trace
from perfkit.trace.intervals import Ints, Union, clip, common, without

_ARGUMENTS = ("Input Dims", "Input type", "Concrete Inputs", "Input Strides")
#: Ops whose kernels depend on which of the images' dimensions is innermost in memory.
_OF_IMAGES = re.compile(r"conv|pool|batch_norm|upsample")
#: Rows that are kept apart, longest first; what is beyond them counts as ops of unknown work in their phase.
_MAX_ROWS = 400


def measure_step_work(calls: OpCalls) -> StepWork | None:
    """The work of a host's ops; None for a trace with device work, without shapes or without ops.

    The time of a call is divided, by duration, among the outermost ops in it whose work follows from their arguments;
    what remains of the call is of unknown work.
    """
    trace = calls.trace
    if calls.step_ns is None or not calls.arguments:
        return None
    is_known = np.array([name in FORMULAS for name in trace.names])[trace.name] & trace.is_kind(Kind.OP)
    known = np.flatnonzero(is_known & (calls.of >= 0))
    known = known[nearest_above(trace, known, is_known) < 0]
    at = np.searchsorted(calls.op_rows, known)
    fields = {name: Field(calls.arguments[name].codes[at], calls.arguments[name].values) for name in _ARGUMENTS}
    if not (fields["Input type"].codes >= 0).any():
        return None
    parts = _Parts(calls, known, fields)
    return StepWork(source=trace.path.name, step_ns=calls.step_ns, rows=parts.rows())


def measure_op_shares(trace: Trace) -> OpShares | None:
    """How much of each phase runs in ops; None for a trace without steps or with device work."""
    steps = whole_steps(trace)
    if trace.device_rows.size or not steps.row.size:
        return None
    rows, _, _ = called_ops(trace)
    in_ops = time_of(trace, rows[trace.track[rows] == steps.track[0]])
    known = phase_times(trace)
    rest = Union(steps.start_ns, steps.end_ns)
    for of in known.values():
        rest = without(rest, of)
    phases: dict[Phase, Union] = {**known, "other": rest}
    return OpShares(
        shares={phase: common(of, in_ops).length_ns / of.length_ns for phase, of in phases.items() if of.length_ns},
        phases_ns={phase: _median_ns(of, steps) for phase, of in phases.items() if of.length_ns},
    )


def _median_ns(of: Union, steps: ProfilerSteps) -> int:
    """How long a phase takes per step: the median, because the first step of a window is often a long one."""
    each = [clip(of, low, high).length_ns for low, high in zip(steps.start_ns, steps.end_ns, strict=True)]
    return round(float(np.median(each)))


class _Parts:
    """The calls of the thread that trains, divided among their ops of known work and summed by op, shapes and place."""

    def __init__(self, calls: OpCalls, known: Ints, fields: Any) -> None:
        self._calls, self._fields = calls, fields
        trace = calls.trace
        mine = trace.track[calls.rows] == main_thread(trace, calls.rows)
        inside = np.flatnonzero(mine[calls.of[known]])
        self._of = calls.of[known[inside]]
        self._rows = known[inside]
        self._codes = list(zip(*(fields[name].codes[inside].tolist() for name in _ARGUMENTS), strict=True))
        duration = trace.duration_ns[self._rows]
        whole = np.maximum(trace.duration_ns[calls.rows], 1)
        self._cost = calls.cost[self._of] * (duration / whole[self._of])
        known_ns = np.minimum(sum_by(self._of, duration, calls.rows.size), whole)
        self._rest = np.where(mine, calls.cost * (1 - known_ns / whole), 0)
        # Ops inside of each part, itself included, and in the rest of each call: each has an op's overhead.
        ops = np.flatnonzero(trace.is_kind(Kind.OP) & (calls.of >= 0))
        is_part = np.zeros(len(trace), bool)
        is_part[self._rows] = True
        part_of = nearest_above(trace, ops, is_part)
        self._ops = 1 + np.bincount(part_of[part_of >= 0], minlength=len(trace))[self._rows]
        in_calls = np.bincount(calls.of[ops], minlength=calls.rows.size)
        self._rest_ops = in_calls - np.bincount(self._of, weights=self._ops, minlength=calls.rows.size)

    def rows(self) -> tuple[OpWorkTime, ...]:
        calls, trace = self._calls, self._calls.trace
        phases = phases_at(trace, trace.start_ns[calls.rows])
        places = self._places()
        sums: dict[tuple[Any, ...], list[float]] = defaultdict(lambda: [0.0] * 4)
        work: dict[tuple[Any, ...], OpWork | None] = {}
        parts = zip(self._rows, self._codes, self._of.tolist(), self._cost.tolist(), self._ops.tolist(), strict=True)
        for row, code, of, cost, ops in parts:
            name = trace.names[trace.name[row]]
            if (name, code) not in work:
                work[name, code] = self._work(name, code)
            key = (name, code if work[name, code] is not None else None, phases[of], places[of])
            _add(sums[key], cost, 1, ops, float(row == calls.rows[of]))
        for of in np.flatnonzero(self._rest > 0).tolist():
            key = (trace.names[trace.name[calls.rows[of]]], None, phases[of], places[of])
            _add(sums[key], float(self._rest[of]), 1, float(self._rest_ops[of]), 1)
        ordered = sorted(sums.items(), key=lambda one: -one[1][0])
        rest: dict[Any, list[float]] = defaultdict(lambda: [0.0] * 4)
        for (_, _, phase, _), amounts in ordered[_MAX_ROWS:]:
            _add(rest["other ops", None, phase, None], *amounts)
        return tuple(self._row(key, amounts, work) for key, amounts in [*ordered[:_MAX_ROWS], *rest.items()])

    def _places(self) -> list[Location | None]:
        """The user's line of each call; of a node of the backward, that of the op that made it."""
        calls = self._calls
        maker = np.where(calls.is_node, calls.maker, np.arange(calls.rows.size))
        found = calls.locations(np.maximum(maker, 0))
        return [at if known else None for at, known in zip(found, (maker >= 0).tolist(), strict=True)]

    def _work(self, name: str, code: tuple[int, ...]) -> OpWork | None:
        *arguments, _ = self._values(code)
        return work_of(name, *arguments)

    def _values(self, code: tuple[int, ...]) -> list[Any]:
        return [self._fields[name].values[at] if at >= 0 else None for name, at in zip(_ARGUMENTS, code, strict=True)]

    def _row(self, key: Any, amounts: list[float], works: dict[Any, OpWork | None]) -> OpWorkTime:
        name, code, phase, at = key
        ns, count, ops, outermost = (amount / self._calls.steps for amount in amounts)
        work = works[name, code] if code is not None else None
        dims, _, _, strides = self._values(code) if code is not None else ((), None, None, None)
        shapes = " ".join(shape_text(tuple(dim)) for dim in dims if isinstance(dim, list) and dim and _is_shape(dim))
        return OpWorkTime(
            op=name,
            phase=phase,
            ns=round(ns),
            calls=count,
            ops=ops,
            outermost=outermost,
            shapes=shapes,
            flops=work.flops if work is not None else None,
            bytes=work.bytes if work is not None else None,
            precision=work.precision if work is not None else None,
            kind=op_kind(name) if work is not None else None,
            expanded=_expanded(dims, strides),
            depth=work.depth if work is not None else None,
            channels_first=_OF_IMAGES.search(name) is not None and _has_channels_first(dims, strides, _images_at(name)),
            at=at,
        )


def _images_at(name: str) -> int:
    """The place of the images in an op's arguments.

    A backward has the gradient first, which may be one number expanded, and the images next; that of resizing has only
    the gradient.
    """
    return 1 if "backward" in name and "upsample" not in name else 0


def _has_channels_first(dims: Any, strides: Any, place: int) -> bool:
    """Whether this tensor is a batch of images in which neighbours of one channel are next to each other."""
    if not (isinstance(dims, list) and isinstance(strides, list) and len(dims) == len(strides) > place):
        return False
    shape, steps = dims[place], strides[place]
    if not (isinstance(shape, list) and isinstance(steps, list) and len(shape) == len(steps) == 4):
        return False
    return shape[1] > 1 and math.prod(shape[2:]) > 1 and steps[3] == 1 < steps[1]


def _expanded(dims: Any, strides: Any) -> str:
    """The shape in memory of the first tensor, where a dimension of it is repeated; "" where none is."""
    if not (isinstance(dims, list) and isinstance(strides, list) and dims and strides):
        return ""
    shape, steps = dims[0], strides[0]
    if not (isinstance(shape, list) and shape and isinstance(steps, list) and len(shape) == len(steps)):
        return ""
    if not _is_shape(shape) or not any(step == 0 and size > 1 for size, step in zip(shape, steps, strict=True)):
        return ""
    return shape_text(tuple(1 if step == 0 else size for size, step in zip(shape, steps, strict=True)))


def _is_shape(dim: list[Any]) -> bool:
    return not isinstance(dim[0], list)


def _add(sums: list[float], *amounts: float) -> None:
    for place, amount in enumerate(amounts):
        sums[place] += amount
