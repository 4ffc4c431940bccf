"""Writing to what a training logs with: a SummaryWriter of torch or tensorboardX, or a Lightning logger."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from perfkit import Diagnosis, UsageError
from perfkit._format import ms, shown_places
from perfkit._text import clean
from perfkit.ledger.ledger_text import account_line, parts_table

#: Findings in the table; the diagnosis of the trace has all of them.
_MAX_FINDINGS = 10
#: Characters of a text that came from the trace; a kernel's name can be a page of template arguments.
_MAX_CHARACTERS = 300
_MIB = 2**20


class Writer:
    """Writes numbers and texts of a step to a SummaryWriter; numbers are floats, so no device is asked for one."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write named numbers."""
        for name, value in values.items():
            self._target.add_scalar(name, value, step)

    def text(self, name: str, markdown: str, step: int) -> None:
        """Write a text, if the target shows texts."""
        self._target.add_text(name, markdown, step)

    def flush(self) -> None:
        """Make everything visible to readers."""
        self._target.flush()


class _LoggerWriter(Writer):
    """Writes to a Lightning logger."""

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._target.log_metrics(dict(values), step=step)

    def text(self, name: str, markdown: str, step: int) -> None:
        # TensorBoardLogger has a SummaryWriter there; loggers to other places have no common way to write a text.
        experiment = getattr(self._target, "experiment", None)
        if hasattr(experiment, "add_text"):
            Writer(experiment).text(name, markdown, step)

    def flush(self) -> None:
        if hasattr(self._target, "save"):
            self._target.save()


def writer_for(target: Any) -> Writer:
    """The writer for ``target``.

    Raises:
        UsageError: it has neither ``add_scalar`` nor ``log_metrics``.
    """
    if callable(getattr(target, "add_scalar", None)):
        return Writer(target)
    if callable(getattr(target, "log_metrics", None)):
        return _LoggerWriter(target)
    raise UsageError(
        f"a writer must be a SummaryWriter (add_scalar) or a Lightning logger (log_metrics), got {target!r}"
    )


def scalars_of(diagnosis: Diagnosis) -> dict[str, float]:
    """The means of a diagnosis as named numbers; what could not be measured is left out."""
    figures, step = diagnosis.figures, diagnosis.step
    values: dict[str, float | None] = {}
    if step is not None:
        values["step_ms"] = step.wall_ns / 1e6
        for phase in step.phases_ns.__struct_fields__:
            ns = getattr(step.phases_ns, phase)
            values[f"{phase}_ms"] = ns / 1e6 if ns is not None else None
        peak = step.memory_peak_bytes
        values["memory_mib"] = peak / _MIB if peak is not None else None
    if figures.throughput is not None:
        for rate in ("steps_per_s", "samples_per_s", "tokens_per_s"):
            values[rate] = getattr(figures.throughput, rate)
    values["syncs"] = figures.syncs_per_step
    values["mfu"] = figures.utilization.mfu if figures.utilization is not None else None
    return named(values)


def named(values: Mapping[str, float | None]) -> dict[str, float]:
    """Scalars under perfkit's prefix, as plain floats, without those that were not measured."""
    return {f"perfkit/{name}": float(value) for name, value in values.items() if value is not None}


def to_markdown(diagnosis: Diagnosis) -> str:
    """The verdict, and the findings as a table, in the markdown that TensorBoard shows."""
    lines = [f"**{_escape(diagnosis.verdict)}**"]
    if (ledger := diagnosis.shown_ledger) is not None:
        lines += ["", _escape(account_line(ledger))]
        if diagnosis.outcome == "unexplained":
            parts = parts_table(ledger)
            lines += ["", f"| {' | '.join(parts.head)} |", f"|{'---|' * len(parts.head)}"]
            lines += [f"| {' | '.join(map(_escape, row))} |" for row in parts.rows]
    findings = [finding for finding in diagnosis.findings if finding.follows is None]
    if findings:
        lines += ["", "| finding | where | cost per step | problem | change |", "|---|---|---|---|---|"]
    for finding in findings[:_MAX_FINDINGS]:
        cost = ms(finding.cost_ns) if finding.cost_ns is not None else "not quantified"
        cells = (finding.rule, shown_places(finding), cost, finding.message, finding.advice)
        lines.append("| " + " | ".join(map(_escape, cells)) + " |")
    lines += ["", *(f"- note: {_escape(sentence)}" for sentence in diagnosis.missing)]
    return "\n".join(lines)


def _escape(text: str) -> str:
    """Text without markup: names in a trace can hold markdown, links or HTML from anyone."""
    plain = clean(" ".join(text[: _MAX_CHARACTERS + 1].split()), _MAX_CHARACTERS)
    plain = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", plain)
