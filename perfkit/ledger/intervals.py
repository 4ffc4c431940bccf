"""Intervals of savings: a rule's range, widened or narrowed so that it holds the measured saving in 80% of cases.

A rule gives a range from what it knows: what removing all of a cost saves, and what a correction leaves of it. How far
measured savings lie from the middle of such ranges, in half ranges, was measured on the programs of the suite's tuning
half; the 80% quantile of that, by kind of cause, is the factor for the range. This is split conformal prediction with
normalized residuals: the coverage holds for programs like those, whatever the rules' ranges are worth.

Source: Papadopoulos, Gammerman and Vovk (2008), Normalized nonconformity measures for regression conformal prediction.
"""

from __future__ import annotations

import msgspec

from perfkit.findings import Finding

#: Family of rules -> the quantile of its residuals. `benchmarks/bench_verdict.py` prints them for the tuning half;
#: these are of the 92 programs in the table of benchmarks/README.md whose saving was predicted and measured.
SCALES = {"data": 1.6, "memory": 5.81, "ops": 2.5, "python": 2.27}
OTHER_SCALE = 1.99


def scale_of(family: str) -> float:
    """The factor for the ranges of a family of rules."""
    return SCALES.get(family, OTHER_SCALE)


def calibrated(finding: Finding, family: str, most_ns: int) -> Finding:
    """The finding with its range as an interval, up to ``most_ns`` or the rule's own high end.

    It stays as it is without a range, or where the rule knows no minimum (0).
    """
    low_ns, high_ns = finding.saving_low_ns, finding.saving_high_ns
    if not low_ns or high_ns is None:
        return finding
    middle, half = (low_ns + high_ns) / 2, (high_ns - low_ns) / 2
    reach = scale_of(family) * half
    return msgspec.structs.replace(
        finding,
        saving_low_ns=max(0, round(middle - reach)),
        saving_high_ns=min(max(high_ns, most_ns), round(middle + reach)),
    )
