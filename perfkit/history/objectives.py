"""Objectives: what the newest run must hold, as ``step <= 40ms``, for CI."""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from perfkit._format import joules, ms, rate, relative_change, size
from perfkit.errors import UsageError
from perfkit.history.results import ObjectiveResult, RunSummary
from perfkit.run.records import PHASES

_TIMES = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9}
_BYTES = {
    **{"b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12},
    **{"kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40},
}
_JOULES = {"mj": 1e-3, "j": 1.0, "kj": 1e3}
_COUNTS = {"": 1.0, "/s": 1.0}
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_WORDS = re.compile(r"\s*([A-Za-z][\w -]*?)\s*(<=|>=|<|>)\s*([-+]?[\d.]+(?:e[-+]?\d+)?)\s*([A-Za-zµ/]*)\s*")


class Metric(NamedTuple):
    """A number of a run: its value (ns, bytes, J), its units, how it is written, and what to do where it is missing."""

    value: Callable[[RunSummary], float | None]
    units: dict[str, float]
    write: Callable[[float], str]
    missing: str


def _phase(name: str) -> Callable[[RunSummary], float | None]:
    return lambda run: run.phases_ns.get(name)


_NO_STEP = "no step was timed: see `perfkit diagnose`"
METRICS: dict[str, Metric] = {
    "step": Metric(lambda run: run.median_ns, _TIMES, ms, _NO_STEP),
    "p90": Metric(lambda run: run.p90_ns, _TIMES, ms, _NO_STEP),
    **{name: Metric(_phase(name), _TIMES, ms, "this loop does not show the phase") for name in PHASES},
    "memory": Metric(lambda run: run.memory_bytes, _BYTES, size, "no memory was read: the run was too short"),
    "host-memory": Metric(lambda run: run.host_memory_bytes, _BYTES, size, "no memory was read: the run was too short"),
    "syncs": Metric(
        lambda run: run.syncs_per_step,
        _COUNTS,
        rate,
        "syncs are detected on a GPU, and on a CPU by `perfkit.profile(detect_syncs='dry')`",
    ),
    "samples": Metric(
        lambda run: run.samples_per_s, _COUNTS, lambda value: f"{rate(value)}/s", "the loop does not show its samples"
    ),
    "energy": Metric(lambda run: run.energy_j, _JOULES, joules, "`perfkit doctor` says why"),
}


class Objective(NamedTuple):
    """``metric`` must compare to ``limit`` (in the metric's unit: ns, bytes, J) as ``comparison`` says."""

    text: str
    metric: str
    comparison: str
    limit: float


def parse_objective(text: str) -> Objective:
    """Read an objective, as ``step <= 40ms``, ``memory < 2GB`` or ``syncs <= 0``.

    Raises:
        UsageError: it has no comparison, an unknown metric, or a unit of something else.
    """
    match = _WORDS.fullmatch(text)
    if match is None:
        raise UsageError(
            f'an objective is a metric, <= or >=, and a limit ("step <= 40ms", "memory <= 2GB", "syncs <= 0"), '
            f"got {text!r}"
        )
    name, comparison, number, unit = match.groups()
    name = re.sub(r"[\s_]+", "-", name.lower())
    metric = METRICS.get(name)
    if metric is None:
        near = difflib.get_close_matches(name, METRICS, n=3, cutoff=0.5)
        known = f"did you mean {' or '.join(near)}?" if near else f"metrics are {', '.join(METRICS)}"
        raise UsageError(f"{name} in the objective {text!r} is no metric: {known}")
    factor = metric.units.get(unit.lower())
    try:
        limit = float(number)
    except ValueError:
        limit = math.nan
    if factor is None or not math.isfinite(limit):
        units = ", ".join(one for one in metric.units if one) or "none"
        wrong = f"{unit or 'no unit'}" if factor is None else number
        raise UsageError(f"the limit of {name} in the objective {text!r} is {wrong}: units are {units}")
    return Objective(text.strip(), name, comparison, limit * factor)


def check_objectives(objectives: Sequence[Objective], run: RunSummary, name: str) -> tuple[ObjectiveResult, ...]:
    """Hold a run, called ``name``, against objectives; one whose metric was not measured is not met."""
    return tuple(_check(one, run, name) for one in objectives)


def _check(objective: Objective, run: RunSummary, name: str) -> ObjectiveResult:
    metric = METRICS[objective.metric]
    value = metric.value(run)
    met = value is not None and _COMPARE[objective.comparison](value, objective.limit)
    if value is None:
        sentence = (
            f"{objective.metric} of {name} was not measured, so {objective.text} cannot be checked: {metric.missing}"
        )
    else:
        by = f" ({relative_change(objective.limit, value)})" if not met and objective.limit > 0 else ""
        kept = "meets" if met else "breaks"
        of_step = "the median step" if objective.metric == "step" else objective.metric
        sentence = f"{of_step} of {name} is {metric.write(value)}, which {kept} {objective.text}{by}"
    return ObjectiveResult(
        objective=objective.text,
        metric=objective.metric,
        limit=objective.limit,
        value=value,
        met=met,
        sentence=sentence,
    )
