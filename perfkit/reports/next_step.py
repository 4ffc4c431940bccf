"""What to type after a verdict."""

from __future__ import annotations

import shlex
from pathlib import Path

from perfkit._format import shown_path
from perfkit._text import printable
from perfkit.diagnosis import Diagnosis
from perfkit.run.reading import command_of, is_run_folder
from perfkit.run.remote import is_url

#: Rules that a change of `perfkit try` answers (a test compares them with the catalogue, which lies above this layer).
TRIED = frozenset((
    "allocator-thrash", "anomaly-detection", "attention-unfused", "blocking-copy", "channels-first",
    "checkpoint-in-step", "conv-bias-before-norm", "copies-dominate", "cpu-preprocessing", "cuda-graph-candidate",
    "cudnn-benchmark-off", "deterministic-mode", "exposed-communication", "float64-in-step", "fp32-without-tf32",
    "gc-pauses", "grad-in-evaluation", "gradients-not-set-to-none", "input-bound", "launch-blocking", "launch-bound",
    "layout-conversion", "logging-in-step", "low-occupancy", "low-precision-unused", "many-small-ops", "memory-bound",
    "memory-near-limit", "pageable-copy", "python-bound", "recompiles", "small-grid", "sync-in-step", "thread-counts",
    "unfused-elementwise", "unfused-optimizer", "validation-too-often",
))  # fmt: skip
#: A longer command says nothing more to a person than its beginning.
_LONGEST = 60


def next_step(diagnosis: Diagnosis) -> str:
    """One line: a command that measures the advice, where one can, or explains it, and what shows more."""
    source = shown_path(diagnosis.source)
    page = f"perfkit diagnose {shlex.quote(source)} --html"
    rules = [finding.rule for finding, _ in diagnosis.causes if finding.severity != "info"]
    command = _program(diagnosis.source)
    tried = [rule for rule in rules if rule in TRIED]
    if diagnosis.outcome == "cannot-tell":
        return "perfkit explain cannot-tell says what to record instead"
    if tried and command is not None:
        return f"perfkit try {command} measures what the advice saves"
    if rules:
        return f"perfkit explain {rules[0]} says how to correct it"
    return f"{page} draws the steps, the lines and the timeline"


def _program(source: str) -> str | None:
    """The program that was run, as a user types it after ``perfkit try``; None where that is not known."""
    if is_url(source) or not is_run_folder(Path(source)):
        return None
    command = command_of(Path(source))
    if not command or not (command[0].endswith(".py") or command[0] == "-m"):
        return None
    text = printable(shlex.join(command))
    return text if len(text) <= _LONGEST else None
