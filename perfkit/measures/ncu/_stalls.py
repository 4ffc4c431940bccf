"""Why the warps of a kernel stall, from the reasons that a report of Nsight Compute counts."""

from __future__ import annotations

import re

from perfkit.measures.ncu._metrics import Metrics, WeighedLaunches, first
from perfkit.measures.results.kernel_profiles import Stall

#: Stall reasons that are kept of a kernel: what a person reads.
_STALLS = 3
#: With at least this many reasons in a report all of them are there: each version has 15 to 20.
_ALL_REASONS = 12

#: How ncu counts reasons, from the most exact to samples; a report may have several.
_REASONS = (
    re.compile(r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active\.ratio"),
    re.compile(r"smsp__average_warp_latency_issue_stalled_(\w+)\.ratio"),
    re.compile(r"smsp__warp_issue_stalled_(\w+)_per_warp_active\.pct"),
    re.compile(r"smsp__pcsamp_warps_issue_stalled_(\w+)"),
)
_SHARES_OF_WARPS = _REASONS[2]
#: Parts of a reason that is counted as a whole too, and the warps that stall although another one issues.
_PART = re.compile(r"_pipe_(?!throttle)|_not_issued$")
#: A warp that issues waits for nothing.
_ISSUES = "selected"
_WARP_LATENCY = (
    "smsp__average_warp_latency_per_inst_issued.ratio",
    "smsp__average_warps_active_per_issue_active.ratio",
)


def stalls_of(weighed: WeighedLaunches) -> tuple[Stall, ...]:
    """The reasons for which the warps of a kernel stall most; () where the report has none."""
    for pattern in _REASONS:
        found = [_reasons(launch.metrics, pattern) for launch in weighed.launches]
        names = {name for reasons in found for name in reasons}
        if not names:
            continue
        totals = [_whole(one.metrics, reasons, pattern) for one, reasons in zip(weighed.launches, found, strict=True)]
        complete = all(totals)
        stalls = []
        for name in names - {_ISSUES}:
            # Each launch's reasons as parts of its own whole; where that is not known, as they are.
            part = sum(
                weight * reasons.get(name, 0) / (total or 1)
                for weight, reasons, total in zip(weighed.weights, found, totals, strict=True)
            )
            stalls.append((part / sum(weighed.weights), name))
        largest = sorted(stalls, reverse=True)[:_STALLS]
        return tuple(Stall(name, min(part, 1.0) if complete else None) for part, name in largest if part > 0)
    return ()


def _reasons(metrics: Metrics, pattern: re.Pattern[str]) -> dict[str, float]:
    found = {}
    for metric, value in metrics.items():
        match = pattern.fullmatch(metric)
        if match is not None and not _PART.search(match[1]) and value >= 0:
            found[match[1]] = value
    return found


def _whole(metrics: Metrics, reasons: dict[str, float], pattern: re.Pattern[str]) -> float | None:
    """What the reasons of a launch are parts of; None where the report does not show it."""
    if pattern is _SHARES_OF_WARPS:
        return 100.0
    known = sum(reasons.values())
    latency = first(metrics, _WARP_LATENCY)
    # 2%: both are rounded, and may come from different passes.
    if latency is not None and latency > 0 and known <= 1.02 * latency:
        return max(latency, known)
    return known if known > 0 and (_ISSUES in reasons or len(reasons) >= _ALL_REASONS) else None
