"""Writing to whatever a training logs with: a SummaryWriter of torch or tensorboardX, or a Lightning logger."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from perfkit import Diagnosis, Finding, UsageError

#: Findings in the table; the diagnosis of the trace has all of them.
_SHOWN = 10
#: Characters of a text that came from the trace; a kernel's name can be a page of template arguments.
_LONGEST = 300
_MIB = 2**20


class Writer(Protocol):
    """Takes numbers and texts at a step; numbers are floats, so that no device is asked for one."""

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write named numbers."""

    def text(self, name: str, markdown: str, step: int) -> None:
        """Write a text, where the target shows texts."""

    def flush(self) -> None:
        """Have it all read by others."""


def writer_for(target: Any) -> Writer:
    """The way to write to ``target``.

    Raises:
        UsageError: it has neither ``add_scalar`` nor ``log_metrics``.
    """
    if callable(getattr(target, "add_scalar", None)):
        return _ToSummaryWriter(target)
    if callable(getattr(target, "log_metrics", None)):
        return _ToLogger(target)
    raise UsageError(
        f"a writer must be a SummaryWriter (add_scalar) or a Lightning logger (log_metrics), got {target!r}"
    )


class _ToSummaryWriter:
    def __init__(self, target: Any) -> None:
        self._target = target

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._target.add_scalar(name, value, step)

    def text(self, name: str, markdown: str, step: int) -> None:
        self._target.add_text(name, markdown, step)

    def flush(self) -> None:
        self._target.flush()


class _ToLogger:
    def __init__(self, target: Any) -> None:
        self._target = target

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._target.log_metrics(dict(values), step=step)

    def text(self, name: str, markdown: str, step: int) -> None:
        # TensorBoardLogger keeps a SummaryWriter there; loggers to other places have no common way for a text.
        add_text: Callable[..., None] | None = getattr(getattr(self._target, "experiment", None), "add_text", None)
        if add_text is not None:
            add_text(name, markdown, step)

    def flush(self) -> None:
        save = getattr(self._target, "save", None)
        if save is not None:
            save()


def scalars_of(diagnosis: Diagnosis) -> dict[str, float]:
    """The means of a diagnosis as named numbers: what could not be measured is not among them."""
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
    return {f"perfkit/{name}": float(value) for name, value in values.items() if value is not None}


def to_markdown(diagnosis: Diagnosis) -> str:
    """The verdict, and the findings as a table, in the markdown that TensorBoard shows."""
    lines = [f"**{_escape(diagnosis.verdict)}**"]
    findings = [finding for finding in diagnosis.findings if finding.follows is None]
    if findings:
        lines += ["", "| finding | where | lost per step | what | change |", "|---|---|---|---|---|"]
        lines += [_row(finding) for finding in findings[:_SHOWN]]
    lines += ["", *(f"- not seen: {_escape(sentence)}" for sentence in diagnosis.missing)]
    return "\n".join(lines)


def _row(finding: Finding) -> str:
    where = f"{spent.file}:{spent.line}" if (spent := finding.spent) is not None else finding.range or ""
    lost = f"{finding.cost_ns / 1e6:.2f} ms" if finding.cost_ns is not None else "no price here"
    cells = (finding.rule, where, lost, finding.message, finding.advice)
    return "| " + " | ".join(_escape(cell) for cell in cells) + " |"


def _escape(text: str) -> str:
    """Text as it is, in markdown: names in a trace are anybody's, and may hold markup, links or HTML."""
    shortened = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    plain = " ".join(shortened.split())
    plain = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", plain)
