"""The order in which findings are shown: by what their corrections save, and each beside what explains it."""

from __future__ import annotations

from perfkit.findings import Finding
from perfkit.ledger.claims import expected_saving


def in_order(findings: list[Finding]) -> list[Finding]:
    """By `_order`, but a finding that another one explains comes directly after that one, whatever it costs."""
    ordered = sorted((finding for finding in findings if finding.follows is None), key=_order)
    explained = sorted((finding for finding in findings if finding.follows is not None), key=_order)
    # A cause may be explained itself: it is put into place first, in as many rounds as there are links.
    while explained:
        placed = {finding.rule for finding in ordered}
        ready = [finding for finding in explained if finding.follows in placed] or explained
        for finding in reversed(ready):
            cause = next((at for at, other in enumerate(ordered) if other.rule == finding.follows), len(ordered) - 1)
            ordered.insert(cause + 1, finding)
        explained = [finding for finding in explained if finding not in ready]
    return ordered


def _order(finding: Finding) -> tuple[int, float]:
    """By what the correction saves; problems whose cost is not known come after those, and information last.

    That the recording is incomplete comes first: all others rest on it.
    """
    group = 2 if finding.severity == "info" else 1 if finding.cost_ns is None else 0
    if finding.rule == "cannot-tell" and group == 1:
        group = -1
    return group, -expected_saving(finding)
