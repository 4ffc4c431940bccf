"""What a rule reports: one problem found, with its evidence."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["info", "warning", "critical"]
Confidence = Literal["high", "medium", "low"]

#: From mild to grave; the order `--fail-on SEVERITY` compares by.
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")


class Evidence(msgspec.Struct, frozen=True):
    """One number behind a finding: ``Evidence("data wait", 12.5, "ms", "steps.jsonl, 40 steps")``.

    ``value`` is None where the quantity could not be measured; ``source`` then says why.
    """

    name: str
    value: float | str | None
    unit: str
    source: str


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One problem found in a run or a trace.

    ``cost_ns`` is per step: the time that the problem takes of it, or None where the data cannot tell (a sync has no
    price on a CPU), in which case ``message`` or ``evidence`` says why. ``saving_low_ns`` .. ``saving_high_ns`` is the
    range expected back per step after the change in ``advice``, never more than the step, and in a diagnosis no wider
    than half of ``cost_ns`` where a low end is known (else that is 0). On a CPU its high end may lie beyond
    ``cost_ns``: what is left then finds caches and the allocator as it left them.
    ``file`` and ``line`` (1-based) name the user's line; ``range`` the range or module, where one is known.
    ``follows`` is the id of the rule whose finding explains this one.
    """

    rule: str
    severity: Severity
    message: str
    advice: str
    confidence: Confidence
    evidence: tuple[Evidence, ...] = ()
    file: str | None = None
    line: int | None = None
    function: str | None = None
    range: str | None = None
    cost_ns: int | None = None
    saving_low_ns: int | None = None
    saving_high_ns: int | None = None
    follows: str | None = None
